"""Fetch: v4-18.

Behaviour: the response has whole record batches, starting with the one that contains the offset, in the order of the
request's partitions, within `max_bytes` (and `fetch.max.bytes`) and each partition's limit. The first batch is returned
regardless of its size, so that consumers make progress. If there are fewer bytes than `min_bytes`, the handler waits up
to `max_wait_ms` for the partitions to grow; it returns errors immediately. It watches the partitions from the read on,
so that it misses no append in between and does not poll. Records are never null in the response, only empty.

At `isolation_level` read_committed, the response ends at the last stable offset, and lists the aborted transactions
that have records in it: consumers drop these. The response has the last stable offset at both levels.

A client over its quota of bytes, or of time, gets an empty response, and no records are charged. The response has at
most the bytes that the quota allows in its window.

Responses that are being read and sent share `queued.max.response.bytes`; if little of it is left, they are smaller.

Versions: sessions from v7, leader epochs (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH) from v9, zstd from v10, detection
of truncation by the last fetched epoch from v12, topics by id from v13 (UNKNOWN_TOPIC_ID), the current leader from v16,
the high watermark that a replica knows, which is ignored, from v18.
Up to v5, NOT_LEADER_OR_FOLLOWER replaces KAFKA_STORAGE_ERROR, because those clients retry it.

Fetch sessions (KIP-227): a request of epoch 0 begins one (`korvet.broker.fetch_sessions`), or gets session id 0 if
there is no room. A later request names what has changed, and gets the partitions with news. It reads only partitions
that may have some. Errors: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR if a
session mixes topic ids and names. Fetches of replicas are answered like those of consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import trio
from attrs import frozen

from korvet.broker.broker import NO_EPOCH, Broker, partition_of
from korvet.broker.context import PendingResponse, RequestContext, handled
from korvet.broker.fetch_sessions import (
    FIRST_VERSION_WITH_IDS,
    INITIAL_EPOCH,
    FetchSession,
    SessionPartition,
    next_epoch,
    size_of,
)
from korvet.concurrency.time_slices import CALLS_AT_ONCE, TimeSlices, map_in_slices, run_in_slices
from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import encode
from korvet.protocol.errors import (
    ErrorCode,
    InconsistentTopicId,
    InvalidRequest,
    KafkaError,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnsupportedCompressionType,
    detached,
)
from korvet.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from korvet.protocol.steps import Steps
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import (
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    PendingRead,
    ReadRequest,
    ReadResult,
    Topic,
    TopicPartition,
    Watch,
)

# The first version whose clients know zstd.
FIRST_VERSION_WITH_ZSTD = 10
# Limit of the partitions of a request that is handled without a pause.
PARTITIONS_AT_ONCE = 64
# Errors that make a client look for the leader.
LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# An EpochEnd is the offset at which the client's log and the broker's diverged.
Outcome = ReadResult | EpochEnd | KafkaError
Results = dict[TopicPartition, ReadResult | KafkaError]


def handle(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> Handled | Coroutine[Any, Any, FetchResponse]:
    """Handle a request. Return the response itself if nothing but the store has to be waited for."""
    if request.isolation_level not in (0, 1):
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST, session_id=0, responses=[])
    try:
        session = broker.fetch_sessions.of(request, context.version, trio.current_time())
    except KafkaError as error:
        return FetchResponse(error_code=error.error_code, session_id=0, responses=[])

    fetch = (
        _Fetch(broker, request, context)
        if session is None
        else _SessionFetch(broker, request, context, session)
    )
    if size_of(request) > PARTITIONS_AT_ONCE or not fetch.prepare_now():
        return _prepare_and_read(fetch)
    fetch.is_immediate = request.max_wait_ms <= 0 or fetch.min_bytes <= 0 or bool(fetch.outcomes)
    if not fetch.wanted:
        return fetch.respond(fetch.is_immediate or session is None)
    reading = fetch.begin_read()
    if isinstance(reading, PendingRead):
        return PendingFetch(fetch, reading)
    return _read(fetch) if reading is None else fetch.respond_with(reading)


async def _prepare_and_read(fetch: _Fetch) -> FetchResponse:
    """Handle a request from the lookup of its topics on."""
    await fetch.prepare()
    return await _read(fetch)


async def _read(fetch: _Fetch) -> FetchResponse:
    """Handle a request whose topics were looked up."""
    await fetch.read_or_wait()
    return await _count_and_answer(fetch)


async def _wait(fetch: _Fetch) -> FetchResponse:
    """Handle a request whose partitions were read, and are watched, and had too few records."""
    try:
        await fetch.wait()
    finally:
        fetch.end_read()
    return await _count_and_answer(fetch)


async def _count_and_answer(fetch: _Fetch) -> FetchResponse:
    if fetch.broker.counters.is_counting:
        await run_in_slices(fetch.counting())
    return await fetch.answer()


async def _count_rest(fetch: _Fetch, counting: Steps[None]) -> FetchResponse:
    """Go on counting, and respond."""
    await run_in_slices(counting)
    return await fetch.answer()


@frozen(eq=False)
class PendingFetch(PendingResponse):
    """A Fetch whose read the store has not answered yet."""

    fetch: _Fetch
    reading: PendingRead

    async def wait(self) -> FetchResponse:
        try:
            response: FetchResponse = await handled(self.fetch.respond_with(await self.reading.wait()))
        finally:
            self.abandon()
        return response

    def abandon(self) -> None:
        self.reading.abandon()
        self.fetch.end_read()

    def notify(self, call: Callable[[], None]) -> bool:
        return self.reading.notify(call)

    def response(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        results = self.reading.known_results()
        return self.wait() if results is None else self.fetch.respond_with(results)


Handled = FetchResponse | PendingFetch


class _Fetch:
    """The state of one request.

    Methods without `async` are for requests of few partitions. If something has to be waited for, a method with `async`
    takes over, and does again what they have done.
    """

    __slots__ = (
        "broker",
        "context",
        "is_denied",
        "is_immediate",
        "is_replica",
        "is_success",
        "is_whole",
        "isolation_level",
        "max_bytes",
        "min_bytes",
        "names",
        "outcomes",
        "reading",
        "request",
        "reserved",
        "size",
        "wanted",
        "watch",
        "watching",
    )

    watch: Watch  # after `begin_watch`, or the session's

    def __init__(self, broker: Broker, request: FetchRequest, context: RequestContext) -> None:
        self.broker = broker
        self.request = request
        self.context = context
        self.isolation_level = IsolationLevel(request.isolation_level)
        state = request.replica_state
        self.is_replica = (request.replica_id if state is None else state.replica_id) >= 0
        # Replicas need a permission on the cluster, and none on topics.
        self.is_denied = self.is_replica and not broker.may_on_cluster(context, Operation.CLUSTER_ACTION)
        self.max_bytes = max(min(request.max_bytes, broker.config.fetch_max_bytes), 0)
        if broker.quotas.is_enforced:
            self._obey_quotas()
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.names: list[str] = []  # of the request's topics, in order; the id if the name is unknown
        self.wanted: dict[TopicPartition, FetchPartition] = {}
        self.outcomes: dict[TopicPartition, Outcome] = {}
        self.size = 0  # of the records read, in bytes
        self.is_success = True  # no partition of the response has an error code
        self.is_immediate = False  # the first read is answered, whatever it finds
        self.reading: PendingRead | None = None  # while the store is waited for, and after that
        self.reserved = 0  # bytes of the answer budget, from the beginning of a read to its end
        self.is_whole = True  # they are as many as the read may take
        self.watching: AbstractContextManager[Watch] | None = None  # the watch that ends with the request

    def _obey_quotas(self) -> None:
        quotas = self.broker.quotas
        if self.is_replica:
            quotas.exempt(self.context)
        else:
            self.max_bytes = int(min(self.max_bytes, quotas.most_fetched(self.context)))

    # --- Topics -----------------------------------------------------------------------------------------

    def prepare_now(self) -> bool:
        """Do what `prepare` does, if all topics are known. Otherwise return False."""
        if self.is_replica:
            return False
        known: list[tuple[FetchTopic, Topic]] = []
        for wanted in self.request.topics:
            topic = self._known(wanted)
            if topic is None:
                return False
            known.append((wanted, topic))
        for wanted, topic in known:
            admitted = self._admitted(topic)
            self.names.append(_name(wanted, admitted))
            self._want(wanted, admitted, wanted.partitions)
        return True

    async def prepare(self) -> None:
        """Look up the topics of the request."""
        time_slices = TimeSlices()
        for wanted in self.request.topics:
            topic: Topic | KafkaError
            try:
                topic = await self._topic(wanted)
            except KafkaError as error:
                topic = detached(error)
            await time_slices.next()
            self.names.append(_name(wanted, topic))
            for first in range(0, len(wanted.partitions), CALLS_AT_ONCE):
                self._want(wanted, topic, wanted.partitions[first : first + CALLS_AT_ONCE])
                await time_slices.next()

    def _want(
        self, wanted: FetchTopic, topic: Topic | KafkaError, partitions: Iterable[FetchPartition]
    ) -> None:
        """Add partitions of a topic to `wanted`, or their errors to `outcomes`."""
        name = _name(wanted, topic)
        for partition in partitions:
            if isinstance(topic, KafkaError):
                self.outcomes[TopicPartition(name, partition.partition)] = topic
                continue
            try:
                self.wanted[partition_of(topic, partition.partition)] = partition
            except KafkaError as error:
                self.outcomes[TopicPartition(name, partition.partition)] = detached(error)

    def _known(self, wanted: FetchTopic | SessionPartition) -> Topic | None:
        """Return a topic, or None if it is unknown or has to be waited for."""
        if self.context.version >= FIRST_VERSION_WITH_IDS:
            return self.broker.known_topic_by_id(wanted.topic_id)
        return self.broker.known_topic(wanted.topic)

    def _admitted(self, topic: Topic) -> Topic | KafkaError:
        """Return a known topic, or the error that refuses it to the client."""
        try:
            self._authorize(topic.name)
            if self.context.version < FIRST_VERSION_WITH_ZSTD:
                self._check_compression(topic)
        except KafkaError as error:
            return detached(error)
        return topic

    async def _topic(self, wanted: FetchTopic | SessionPartition) -> Topic:
        if self.is_denied:
            raise TopicAuthorizationFailed
        if self.context.version >= FIRST_VERSION_WITH_IDS:
            topic = await self.broker.find_topic_by_id(wanted.topic_id)
            self._authorize(topic.name)
            return topic
        self._authorize(wanted.topic)
        topic = await self.broker.find_topic(wanted.topic)
        self._check_compression(topic)
        return topic

    def _authorize(self, name: str) -> None:
        if not self.is_replica:
            self.broker.authorize(self.context, Operation.READ, ResourceType.TOPIC, name)

    def _check_compression(self, topic: Topic) -> None:
        if self.context.version < FIRST_VERSION_WITH_ZSTD and topic.config.compression_type == "zstd":
            raise UnsupportedCompressionType("zstd needs Fetch version 10 or newer.")

    # --- Reading and waiting ----------------------------------------------------------------------------

    def begin_read(self) -> Results | PendingRead | None:
        """Begin to read every partition. Return None if something else than the store has to be waited for."""
        requests = self._requests()
        wanted, self.reserved = self._reserve(requests)
        self.is_whole = self.reserved == wanted
        reading = None
        try:
            reading = self.broker.log.try_read(
                requests, max_bytes=self.reserved, isolation_level=self.isolation_level
            )
        finally:
            if reading is None:
                self.end_read()
        self.reading = reading if isinstance(reading, PendingRead) else None
        return reading

    def end_read(self) -> None:
        """Release what the read has taken, if it was not released."""
        if self.reserved:
            self.broker.answers.release(self.reserved)
            self.reserved = 0
        if (watching := self.watching) is not None:
            self.watching = None
            watching.__exit__(None, None, None)

    def respond_with(self, results: Results) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """Return the response after a read of every partition, or a coroutine that does."""
        outcomes: dict[TopicPartition, Outcome] = {}
        for tp, result in results.items():
            outcome = self._checked(tp, result)
            if outcome is None:
                self.end_read()
                return _read(self)
            outcomes[tp] = outcome
        reserved, self.reserved = self.reserved, 0
        is_answer = self._take(outcomes, reserved, is_whole=self.is_whole)
        return self.respond(is_answer or self.is_immediate)

    def respond(self, is_answer: bool) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:  # noqa: FBT001
        """Return the response, or a coroutine that waits for records first if there is no answer yet."""
        if not is_answer:
            self.begin_watch()
            return _wait(self)
        if self.broker.counters.is_counting:
            counting = self.counting()
            if next(counting, counting) is None:
                return _count_rest(self, counting)
        return self.answer_now()

    def begin_watch(self) -> None:
        """Watch the partitions from the end of the read on, until `end_read`."""
        self.watching = self.broker.log.watch(self.wanted)
        self.watch = self.watching.__enter__()
        if self.reading is not None:
            self.reading.report_ends()

    async def wait(self) -> None:
        """Wait for records in partitions that are watched."""
        await self._wait(self.watch)

    async def read_or_wait(self) -> None:
        """Read, immediately or once there is enough, and set an outcome for every partition."""
        if not self.wanted:
            return
        if self.request.max_wait_ms <= 0 or self.min_bytes <= 0 or self.outcomes:
            await self._read()
            return
        with self.broker.log.watch(self.wanted) as watch:
            if not await self._read():
                await self._wait(watch)

    async def _wait(self, watch: Watch) -> None:
        """Read partitions as they grow, until there is enough or the client's time is over."""
        is_answer = False
        unread: set[TopicPartition] = set()  # partitions that have grown, until they are read again
        with self.broker.parked(self.context, self.request.max_wait_ms / 1000):
            is_answer = await self._read_as_they_grow(watch, unread)
        # Read partitions that grew at the last moment, or whose read was cancelled by the end of the wait.
        unread.update(watch.grown())
        if unread and not is_answer:
            await self._read_grown(unread)

    async def _read_as_they_grow(self, watch: Watch, unread: set[TopicPartition]) -> bool:
        while True:
            unread.update(await watch.wait())
            if await self._read_grown(unread):
                return True
            unread.clear()

    async def _read_grown(self, grown: Collection[TopicPartition]) -> bool:
        """Read again after partitions have grown. Return True if the request can be answered."""
        # If no partition had records, only the grown ones can have some. Otherwise read all partitions again: those
        # before a grown one in the request may use up max_bytes.
        return await self._read(None if self.size else grown)

    async def _read(self, only: Collection[TopicPartition] | None = None) -> bool:
        """Read every partition, or only these. Return True if the request can be answered."""
        requests = self._requests(only)
        wanted, max_bytes = self._reserve(requests)
        try:
            results = await self.broker.log.read(
                requests, max_bytes=max_bytes, isolation_level=self.isolation_level
            )
        finally:
            self.broker.answers.release(max_bytes)
        # The wait may end during these checks. So the outcomes are stored together afterwards.
        outcomes = {
            tp: self._checked(tp, result) or await self._compared(tp, result)
            for tp, result in results.items()
        }
        return self._take(outcomes, is_whole=max_bytes == wanted)

    def _requests(self, only: Collection[TopicPartition] | None = None) -> dict[TopicPartition, ReadRequest]:
        """Return the requests to the store for every partition, or only for these."""
        requests = {}
        for tp, partition in self.wanted.items():
            if only is None or tp in only:
                requests[tp] = ReadRequest(partition.fetch_offset, max(partition.partition_max_bytes, 0))
        return requests

    def _reserve(self, requests: Mapping[TopicPartition, ReadRequest]) -> tuple[int, int]:
        """Reserve bytes of the answer budget. Return how many the read may take, and how many it has got."""
        wanted = 0
        for each in requests.values():
            wanted += each.max_bytes
        wanted = min(self.max_bytes, wanted)
        return wanted, self.broker.answers.reserve(wanted)

    def _take(self, outcomes: dict[TopicPartition, Outcome], reserved: int = 0, *, is_whole: bool) -> bool:
        """Store the outcomes of a read, and release its reserved bytes. Return True if the request can be answered."""
        self.outcomes |= outcomes
        is_answer = False
        size = available = 0
        for tp, outcome in outcomes.items():
            if not isinstance(outcome, ReadResult):
                is_answer = True
                continue
            read = outcome.batches.size
            size += read
            # If a limit cut the read of a partition, waiting adds nothing: the limit's bytes count, as in Kafka.
            available += max(read, self.wanted[tp].partition_max_bytes) if outcome.is_cut else read
        self.size = size
        self.broker.answers.exchange(reserved, size - self.context.answer_bytes)
        self.context.answer_bytes = size
        # If the byte budget shortened the read, answer without waiting for min_bytes.
        return is_answer or available >= (self.min_bytes if is_whole else 1)

    def _checked(self, tp: TopicPartition, result: ReadResult | KafkaError) -> Outcome | None:
        """Return the outcome of a read, or None if `_compared` has to determine it."""
        wanted = self.wanted[tp]
        if wanted.last_fetched_epoch > NO_EPOCH:
            return None
        if wanted.current_leader_epoch <= NO_EPOCH:
            return result
        if not isinstance(result, ReadResult):
            return None
        try:
            self.broker.check_leader_epoch(tp, wanted.current_leader_epoch, result.offsets.leader_epoch)
        except KafkaError as error:
            return detached(error)
        return result

    async def _compared(self, tp: TopicPartition, result: ReadResult | KafkaError) -> Outcome:
        """Return the result, or the error or divergence that the request's epochs cause (KIP-320, KIP-595)."""
        wanted = self.wanted[tp]
        # As in Kafka, any negative epoch means none here. In ListOffsets only -1 does.
        current_epoch = max(wanted.current_leader_epoch, NO_EPOCH)
        try:
            if isinstance(result, ReadResult):
                offsets = result.offsets
            elif isinstance(result, OffsetOutOfRange):
                offsets = await self.broker.log.latest(tp)
            else:
                return result
            self.broker.check_leader_epoch(tp, current_epoch, offsets.leader_epoch)
            if wanted.last_fetched_epoch <= NO_EPOCH:
                return result
            return await self._diverged(tp, wanted, offsets) or result
        except KafkaError as error:
            return error

    async def _diverged(
        self, tp: TopicPartition, wanted: FetchPartition, offsets: LogOffsets
    ) -> EpochEnd | None:
        """Return the end of the client's last fetched epoch if the client's log diverges from there; else None."""
        if wanted.last_fetched_epoch == offsets.leader_epoch:
            end = EpochEnd(offsets.leader_epoch, offsets.high_watermark)
        else:
            end = await self.broker.log.epoch_end(tp, wanted.last_fetched_epoch)
        if end.end_offset < 0 or wanted.fetch_offset < min(offsets.log_start_offset, offsets.trimmed_before):
            raise OffsetOutOfRange(
                f"offset {wanted.fetch_offset} of epoch {wanted.last_fetched_epoch} is gone"
            )
        if end.leader_epoch < wanted.last_fetched_epoch or end.end_offset < wanted.fetch_offset:
            return end
        return None

    # --- Answering --------------------------------------------------------------------------------------

    def counting(self) -> Steps[None]:
        """Count the records that were read. Replicas count as well."""
        for tp, outcome in self.outcomes.items():
            if isinstance(outcome, ReadResult) and outcome.size:
                yield from self.broker.counters.fetched(tp.topic, outcome.batches)

    def answer_now(self) -> FetchResponse:
        """Return the response to a request of few partitions."""
        responses = []
        for each in zip(self.names, self.request.topics, strict=True):
            if each[1].partitions:
                responses.append(self._topic_answer(each))  # noqa: PERF401  as below
        return self._respond(responses)

    async def answer(self) -> FetchResponse:
        """Return the response."""
        asked = [each for each in zip(self.names, self.request.topics, strict=True) if each[1].partitions]
        return self._respond(await map_in_slices(self._topic_answer, asked))

    def _respond(self, responses: list[FetchableTopicResponse]) -> FetchResponse:
        endpoints = [] if self.is_success else self._endpoints(responses)
        response = FetchResponse(session_id=0, responses=responses, node_endpoints=endpoints)
        if self.broker.quotas.is_enforced and not self._is_within_quota(response):
            self._drop_records()
            return FetchResponse(session_id=0, responses=[])
        if self.request.session_epoch == INITIAL_EPOCH:
            self._begin_session(response)
        if self.is_success:
            self.context.success = response
        return response

    def _is_within_quota(self, response: FetchResponse) -> bool:
        """Charge a response, and return False if it exceeds the client's quota."""
        if self.is_replica:
            return True
        return self.broker.quotas.fetched(self.context, lambda: encoded_bytes(response, self.context.version))

    def _drop_records(self) -> None:
        """Release the bytes of records that the client does not receive."""
        self.broker.answers.change(-self.context.answer_bytes)
        self.context.answer_bytes = 0

    def _begin_session(self, response: FetchResponse) -> None:
        session = self.broker.fetch_sessions.create(
            self.request, self.context.version, trio.current_time(), is_privileged=self.is_replica
        )
        if session is not None:
            response.session_id = session.session_id
            for name, topic in zip(self.names, response.responses, strict=True):
                session.note(topic, "" if name == str(topic.topic_id) else name)

    def _topic_answer(self, asked: tuple[str, FetchTopic]) -> FetchableTopicResponse:
        name, topic = asked
        partitions = []
        for partition in topic.partitions:
            partitions.append(self._partition(TopicPartition(name, partition.partition)))  # noqa: PERF401  it is a call
        return FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)

    def _partition(self, tp: TopicPartition) -> PartitionData:
        # If the request contains a partition twice, send its records only once.
        outcome = self.outcomes.pop(tp, None) or InvalidRequest("the partition stands twice in the request")
        if isinstance(outcome, ReadResult):
            offsets = outcome.offsets
            return PartitionData(
                partition_index=tp.partition,
                high_watermark=offsets.high_watermark,
                last_stable_offset=offsets.last_stable_offset,
                log_start_offset=offsets.log_start_offset,
                aborted_transactions=self._aborted(outcome),
                records=outcome.batches.buffers,
            )
        if isinstance(outcome, EpochEnd):
            diverging = EpochEndOffset(epoch=outcome.leader_epoch, end_offset=outcome.end_offset)
            return PartitionData(
                partition_index=tp.partition,
                high_watermark=-1,
                diverging_epoch=diverging,
                aborted_transactions=None,
                records=(),
            )
        return self._error(tp, outcome)

    def _aborted(self, result: ReadResult) -> list[AbortedTransaction] | None:
        """Return the aborted transactions of the records. As in Kafka, the list is null if it was not requested."""
        if self.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            return None
        return [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in result.aborted
        ]

    def _error(self, tp: TopicPartition, error: KafkaError) -> PartitionData:
        self.is_success = False
        code = error.error_code
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self.context.version <= 5:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        is_read = tp in self.wanted or code == ErrorCode.INCONSISTENT_TOPIC_ID
        data = PartitionData(
            partition_index=tp.partition,
            error_code=code,
            high_watermark=-1,
            # As in Kafka: null if the partition was read.
            aborted_transactions=None if is_read else [],
            records=(),
        )
        if code in LEADER_ERRORS and self.context.version >= 16:
            data.current_leader = LeaderIdAndEpoch(
                leader_id=self.broker.leader_id(self.context, tp), leader_epoch=self.broker.leader_epoch
            )
        return data

    def _endpoints(self, responses: list[FetchableTopicResponse]) -> list[NodeEndpoint]:
        """Return the endpoints of the leaders that partitions in the response refer to."""
        leaders = {
            data.current_leader.leader_id
            for response in responses
            for data in response.partitions
            if data.current_leader is not None
        }
        if not leaders:
            return []
        return [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in self.broker.nodes(self.context)
            if node.node_id in leaders
        ]


class _SessionFetch(_Fetch):
    """An incremental request. It reads the partitions of its session that may have news."""

    __slots__ = ("parts", "session", "topics")

    def __init__(
        self, broker: Broker, request: FetchRequest, context: RequestContext, session: FetchSession
    ) -> None:
        super().__init__(broker, request, context)
        self.session = session
        self.parts: dict[TopicPartition, SessionPartition] = {}  # those that are read, in order
        self.topics: dict[object, Topic | KafkaError] = {}  # by name or id

    def _begin(self) -> None:
        """Mark the partitions of the session that have to be read."""
        session, authorization = self.session, self.broker.authorization
        basis = None if authorization is None else authorization.basis(self.context)
        session.begin(
            (self.isolation_level, self.is_replica, self.context.version < 10, basis), trio.current_time()
        )
        if session.watch is not None and session.watch.grown():
            session.note_grown(session.watch.take())

    def prepare_now(self) -> bool:
        if self.is_replica:
            return False
        self._begin()
        changed = self.session.changed
        if len(changed) > PARTITIONS_AT_ONCE:
            return False
        known: dict[object, Topic] = {}
        for partition in changed:
            if (key := partition.key[0]) not in known:
                topic = self._known(partition)
                if topic is None:
                    return False
                known[key] = topic
        for partition in self.session.in_order(changed):
            key = partition.key[0]
            found = self.topics.get(key)
            if found is None:
                found = self.topics[key] = self._admitted(known[key])
                if isinstance(found, Topic):
                    partition.name = found.name
            self._want_part(partition, found)
        self.watch = self.session.watch_partitions(self.broker.log, self.parts.values())
        return True

    async def prepare(self) -> None:
        """Look up the topics of the changed partitions, and watch all partitions."""
        self._begin()
        await self._look_up(self.session.changed)
        self.watch = self.session.watch_partitions(self.broker.log, self.parts.values())

    def _want_part(self, partition: SessionPartition, topic: Topic | KafkaError) -> None:
        """Add a partition to `wanted`, or its error to `outcomes`."""
        name = topic.name if isinstance(topic, Topic) else partition.topic or str(partition.topic_id)
        tp = TopicPartition(name, partition.request.partition)
        try:
            if isinstance(topic, KafkaError):
                raise topic
            self.wanted[partition_of(topic, tp.partition)] = partition.request
        except KafkaError as error:
            self.wanted.pop(tp, None)
            self.outcomes[tp] = detached(error)
        partition.tp = tp
        self.parts[tp] = partition

    async def _look_up(self, partitions: Collection[SessionPartition]) -> None:
        """Add partitions to `wanted`, or their errors to `outcomes`."""
        time_slices = TimeSlices()
        for number, partition in enumerate(self.session.in_order(partitions), 1):
            if not number % CALLS_AT_ONCE:
                await time_slices.next()
            self._want_part(partition, await self._known_topic(partition))
        if len(self.parts) > len(partitions):
            by_order = self.session.in_order(self.parts.values())
            self.parts = {each.tp: each for each in by_order if each.tp is not None}
            self.wanted = {each: self.wanted[each] for each in self.parts if each in self.wanted}

    async def _known_topic(self, partition: SessionPartition) -> Topic | KafkaError:
        key = partition.key[0]
        found = self.topics.get(key)
        if found is None:
            try:
                found = await self._topic(partition)
                partition.name = found.name
            except UnknownTopicId as error:
                found = await self._lost(partition.name) if partition.name else error
            except KafkaError as error:
                found = error
            self.topics[key] = found
        return found

    async def _lost(self, name: str) -> KafkaError:
        """Return the error for the id of a topic of that name, which the session has found before, as Kafka does."""
        try:
            await self.broker.find_topic(name)
        except KafkaError as error:
            return error
        return InconsistentTopicId("the topic was created again, with another id")

    def begin_watch(self) -> None:
        pass  # the session watches its partitions

    async def wait(self) -> None:
        await self._wait(self.watch)
        self.watch.expect()

    async def read_or_wait(self) -> None:
        """Read changed partitions, immediately or once there is enough."""
        is_immediate = self.request.max_wait_ms <= 0 or self.min_bytes <= 0 or bool(self.outcomes)
        is_answer = bool(self.wanted) and await self._read()
        if not is_immediate and not is_answer:
            await self._wait(self.watch)
        self.watch.expect()

    async def _read_grown(self, grown: Collection[TopicPartition]) -> bool:
        changed = self.session.note_grown(grown)
        if not changed:
            return False
        self.topics.clear()
        await self._look_up(changed)
        if all(partition.tp not in self.wanted for partition in changed):
            return bool(self.outcomes)
        return await super()._read_grown([each.tp for each in changed if each.tp is not None])

    async def answer(self) -> FetchResponse:
        return self.answer_now()

    def respond(self, is_answer: bool) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:  # noqa: FBT001
        if is_answer:
            self.watch.expect()
        return super().respond(is_answer)

    def answer_now(self) -> FetchResponse:
        session = self.session
        if session.epoch != next_epoch(self.request.session_epoch):
            self._drop_records()
            return FetchResponse(
                error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id, responses=[]
            )
        found = []
        for tp, partition in self.parts.items():
            if (outcome := self.outcomes.get(tp)) is not None:
                is_idle = isinstance(outcome, ReadResult) and not outcome.size and not outcome.is_cut
                found.append((partition, self._partition(tp), is_idle))
        chosen = [(partition, data) for partition, data, _ in found if partition.must_respond(data)]
        responses = [
            FetchableTopicResponse(
                topic=partitions[0][0].topic,
                topic_id=partitions[0][0].topic_id,
                partitions=[data for _, data in partitions],
            )
            for _, group in groupby(chosen, key=lambda each: each[0].key[0])
            if (partitions := list(group))
        ]
        endpoints = [] if self.is_success else self._endpoints(responses)
        response = FetchResponse(session_id=session.session_id, responses=responses, node_endpoints=endpoints)
        if self.broker.quotas.is_enforced and not self._is_within_quota(response):
            self._drop_records()
            return FetchResponse(session_id=session.session_id, responses=[])
        now = trio.current_time()
        for partition, data, is_idle in found:
            session.answered(partition, data, now, is_idle=is_idle)
        if self.is_success:
            self.context.success = response
        return response


def _name(wanted: FetchTopic, topic: Topic | KafkaError) -> str:
    """Return the name of a requested topic, or its id if the name is unknown."""
    return topic.name if isinstance(topic, Topic) else wanted.topic or str(wanted.topic_id)


def encoded_bytes(response: FetchResponse, version: int) -> int:
    """Return the size of a response without its header, as Kafka charges it."""
    pieces: list[Buffer] = []
    encode(response, version, pieces.append)
    return 4 + sum(map(len, pieces))
