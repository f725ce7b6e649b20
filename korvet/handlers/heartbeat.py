"""Heartbeat: v0-4.

Behaviour: the member's session goes on from now. REBALANCE_IN_PROGRESS asks it to join again; UNKNOWN_MEMBER_ID,
ILLEGAL_GENERATION and FENCED_INSTANCE_ID say that it is a member no longer. INVALID_GROUP_ID for an empty one.
A group that this broker has not in memory yet is loaded first, so a member goes on with a broker that has restarted.

Versions: static members from v3.
"""

from __future__ import annotations

from korvet.broker import Broker, Operation, RequestContext, coordinator_error
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        await broker.groups.heartbeat(
            group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except KafkaError as error:
        return HeartbeatResponse(error_code=coordinator_error(error).error_code)
    return HeartbeatResponse(error_code=ErrorCode.NONE)
