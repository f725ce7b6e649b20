"""Offsets that are committed to a group for tools that show lag."""

from __future__ import annotations

from korvet.client import OffsetAndMetadata, TopicPartition
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.group_offsets import GroupOffsets
from tests.pipeline.support import Cluster


def test_offsets_are_committed_when_they_change_and_before_brokers_forget_them(
    memory: Cluster, topic: str
) -> None:
    memory.create(topic)
    tp = TopicPartition(topic, 0)
    group = GroupOffsets(Connecting(memory.bootstrap_servers), f"{topic}-group")

    def commit(offset: int) -> int | None:
        """Commit, and return the offset that the group has then."""
        assert memory.run(lambda _: group.commit({tp: OffsetAndMetadata(offset)}))
        found = memory.run(lambda client: client.committed(group.group_id))
        return found[tp].offset if tp in found else None

    assert [3, 4] == [commit(3), commit(4)]
    memory.run(lambda client: client.commit(group.group_id, {tp: OffsetAndMetadata(1)}))
    assert 1 == commit(4)  # nothing has changed here
    group.renew_every_s = 0.0
    assert 4 == commit(4)


def test_partitions_without_a_commit_begin_at_0(memory: Cluster, topic: str) -> None:
    memory.create(topic, partitions=2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    group = GroupOffsets(Connecting(memory.bootstrap_servers), f"{topic}-group")
    memory.run(lambda _: group.commit({first: OffsetAndMetadata(7)}))

    found = memory.run(lambda _: group.committed([first, second]))

    assert {first: 7, second: 0} == {tp: each.offset for tp, each in found.items()}
    assert {} == memory.run(lambda _: GroupOffsets(Connecting("127.0.0.1:1"), "g").committed([first]))
