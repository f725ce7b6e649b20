"""DescribeLogDirs: v1-4.

Behaviour: the store is the one log directory there is, named as in the broker's start line; each partition in it with
the bytes its records take there, and no lag, since there is one copy. Null asks for all topics, an empty list for none;
partitions that are not there are left out, as in Kafka. While the store is away it is an offline directory:
KAFKA_STORAGE_ERROR.

Versions: an error of the whole request from v3. Sizes of the volume from v4: unknown (-1), since Redis' memory is
shared with whatever else it holds.
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
        # Whatever the store says, a directory that cannot be looked into is offline.
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
    """The topics that have some of these partitions. Raises what kept a size from being known."""
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
