"""DescribeLogDirs: v1-4.

Behaviour: the storage is the only log directory, with the name in the broker's start line. Each partition has the size
of its records in bytes, and no lag, since there is one copy. Null requests all topics, an empty list none. Unknown
partitions are left out, as in Kafka. While the storage is unavailable, the directory is offline: KAFKA_STORAGE_ERROR.

Versions: an error of the whole request from v3. Sizes of the volume from v4: unknown (-1), since Redis may hold other
data in the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from korvet.broker import Broker, Operation, RequestContext
from korvet.protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartition
from korvet.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from korvet.storage.interface import TopicPartition


async def handle(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
    except KafkaError as error:
        return DescribeLogDirsResponse(error_code=error.error_code, results=[])
    return DescribeLogDirsResponse(results=[await _directory(broker, request.topics)])


async def _directory(broker: Broker, wanted: list[DescribableLogDirTopic] | None) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=broker.storage.description, topics=[])
    try:
        tps = await _all(broker) if wanted is None else _named(wanted)
        result.topics = _described(await broker.storage.sizes(tps))
    except KafkaError:
        # The directory is offline after any error of the storage.
        result.error_code = KafkaStorageError.error_code
    return result


async def _all(broker: Broker) -> list[TopicPartition]:
    topics = await broker.storage.topics()
    return [
        TopicPartition(name, number) for name in sorted(topics) for number in range(topics[name].partitions)
    ]


def _named(wanted: Iterable[DescribableLogDirTopic]) -> list[TopicPartition]:
    asked = (TopicPartition(topic.topic, number) for topic in wanted for number in topic.partitions)
    return list(dict.fromkeys(asked))


def _described(sizes: Mapping[TopicPartition, int | KafkaError]) -> list[DescribeLogDirsTopic]:
    """Return the topics of these partitions. Raises the first error of a partition, except unknown partitions."""
    topics: dict[str, DescribeLogDirsTopic] = {}
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
    return list(topics.values())
