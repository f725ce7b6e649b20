"""ListGroups: all groups, or those in some states (v4, KIP-518) and of some types (v5, KIP-848)."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, int32, message, string, struct


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: list[str] = array(string, versions="4+", factory=list)
    types_filter: list[str] = array(string, versions="5+", factory=list)


@struct
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+", default="", ignorable=True)
    group_type: str = string(versions="5+", default="", ignorable=True)


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    error_code: int = int16(default=0)
    groups: list[ListedGroup] = array(ListedGroup)
