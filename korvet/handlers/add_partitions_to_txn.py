"""AddPartitionsToTxn: v0-5.

Behaviour: add partitions to the transaction of a producer of transaction.version 1, which begins it if none is open.
WRITE on the transactional id and on the topics is required. If one partition cannot be added, none is: it gets its
error, and the others OPERATION_NOT_ATTEMPTED. A request without partitions begins a transaction, too, as in Kafka.

Versions: PRODUCER_FENCED from v2, INVALID_PRODUCER_EPOCH before. v4 and v5 are for brokers (CLUSTER_ACTION on the
cluster) and have several transactions, which are of transaction.version 2. With `verify_only`, partitions that are not
in the transaction get TRANSACTION_ABORTABLE, and nothing is added.

Errors: INVALID_REQUEST for an empty id; TOPIC_AUTHORIZATION_FAILED, also for Kafka's internal topics;
UNKNOWN_TOPIC_OR_PARTITION; INVALID_PRODUCER_ID_MAPPING; CONCURRENT_TRANSACTIONS while the previous transaction ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.broker.topics import INTERNAL_TOPICS
from korvet.broker.transactional import (
    FIRST_VERSION,
    SECOND_VERSION,
    check_transactional_id,
    fenced_as_epoch,
    partition_in,
)
from korvet.concurrency.time_slices import TimeSlices, each_in_slices
from korvet.protocol.errors import (
    ErrorCode,
    KafkaError,
    OperationNotAttempted,
    TopicAuthorizationFailed,
    TransactionAbortable,
    detached,
)
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import Topic, TopicPartition
from korvet.transactions.document import Partition

BROKERS_SINCE = 4
FENCED_SINCE = 2  # the first version with PRODUCER_FENCED

Outcomes = dict[TopicPartition, KafkaError | None]


async def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    if context.version < BROKERS_SINCE:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        topics = await _of_client(broker, context, transaction)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    try:
        broker.cluster(context, Operation.CLUSTER_ACTION)
    except KafkaError as error:
        return AddPartitionsToTxnResponse(error_code=error.error_code)
    results = await each_in_slices(partial(_of_broker, broker), request.transactions)
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _of_client(
    broker: Broker, context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    try:
        broker.authorize(
            context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
        )
    except KafkaError as error:
        return _uniform(transaction.topics, error)
    outcomes, partitions = await _sort(broker, context, transaction.topics)
    if outcomes:
        return _results(outcomes)
    outcome = await _outcome(broker.transactions.add, transaction, partitions.values(), version=FIRST_VERSION)
    if outcome is not None and context.version < FENCED_SINCE:
        outcome = fenced_as_epoch(outcome)
    return _uniform(transaction.topics, outcome)


async def _of_broker(broker: Broker, transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
    outcomes, partitions = await _sort(broker, None, transaction.topics)
    if outcomes:
        results = _results(outcomes)
    elif transaction.verify_only:
        results = _results(await _verify(broker, transaction, partitions))
    else:
        outcome = await _outcome(
            broker.transactions.add, transaction, partitions.values(), version=SECOND_VERSION
        )
        results = _uniform(transaction.topics, outcome)
    return AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)


async def _sort(
    broker: Broker, context: RequestContext | None, topics: Sequence[AddPartitionsToTxnTopic]
) -> tuple[Outcomes, dict[TopicPartition, Partition]]:
    """Return the outcomes if a partition cannot be added, else the partitions. Without `context`, allow all topics."""
    errors: Outcomes = {}
    partitions: dict[TopicPartition, Partition] = {}
    time_slices = TimeSlices()
    for asked in topics:
        topic: Topic | KafkaError
        try:
            if context is not None:
                _authorize_topic(broker, context, asked.name)
            topic = await broker.find_topic(asked.name)
        except KafkaError as error:
            topic = detached(coordinator_error(error))
        for index in asked.partitions:
            tp = TopicPartition(asked.name, index)
            try:
                if isinstance(topic, KafkaError):
                    raise topic
                partitions[tp] = partition_in(topic, index)
            except KafkaError as error:
                errors[tp] = detached(error)
            await time_slices.next()
    if errors:
        errors |= dict.fromkeys(partitions, OperationNotAttempted())
    return errors, partitions


def _authorize_topic(broker: Broker, context: RequestContext, name: str) -> None:
    if name in INTERNAL_TOPICS:
        raise TopicAuthorizationFailed
    broker.authorize(context, Operation.WRITE, ResourceType.TOPIC, name)


async def _outcome(
    request: Callable[..., Awaitable[object]],
    transaction: AddPartitionsToTxnTransaction,
    partitions: Collection[Partition],
    **options: int,
) -> KafkaError | None:
    """Send a request for the partitions to the coordinator, and return the outcome of all of them."""
    try:
        check_transactional_id(transaction.transactional_id)
        await request(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            partitions=partitions,
            **options,
        )
    except KafkaError as error:
        return detached(coordinator_error(error))
    return None


async def _verify(
    broker: Broker, transaction: AddPartitionsToTxnTransaction, partitions: Mapping[TopicPartition, Partition]
) -> Outcomes:
    """Return the outcome of each partition, which is that of all of them unless some are not in the transaction."""
    verify = broker.transactions.verify
    outcome = await _outcome(verify, transaction, partitions.values())
    if not isinstance(outcome, TransactionAbortable):
        return dict.fromkeys(partitions, outcome)
    try:
        absent = await broker.transactions.absent(transaction.transactional_id, partitions.values())
    except KafkaError as error:
        return dict.fromkeys(partitions, detached(coordinator_error(error)))
    present = [partition for partition in partitions.values() if partition not in absent]
    others = await _outcome(verify, transaction, present) if present else None
    return {tp: outcome if partition in absent else others for tp, partition in partitions.items()}


def _uniform(
    topics: Sequence[AddPartitionsToTxnTopic], outcome: KafkaError | None
) -> list[AddPartitionsToTxnTopicResult]:
    """Return the outcome for each partition of the request, as often as it occurs there."""
    code = ErrorCode.NONE if outcome is None else outcome.error_code
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _results(outcomes: Outcomes) -> list[AddPartitionsToTxnTopicResult]:
    """Return the outcome of each partition once."""
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for tp, error in outcomes.items():
        code = ErrorCode.NONE if error is None else error.error_code
        result = AddPartitionsToTxnPartitionResult(partition_index=tp.partition, partition_error_code=code)
        topics.setdefault(tp.topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in topics.items()
    ]
