"""Measure the cost of each kind of request: `python -m tests.hostile.costs [STORAGE]` prints a table.

Every request names much with few bytes. Processor time is the broker's own, without that of Redis.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.hostile.measuring import API_VERSIONS, client_of, highest_bytes, neighbour, reset_highest
from tests.processes import KorvetProcess

TOPICS, PARTITIONS = 20, 5_000
COUNT = 5_000  # elements of a request


class Cost(NamedTuple):
    """The cost of one request."""

    name: str
    sent: int
    answered: int
    cpu_s: float
    took: int
    longest_s: float


def requests() -> Iterator[tuple[str, object, int]]:
    """Yield name, message and version."""
    yield "ApiVersions", API_VERSIONS, 3
    yield "Metadata, all topics", MetadataRequest(topics=None), 12
    names = [MetadataRequestTopic(name=f"n{number}") for number in range(COUNT)]
    yield "Metadata, unknown topics", MetadataRequest(topics=names, allow_auto_topic_creation=False), 12
    yield "Metadata, new topics", MetadataRequest(topics=names), 12
    yield "DescribeLogDirs, all", DescribeLogDirsRequest(topics=None), 4
    yield "DescribeTopicPartitions, all", DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t0")]), 0
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    once = DescribeConfigsRequest(resources=[resource], include_documentation=True, include_synonyms=True)
    yield "DescribeConfigs, the broker", once, 4
    often = DescribeConfigsRequest(
        resources=[resource] * 1000, include_documentation=True, include_synonyms=True
    )
    yield "DescribeConfigs, the broker 1,000 times", often, 4
    yield "FindCoordinator", FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * COUNT), 4
    yield "DescribeGroups", DescribeGroupsRequest(groups=["g"] * COUNT), 5
    yield "ListGroups", ListGroupsRequest(), 4
    yield "InitProducerId", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4
    asked = [ListOffsetsPartition(partition_index=number, timestamp=0) for number in range(COUNT)]
    yield (
        "ListOffsets by time",
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t0", partitions=asked)]),
        7,
    )
    commits = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
        for number in range(COUNT)
    ]
    yield (
        "OffsetCommit",
        OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t0", partitions=commits)]),
        8,
    )
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)] * 100
    yield "OffsetFetch, a group 100 times", OffsetFetchRequest(groups=groups), 8


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(storage: str) -> list[Cost]:
    """Send every request once to a broker with 100,000 partitions."""
    costs = []
    with KorvetProcess(storage=storage) as broker:
        async with client_of(broker) as client, client_of(broker) as other:
            for number in range(TOPICS):
                topic = CreatableTopic(name=f"t{number}", num_partitions=PARTITIONS, replication_factor=1)
                await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            for name, message, version in requests():
                reset_highest(broker.pid)
                before, began = highest_bytes(broker.pid), cpu_s(broker.pid)
                frame = client.frame_of(message, version)
                async with neighbour(other) as waits:
                    await client.send(frame)
                    answer = await client.receive()
                took = highest_bytes(broker.pid) - before
                costs.append(
                    Cost(name, len(frame), len(answer), cpu_s(broker.pid) - began, took, waits.longest_s)
                )
    return costs


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else "memory://"
    lines = [
        "| request | bytes | answer | processor ms | memory MB | a neighbour's wait, ms |",
        "|---|---|---|---|---|---|",
    ]
    for cost in trio.run(measure, storage):
        cells = (cost.name, f"{cost.sent:,}", f"{cost.answered:,}")
        numbers = (cost.cpu_s * 1000, cost.took / 2**20, cost.longest_s * 1000)
        lines.append(f"| {' | '.join([*cells, *(f'{number:.0f}' for number in numbers)])} |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
