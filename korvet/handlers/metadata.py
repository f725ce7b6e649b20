"""Metadata: v0-13.

Behaviour: return the brokers, with the addresses advertised on the client's listener; a controller, always; and topics
with their partitions, each of which has one broker as leader and only replica (with `replication.factor.policy=brokers`
every broker is a replica). If both the broker and the client allow it, a topic that does not exist is created with the
broker's defaults, and is in the same response. Otherwise the error is UNKNOWN_TOPIC_OR_PARTITION, or
INVALID_TOPIC_EXCEPTION for an invalid name.

Versions: null requests all topics (in v0 an empty list), an empty list none. Clients may forbid creation from v4.
Authorized operations from v8, for topics and (up to v10) the cluster, only on request. Topics by id from v12:
UNKNOWN_TOPIC_ID. If a request has ids, its names are ignored, as in Kafka. In v10 and v11 a null name or an id is
INVALID_REQUEST. v13 has an error of the whole request, which is always NONE.

Large responses are encoded in pieces, so that other clients are served in between. They count against
`queued.max.response.bytes`, and wait while no bytes are left.

Declined: Kafka's internal topics (`__consumer_offsets`) are never created automatically.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast
from uuid import UUID

from attrs import define, field, frozen

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect, RequestContext
from korvet.broker.limits import SMALLEST_ANSWER_BYTES
from korvet.broker.topics import INTERNAL_TOPICS, validate_name
from korvet.cluster.placement import Leaders
from korvet.concurrency.time_slices import TimeSlices, map_in_slices
from korvet.protocol.buffers import Buffer, EncodedElements, join_small
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.frames import LARGE_PIECE
from korvet.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_OMITTED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import Topic

# Numbers of objects that are encoded in about half a millisecond.
TOPICS_AT_ONCE = 64
PARTITIONS_AT_ONCE = 64
# Sizes in a response of the newest version, in bytes, without names.
TOPIC_BYTES, ERROR_BYTES, PARTITION_BYTES = 28, 26, 26
# Errors whose entries contain nothing but the name or the id.
HIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST)

Leader = tuple[int, int, tuple[int, ...]]  # node id, epoch, replicas


async def handle(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    # Brokers and leaders of one moment: a leader that is not among the brokers ends some clients' requests.
    nodes, leaders = broker.nodes(context), broker.membership.leaders_on(context.listener_name)
    topics = await _topics(broker, request, context, leaders)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
        cluster_authorized_operations=_cluster_operations(broker, request, context),
    )


def _cluster_operations(broker: Broker, request: MetadataRequest, context: RequestContext) -> int:
    if not request.include_cluster_authorized_operations:
        return AUTHORIZED_OPERATIONS_OMITTED
    return broker.cluster_operations(context)


async def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext, leaders: Leaders
) -> list[MetadataResponseTopic]:
    found = await _found(broker, request, context)
    size = sum(await map_in_slices(_bytes_of, found))
    if size > SMALLEST_ANSWER_BYTES:
        await broker.answers.wait_for_room()
    broker.answers.change(size)
    context.answer_bytes = size
    answer = Answer(broker, request, context, leaders)
    for each in found:
        await answer.add(each)
    return answer.topics()


def _bytes_of(found: Topic | MetadataError) -> int:
    """Estimate the size of an entry of the response."""
    if isinstance(found, MetadataError):
        return ERROR_BYTES + len(found.name or "")
    return TOPIC_BYTES + len(found.name) + PARTITION_BYTES * found.partitions


@frozen
class MetadataError:
    """The response's entry for a topic that cannot be described."""

    code: ErrorCode
    name: str | None
    topic_id: UUID = ZERO_UUID


# --- Finding topics ------------------------------------------------------------------------------------------


async def _found(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> Sequence[Topic | MetadataError]:
    """Return the topics of the request, and create those that do not exist and may be created."""
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        return await _all_topics(broker, context)
    topic_ids = await map_in_slices(_id_of, wanted)
    if context.version < 12 and (any(topic_ids) or any(topic.name is None for topic in wanted)):
        return [MetadataError(ErrorCode.INVALID_REQUEST, topic.name or "") for topic in wanted]

    time_slices = TimeSlices()
    found: list[Topic | MetadataError] = []
    ids = dict.fromkeys(filter(None, topic_ids))
    for topic_id in ids:
        found.append(await _by_id(broker, context, topic_id))
        await time_slices.next()
    if not ids:
        seen: set[str] = set()
        for topic in wanted:
            name = topic.name or ""
            if name not in seen:
                seen.add(name)
                found.append(await _by_name(broker, request, context, name))
            await time_slices.next()
    return found


def _id_of(topic: MetadataRequestTopic) -> UUID | None:
    return None if topic.topic_id is ZERO_UUID or topic.topic_id == ZERO_UUID else topic.topic_id


async def _all_topics(broker: Broker, context: RequestContext) -> Sequence[Topic]:
    try:
        return await broker.topics(context, Operation.DESCRIBE)
    except KafkaError as error:
        # The response has no field for an error of the whole request, and clients would trust an incomplete list.
        raise Disconnect(f"the topics cannot be listed: {error}") from error


async def _by_id(broker: Broker, context: RequestContext, topic_id: UUID) -> Topic | MetadataError:
    try:
        return await broker.topic_by_id(context, topic_id, Operation.DESCRIBE)
    except KafkaError as error:
        return MetadataError(error.error_code, None, topic_id)


async def _by_name(
    broker: Broker, request: MetadataRequest, context: RequestContext, name: str
) -> Topic | MetadataError:
    try:
        broker.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
        validate_name(name)
        if _may_create(broker, request, name):
            return await broker.topic_or_new(context, name)
        return await broker.find_topic(name)
    except KafkaError as error:
        return MetadataError(error.error_code, name)


def _may_create(broker: Broker, request: MetadataRequest, name: str) -> bool:
    allowed = broker.config.auto_create_topics_enable and request.allow_auto_topic_creation
    return allowed and name not in INTERNAL_TOPICS


# --- Describing them -----------------------------------------------------------------------------------------


@define
class Answer:
    """The topics of a response: objects, or if there are many, encodings, which take a fortieth of the memory."""

    broker: Broker
    request: MetadataRequest
    context: RequestContext
    leaders: Leaders
    _time_slices: TimeSlices = field(factory=TimeSlices)
    _last: list[MetadataResponseTopic] = field(factory=list)
    _pieces: list[Buffer] = field(factory=list)
    _count: int = 0

    async def add(self, found: Topic | MetadataError) -> None:
        """Describe a topic."""
        if isinstance(found, MetadataError):
            self._last.append(self._error(found))
        else:
            self._last.append(await self._described(found))
        self._count += 1
        if len(self._last) == TOPICS_AT_ONCE:
            self._encode()
        await self._time_slices.next()

    def topics(self) -> list[MetadataResponseTopic]:
        """Return the topics that were added."""
        if not self._pieces:
            return self._last
        self._encode()
        return cast(list[MetadataResponseTopic], EncodedElements(self._count, self._pieces))

    async def _described(self, topic: Topic) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=await self._partitions(topic),
            topic_authorized_operations=self._operations(topic.name),
        )

    def _error(self, error: MetadataError) -> MetadataResponseTopic:
        is_hidden = error.name is None or error.code in HIDDEN
        return MetadataResponseTopic(
            error_code=error.code,
            name=error.name,
            topic_id=error.topic_id,
            is_internal=not is_hidden and error.name in INTERNAL_TOPICS,
            partitions=[],
            topic_authorized_operations=AUTHORIZED_OPERATIONS_OMITTED
            if is_hidden
            else self._operations(error.name or ""),
        )

    def _operations(self, name: str) -> int:
        if not self.request.include_topic_authorized_operations:
            return AUTHORIZED_OPERATIONS_OMITTED
        return self.broker.authorized_operations(self.context, ResourceType.TOPIC, name)

    async def _partitions(self, topic: Topic) -> list[MetadataResponsePartition]:
        if topic.partitions <= PARTITIONS_AT_ONCE:
            return _partitions(0, self._leaders_of(topic, range(topic.partitions)))
        pieces: list[Buffer] = []
        for first in range(0, topic.partitions, PARTITIONS_AT_ONCE):
            numbers = range(first, min(first + PARTITIONS_AT_ONCE, topic.partitions))
            leaders = self._leaders_of(topic, numbers)
            is_same = leaders.count(leaders[0]) == len(leaders)
            piece = _encoded(self.context.version, first, leaders[:1] if is_same else leaders, len(numbers))
            pieces.append(piece)
            await self._time_slices.next()
        return cast(list[MetadataResponsePartition], EncodedElements(topic.partitions, pieces))

    def _leaders_of(self, topic: Topic, numbers: range) -> tuple[Leader, ...]:
        epoch = self.broker.leader_epoch
        leader_ids = [self.leaders.of(topic.name, number) for number in numbers]
        replicas = {
            leader_id: tuple(self.broker.replicas(leader_id, self.leaders.seeds))
            for leader_id in {*leader_ids}
        }
        return tuple((leader_id, epoch, replicas[leader_id]) for leader_id in leader_ids)

    def _encode(self) -> None:
        write = element_writer(MetadataResponse, MetadataResponseTopic, self.context.version)
        pieces: list[Buffer] = []
        for topic in self._last:
            write(topic, pieces.append)
        self._pieces += join_small(pieces, LARGE_PIECE)
        self._last.clear()


@lru_cache(maxsize=1024)
def _encoded(version: int, first: int, leaders: tuple[Leader, ...], count: int) -> bytes:
    """Return the encodings of `count` partitions. `leaders` contains one leader for all of them, or one for each.

    The encoding depends only on the arguments, and is the same for all topics, so the cache needs no invalidation.
    """
    write = element_writer(MetadataResponse, MetadataResponsePartition, version)
    pieces: list[Buffer] = []
    for partition in _partitions(first, leaders * count if len(leaders) == 1 else leaders):
        write(partition, pieces.append)
    return b"".join(pieces)


def _partitions(first: int, leaders: Sequence[Leader]) -> list[MetadataResponsePartition]:
    return [
        MetadataResponsePartition(
            partition_index=number,
            leader_id=leader_id,
            leader_epoch=epoch,
            replica_nodes=[*replicas],
            isr_nodes=[*replicas],
        )
        for number, (leader_id, epoch, replicas) in enumerate(leaders, first)
    ]
