"""Requests that name one thing many times, or all things at once: their cost does not grow with the repetitions."""

from __future__ import annotations

import pytest
import trio

from korvet.config import settings
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from korvet.protocol.requests import decode_response
from tests.hostile.measuring import client_of, highest_bytes, neighbour, reset_highest
from tests.processes import KorvetProcess

PARTITIONS = 5_000
REPETITIONS = 30


@pytest.mark.slow
async def test_repeated_group_in_a_request_is_cheap() -> None:
    """100 times the offsets of one group took 228 MB, and 5 s in which no other client was answered."""
    commits = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
        for number in range(PARTITIONS)
    ]
    commit = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=commits)]
    )
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "no", "g") * REPETITIONS]
    with KorvetProcess() as broker, trio.fail_after(60):
        async with client_of(broker) as client, client_of(broker) as other:
            topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
            await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            await client.ask(commit, 8)
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)
            async with neighbour(other) as waits:
                await client.send(client.frame_of(OffsetFetchRequest(groups=groups), 8))
                frame = await client.receive()
            took = highest_bytes(broker.pid) - before
            _, offsets = decode_response(OffsetFetchResponse, 8, frame)
            sizes = await client.ask(DescribeLogDirsRequest(topics=None), 4)

    counts = [sum(len(topic.partitions) for topic in each.topics) for each in offsets.groups]
    assert ["g", "no", "g"] * REPETITIONS == [each.group_id for each in offsets.groups]
    assert [PARTITIONS, 0, PARTITIONS] * REPETITIONS == counts
    assert list(range(PARTITIONS)) == [each.partition_index for each in sizes.results[0].topics[0].partitions]
    assert took < 32_000_000
    assert waits.longest_s < 3


@pytest.mark.slow
async def test_repeated_resource_in_a_request_is_cheap() -> None:
    """Each repetition of the broker's settings took its own objects, 20 to 30 kB."""
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource] * 3_000, include_documentation=True)
    with KorvetProcess() as broker, trio.fail_after(60):
        async with client_of(broker) as client, client_of(broker) as other:
            await client.ask(DescribeConfigsRequest(resources=[resource], include_documentation=True), 4)
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)
            async with neighbour(other) as waits:
                await client.send(client.frame_of(request, 4))
                frame = await client.receive()
            took = highest_bytes(broker.pid) - before
            _, described = decode_response(DescribeConfigsResponse, 4, frame)

    assert len(described.results) == 3_000
    assert {len(each.configs) for each in described.results} == {len(settings())}
    assert took < 64_000_000
    assert waits.longest_s < 3
