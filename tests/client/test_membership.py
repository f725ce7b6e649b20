"""Members of a group, against a broker in the same program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from korvet.client import Client, Record, TopicPartition, open_client
from korvet.client.groups import assigned_partitions
from korvet.client.membership import (
    GroupConsumer,
    assign_ranges,
    assignment_of,
    group_consumer,
    subscribed_topics,
    subscription,
)
from korvet.protocol.errors import FencedInstanceId
from korvet.testing import ServedBroker, serving

LIMIT_S = 30.0
TWO = {TopicPartition("t", 0), TopicPartition("t", 1)}


@pytest.fixture
async def broker() -> AsyncIterator[ServedBroker]:
    async with serving() as broker:
        await broker.create_topic("t", partitions=2)
        yield broker


@pytest.fixture
async def client(broker: ServedBroker) -> AsyncIterator[Client]:
    async with open_client(broker.bootstrap_servers) as client:
        yield client


async def produce(client: Client, count: int, *, partition: int = 0) -> None:
    await client.produce("t", [Record(b"%d" % number, partition=partition) for number in range(count)])


async def poll_all(member: GroupConsumer) -> list[bytes | None]:
    """Return the values of the records up to the end, all of them processed."""
    values: list[bytes | None] = []
    with trio.fail_after(LIMIT_S):
        while member.unfinished():
            values += [record.value for record in await member.poll()]
            await member.processed()
    return values


async def keep_polling(member: GroupConsumer, until: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not until():
            await member.poll()
            await member.processed()


async def test_next_member_continues_where_the_last_one_ended(client: Client) -> None:
    await produce(client, 3)
    async with group_consumer(client, "g", ["t"], follows=False) as member:
        first = await poll_all(member)
    await produce(client, 1, partition=1)
    async with group_consumer(client, "g", ["t"], follows=False) as member:
        second = await poll_all(member)

    assert ([b"0", b"1", b"2"], [b"0"]) == (first, second)


async def test_records_that_were_not_processed_are_read_again(client: Client) -> None:
    await produce(client, 3)
    async with group_consumer(client, "g", ["t"]) as member:
        records: list[object] = []
        with trio.fail_after(LIMIT_S):
            while len(records) < 3:
                records = list(await member.poll())
        await member.processed(records[2:])
    async with group_consumer(client, "g", ["t"], follows=False) as member:
        again = await poll_all(member)

    assert [b"2"] == again


async def test_two_members_share_the_partitions_until_one_leaves(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.client.membership.HEARTBEAT_INTERVAL_S", 0.05)
    async with group_consumer(client, "g", ["t"]) as first:
        await keep_polling(first, lambda: len(first.assignment) == 2)
        first_heartbeat = first.rebalances

        async with trio.open_nursery() as nursery, group_consumer(client, "g", ["t"]) as second:
            nursery.start_soon(keep_polling, second, lambda: bool(second.assignment) and not first.is_joining)
            await keep_polling(first, lambda: first.rebalances > first_heartbeat and bool(second.assignment))
            shared = (first.assignment, second.assignment)
        await keep_polling(first, lambda: len(first.assignment) == 2)

    assert {1} == {len(each) for each in shared}
    assert TWO == {tp for each in shared for tp in each}


async def test_offsets_of_deleted_records_move_to_the_start_of_the_log(
    broker: ServedBroker, client: Client
) -> None:
    await produce(client, 3)
    async with group_consumer(client, "g", ["t"], follows=False) as member:
        assert 3 == len(await poll_all(member))
    await client.delete_topic("t")
    await broker.create_topic("t", partitions=2)
    await produce(client, 1)
    async with group_consumer(client, "g", ["t"], follows=False) as member:
        assert [b"0"] == await poll_all(member)


async def test_static_member_is_back_without_a_rebalance(client: Client, broker: ServedBroker) -> None:
    async with (
        open_client(broker.bootstrap_servers) as other_client,
        group_consumer(other_client, "g", ["t"]) as other,
    ):
        async with group_consumer(client, "g", ["t"], instance_id="one") as first:
            await share(first, other)
            before = (first.assignment, first.generation_id, other.rebalances)
        async with group_consumer(client, "g", ["t"], instance_id="one") as again:
            with trio.fail_after(LIMIT_S):
                await again.poll()
            after = (again.assignment, again.generation_id, other.rebalances)

    assert before == after
    assert first.member_id != again.member_id


async def share(one: GroupConsumer, other: GroupConsumer) -> None:
    """Poll until each member has one of the two partitions."""

    def is_shared() -> bool:
        return 1 == len(one.assignment) == len(other.assignment)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_polling, one, is_shared)
        nursery.start_soon(keep_polling, other, is_shared)


async def test_static_member_is_fenced_by_another_one_with_its_id(
    client: Client, broker: ServedBroker
) -> None:
    await produce(client, 1)
    async with (
        open_client(broker.bootstrap_servers) as other_client,
        group_consumer(client, "g", ["t"], instance_id="one") as first,
    ):
        assert [b"0"] == [record.value for record in await first.poll()]
        async with group_consumer(other_client, "g", ["t"], instance_id="one") as second:
            await second.poll()
            await first.processed()
            with pytest.raises(FencedInstanceId):
                await first.commit()
            await second.processed()
            await second.commit()


def test_static_members_are_assigned_first_by_their_instance_ids() -> None:
    assigned = assign_ranges(dict.fromkeys("abc", ("t",)), {"t": 3}, {"b": "two", "c": "one"})

    assert {"c": 0, "b": 1, "a": 2} == {member_id: tps[0].partition for member_id, tps in assigned.items()}


def test_ranges_give_the_first_members_one_partition_more() -> None:
    assigned = assign_ranges({"b": ["t", "u"], "a": ["t"], "c": []}, {"t": 3, "u": 1})

    assert {
        "a": [TopicPartition("t", 0), TopicPartition("t", 1)],
        "b": [TopicPartition("t", 2), TopicPartition("u", 0)],
        "c": [],
    } == assigned


def test_subscriptions_and_assignments_are_read_back() -> None:
    assert ["orders", "größen"] == subscribed_topics(subscription(["orders", "größen"]))
    assert tuple(sorted(TWO)) == assigned_partitions(assignment_of(TWO))


@pytest.mark.parametrize("metadata", [b"", b"\x00", b"\x00\x00\x00\x00\x00\x09abc", b"\xff" * 20])
def test_unknown_metadata_subscribes_to_nothing(metadata: bytes) -> None:
    assert [] == subscribed_topics(metadata)
