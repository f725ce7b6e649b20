"""Heartbeat: v0-4.

Behaviour: the member's session timeout starts again. REBALANCE_IN_PROGRESS requests the member to join again;
UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and FENCED_INSTANCE_ID mean that it is not a member any more. INVALID_GROUP_ID for
an empty group id. A group that is not in memory is loaded first, so that its members continue after a restart of the
broker.

Versions: static members from v3.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.security.acls import Operation


def handle(
    broker: Broker, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | Coroutine[Any, Any, HeartbeatResponse]:
    """Handle a request. Return the response itself if the group need not be waited for."""
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        if not broker.groups.heartbeat_now(
            group_id, request.member_id, request.group_instance_id, request.generation_id
        ):
            return _heartbeat(broker, request, group_id)
    except KafkaError as error:
        return HeartbeatResponse(error_code=coordinator_error(error).error_code)
    context.success = response = HeartbeatResponse(error_code=ErrorCode.NONE)
    return response


async def _heartbeat(broker: Broker, request: HeartbeatRequest, group_id: str) -> HeartbeatResponse:
    try:
        await broker.groups.heartbeat(
            group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except KafkaError as error:
        return HeartbeatResponse(error_code=coordinator_error(error).error_code)
    return HeartbeatResponse(error_code=ErrorCode.NONE)
