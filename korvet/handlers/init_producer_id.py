"""InitProducerId: v0-5.

Behaviour: the response has a new producer id, unique among all producers of this storage, with epoch 0. A producer that
sends its current id (v3, KIP-360) gets a new one as well, as in Kafka: only transactional producers keep theirs.

Declined: transactions. A transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED, here and in FindCoordinator for
type 1. It is the only error that ends `init_transactions` immediately in librdkafka as well as in Java's client, which
retry other errors until a timeout. An empty transactional id is INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import InvalidRequest, KafkaError, TransactionalIdAuthorizationFailed
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.security.acls import Operation, ResourceType


async def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    try:
        _authorize(broker, request, context)
        _check(request)
        producer_id = await broker.producer_ids.allocate()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.error_code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _authorize(broker: Broker, request: InitProducerIdRequest, context: RequestContext) -> None:
    if request.transactional_id is not None:
        broker.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    elif not broker.may_on_any(context, Operation.WRITE, ResourceType.TOPIC):
        broker.cluster(context, Operation.IDEMPOTENT_WRITE)


def _check(request: InitProducerIdRequest) -> None:
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise InvalidRequest("a producer id comes with its epoch")
    if request.transactional_id == "":
        raise InvalidRequest("a transactional id is not empty")
    if request.transactional_id is not None:
        raise TransactionalIdAuthorizationFailed("transactions are not served")
