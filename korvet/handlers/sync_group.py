"""SyncGroup: v0-5.

Behaviour: the handler waits until the leader has sent the assignments, and returns the member's own, unchanged. If the
group already has its assignments, it returns immediately. Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, INCONSISTENT_GROUP_PROTOCOL for another protocol than the group's,
INVALID_GROUP_ID for an empty group id, INVALID_REQUEST for an assignment larger than `group.max.metadata.bytes`,
COORDINATOR_NOT_AVAILABLE while the storage is unavailable, NOT_COORDINATOR when this broker ends.

Versions: static members from v3. The protocol type and name are required from v5 (KIP-559).
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.groups.members import Sync, Synced
from korvet.protocol.errors import InconsistentGroupProtocol, KafkaError
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from korvet.security.acls import Operation


async def handle(broker: Broker, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    try:
        if context.version >= 5 and None in (request.protocol_type, request.protocol_name):
            raise InconsistentGroupProtocol("the protocol's type and name are missing")
        group_id = broker.group(context, request.group_id, Operation.READ)
        synced = await broker.groups.sync(group_id, _sync(request), partial(broker.parked, context))
    except KafkaError as error:
        synced = Synced(error_code=coordinator_error(error).error_code)
    return SyncGroupResponse(
        error_code=synced.error_code,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def _sync(request: SyncGroupRequest) -> Sync:
    return Sync(
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={each.member_id: each.assignment for each in request.assignments},
    )
