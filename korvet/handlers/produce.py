"""Produce: v3-11, advertised from v0.

Behaviour: exactly one record batch per partition, checked without decoding its records
(`record_batch.validate_produced`), and appended to all partitions in one write of the store. Each partition has its
own answer; nothing about one fails another. acks=0 gets no answer: where a partition met an error the connection is
closed, as Kafka does, since that alone makes the client look again. acks is -1, 0 or 1; else INVALID_REQUIRED_ACKS.

Versions: zstd from v7. Which records were refused, and why, from v8. Versions 0 to 2 are refused by
`korvet.protocol.connection` with UNSUPPORTED_VERSION.

Where a topic limits how far timestamps may lie in the past or future, its batches are decoded to look at them:
INVALID_TIMESTAMP; and where it is compacted, to look at their keys: a record without one is INVALID_RECORD. A batch of
more records than `batch.max.records` is MESSAGE_TOO_LARGE, upon which clients send it again in parts.

Declined: transactions, with TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Topics that Kafka keeps for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from korvet.broker.broker import Broker, Disconnect, Operation, RequestContext, partition_of
from korvet.broker.topics import INTERNAL_TOPICS, MAX_NAME_LENGTH, TopicRules
from korvet.concurrency.time_slices import Turns, in_turns
from korvet.protocol.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopicException,
    KafkaError,
    MessageTooLarge,
    TransactionalIdAuthorizationFailed,
    detached,
)
from korvet.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.record import RawRecord
from korvet.protocol.record_batch import (
    HEADER_BYTES,
    RecordBatch,
    decode_in_steps,
    set_max_timestamp,
    validate_produced,
)
from korvet.protocol.steps import Steps
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import AppendResult, Topic, TopicPartition

NO_TIMESTAMP = -1
# Of all the records that were refused, so many are named.
RECORD_ERRORS = 100

Outcome = AppendResult | KafkaError


class TimestampsRefused(InvalidTimestamp):
    """Records whose timestamps are out of bounds, by their index in the batch."""

    def __init__(self, message: str, indexes: Sequence[int]) -> None:
        super().__init__(message)
        self.indexes = indexes


class KeysMissing(InvalidRecord):
    """Records without key that go to a compacted topic, by their index in the batch."""

    def __init__(self, message: str, indexes: Sequence[int]) -> None:
        super().__init__(message)
        self.indexes = indexes


async def handle(broker: Broker, request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
    batches: dict[TopicPartition, RecordBatch] = {}
    outcomes: dict[TopicPartition, Outcome] = {}
    turns = Turns()
    for topic in request.topic_data:
        await _take(broker, request, context, topic, turns, batches, outcomes)
    if batches:
        outcomes |= await broker.storage.append(
            batches,
            acks=request.acks,
            timeout_s=max(request.timeout_ms, 0) / 1000,
            submitted=context.submitted,
        )
        _count(broker, batches, outcomes)
    if request.acks == 0:
        _disconnect_on_errors(outcomes)
        return None
    topics = [_answer(topic, outcomes) for topic in request.topic_data if topic.partition_data]
    return ProduceResponse(responses=topics)


async def _take(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    data: TopicProduceData,
    turns: Turns,
    batches: dict[TopicPartition, RecordBatch],
    outcomes: dict[TopicPartition, Outcome],
) -> None:
    """Sort a topic's partitions into batches to be appended, and errors."""
    topic: Topic | KafkaError
    try:
        _check_request(request, data)
        topic = await broker.topic(context, data.name, Operation.WRITE)
    except KafkaError as error:
        topic = error
    for partition in data.partition_data:
        tp = TopicPartition(data.name, partition.index)
        try:
            if isinstance(topic, KafkaError):
                raise topic
            if tp in batches or tp in outcomes:
                raise InvalidRequest(f"partition {partition.index} stands twice in the request")
            batches[partition_of(topic, partition.index)] = await _checked(broker, context, topic, partition)
        except KafkaError as error:
            batches.pop(tp, None)
            outcomes[tp] = detached(error)
            _note_failure(broker, tp, partition, error)
        await turns.next()


def _note_failure(broker: Broker, tp: TopicPartition, data: PartitionProduceData, error: KafkaError) -> None:
    """Keep the producer's later batches from overtaking one that failed before the storage had it."""
    buffer = data.records[0] if data.records else b""
    if len(buffer) >= HEADER_BYTES and len(tp.topic) <= MAX_NAME_LENGTH:
        broker.storage.failed_sequences.note(tp, ProducerBatch.of(RecordBatch(buffer)), error)


def _check_request(request: ProduceRequest, data: TopicProduceData) -> None:
    if request.transactional_id is not None:
        raise TransactionalIdAuthorizationFailed("transactions are not served")
    if request.acks not in (-1, 0, 1):
        raise InvalidRequiredAcks(f"acks is {request.acks}; accepted are -1, 0 and 1")
    if data.name in INTERNAL_TOPICS:
        raise InvalidTopicException(f"Cannot append to internal topic {data.name}")


async def _checked(
    broker: Broker, context: RequestContext, topic: Topic, partition: PartitionProduceData
) -> RecordBatch:
    """The batch that was sent for a partition. Raises the KafkaError that it deserves."""
    rules = broker.rules(topic)
    batch = validate_produced(
        partition.records, api_version=context.version, max_message_bytes=rules.max_message_bytes
    )
    if batch.record_count > broker.config.batch_max_records:
        raise MessageTooLarge(
            f"The batch has {batch.record_count} records; batch.max.records={broker.config.batch_max_records}."
        )
    if batch.is_transactional:
        raise TransactionalIdAuthorizationFailed("transactions are not served")
    if batch.max_timestamp < batch.base_timestamp:
        await in_turns(set_max_timestamp(batch))
    if rules.limits_timestamps:
        await in_turns(_check_timestamps(batch, rules, broker.clock()))
    if rules.is_compacted:
        await in_turns(_check_keys(batch, TopicPartition(topic.name, partition.index)))
    return batch


def _check_timestamps(batch: RecordBatch, rules: TopicRules, now_ms: int) -> Steps[None]:
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    refused: list[int] = []

    def look(part: list[RawRecord]) -> None:
        refused.extend(
            delta
            for delta, timestamp, *_ in part
            if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest
        )

    yield from decode_in_steps(batch, look)
    if refused:
        message = f"{len(refused)} timestamps are out of range; they should be within [{earliest}, {latest}]"
        raise TimestampsRefused(message, refused[:RECORD_ERRORS])


def _check_keys(batch: RecordBatch, tp: TopicPartition) -> Steps[None]:
    refused: list[int] = []

    def look(part: list[RawRecord]) -> None:
        refused.extend(delta for delta, _, key, *_ in part if key is None)

    yield from decode_in_steps(batch, look)
    if refused:
        message = (
            f"Compacted topic cannot accept message without key in topic partition {tp.topic}-{tp.partition}."
        )
        raise KeysMissing(message, refused[:RECORD_ERRORS])


def _count(
    broker: Broker, batches: dict[TopicPartition, RecordBatch], outcomes: dict[TopicPartition, Outcome]
) -> None:
    for tp, batch in batches.items():
        outcome = outcomes[tp]
        if isinstance(outcome, AppendResult) and not outcome.duplicate:
            broker.counters.stored(batch.record_count, batch.size)


def _disconnect_on_errors(outcomes: dict[TopicPartition, Outcome]) -> None:
    errors = [
        f"{tp.topic!r} {tp.partition}: {outcome.error_code.name}"
        for tp, outcome in outcomes.items()
        if isinstance(outcome, KafkaError)
    ]
    if errors:
        raise Disconnect("a produce with acks=0 failed, " + ", ".join(errors))


def _answer(data: TopicProduceData, outcomes: dict[TopicPartition, Outcome]) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=data.name,
        partition_responses=[
            _partition_answer(partition.index, outcomes[TopicPartition(data.name, partition.index)])
            for partition in data.partition_data
        ],
    )


def _partition_answer(index: int, outcome: Outcome) -> PartitionProduceResponse:
    if isinstance(outcome, KafkaError):
        return PartitionProduceResponse(
            index=index,
            error_code=outcome.error_code,
            base_offset=-1,
            record_errors=list(_record_errors(outcome)),
            error_message=outcome.message,
        )
    return PartitionProduceResponse(
        index=index,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
    )


def _record_errors(error: KafkaError) -> Iterable[BatchIndexAndErrorMessage]:
    if isinstance(error, TimestampsRefused | KeysMissing):
        for index in error.indexes:
            yield BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=error.message)
