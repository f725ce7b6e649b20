"""Consumer groups that move to another broker: epochs, assignments and targets stay; nothing is reconciled again."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from trio.testing import MockClock

from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import Heartbeat
from korvet.groups.document import UnreadableDocument, read
from korvet.groups.machine import read_group
from korvet.groups.members import GroupLimits, Join, Leave
from korvet.groups.parts import all_parts, written_head
from korvet.protocol.errors import ErrorCode, KafkaError, StaleMemberEpoch, UnknownMemberId
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from tests.groups.test_takeover import Broker, cluster

pytestmark = pytest.mark.usefixtures("autojump_clock")

T0 = TopicPartition("t", 0)


def joining(member_id: str, *names: str, expression: str | None = None) -> Heartbeat:
    return Heartbeat(
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        names=frozenset(names),
        expression=expression,
        owned={},
    )


async def beat(broker: Broker, request: Heartbeat) -> tuple[int, int]:
    """Send a heartbeat. Return the epoch and the number of partitions, -1 if they have not changed."""
    answer = await broker.groups.consumer_heartbeat("g", request, frozenset({"t"}))
    partitions = answer.beat.assignment
    return answer.beat.member_epoch, -1 if partitions is None else sum(map(len, partitions.values()))


async def described(broker: Broker) -> ConsumerGroup:
    group = await broker.groups.group("g")
    assert isinstance(group, ConsumerGroup)
    return group


async def test_next_coordinator_goes_on_with_epochs_and_assignments(autojump_clock: MockClock) -> None:
    async with cluster() as (first, second):
        await beat(first, joining("a", "t"))
        autojump_clock.jump(2)
        await beat(first, joining("b", expression="t.*"))
        await beat(first, Heartbeat(member_id="a", member_epoch=2))
        before = await described(first)
        stored = written_head(before, 0), all_parts(before)
        second.membership.set(2)
        first.membership.set(2)
        steady = await beat(second, Heartbeat(member_id="a", member_epoch=3))
        again = await beat(second, Heartbeat(member_id="b", member_epoch=3))
        after = await described(second)

        assert (3, 3) == (after.epoch, after.assignment_epoch)
        assert (3, -1) == steady == again
        assert stored == (written_head(after, 0), all_parts(after))


async def test_group_is_read_back_as_it_was_written(autojump_clock: MockClock) -> None:
    async with cluster() as (first, _):
        await beat(first, joining("a", "t"))
        autojump_clock.jump(2)
        await beat(first, joining("b", expression="t.*"))
        group = await described(first)
        head, parts = written_head(group, 7), {n: p for n, p in all_parts(group).items() if p is not None}
        found, since_ms = read_group("g", head, parts, GroupLimits(), group.limits)

        assert isinstance(found, ConsumerGroup)
        assert 7 == since_ms
        assert (head, parts) == (written_head(found, 7), all_parts(found))
        assert {"m:a", "c:a", "t:a", "m:b", "c:b", "t:b", "r"} == set(parts)
        for damaged in (
            {**parts, "c:a": b"{"},
            {name: part for name, part in parts.items() if name != "c:a"},
        ):
            with pytest.raises(UnreadableDocument):
                read_group("g", head, damaged, GroupLimits(), group.limits)
        with pytest.raises(UnreadableDocument):  # as a broker does that has only classic groups
            read("g", head, GroupLimits())


async def test_step_of_one_member_saves_only_its_parts(autojump_clock: MockClock) -> None:
    async with cluster() as (first, _):
        for number in range(20):
            await beat(first, joining(f"m{number}", "t"))
        autojump_clock.jump(2)
        await beat(first, joining("m3", "t"))
        storage = first.groups.storage
        saved: list[set[str]] = []
        save = storage.save_parts

        async def counting(kind: str, key: str, value: bytes, parts: dict[str, bytes], **named: int) -> int:
            saved.append(set(parts))
            return await save(kind, key, value, parts, **named)

        storage.save_parts = counting  # type: ignore[method-assign, assignment]
        epoch = (await described(first)).members["m5"].epoch
        await beat(first, Heartbeat(member_id="m5", member_epoch=epoch))

        assert [{"c:m5"}] == saved


async def test_members_commit_with_their_epochs() -> None:
    async with cluster() as (first, _):
        epoch, _ = await beat(first, joining("a", "t"))

        async def commit(member_id: str, epoch: int) -> dict[TopicPartition, KafkaError | None]:
            offsets = {T0: OffsetAndMetadata(1)}
            return await first.groups.commit("g", offsets, member_id=member_id, generation_id=epoch)

        assert {T0: None} == await commit("a", epoch)
        with pytest.raises(StaleMemberEpoch):
            await commit("a", epoch + 1)
        with pytest.raises(UnknownMemberId):
            await commit("b", epoch)
        assert isinstance((await commit("a", epoch - 1))[T0], StaleMemberEpoch)
        await first.groups.check_fetch("g", "a", epoch)
        with pytest.raises(StaleMemberEpoch):
            await first.groups.check_fetch("g", "a", epoch - 1)


async def test_group_without_members_changes_its_type() -> None:
    async with cluster() as (first, _):
        classic = await first.take_part()
        join = Join(member_id=classic.member_id, protocols=(("range", b""),))
        await first.groups.leave("g", [Leave(classic.member_id)])
        await first.groups.commit("g", {T0: OffsetAndMetadata(4)})
        epoch, count = await beat(first, joining("a", "t"))
        refused = await first.groups.join("g", join, nullcontext)  # its subscription cannot be parsed
        await first.groups.consumer_heartbeat("g", Heartbeat(member_id="a", member_epoch=-1))
        again = await first.take_part()

        assert 1 == count
        assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == refused.error_code
        assert again.generation_id > epoch > classic.generation_id
        assert 4 == (await first.groups.committed("g", [T0]))[T0].offset
