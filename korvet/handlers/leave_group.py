"""LeaveGroup: v0-5.

Behaviour: the members are removed immediately, and the group rebalances. A group instance id is sufficient to remove a
static member, which is how administrators do it. Errors per member: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
INVALID_GROUP_ID for an empty group id. Reasons are logged (v5, KIP-800).

Versions: up to v2, one member, whose error is that of the response; several from v3 (KIP-345).
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.groups.members import Leave
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from korvet.security.acls import Operation


async def handle(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    members = request.members if context.version >= 3 else [MemberIdentity(member_id=request.member_id)]
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        leaving = await map_in_slices(_leave, members)
        outcomes = await broker.groups.leave(group_id, leaving)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=coordinator_error(error).error_code)
    if context.version < 3:
        return LeaveGroupResponse(error_code=outcomes[0])
    pairs = list(zip(members, outcomes, strict=True))
    return LeaveGroupResponse(members=await map_in_slices(_left, pairs))


def _leave(member: MemberIdentity) -> Leave:
    return Leave(member.member_id, member.group_instance_id, member.reason)


def _left(pair: tuple[MemberIdentity, ErrorCode]) -> MemberResponse:
    member, outcome = pair
    return MemberResponse(
        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=outcome
    )
