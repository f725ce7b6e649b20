"""Fetch: v4-17.

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
of truncation by the last fetched epoch from v12, topics by id from v13 (UNKNOWN_TOPIC_ID), the current leader from v16.
Up to v5, NOT_LEADER_OR_FOLLOWER replaces KAFKA_STORAGE_ERROR, because those clients retry it.

Declined: fetch sessions (KIP-227). A client that requests one gets session id 0 and sends full requests from then on. A
session id in a request can only be from another broker and gets FETCH_SESSION_ID_NOT_FOUND. Fetches of replicas are
answered like those of consumers.
"""

from __future__ import annotations

from collections.abc import Collection

from korvet.broker.broker import NO_EPOCH, Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import CALLS_AT_ONCE, TimeSlices, map_in_slices
from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import encode
from korvet.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
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

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
# Errors that make a client look for the leader.
LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# An EpochEnd is the offset at which the client's log and the broker's diverged.
Outcome = ReadResult | EpochEnd | KafkaError


async def handle(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[])
    if request.isolation_level not in (0, 1):
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST, session_id=0, responses=[])

    fetch = _Fetch(broker, request, context)
    time_slices = TimeSlices()
    for topic in request.topics:
        await fetch.resolve(topic, time_slices)
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

    async def _topic(self, wanted: FetchTopic) -> Topic:
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
            if await self._read():
                return
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
        if not self.broker.quotas.is_enforced or self.is_replica:
            return response
        if self.broker.quotas.fetched(self.context, lambda: encoded_bytes(response, self.context.version)):
            return response
        self.broker.answers.change(-self.context.answer_bytes)
        self.context.answer_bytes = 0
        return FetchResponse(session_id=0, responses=[])

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
        data = PartitionData(
            partition_index=tp.partition,
            error_code=code,
            high_watermark=-1,
            # As in Kafka: null if the partition was read.
            aborted_transactions=None if tp in self.wanted else [],
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


def encoded_bytes(response: FetchResponse, version: int) -> int:
    """Return the size of a response without its header, as Kafka charges it."""
    size = 4

    def add(part: Buffer) -> None:
        nonlocal size
        size += len(part)

    encode(response, version, add)
    return size
