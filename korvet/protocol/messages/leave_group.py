"""LeaveGroup: one member goes, or, from v3, several are sent away together (KIP-345)."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, int32, message, string, struct


@struct
class MemberIdentity:
    member_id: str = string(versions="3+")
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None)
    reason: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    group_id: str = string()
    member_id: str = string(versions="0-2", default="")
    members: list[MemberIdentity] = array(MemberIdentity, versions="3+", factory=list)


@struct
class MemberResponse:
    member_id: str = string(versions="3+")
    group_instance_id: str | None = string(versions="3+", nullable="3+")
    error_code: int = int16(versions="3+", default=0)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    error_code: int = int16(default=0)
    members: list[MemberResponse] = array(MemberResponse, versions="3+", factory=list)
