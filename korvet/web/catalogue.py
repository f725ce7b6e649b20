"""The sizes of topics, which `korvet.client` does not have."""

from __future__ import annotations

from collections.abc import Collection

from korvet.client import Client
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

Sizes = dict[str, dict[int, int]]


async def sizes(client: Client, topics: dict[str, Collection[int]] | None) -> Sizes | None:
    """Return the bytes of each partition, by topic; all topics if None. Return None if the cluster does not say.

    Partitions with several replicas have the size of the largest one.
    """
    request = DescribeLogDirsRequest(
        topics=None
        if topics is None
        else [DescribableLogDirTopic(topic=name, partitions=list(ids)) for name, ids in topics.items()]
    )
    found: Sizes = {}
    answered = False
    for node_id in list(client.brokers):
        try:
            answer = await client.request(request, DescribeLogDirsResponse, node_id=node_id)
        except KafkaError:
            continue
        for directory in answer.results:
            answered = answered or not directory.error_code
            for topic in directory.topics:
                of_topic = found.setdefault(topic.name, {})
                for partition in topic.partitions:
                    known = of_topic.get(partition.partition_index, 0)
                    of_topic[partition.partition_index] = max(known, partition.partition_size)
    return found if answered else None


def total(found: Sizes | None, topic: str) -> int | None:
    """Return the bytes of a topic, or None if they are unknown."""
    return None if found is None or topic not in found else sum(found[topic].values())
