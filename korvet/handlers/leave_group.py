"""LeaveGroup: v0-5.

Behaviour: members go at once, and the others share their work anew. A static member may be sent away by its group
instance id alone, which is how administrators remove it. Errors per member: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
INVALID_GROUP_ID for an empty one. Reasons are logged (v5, KIP-800).

Versions: one member, whose error is the whole answer's, up to v2; several from v3 (KIP-345).
"""

from __future__ import annotations

from korvet.broker import Broker, Operation, RequestContext, coordinator_error
from korvet.groups.members import Leave
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)


async def handle(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    members = request.members if context.version >= 3 else [MemberIdentity(member_id=request.member_id)]
    leaving = [Leave(member.member_id, member.group_instance_id, member.reason) for member in members]
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        outcomes = await broker.groups.leave(group_id, leaving)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=coordinator_error(error).error_code)
    if context.version < 3:
        return LeaveGroupResponse(error_code=outcomes[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=outcome,
            )
            for member, outcome in zip(members, outcomes, strict=True)
        ]
    )
