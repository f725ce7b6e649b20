"""DeleteGroups: groups without members, and their committed offsets."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, int32, message, string, struct


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    groups_names: list[str] = array(string)


@struct
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="3+", nullable="3+", default=None, ignorable=True)


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
