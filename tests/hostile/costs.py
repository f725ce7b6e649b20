"""Measure the cost of each kind of request: `python -m tests.hostile.costs [memory|denied]` prints a table.

With `denied`, the table has requests with very many names of a client that has no ACL, in memory.

Every request names much with few bytes. The store is a Valkey, or with `memory` the broker's memory. Processor time is
the broker's own; the Valkey's is beside it, with the bytes that the request adds to the broker's log and to the store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import redis
import trio
from attrs import define

from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
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
from korvet.security.authorizer import STANDARD
from tests.hostile.measuring import API_VERSIONS, client_of, highest_bytes, neighbour, reset_highest
from tests.hostile.test_decompression import bomb, produce
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server
from tests.talk import Client

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
    redis_s: float
    logged: int
    stored: int


def requests() -> Iterator[tuple[str, object, int]]:
    """Yield name, message and version."""
    yield "ApiVersions", API_VERSIONS, 3
    yield "Metadata, all topics", MetadataRequest(topics=None), 12
    large = CreatableTopic(name="large", num_partitions=10_000, replication_factor=1)
    yield "CreateTopics, 10,000 partitions", CreateTopicsRequest(topics=[large], timeout_ms=30_000), 5
    yield "Produce, 60 partitions, compressed 1:30,000", produce(bomb(), range(60)), 9
    names = [MetadataRequestTopic(name=f"n{number}") for number in range(COUNT)]
    yield "Metadata, unknown topics", MetadataRequest(topics=names, allow_auto_topic_creation=False), 12
    yield "Metadata, new topics", MetadataRequest(topics=names), 12
    yield "DescribeLogDirs, all", DescribeLogDirsRequest(topics=None), 4
    yield "DescribeTopicPartitions, all", DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t0")]), 0
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    once = DescribeConfigsRequest(resources=[resource], include_documentation=True, include_synonyms=True)
    yield "DescribeConfigs, the broker", once, 4
    often = DescribeConfigsRequest(
        resources=[resource] * 3000, include_documentation=True, include_synonyms=True
    )
    yield "DescribeConfigs, the broker 3,000 times", often, 4
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


def denied_requests(count: int) -> Iterator[tuple[str, object, int]]:
    """Yield name, message and version of requests with `count` names, or half of it if each has a partition."""
    names = [f"n{number}" for number in range(count)]
    half = names[: count // 2]
    asked = [MetadataRequestTopic(name=name) for name in names]
    yield "Metadata", MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    yield (
        "Fetch",
        FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1_000,
            session_epoch=-1,
            topics=[FetchTopic(topic=name, partitions=[partition]) for name in half],
            forgotten_topics_data=[],
        ),
        12,
    )
    offset = ListOffsetsPartition(partition_index=0, timestamp=0)
    topics = [ListOffsetsTopic(name=name, partitions=[offset]) for name in half]
    yield "ListOffsets", ListOffsetsRequest(replica_id=-1, topics=topics), 7
    described = [TopicRequest(name=name) for name in names]
    yield "DescribeTopicPartitions", DescribeTopicPartitionsRequest(topics=described), 0
    deleted = [DeleteTopicState(name=name) for name in names]
    yield "DeleteTopics", DeleteTopicsRequest(topics=deleted, timeout_ms=0), 6
    yield "DescribeGroups", DescribeGroupsRequest(groups=names), 5
    yield "FindCoordinator", FindCoordinatorRequest(key_type=0, coordinator_keys=names), 4


async def measure_denied() -> None:
    """Send requests of a client without ACLs, and print a row for each."""
    with KorvetProcess(settings={"authorizer.class.name": STANDARD}) as broker:
        async with client_of(broker) as client, client_of(broker) as other:
            await client.ask(API_VERSIONS, 3)
            for count in (50_000, 1_000_000):
                for name, message, version in denied_requests(count):
                    cost = await cost_of(broker, client, other, f"{name}, {count:,} names", message, version)
                    sys.stdout.write(row(cost))
                    sys.stdout.flush()


async def cost_of(
    broker: KorvetProcess, client: Client, other: Client, name: str, message: object, version: int
) -> Cost:
    """Send a request, and return its cost without that to the store."""
    reset_highest(broker.pid)
    before, began, lines = highest_bytes(broker.pid), cpu_s(broker.pid), len(broker.log)
    frame = client.frame_of(message, version)
    async with neighbour(other) as waits:
        await client.send(frame)
        answer = await client.receive()
    cpu, took = cpu_s(broker.pid) - began, highest_bytes(broker.pid) - before
    logged = sum(len(line) + 1 for line in broker.log[lines:])
    return Cost(name, len(frame), len(answer), cpu, took, waits.longest_s, 0.0, logged, 0)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@define
class Store:
    """The Valkey of the measurement, or none."""

    client: redis.Redis | None

    def cpu_s(self) -> float:
        if self.client is None:
            return 0.0
        info = self.client.info("cpu")
        return float(info["used_cpu_sys"] + info["used_cpu_user"])

    def size(self) -> int:
        if self.client is None:
            return 0
        return int(self.client.info("memory")["used_memory_dataset"])


async def measure(url: str, store: Store) -> None:
    """Send every request once to a broker with 100,000 partitions, and print a row for each."""
    with KorvetProcess(storage=url) as broker:
        async with client_of(broker) as client, client_of(broker) as other:
            sizes = {f"t{number}": PARTITIONS for number in range(TOPICS)} | {"t": 60}
            for name, partitions in sizes.items():
                topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
                await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            for name, message, version in requests():
                redis_began, size = store.cpu_s(), store.size()
                cost = await cost_of(broker, client, other, name, message, version)
                redis_s, stored = store.cpu_s() - redis_began, store.size() - size
                sys.stdout.write(row(cost._replace(redis_s=redis_s, stored=stored)))
                sys.stdout.flush()


def row(cost: Cost) -> str:
    """Return a row of the table."""
    milliseconds = [f"{each * 1000:.0f}" for each in (cost.cpu_s, cost.longest_s, cost.redis_s)]
    cpu, longest, redis_cpu = milliseconds
    cells = [
        *(cost.name, f"{cost.sent:,}", f"{cost.answered:,}", cpu, f"{cost.took / 2**20:.0f}", longest),
        *(redis_cpu, f"{cost.logged:,}", f"{cost.stored / 1000:.0f}"),
    ]
    return f"| {' | '.join(cells)} |\n"


COLUMNS = (
    *("request", "bytes", "answer", "processor ms", "memory MB", "another client's wait, ms"),
    *("Redis ms", "log bytes", "stored kB"),
)


def main() -> None:
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    if sys.argv[1:] == ["denied"]:
        trio.run(measure_denied)
        return
    with ExitStack() as stack:
        url, store = "memory://", Store(None)
        if sys.argv[1:] != ["memory"]:
            server = start_server(VALKEY)
            stack.callback(server.remove)
            url, store = server.url, Store(stack.enter_context(server.client()))
        trio.run(measure, url, store)


if __name__ == "__main__":
    main()
