"""AddOffsetsToTxn: v0-4.

Behaviour: add a group to the transaction of a producer of transaction.version 1, which begins it if none is open. WRITE
on the transactional id and READ on the group are required. The group need not exist, as in Kafka.

Versions: PRODUCER_FENCED from v2, INVALID_PRODUCER_EPOCH before.

Errors: INVALID_REQUEST for an empty id; INVALID_GROUP_ID for a group id that is too long; INVALID_PRODUCER_ID_MAPPING;
CONCURRENT_TRANSACTIONS while the previous transaction ends.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.broker.transactional import FIRST_VERSION, check_transactional_id, fenced_as_epoch
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from korvet.security.acls import Operation, ResourceType

FENCED_SINCE = 2  # the first version with PRODUCER_FENCED


async def handle(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    try:
        broker.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        group_id = broker.group(context, request.group_id, Operation.READ)
        check_transactional_id(request.transactional_id)
        await broker.transactions.add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            groups=[group_id],
            version=FIRST_VERSION,
        )
    except KafkaError as error:
        known = coordinator_error(error)
        if context.version < FENCED_SINCE:
            known = fenced_as_epoch(known)
        return AddOffsetsToTxnResponse(error_code=known.error_code)
    return AddOffsetsToTxnResponse()
