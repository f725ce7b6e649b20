"""Requests of the pages that `korvet.client` does not have: sizes, and whether offsets count records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from korvet.client import Client
from korvet.client.administration import TOPIC
from korvet.client.committed_offsets import MAPPING
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
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


async def with_clock_offsets(client: Client, topics: Sequence[str]) -> set[str]:
    """Return those of the topics whose offsets follow the clock, so that offsets do not count records."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=[MAPPING])
            for topic in topics
        ]
    )
    try:
        answer = await client.request(request, DescribeConfigsResponse)
    except KafkaError:
        return set()
    return {
        result.resource_name
        for result in answer.results
        for entry in result.configs
        if entry.name == MAPPING and entry.value == "timestamp"
    }
