"""Produce: v3-13, advertised from v0.

Behaviour: the broker validates exactly one record batch per partition (`record_batch.validate_produced`), checks its
records unless the store does or the topic has `record.validation=batch` (`record_batch.check_records`), and appends
all batches in one write to the store. Each partition has its own result, and an error in one does not affect another.
A request with acks=0 has no response. If one of its partitions failed, the broker closes the connection, as Kafka does,
because only that makes the client refresh its metadata. acks must be -1, 0 or 1, otherwise INVALID_REQUIRED_ACKS.

Versions: zstd from v7. The refused records and the reasons from v8. `korvet.protocol.connection` refuses versions 0 to
2 with UNSUPPORTED_VERSION. From v13 requests name topics by id: UNKNOWN_TOPIC_ID, before any check of permissions.

If a topic limits timestamps (`message.timestamp.*.max.ms`), the broker decodes its batches to validate the timestamps:
INVALID_TIMESTAMP. If a topic is compacted, the broker decodes them to validate the keys: a record without a key is
INVALID_RECORD. A batch with more records than `batch.max.records` is MESSAGE_TOO_LARGE; clients then split it.

A broker that leaves the cluster, or may have been declared dead, answers NOT_LEADER_OR_FOLLOWER.

Transactions: a transactional batch needs a transactional id that the client may write to; otherwise every partition of
the request is TRANSACTIONAL_ID_AUTHORIZATION_FAILED. All transactional batches of a request have one producer
(INVALID_PRODUCER_ID_MAPPING). Up to v11 their partitions must be in the producer's transaction: TRANSACTION_ABORTABLE
in v11, INVALID_TXN_STATE below. In v12 the broker adds them; CONCURRENT_TRANSACTIONS while the previous transaction
ends. Other errors that pass are NOT_ENOUGH_REPLICAS. If storage refuses a batch because its transaction has ended, this
process had an outdated state of the transaction: the handler reads it again, and appends once more. A plain batch of a
request with a transactional id is plain. A store without transactions refuses every transactional id, and serves no
later version than 11.

Declined: Kafka's internal topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from attrs import frozen

from korvet.broker.broker import Broker
from korvet.broker.commits import placeholder
from korvet.broker.context import Disconnect, PendingResponse, RequestContext
from korvet.broker.topics import INTERNAL_TOPICS, MAX_NAME_LENGTH, TopicRules
from korvet.broker.transactional import (
    Admitted,
    Generation,
    admit,
    append_error,
    check_transactions_are_served,
)
from korvet.concurrency.time_slices import TimeSlices, map_in_slices, run_in_slices
from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopicException,
    KafkaError,
    MessageTooLarge,
    NotLeaderOrFollower,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
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
    CODEC_BITS,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    RecordBatch,
    check_records,
    decode_in_steps,
    set_max_timestamp,
    validate_produced,
)
from korvet.protocol.steps import RECORDS_A_STEP, Steps, at_once
from korvet.security.acls import Operation, ResourceType
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import (
    AppendResult,
    AppendResults,
    PendingAppend,
    Topic,
    TopicPartition,
    TransactionEnded,
)

NO_TIMESTAMP = -1
# Limit of topics whose results are converted to a response without a pause.
TOPICS_AT_ONCE = 64
# Limit of batches that are checked without a pause, beside that of their records.
BATCHES_A_STEP = 16
# The checksum of so many bytes takes about as long as the check of a record.
BYTES_A_RECORD = 4096
# Limit of refused records that a response lists for a partition.
RECORD_ERRORS = 100

# The first versions whose clients know TRANSACTION_ABORTABLE, and that let the broker add partitions.
ABORTABLE_SINCE, ADDS_SINCE = 11, 12
# The version from which requests name topics by id.
TOPIC_IDS = 13
# Steps that are over yield nothing.
DONE = object()
NONE_LOST: Mapping[str, KafkaError] = {}

Batches = dict[TopicPartition, RecordBatch]


class RequestRefused(Exception):  # noqa: N818  names the outcome
    """Every partition of the request gets the error."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error)
        self.error = error


class TimestampsRefused(InvalidTimestamp):
    """Records of a batch have timestamps out of range. `indexes` are their indexes in the batch."""

    def __init__(self, message: str, indexes: Sequence[int]) -> None:
        super().__init__(message)
        self.indexes = indexes


class KeysMissing(InvalidRecord):
    """Records for a compacted topic have no key. `indexes` are their indexes in the batch."""

    def __init__(self, message: str, indexes: Sequence[int]) -> None:
        super().__init__(message)
        self.indexes = indexes


@frozen(eq=False)
class PendingProduce(PendingResponse):
    """A Produce whose batches are submitted to the store."""

    broker: Broker
    request: ProduceRequest
    context: RequestContext
    batches: Batches
    outcomes: AppendResults
    transactions: Admitted | None
    appending: PendingAppend

    async def wait(self) -> ProduceResponse | None:
        results = await self.appending.wait()
        if self.transactions:
            results = await _again(self.broker, self.request, self.context, self.batches, results)
        return await _respond(self.broker, self.request, self.context, self.batches, self.outcomes | results)

    def abandon(self) -> None:
        self.appending.abandon()

    def notify(self, call: Callable[[], None]) -> bool:
        if self.transactions or len(self.request.topic_data) > TOPICS_AT_ONCE:
            return False
        return self.appending.notify(call)

    def response(self) -> ProduceResponse | None:
        outcomes = self.outcomes | self.appending.known_results()
        return _respond_now(self.broker, self.request, self.context, self.batches, outcomes)


Handled = ProduceResponse | PendingProduce | None


def handle(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> Handled | Coroutine[Any, Any, Handled]:
    """Handle a request. Return the response itself if nothing has to be waited for, as for a few small batches."""
    if request.transactional_id is not None or len(request.topic_data) > TOPICS_AT_ONCE:
        return _handle_all(broker, request, context)
    known: list[Topic] = []
    for data in request.topic_data:
        if context.version >= TOPIC_IDS:
            topic = broker.known_topic_by_id(data.topic_id)
        else:
            topic = broker.known_topic(data.name)
        if topic is None:
            return _handle_all(broker, request, context)
        data.name = topic.name
        known.append(topic)
    if len(known) == 1 and len(request.topic_data[0].partition_data) == 1:
        return _handle_one(broker, request, context, known[0])
    topics: list[Topic | KafkaError] = []
    for data, topic in zip(request.topic_data, known, strict=True):
        try:
            _authorize(broker, context, data)
            _check_may_append(broker, request, context, topic, data)
            topics.append(topic)
        except KafkaError as error:
            topics.append(detached(error))
    batches: Batches = {}
    outcomes: AppendResults = {}
    checks = _take(broker, request, context, topics, batches, outcomes)
    try:
        is_done = next(checks, DONE) is DONE
    except RequestRefused as refused:
        return _respond_now(broker, request, context, {}, _refusals(request, refused.error))
    if is_done:
        return _append_now(broker, request, context, batches, outcomes)
    return _handle_large(broker, request, context, checks, batches, outcomes)


async def _handle_all(broker: Broker, request: ProduceRequest, context: RequestContext) -> Handled:
    """Handle any request."""
    batches: Batches = {}
    outcomes: AppendResults = {}
    lost: Mapping[str, KafkaError] = NONE_LOST
    transactions: Admitted | None = None
    try:
        if context.version >= TOPIC_IDS:
            lost = await _find_names(broker, request)
        if request.transactional_id is not None:
            _authorize_transaction(broker, request, context, request.transactional_id)
        topics = await _topics(broker, request, context, lost)
        await _finish(_take(broker, request, context, topics, batches, outcomes))
        if request.transactional_id is not None:
            transactions = await _admit(broker, request, context, batches, outcomes)
    except RequestRefused as refused:
        return await _respond(broker, request, context, {}, _refusals(request, refused.error))
    return await _append(broker, request, context, batches, outcomes, transactions)


async def _append(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    outcomes: AppendResults,
    transactions: Admitted | None = None,
) -> Handled:
    """Append the batches, if there are any, and respond."""
    if batches:
        began = monotonic() if context.is_timed else 0.0
        appending = await _begin_append(broker, request, batches, transactions)
        if began:
            context.stored_s = monotonic() - began
        if not isinstance(appending, dict):
            return PendingProduce(broker, request, context, batches, outcomes, transactions, appending)
        if transactions:
            appending = await _again(broker, request, context, batches, appending)
        outcomes |= appending
    return await _respond(broker, request, context, batches, outcomes)


# --- Known topics, without waiting ---------------------------------------------------------------------------


def _append_now(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    outcomes: AppendResults,
) -> Handled | Coroutine[Any, Any, Handled]:
    """Append batches of no transaction. Return a coroutine if that has to wait."""
    if not batches:
        return _respond_now(broker, request, context, batches, outcomes)
    began = monotonic() if context.is_timed else 0.0
    appending = broker.log.try_append(batches, acks=request.acks, timeout_s=max(request.timeout_ms, 0) / 1000)
    if appending is None:
        return _append(broker, request, context, batches, outcomes)
    if began:
        context.stored_s = monotonic() - began
    if isinstance(appending, dict):
        return _respond_now(
            broker, request, context, batches, outcomes | appending if outcomes else appending
        )
    return PendingProduce(broker, request, context, batches, outcomes, None, appending)


def _handle_one(
    broker: Broker, request: ProduceRequest, context: RequestContext, topic: Topic
) -> Handled | Coroutine[Any, Any, Handled]:
    """Handle a request with one batch as one with several, without the loops, which take 3 % of the time."""
    data = request.topic_data[0]
    partition = data.partition_data[0]
    tp = TopicPartition(data.name, partition.index)
    batches: Batches = {}
    outcomes: AppendResults = {}
    try:
        _authorize(broker, context, data)
        _check_may_append(broker, request, context, topic, data)
        checked = _check(broker, context, topic, partition)
        if isinstance(checked, RecordBatch):
            _check_place(request, topic, partition, checked)
            batches[tp] = checked
        else:
            checks = _take_checked(broker, request, topic, partition, checked, batches, outcomes)
            if next(checks, DONE) is not DONE:
                return _handle_large(broker, request, context, checks, batches, outcomes)
    except KafkaError as error:
        outcomes[tp] = _failed(broker, tp, partition, error)
    except RequestRefused as refused:
        return _respond_now(broker, request, context, {}, _refusals(request, refused.error))
    return _append_now(broker, request, context, batches, outcomes)


async def _handle_large(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    checks: Steps[None],
    batches: Batches,
    outcomes: AppendResults,
) -> Handled:
    """Finish the checks of a request in time slices, and append its batches."""
    try:
        await run_in_slices(checks)
    except RequestRefused as refused:
        return await _respond(broker, request, context, {}, _refusals(request, refused.error))
    return await _append(broker, request, context, batches, outcomes)


def _respond_now(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    outcomes: AppendResults,
) -> ProduceResponse | None:
    """Return the response to a request with few topics, once all outcomes are known."""
    is_success = _settle(broker, request, context, batches, outcomes)
    if request.acks == 0:
        return None
    response = ProduceResponse(responses=[])
    for topic in request.topic_data:
        if topic.partition_data:
            response.responses.append(_answer(topic, outcomes))
    if is_success:
        context.success = response
    return response


# --- Any number of batches -----------------------------------------------------------------------------------


async def _find_names(broker: Broker, request: ProduceRequest) -> dict[str, KafkaError]:
    """Set the names of topics that the request names by id. The response of these versions does not contain them.

    A topic that is not found gets a name that no topic can have. Return the errors of these names.
    """
    lost: dict[str, KafkaError] = {}
    time_slices = TimeSlices()
    for data in request.topic_data:
        try:
            data.name = (await broker.find_topic_by_id(data.topic_id)).name
        except KafkaError as error:
            data.name = placeholder(data.topic_id)
            lost[data.name] = detached(error)
        await time_slices.next()
    return lost


def _begin_append(
    broker: Broker, request: ProduceRequest, batches: Batches, transactions: Admitted | None
) -> Awaitable[AppendResults | PendingAppend]:
    timeout_s = max(request.timeout_ms, 0) / 1000
    if transactions:
        return broker.log.begin_append(
            batches, acks=request.acks, timeout_s=timeout_s, transactions=transactions
        )
    return broker.log.begin_append(batches, acks=request.acks, timeout_s=timeout_s)


# --- Transactions --------------------------------------------------------------------------------------------


def _authorize_transaction(
    broker: Broker, request: ProduceRequest, context: RequestContext, transactional_id: str
) -> None:
    """Raise RequestRefused if the request has transactional batches, and the client may not send them."""
    try:
        check_transactions_are_served(broker)
        if any(_is_transactional(each) for topic in request.topic_data for each in topic.partition_data):
            broker.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    except KafkaError as error:
        raise RequestRefused(detached(error)) from None


def _is_transactional(data: PartitionProduceData) -> bool:
    buffer = data.records[0] if data.records else b""
    return len(buffer) >= HEADER_BYTES and RecordBatch(buffer).is_transactional


async def _admit(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    outcomes: AppendResults,
) -> Admitted:
    """Return the transactions of the transactional batches. Move those that are refused to the outcomes."""
    transactional = {tp: batch for tp, batch in batches.items() if batch.is_transactional}
    if len({(batch.producer_id, batch.producer_epoch) for batch in transactional.values()}) > 1:
        message = "Transactional records contained more than one producer ID"
        raise RequestRefused(InvalidProducerIdMapping(message))
    admitted, refused = await _admitted(broker, request, context, transactional)
    for tp in refused:
        del batches[tp]
    outcomes |= refused
    return admitted


async def _admitted(
    broker: Broker, request: ProduceRequest, context: RequestContext, batches: Batches
) -> tuple[Admitted, AppendResults]:
    """Return the transactions of batches, and the errors of those that are refused."""
    if not batches:
        return {}, {}
    transactional_id = request.transactional_id or ""
    admitted, refused = await admit(broker, transactional_id, _generation(context.version), batches)
    for tp, error in refused.items():
        broker.log.note_failure(tp, ProducerBatch.of(batches[tp]), error)
    return admitted, {**refused}


async def _again(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    results: AppendResults,
) -> AppendResults:
    """Append batches once more whose transactions have ended, as the coordinator sees them now.

    Return the results of all batches, with the errors that clients of the request's version know.
    """
    ended = {tp: batches[tp] for tp, result in results.items() if isinstance(result, TransactionEnded)}
    if ended:
        await broker.transactions.reload(request.transactional_id or "")
        admitted, refused = await _admitted(broker, request, context, ended)
        results = results | refused
        if admitted:
            again = {tp: ended[tp] for tp in admitted}
            appending = await _begin_append(broker, request, again, admitted)
            results |= appending if isinstance(appending, dict) else await appending.wait()
    generation = _generation(context.version)
    return {
        tp: append_error(result, generation) if isinstance(result, KafkaError) else result
        for tp, result in results.items()
    }


def _generation(version: int) -> Generation:
    return Generation.of(version, ABORTABLE_SINCE, ADDS_SINCE)


def _refusals(request: ProduceRequest, error: KafkaError) -> AppendResults:
    """Return the error as the outcome of every partition of the request."""
    return {
        TopicPartition(topic.name, partition.index): error
        for topic in request.topic_data
        for partition in topic.partition_data
    }


# --- Responding ----------------------------------------------------------------------------------------------


async def _respond(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    outcomes: AppendResults,
) -> ProduceResponse | None:
    """Return the response once all outcomes are known."""
    if len(request.topic_data) <= TOPICS_AT_ONCE:
        return _respond_now(broker, request, context, batches, outcomes)
    is_success = _settle(broker, request, context, batches, outcomes)
    if request.acks == 0:
        return None
    answered = [topic for topic in request.topic_data if topic.partition_data]
    response = ProduceResponse(
        responses=await map_in_slices(lambda topic: _answer(topic, outcomes), answered)
    )
    if is_success:
        context.success = response
    return response


def _settle(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    batches: Batches,
    outcomes: AppendResults,
) -> bool:
    """Count a request whose outcomes are known. Return True if all its batches were appended, now or before.

    Raises Disconnect if the client can learn of an error only from that.
    """
    successes = 0
    for tp, batch in batches.items():
        outcome = outcomes[tp]
        if isinstance(outcome, AppendResult):
            successes += 1
            if not outcome.duplicate:
                broker.counters.stored(tp.topic, batch.record_count, batch.size)
    is_success = successes == len(outcomes)
    if broker.quotas.is_enforced:
        broker.quotas.produced(context, is_time_exempt=request.acks == 0)
    if request.acks == 0 and not is_success:
        _disconnect_on_errors(outcomes)
    return is_success


# --- Batches -------------------------------------------------------------------------------------------------


async def _topics(
    broker: Broker, request: ProduceRequest, context: RequestContext, lost: Mapping[str, KafkaError]
) -> list[Topic | KafkaError]:
    """Return the topics of a request, or the errors that refuse all batches for them."""
    time_slices = TimeSlices()
    topics: list[Topic | KafkaError] = []
    for data in request.topic_data:
        try:
            topics.append(await _topic(broker, request, context, data, lost))
        except KafkaError as error:
            topics.append(detached(error))
        await time_slices.next()
    return topics


def _take(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    topics: Sequence[Topic | KafkaError],
    batches: Batches,
    outcomes: AppendResults,
) -> Steps[None]:
    """Sort the partitions of a request into batches to append, and errors, in one step if they are few and small.

    `topics` has a topic, or the error that refuses its batches, for each topic of the request. Raises RequestRefused.
    """
    batches_left, records_left = BATCHES_A_STEP, RECORDS_A_STEP
    for data, topic in zip(request.topic_data, topics, strict=True):
        for partition in data.partition_data:
            if not batches_left or records_left <= 0:
                batches_left, records_left = BATCHES_A_STEP, RECORDS_A_STEP
                yield None
            batches_left -= 1
            tp = TopicPartition(data.name, partition.index)
            try:
                if isinstance(topic, KafkaError):
                    raise topic
                if tp in batches or tp in outcomes:
                    raise InvalidRequest(f"partition {partition.index} stands twice in the request")
                checked = _check(broker, context, topic, partition)
                if isinstance(checked, RecordBatch):
                    _check_place(request, topic, partition, checked)
                    batches[tp] = checked
                else:
                    yield from _take_checked(broker, request, topic, partition, checked, batches, outcomes)
            except KafkaError as error:
                batches.pop(tp, None)
                outcomes[tp] = _failed(broker, tp, partition, error)
            else:
                if (batch := batches.get(tp)) is not None:
                    records_left -= batch.record_count + batch.size // BYTES_A_RECORD


def _take_checked(
    broker: Broker,
    request: ProduceRequest,
    topic: Topic,
    partition: PartitionProduceData,
    checks: Steps[RecordBatch],
    batches: Batches,
    outcomes: AppendResults,
) -> Steps[None]:
    """Finish the checks of a batch. Add the batch to `batches`, or its error to `outcomes`. Raises RequestRefused."""
    tp = TopicPartition(topic.name, partition.index)
    try:
        batch = yield from checks
        _check_place(request, topic, partition, batch)
        batches[tp] = batch
    except KafkaError as error:
        outcomes[tp] = _failed(broker, tp, partition, error)


def _check_place(
    request: ProduceRequest, topic: Topic, partition: PartitionProduceData, batch: RecordBatch
) -> None:
    """Raise RequestRefused for a transactional batch without a transaction, and KafkaError for an unknown partition."""
    if batch.attributes & TRANSACTIONAL_BIT and request.transactional_id is None:
        raise RequestRefused(TransactionalIdAuthorizationFailed("the batch is in no transaction"))
    if not 0 <= partition.index < topic.partitions:
        raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {partition.index}")


async def _finish(checks: Steps[None]) -> None:
    """Run checks in time slices, unless they are done in one step."""
    if next(checks, DONE) is not DONE:
        await run_in_slices(checks)


def _failed(broker: Broker, tp: TopicPartition, data: PartitionProduceData, error: KafkaError) -> KafkaError:
    """Return the outcome of a batch that failed before it reached storage.

    Its failure is recorded, so that its producer's later batches do not overtake it.
    """
    buffer = data.records[0] if data.records else b""
    if len(buffer) >= HEADER_BYTES and len(tp.topic) <= MAX_NAME_LENGTH:
        broker.log.note_failure(tp, ProducerBatch.of(RecordBatch(buffer)), error)
    return detached(error)


async def _topic(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    data: TopicProduceData,
    lost: Mapping[str, KafkaError],
) -> Topic:
    """Return a topic that the client may append to."""
    if data.name in lost:
        raise lost[data.name]
    _authorize(broker, context, data)
    topic = await broker.find_topic(data.name)
    _check_may_append(broker, request, context, topic, data)
    return topic


def _authorize(broker: Broker, context: RequestContext, data: TopicProduceData) -> None:
    broker.authorize(context, Operation.WRITE, ResourceType.TOPIC, data.name)
    if data.name in INTERNAL_TOPICS:
        raise InvalidTopicException(f"Cannot append to internal topic {data.name}")


def _check_may_append(
    broker: Broker, request: ProduceRequest, context: RequestContext, topic: Topic, data: TopicProduceData
) -> None:
    """Raise the KafkaError that refuses all batches for a topic."""
    if context.version >= TOPIC_IDS and topic.topic_id != data.topic_id:
        raise UnknownTopicId("another topic of that name was created since")
    if request.acks not in (-1, 0, 1):
        raise InvalidRequiredAcks(f"acks is {request.acks}; accepted are -1, 0 and 1")
    if not broker.membership.leads:
        raise NotLeaderOrFollower("this broker leaves the cluster, or may have been declared dead")


def _check(
    broker: Broker,
    context: RequestContext,
    topic: Topic,
    partition: PartitionProduceData,
) -> RecordBatch | Steps[RecordBatch]:
    """Validate and return the batch that was sent for a partition, or return the steps of that.

    Raises KafkaError. The first step is empty if the others take long.
    """
    rules = broker.rules(topic)
    batch = validate_produced(
        partition.records, api_version=context.version, max_message_bytes=rules.max_message_bytes
    )
    if batch.record_count > broker.config.batch_max_records:
        raise MessageTooLarge(
            f"The batch has {batch.record_count} records; batch.max.records={broker.config.batch_max_records}."
        )
    is_small = batch.record_count <= RECORDS_A_STEP and batch.attributes & CODEC_BITS == Codec.NONE
    if (
        not is_small
        or rules.limits_timestamps
        or rules.is_compacted
        or batch.max_timestamp < batch.base_timestamp
    ):
        return _check_in_steps(broker, topic, partition, batch, is_small=is_small)
    if rules.checks_records and not broker.log.checks_records(topic):
        at_once(check_records(batch))
    return batch


def _check_in_steps(
    broker: Broker,
    topic: Topic,
    partition: PartitionProduceData,
    batch: RecordBatch,
    *,
    is_small: bool,
) -> Steps[RecordBatch]:
    """Validate the records of a batch as `_check` does."""
    rules = broker.rules(topic)
    if not is_small:
        yield None
    if batch.max_timestamp < batch.base_timestamp:
        yield from set_max_timestamp(batch)
    # Each of these checks decodes the batch, and so refuses malformed records.
    if rules.limits_timestamps:
        yield from _check_timestamps(batch, rules, broker.clock())
    if rules.is_compacted:
        yield from _check_keys(batch, TopicPartition(topic.name, partition.index))
    elif rules.checks_records and not rules.limits_timestamps and not broker.log.checks_records(topic):
        yield from check_records(batch)
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


def _disconnect_on_errors(outcomes: AppendResults) -> None:
    errors = [
        f"{tp.topic!r} {tp.partition}: {outcome.error_code.name}"
        for tp, outcome in outcomes.items()
        if isinstance(outcome, KafkaError)
    ]
    if errors:
        raise Disconnect("a produce with acks=0 failed, " + ", ".join(errors))


def _answer(data: TopicProduceData, outcomes: AppendResults) -> TopicProduceResponse:
    answers = []
    for partition in data.partition_data:
        outcome = outcomes[TopicPartition(data.name, partition.index)]
        answers.append(_partition_answer(partition.index, outcome))
    return TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers)


def _partition_answer(index: int, outcome: AppendResult | KafkaError) -> PartitionProduceResponse:
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
