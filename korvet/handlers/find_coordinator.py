"""FindCoordinator: v0-6.

Behaviour: a living broker coordinates each group (type 0) and each transactional id (type 1). The response has its
advertised address on the listener that received the request. COORDINATOR_NOT_AVAILABLE if it has no such listener, or
if this broker's session has ended.

Versions: one key up to v3, any number of keys from v4 (KIP-699).

Declined: share groups (type 2) and unknown types, with INVALID_REQUEST. On a store without transactions, transactional
ids are TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which ends `init_transactions` immediately (see `init_producer_id`).
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, Node
from korvet.broker.context import RequestContext
from korvet.broker.transactional import check_transactions_are_served
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import ErrorCode, InvalidRequest, KafkaError
from korvet.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from korvet.security.acls import Operation, ResourceType

GROUP = 0
TRANSACTION = 1
SHARE = 2
SHARE_SINCE = 6  # the first version with share groups


async def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    if context.version >= 4:
        find = partial(_coordinator, broker, context, request.key_type)
        return FindCoordinatorResponse(coordinators=await map_in_slices(find, request.coordinator_keys))
    found = _coordinator(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        # Before version 4, Kafka sets the message NONE if there is no error.
        error_message=found.error_message or ErrorCode.NONE.name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(broker: Broker, context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        node = _find(broker, context, key_type, key)
    except KafkaError as error:
        return Coordinator(
            key=key,
            node_id=-1,
            host="",
            port=-1,
            error_code=error.error_code,
            error_message=error.message,
        )
    return Coordinator(
        key=key,
        node_id=node.node_id,
        host=node.host,
        port=node.port,
        error_code=ErrorCode.NONE,
        error_message="",
    )


def _find(broker: Broker, context: RequestContext, key_type: int, key: str) -> Node:
    if key_type == GROUP:
        return broker.coordinator(context, broker.group(context, key, Operation.DESCRIBE))
    if key_type == TRANSACTION:
        broker.authorize(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        check_transactions_are_served(broker)
        return broker.coordinator(context, broker.transactions.routing.prefix + key)
    if key_type == SHARE and context.version >= SHARE_SINCE:
        broker.cluster(context, Operation.CLUSTER_ACTION)
    raise InvalidRequest(f"coordinators of type {key_type} are not served")
