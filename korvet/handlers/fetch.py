"""Fetch: v4-18.

Behaviour: the response has whole record batches, starting with the one that contains the offset, in the order of the
request's partitions, within `max_bytes` (and `fetch.max.bytes`) and each partition's limit. The first batch is returned
regardless of its size, so that consumers make progress. If there are fewer bytes than `min_bytes`, the handler waits up
to `max_wait_ms` for the partitions to grow; it returns errors immediately. It watches the partitions before it reads
them, so that it misses no append in between and does not poll. Records are never null in the response, only empty.

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

from collections.abc import Collection
from itertools import groupby

import trio

from korvet.broker.broker import NO_EPOCH, Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.broker.fetch_sessions import INITIAL_EPOCH, FetchSession, SessionPartition, next_epoch
from korvet.concurrency.time_slices import CALLS_AT_ONCE, TimeSlices, map_in_slices
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
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import (
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    ReadRequest,
    ReadResult,
    Topic,
    TopicPartition,
    Watch,
)

# Errors that make a client look for the leader.
LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# An EpochEnd is the offset at which the client's log and the broker's diverged.
Outcome = ReadResult | EpochEnd | KafkaError


async def handle(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
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
    await fetch.prepare()
    await fetch.read_or_wait()
    if broker.counters.is_counting:
        await fetch.count()
    return await fetch.answer()


class _Fetch:
    """The state of one request."""

    __slots__ = (
        "broker",
        "context",
        "is_denied",
        "is_replica",
        "isolation_level",
        "max_bytes",
        "min_bytes",
        "names",
        "outcomes",
        "request",
        "size",
        "wanted",
    )

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

    def _obey_quotas(self) -> None:
        quotas = self.broker.quotas
        if self.is_replica:
            quotas.exempt(self.context)
        else:
            self.max_bytes = int(min(self.max_bytes, quotas.most_fetched(self.context)))

    # --- Topics -----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Look up the topics of the request."""
        time_slices = TimeSlices()
        for topic in self.request.topics:
            await self.resolve(topic, time_slices)

    async def resolve(self, wanted: FetchTopic, time_slices: TimeSlices) -> None:
        """Look up a topic, and add its partitions to `wanted`, or their errors to `outcomes`."""
        topic: Topic | KafkaError
        try:
            topic = await self._topic(wanted)
            name = topic.name
        except KafkaError as error:
            topic = detached(error)
            name = wanted.topic or str(wanted.topic_id)
        self.names.append(name)
        await time_slices.next()
        for number, partition in enumerate(wanted.partitions, 1):
            if not number % CALLS_AT_ONCE:
                await time_slices.next()
            tp = TopicPartition(name, partition.partition)
            if isinstance(topic, KafkaError):
                self.outcomes[tp] = topic
                continue
            try:
                self.wanted[partition_of(topic, partition.partition)] = partition
            except KafkaError as error:
                self.outcomes[tp] = detached(error)

    async def _topic(self, wanted: FetchTopic | SessionPartition) -> Topic:
        if self.is_denied:
            raise TopicAuthorizationFailed
        if self.context.version >= 13:
            topic = await self.broker.find_topic_by_id(wanted.topic_id)
            self._authorize(topic.name)
            return topic
        self._authorize(wanted.topic)
        topic = await self.broker.find_topic(wanted.topic)
        if self.context.version < 10 and topic.config.compression_type == "zstd":
            raise UnsupportedCompressionType("zstd needs Fetch version 10 or newer.")
        return topic

    def _authorize(self, name: str) -> None:
        if not self.is_replica:
            self.broker.authorize(self.context, Operation.READ, ResourceType.TOPIC, name)

    # --- Reading and waiting ----------------------------------------------------------------------------

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
        requests = {
            tp: ReadRequest(partition.fetch_offset, max(partition.partition_max_bytes, 0))
            for tp, partition in self.wanted.items()
            if only is None or tp in only
        }
        answers = self.broker.answers
        wanted = min(self.max_bytes, sum(each.max_bytes for each in requests.values()))
        max_bytes = answers.reserve(wanted)
        try:
            results = await self.broker.log.read(
                requests, max_bytes=max_bytes, isolation_level=self.isolation_level
            )
        finally:
            answers.release(max_bytes)
        # The wait may end during these checks. So the outcomes are stored together afterwards.
        outcomes = {tp: await self._checked(tp, self.wanted[tp], result) for tp, result in results.items()}
        self.outcomes |= outcomes
        read = {tp: outcome for tp, outcome in outcomes.items() if isinstance(outcome, ReadResult)}
        is_answer = len(read) < len(outcomes)
        self.size = sum(outcome.size for outcome in read.values())
        # If a limit cut the read of a partition, waiting adds nothing: the limit's bytes count, as in Kafka.
        available = sum(
            max(outcome.size, requests[tp].max_bytes) if outcome.is_cut else outcome.size
            for tp, outcome in read.items()
        )
        answers.change(self.size - self.context.answer_bytes)
        self.context.answer_bytes = self.size
        # If the byte budget shortened the read, answer without waiting for min_bytes.
        return is_answer or available >= (self.min_bytes if max_bytes == wanted else 1)

    async def _checked(
        self, tp: TopicPartition, wanted: FetchPartition, result: ReadResult | KafkaError
    ) -> Outcome:
        """Return the result, or the error or divergence that the request's epochs cause (KIP-320, KIP-595)."""
        # As in Kafka, any negative epoch means none here. In ListOffsets only -1 does.
        current_epoch = max(wanted.current_leader_epoch, NO_EPOCH)
        claims = current_epoch != NO_EPOCH or wanted.last_fetched_epoch > NO_EPOCH
        try:
            if isinstance(result, ReadResult):
                offsets = result.offsets
            elif claims and isinstance(result, OffsetOutOfRange):
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

    async def count(self) -> None:
        """Count the records that were read. Replicas count as well."""
        for tp, outcome in self.outcomes.items():
            if isinstance(outcome, ReadResult) and outcome.size:
                await self.broker.counters.fetched(tp.topic, outcome.batches)

    async def answer(self) -> FetchResponse:
        topics = [
            (name, topic)
            for name, topic in zip(self.names, self.request.topics, strict=True)
            if topic.partitions
        ]
        responses = await map_in_slices(self._topic_answer, topics)
        response = FetchResponse(session_id=0, responses=responses, node_endpoints=self._endpoints(responses))
        if not self._is_within_quota(response):
            self._drop_records()
            return FetchResponse(session_id=0, responses=[])
        if self.request.session_epoch == INITIAL_EPOCH:
            self._begin_session(response)
        return response

    def _is_within_quota(self, response: FetchResponse) -> bool:
        """Charge a response, and return False if it exceeds the client's quota."""
        if not self.broker.quotas.is_enforced or self.is_replica:
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
        return FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                self._partition(TopicPartition(name, partition.partition)) for partition in topic.partitions
            ],
        )

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

    __slots__ = ("parts", "session", "topics", "watch")

    watch: Watch

    def __init__(
        self, broker: Broker, request: FetchRequest, context: RequestContext, session: FetchSession
    ) -> None:
        super().__init__(broker, request, context)
        self.session = session
        self.parts: dict[TopicPartition, SessionPartition] = {}  # those that are read, in order
        self.topics: dict[object, Topic | KafkaError] = {}  # by name or id

    async def prepare(self) -> None:
        """Look up the topics of the changed partitions, and watch all partitions."""
        session, authorization = self.session, self.broker.authorization
        basis = None if authorization is None else authorization.basis(self.context)
        session.begin(
            (self.isolation_level, self.is_replica, self.context.version < 10, basis), trio.current_time()
        )
        if session.watch is not None and session.watch.grown():
            session.note_grown(await session.watch.wait())
        await self._look_up(session.changed)
        self.watch = session.watch_partitions(self.broker.log, self.parts.values())

    async def _look_up(self, partitions: Collection[SessionPartition]) -> None:
        """Add partitions to `wanted`, or their errors to `outcomes`."""
        time_slices = TimeSlices()
        for number, partition in enumerate(self.session.in_order(partitions), 1):
            if not number % CALLS_AT_ONCE:
                await time_slices.next()
            topic = await self._known_topic(partition)
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

    async def read_or_wait(self) -> None:
        """Read changed partitions, immediately or once there is enough."""
        is_immediate = self.request.max_wait_ms <= 0 or self.min_bytes <= 0 or bool(self.outcomes)
        is_answer = bool(self.wanted) and await self._read()
        if not is_immediate and not is_answer:
            await self._wait(self.watch)
        if self.broker.store.is_elsewhere:
            # Growth that no fetch waits for is noted, too.
            with trio.CancelScope(deadline=float("-inf")):
                await self.watch.wait()

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
        response = FetchResponse(
            session_id=session.session_id, responses=responses, node_endpoints=self._endpoints(responses)
        )
        if not self._is_within_quota(response):
            self._drop_records()
            return FetchResponse(session_id=session.session_id, responses=[])
        now = trio.current_time()
        for partition, data, is_idle in found:
            session.answered(partition, data, now, is_idle=is_idle)
        return response


def encoded_bytes(response: FetchResponse, version: int) -> int:
    """Return the size of a response without its header, as Kafka charges it."""
    size = 4

    def add(part: Buffer) -> None:
        nonlocal size
        size += len(part)

    encode(response, version, add)
    return size
