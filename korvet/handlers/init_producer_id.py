"""InitProducerId: v0-5.

Behaviour: without a transactional id, the response has a new producer id, unique among all producers of this storage,
with epoch 0. A producer that sends its current id (v3, KIP-360) gets a new one as well, as in Kafka.

With a transactional id, the response has its producer id with a raised epoch, which fences earlier producers. An open
transaction is aborted first: CONCURRENT_TRANSACTIONS until that is done. A producer that sends its current id and epoch
(v3) is PRODUCER_FENCED (before v4 INVALID_PRODUCER_EPOCH) if another one has replaced it.

Errors: INVALID_REQUEST for an empty id, an id that is too long, or a producer id without its epoch;
INVALID_TRANSACTION_TIMEOUT above `transaction.max.timeout.ms`; NOT_COORDINATOR.

On a store without transactions, a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED, here and in
FindCoordinator for type 1.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.broker.transactional import check_transactional_id, check_transactions_are_served, fenced_as_epoch
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer
from korvet.security.acls import Operation, ResourceType

NO_ID = -1
NO_EPOCH = -1
FENCED_SINCE = 4  # the first version with PRODUCER_FENCED


async def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    try:
        _authorize(broker, request, context)
        _check(request)
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=await broker.producer_ids.allocate(), producer_epoch=0)
        producer_id, epoch = await _initialize(broker, request, request.transactional_id)
    except KafkaError as error:
        known = error if context.version >= FENCED_SINCE else fenced_as_epoch(error)
        return InitProducerIdResponse(error_code=known.error_code, producer_id=NO_ID, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _authorize(broker: Broker, request: InitProducerIdRequest, context: RequestContext) -> None:
    if request.transactional_id is not None:
        broker.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    elif not broker.may_on_any(context, Operation.WRITE, ResourceType.TOPIC):
        broker.cluster(context, Operation.IDEMPOTENT_WRITE)


def _check(request: InitProducerIdRequest) -> None:
    if (request.producer_id == NO_ID) != (request.producer_epoch == NO_EPOCH):
        raise InvalidRequest("a producer id comes with its epoch")


async def _initialize(
    broker: Broker, request: InitProducerIdRequest, transactional_id: str
) -> tuple[int, int]:
    check_transactional_id(transactional_id)
    check_transactions_are_served(broker)
    if is_longer(transactional_id, LONGEST_ID_BYTES):
        raise InvalidRequest(f"ids are at most {LONGEST_ID_BYTES} bytes long")
    has_producer = request.producer_id != NO_ID
    try:
        return await broker.transactions.initialize(
            transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected=(request.producer_id, request.producer_epoch) if has_producer else None,
        )
    except KafkaError as error:
        raise coordinator_error(error) from None
