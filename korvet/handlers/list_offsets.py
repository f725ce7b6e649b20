"""ListOffsets: v1-11.

Behaviour, by the requested timestamp:

    -1  latest            the high watermark, or under read_committed the last stable offset; timestamp -1
    -2  earliest          the log start offset, with the timestamp of the first record that is left
    -3  maximum (v7)      the first record that has the largest timestamp (KIP-734)
    -4  earliest local (v8)             the log start offset in storage; lower offsets are only in the lake
    -5  latest tiered (v9)              the last archived offset (KIP-1005); -1 if nothing is archived
    -6  earliest pending upload (v11)   the first offset that is not archived (KIP-1023); -1 without tiers
    a time                the first record, in offset order, whose timestamp is at or after it

If no record is found, the broker returns offset -1 and timestamp -1, as Kafka's clients expect. With
`list.offsets.unknown=zero` it returns offset 0 for a time instead.

Versions: isolation level from v2, leader epochs from v4. Errors: UNSUPPORTED_VERSION for a special timestamp that the
version does not have, INVALID_REQUEST for a partition that appears twice in a request; for the latest offset,
OFFSET_NOT_AVAILABLE (before v5 LEADER_NOT_AVAILABLE) after a failover until the high watermark is known (KIP-207).
"""

from __future__ import annotations

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import TimeSlices, each_in_slices
from korvet.protocol.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from korvet.security.acls import Operation
from korvet.storage.interface import IsolationLevel, LogOffsets, OffsetAndTimestamp, Topic, TopicPartition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
KNOWN_FROM_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NOTHING = OffsetAndTimestamp(-1, -1, leader_epoch=-1)


async def handle(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    asked: set[TopicPartition] = set()
    twice: set[TopicPartition] = set()
    time_slices = TimeSlices()
    for topic in request.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            (twice if tp in asked else asked).add(tp)
            await time_slices.next()

    async def answer(topic: ListOffsetsTopic) -> ListOffsetsTopicResponse:
        return await _topic(broker, request, context, topic, twice)

    return ListOffsetsResponse(topics=await each_in_slices(answer, request.topics))


async def _topic(
    broker: Broker,
    request: ListOffsetsRequest,
    context: RequestContext,
    asked: ListOffsetsTopic,
    twice: set[TopicPartition],
) -> ListOffsetsTopicResponse:
    topic: Topic | KafkaError
    try:
        topic = await broker.topic(context, asked.name, Operation.DESCRIBE)
    except KafkaError as error:
        topic = error

    async def answer(partition: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        try:
            if isinstance(topic, KafkaError):
                raise topic
            tp = partition_of(topic, partition.partition_index)
            if tp in twice:
                raise InvalidRequest("the partition stands twice in the request")
            found = await _find(broker, request, context, tp, partition)
        except KafkaError as error:
            return ListOffsetsPartitionResponse(
                partition_index=partition.partition_index, error_code=error.error_code
            )
        return ListOffsetsPartitionResponse(
            partition_index=partition.partition_index,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=found.leader_epoch if context.version >= 4 else -1,
        )

    return ListOffsetsTopicResponse(name=asked.name, partitions=await in_parallel(answer, asked.partitions))


async def _find(
    broker: Broker,
    request: ListOffsetsRequest,
    context: RequestContext,
    tp: TopicPartition,
    asked: ListOffsetsPartition,
) -> OffsetAndTimestamp:
    """Return the requested offset. Raises KafkaError."""
    timestamp = asked.timestamp
    if timestamp < 0 and context.version < KNOWN_FROM_VERSION.get(timestamp, context.version + 1):
        raise UnsupportedVersion(f"timestamp {timestamp} means nothing in version {context.version}")
    if request.isolation_level not in (0, 1):
        raise InvalidRequest(f"there is no isolation level {request.isolation_level}")
    bounds = await broker.log.local_bounds(tp)
    broker.check_leader_epoch(tp, asked.current_leader_epoch, bounds.leader_epoch)
    end = _end(bounds, IsolationLevel(request.isolation_level))
    if timestamp == LATEST:
        if not bounds.has_caught_up:
            message = "too few replicas have confirmed the log since the leader epoch began"
            raise OffsetNotAvailable(message) if context.version >= 5 else LeaderNotAvailable(message)
        return OffsetAndTimestamp(end, -1, bounds.leader_epoch)
    if timestamp == EARLIEST:
        return await broker.log.earliest(tp)
    if timestamp == EARLIEST_LOCAL:
        return await broker.log.local_earliest(tp)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return await _archived(broker, tp, bounds, timestamp)
    found = await _search(broker, tp, timestamp)
    # Records of undecided transactions cannot be read, so the search must not find them either.
    if found is not None and found.offset < end:
        return found
    if timestamp >= 0 and broker.config.list_offsets_unknown == "zero":
        return OffsetAndTimestamp(0, -1, leader_epoch=-1)
    return NOTHING


def _end(bounds: LogOffsets, isolation_level: IsolationLevel) -> int:
    """Return the offset before which a client may read at this isolation level."""
    if isolation_level is IsolationLevel.READ_COMMITTED:
        return bounds.last_stable_offset
    return bounds.high_watermark


async def _archived(
    broker: Broker, tp: TopicPartition, bounds: LogOffsets, timestamp: int
) -> OffsetAndTimestamp:
    """Return the last archived offset, or the first offset that is not archived."""
    if not await broker.log.is_tiered(tp):
        return NOTHING
    archived = await broker.log.archived(tp)
    if timestamp == LATEST_TIERED:
        return NOTHING if archived is None else OffsetAndTimestamp(archived.end - 1, -1, bounds.leader_epoch)
    first = bounds.log_start_offset if archived is None else archived.end
    return OffsetAndTimestamp(first, -1, bounds.leader_epoch)


async def _search(broker: Broker, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
    if timestamp == MAX_TIMESTAMP:
        return await broker.log.seek_max_ts(tp)
    return await broker.log.seek_ts(tp, timestamp)
