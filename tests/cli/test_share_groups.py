"""`korvet groups` for share groups, with a member that speaks the protocol."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import trio

from korvet.client import Client, TopicPartition, open_client
from korvet.protocol.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from korvet.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from korvet.top.sampling import Sample, Sampler
from tests.cli.conftest import Korvet
from tests.processes import KorvetProcess

MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"
GROUP = "workers"


async def beat(servers: str, epoch: int, topic: str = "jobs") -> None:
    """Join the group at epoch 0, with a first fetch, or leave it at -1."""
    async with open_client(servers) as client:
        await beat_by(client, epoch, topic)


async def beat_by(client: Client, epoch: int, topic: str = "jobs") -> UUID | None:
    """Join the group at epoch 0, with a first fetch, or leave it at -1. Return the id of the topic."""
    request = ShareGroupHeartbeatRequest(
        group_id=GROUP, member_id=MEMBER, member_epoch=epoch, subscribed_topic_names=[topic]
    )
    answer = await client.request(request, ShareGroupHeartbeatResponse, group_id=GROUP)
    assert 0 == answer.error_code, answer
    if epoch or answer.assignment is None:
        return None
    (assigned,) = answer.assignment.topic_partitions
    await fetch(client, assigned.topic_id, 0)
    return assigned.topic_id


async def fetch(client: Client, topic_id: UUID, epoch: int) -> None:
    """Acquire records."""
    partitions = [FetchPartition(partition_index=0, acknowledgement_batches=[])]
    request = ShareFetchRequest(
        group_id=GROUP,
        member_id=MEMBER,
        share_session_epoch=epoch,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000_000,
        max_records=10,
        batch_size=10,
        topics=[FetchTopic(topic_id=topic_id, partitions=partitions)],
        forgotten_topics_data=[],
    )
    fetched = await client.request(request, ShareFetchResponse, node_id=next(iter(client.brokers)))
    assert 0 == fetched.error_code, fetched


def test_share_group_is_listed_described_and_deleted(korvet: Korvet, broker: KorvetProcess) -> None:
    korvet("topics", "create", "jobs")
    trio.run(beat, broker.bootstrap_servers, 0)

    listed = json.loads(korvet("groups", "list", "--type", "share", "--json").out)
    assert [(GROUP, "share")] == [(row["group"], row["type"]) for row in listed]
    (row,) = json.loads(korvet("groups", "describe", GROUP, "--json").out)
    assert ("jobs", 0, 0, 0) == tuple(row[key] for key in ("topic", "partition", "start-offset", "lag"))
    (member,) = row["members"]
    assert (MEMBER, ["jobs-0"]) == (member["member-id"], member["assignment"])
    assert member["epoch"] > 0
    assert [member] == json.loads(korvet("groups", "describe", GROUP, "--members", "--json").out)
    assert [] == json.loads(korvet("groups", "describe", GROUP, "--records", "--json").out)
    printed = korvet("groups", "describe", GROUP).out
    assert all(text in printed for text in ("START-OFFSET", "total lag: 0", "EPOCH", MEMBER))
    refused = korvet("groups", "reset-offsets", GROUP, "--all-topics", "--to-earliest")
    assert (1, True) == (refused.status, "is a share group" in refused.err)
    assert korvet("groups", "delete", GROUP).err.endswith("(NON_EMPTY_GROUP)\n")

    trio.run(beat, broker.bootstrap_servers, -1)

    assert 0 == korvet("groups", "delete", GROUP).status
    assert [] == json.loads(korvet("groups", "list", "--type", "share", "--json").out)


def test_records_in_flight_are_described_with_their_holders(
    korvet: Korvet, piped: Korvet, broker: KorvetProcess
) -> None:
    korvet("topics", "create", "jobs", "--set", "offset.mapping=dense")
    korvet("groups", "reset-offsets", "classic", "--topic", "jobs", "--to-earliest", "--execute")

    async def while_held() -> tuple[Any, str]:
        async with open_client(broker.bootstrap_servers) as client:
            topic_id = await beat_by(client, 0)
            assert topic_id is not None
            await trio.to_thread.run_sync(lambda: piped("produce", "jobs", stdin="a\nb\nc\n"))
            await fetch(client, topic_id, 1)
            described = await trio.to_thread.run_sync(
                lambda: korvet("groups", "describe", GROUP, "--records", "--json").out
            )
            printed = await trio.to_thread.run_sync(
                lambda: korvet("groups", "describe", "--all", "--records", "--limit", "1").out
            )
            await beat_by(client, -1)
            return json.loads(described), printed

    (row,), printed = trio.run(while_held)
    refused = korvet("groups", "describe", "classic", "--records")
    korvet("groups", "delete", GROUP)

    assert ("jobs", 0, 3) == (row["topic"], row["partition"], row["in-flight"])
    (held,) = row["records"]
    assert [0, 2, 3, 1] == [held[key] for key in ("first-offset", "last-offset", "records", "deliveries")]
    assert (MEMBER, "korvet") == (held["member-id"], held["client-id"])
    assert 30_000 == held["acquired-ms"] + held["lock-ms"]
    assert all(text in printed for text in ("0-2", "s ago", MEMBER, "in flight: 3"))
    assert (2, True) == (refused.status, "is no share group" in refused.err)


def test_samples_of_top_have_the_start_offsets_of_share_groups(
    korvet: Korvet, piped: Korvet, broker: KorvetProcess
) -> None:
    korvet("topics", "create", "chores", "--set", "offset.mapping=dense")
    trio.run(beat, broker.bootstrap_servers, 0, "chores")
    assert 0 == piped("produce", "chores", stdin="wash\ndry\n").status

    async def sample() -> Sample:
        async with open_client(broker.bootstrap_servers) as client:
            return await Sampler(client).take()

    taken = trio.run(sample)
    trio.run(beat, broker.bootstrap_servers, -1, "chores")
    assert 0 == korvet("groups", "delete", GROUP).status

    assert not [note for note in taken.notes if GROUP in note]
    group = taken.groups[GROUP]
    assert 1 == group.members
    assert group.lags is not None
    assert {TopicPartition("chores", 0): (0, 2, 2)} == {
        tp: (lag.committed, lag.end, lag.records) for tp, lag in group.lags.items()
    }
