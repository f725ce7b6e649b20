"""DescribeLogDirs: v1-5.

Behaviour: the storage is the only log directory; its name is made from the storage's URL. Each partition has the size
of its records in bytes, and no lag, since there is one copy. Null requests all topics, an empty list none. Unknown
partitions, and those that other brokers lead, are left out, as in Kafka. While the storage is unavailable, the
directory is offline: KAFKA_STORAGE_ERROR.

Versions: an error of the whole request from v3. Sizes of the volume from v4: unknown (-1), since Redis may hold other
data in the same memory. From v5 whether the directory is cordoned, which it never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.buffers import EncodedElements
from korvet.protocol.codec import Writer, element_writer
from korvet.protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartition
from korvet.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from korvet.protocol.repetitions import encoded
from korvet.security.acls import Operation
from korvet.storage.interface import TopicPartition

PARTITIONS_AT_ONCE = 500


async def handle(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
    except KafkaError as error:
        return DescribeLogDirsResponse(error_code=error.error_code, results=[])
    write = element_writer(DescribeLogDirsResponse, DescribeLogDirsTopic, context.version)
    return DescribeLogDirsResponse(results=[await _directory(broker, context, request.topics, write)])


async def _directory(
    broker: Broker,
    context: RequestContext,
    wanted: list[DescribableLogDirTopic] | None,
    write: Writer[DescribeLogDirsTopic],
) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=broker.log_dir, topics=[])
    time_slices = TimeSlices()
    topics: dict[str, DescribeLogDirsTopic] = {}
    try:
        asked = await broker.log.partitions() if wanted is None else _named(wanted)
        tps = [tp for tp in asked if broker.leader_id(context, tp) == broker.membership.node_id]
        for first in range(0, len(tps), PARTITIONS_AT_ONCE):
            _describe(await broker.log.sizes(tps[first : first + PARTITIONS_AT_ONCE]), topics)
            await time_slices.next()
        is_large = len(tps) > PARTITIONS_AT_ONCE
        result.topics = await _encoded(topics.values(), write) if is_large else list(topics.values())
    except KafkaError:
        # The directory is offline after any error of the storage.
        result.error_code = KafkaStorageError.error_code
    return result


async def _encoded(
    topics: Iterable[DescribeLogDirsTopic], write: Writer[DescribeLogDirsTopic]
) -> list[DescribeLogDirsTopic]:
    """Encode the topics in time slices."""
    time_slices = TimeSlices()
    encodings = []
    for topic in topics:
        encodings.append(encoded(write, topic))
        await time_slices.next()
    return cast(list[DescribeLogDirsTopic], EncodedElements(len(encodings), encodings))


def _named(wanted: Iterable[DescribableLogDirTopic]) -> list[TopicPartition]:
    asked = (TopicPartition(topic.topic, number) for topic in wanted for number in topic.partitions)
    return list(dict.fromkeys(asked))


def _describe(
    sizes: Mapping[TopicPartition, int | KafkaError], topics: dict[str, DescribeLogDirsTopic]
) -> None:
    """Add these partitions to their topics. Raises the first error of a partition, except unknown partitions."""
    for tp, size in sizes.items():
        if isinstance(size, UnknownTopicOrPartition):
            continue
        if isinstance(size, KafkaError):
            raise size
        topic = topics.setdefault(tp.topic, DescribeLogDirsTopic(name=tp.topic, partitions=[]))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=tp.partition, partition_size=size, offset_lag=0, is_future_key=False
            )
        )
