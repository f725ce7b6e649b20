"""`korvet groups` for share groups, with a member that speaks the protocol."""

from __future__ import annotations

import json

import trio

from korvet.client import TopicPartition, open_client
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
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id=MEMBER, member_epoch=epoch, subscribed_topic_names=[topic]
        )
        answer = await client.request(request, ShareGroupHeartbeatResponse, group_id=GROUP)
        assert 0 == answer.error_code, answer
        if epoch or answer.assignment is None:
            return
        (assigned,) = answer.assignment.topic_partitions
        partitions = [FetchPartition(partition_index=0, acknowledgement_batches=[])]
        fetch = ShareFetchRequest(
            group_id=GROUP,
            member_id=MEMBER,
            share_session_epoch=0,
            max_wait_ms=0,
            min_bytes=1,
            max_records=10,
            batch_size=10,
            topics=[FetchTopic(topic_id=assigned.topic_id, partitions=partitions)],
            forgotten_topics_data=[],
        )
        fetched = await client.request(fetch, ShareFetchResponse, node_id=next(iter(client.brokers)))
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
    printed = korvet("groups", "describe", GROUP).out
    assert all(text in printed for text in ("START-OFFSET", "total lag: 0", "EPOCH", MEMBER))
    refused = korvet("groups", "reset-offsets", GROUP, "--all-topics", "--to-earliest")
    assert (1, True) == (refused.status, "is a share group" in refused.err)
    assert korvet("groups", "delete", GROUP).err.endswith("(NON_EMPTY_GROUP)\n")

    trio.run(beat, broker.bootstrap_servers, -1)

    assert 0 == korvet("groups", "delete", GROUP).status
    assert [] == json.loads(korvet("groups", "list", "--type", "share", "--json").out)


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
