"""ListOffsets: v1-11.

Behaviour, by the timestamp asked for:

    -1  latest            the next offset to be written; the last stable one under read_committed; timestamp -1
    -2  earliest          the log start offset, with the timestamp of the first record still there
    -3  maximum (v7)      the first record that bears the largest timestamp (KIP-734)
    -4  earliest local (v8)             the log start in storage: what lies below is in the lake alone
    -5  latest tiered (v9)              the last offset that is archived (KIP-1005); -1 when nothing is
    -6  earliest pending upload (v11)   the first offset not archived yet (KIP-1023); -1 without tiers
    a time                the first record, in offset order, whose own timestamp is at or after it

Where no record is found the answer is offset -1, timestamp -1, which Kafka's clients expect. For a time,
`list.offsets.unknown=zero` answers offset 0 instead.

Versions: isolation level from v2, leader epochs from v4. A special timestamp that the version does not know is
UNSUPPORTED_VERSION. A partition that stands twice in a request is INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter

from korvet.broker.broker import Broker, Operation, RequestContext, partition_of
from korvet.concurrency.tasks import in_parallel
from korvet.protocol.errors import InvalidRequest, KafkaError, UnsupportedVersion
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
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
    asked = Counter(
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    twice = {tp for tp, times in asked.items() if times > 1}
    return ListOffsetsResponse(
        topics=[await _topic(broker, request, context, topic, twice) for topic in request.topics]
    )


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
    """The offset asked for. Raises the KafkaError that stands in its way."""
    timestamp = asked.timestamp
    if timestamp < 0 and context.version < KNOWN_FROM_VERSION.get(timestamp, context.version + 1):
        raise UnsupportedVersion(f"timestamp {timestamp} means nothing in version {context.version}")
    if request.isolation_level not in (0, 1):
        raise InvalidRequest(f"there is no isolation level {request.isolation_level}")
    bounds = await broker.storage.latest(tp)
    broker.check_leader_epoch(tp, asked.current_leader_epoch, bounds.leader_epoch)
    end = _end(bounds, IsolationLevel(request.isolation_level))
    if timestamp == LATEST:
        return OffsetAndTimestamp(end, -1, bounds.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return await (broker.log if timestamp == EARLIEST else broker.storage).earliest(tp)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return await _archived(broker, tp, bounds, timestamp)
    found = await _search(broker, tp, timestamp)
    # What is not decided yet cannot be read, so it is not found either.
    if found is not None and found.offset < end:
        return found
    if timestamp >= 0 and broker.config.list_offsets_unknown == "zero":
        return OffsetAndTimestamp(0, -1, leader_epoch=-1)
    return NOTHING


def _end(bounds: LogOffsets, isolation_level: IsolationLevel) -> int:
    """How far the asker may read."""
    if isolation_level is IsolationLevel.READ_COMMITTED:
        return bounds.last_stable_offset
    return bounds.high_watermark


async def _archived(
    broker: Broker, tp: TopicPartition, bounds: LogOffsets, timestamp: int
) -> OffsetAndTimestamp:
    """The end of what is archived, as the last offset that is or the first that is not."""
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
