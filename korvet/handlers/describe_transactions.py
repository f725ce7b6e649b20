"""DescribeTransactions: v0.

Behaviour: the response has the state of each transactional id, and the partitions of its open transaction. DESCRIBE on
the id is required; topics that the client may not describe are left out. Groups are not in the response: Kafka lists
partitions of `__consumer_offsets` instead, which korvet does not have.

Errors: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_REQUEST for an empty id, TRANSACTIONAL_ID_NOT_FOUND,
NOT_COORDINATOR.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.broker.transactional import check_transactional_id
from korvet.concurrency.tasks import in_parallel
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from korvet.protocol.repetitions import repeated
from korvet.security.acls import Operation, ResourceType
from korvet.transactions.document import Transaction

# A large transaction takes some ten milliseconds.
IDS_AT_ONCE = 10


async def handle(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    ids = list(dict.fromkeys(request.transactional_ids))
    states = await in_parallel(partial(_described, broker, context), ids, at_once=IDS_AT_ONCE)
    write = element_writer(DescribeTransactionsResponse, TransactionState, context.version)
    by_id = dict(zip(ids, states, strict=True))
    return DescribeTransactionsResponse(transaction_states=repeated(request.transactional_ids, by_id, write))


async def _described(broker: Broker, context: RequestContext, transactional_id: str) -> TransactionState:
    try:
        broker.authorize(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        check_transactional_id(transactional_id)
        found = await broker.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(
            transactional_id=transactional_id, error_code=coordinator_error(error).error_code
        )
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=_topics(broker, context, found),
    )


def _topics(broker: Broker, context: RequestContext, transaction: Transaction) -> list[TopicData]:
    topics: dict[str, list[int]] = {}
    for topic, partition, _ in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return [
        TopicData(topic=topic, partitions=partitions)
        for topic, partitions in topics.items()
        if broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)
    ]
