"""Transactions through the coordinator and the storage in memory, without handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from korvet.storage.interface import AppendResults, Document, TopicPartition
from korvet.transactions.document import State
from tests.handlers.support import Shim
from tests.transactions.support import ID, Producer, World, running

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
INPUT = TopicPartition("input", 0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """One broker."""
    world = World()
    for topic in ("t", "u", "input"):
        await world.create_topic(topic)
    async with running(world.add_broker()):
        yield world


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
async def producer(world: World, request: pytest.FixtureRequest) -> Producer:
    broker = world.brokers[0]
    producer = Producer(world, broker, broker, request.param)
    await producer.begin()
    return producer


async def test_records_and_offsets_of_a_committed_transaction_become_readable(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.send(T0, b"a")
    await producer.send(U0, b"b")
    await producer.stage({INPUT: 7})
    assert ([], -1) == (await world.committed(T0), await world.offset(INPUT))

    await producer.end()
    state = await world.until(State.COMPLETE_COMMIT)

    assert ([b"a"], [b"b"]) == (await world.committed(T0), await world.committed(U0))
    assert 7 == await world.offset(INPUT)
    assert (frozenset(), frozenset()) == (state.partitions, state.groups)


async def test_records_and_offsets_of_an_aborted_transaction_are_dropped(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.send(T0, b"a")
    await producer.stage({INPUT: 7})
    await producer.end(is_commit=False)
    await world.until(State.COMPLETE_ABORT)
    await producer.send(T0, b"b")
    await producer.end()
    await world.until(State.COMPLETE_COMMIT)

    assert ([b"b"], -1) == (await world.committed(T0), await world.offset(INPUT))


async def test_transactions_follow_each_other(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    for number in range(10):
        await producer.send(T0, b"%d" % number)
        await producer.send(T1 if number % 2 else U0, b"%d" % number)
        await producer.end(is_commit=number % 3 != 0)
    await world.until(State.COMPLETE_ABORT)

    kept = [number for number in range(10) if number % 3]
    assert [b"%d" % number for number in kept] == await world.committed(T0)
    assert [b"%d" % number for number in kept if number % 2] == await world.committed(T1)
    assert [b"%d" % number for number in kept if not number % 2] == await world.committed(U0)


async def test_end_is_answered_before_markers_are_written(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.send(T0, b"a")
    await producer.end()

    assert State.PREPARE_COMMIT is (await world.state()).state
    assert [] == await world.committed(T0)


async def test_next_producer_aborts_the_open_transaction_and_fences_the_previous(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.send(T0, b"a")
    with pytest.raises(ConcurrentTransactions):
        await producer.coordinator.initialize(ID, timeout_ms=1000, expected=None)
    after = Producer(world, producer.coordinator, producer.leader, producer.version)
    await after.begin()

    assert [] == await world.committed(T0)
    for request in (producer.add(T0), producer.end()):
        with pytest.raises(ProducerFenced):
            await request
    await after.send(T0, b"b")
    await after.end()
    await world.until(State.COMPLETE_COMMIT)
    assert [b"b"] == await world.committed(T0)


async def test_partitions_have_to_be_added_before_they_are_verified(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.add(T0)
    verify = producer.leader.verify
    number = (await verify(ID, *producer.producer, partitions=[world.partition(T0)])).number

    assert 1 == number
    for missing in ({"partitions": [world.partition(T1)]}, {"groups": ["g"]}):
        with pytest.raises(TransactionAbortable):
            await verify(ID, *producer.producer, **missing)  # type: ignore[arg-type]
    with pytest.raises(InvalidProducerIdMapping):
        await verify("unknown", *producer.producer)


async def test_invalid_requests_are_refused(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    broker = producer.coordinator
    for timeout_ms in (-1, 0, 900_001):
        with pytest.raises(InvalidTransactionTimeout):
            await broker.initialize(ID, timeout_ms=timeout_ms, expected=None)
    with pytest.raises(InvalidTxnState):
        await producer.end()
    with pytest.raises(TransactionalIdNotFound):
        await broker.describe("unknown")
    world.members[0].set(2)
    for request in (
        broker.initialize(ID, timeout_ms=1000, expected=None),
        producer.end(),
        broker.describe(ID),
    ):
        with pytest.raises(NotCoordinator):
            await request
    assert [] == await broker.listed(lambda _: True)


async def test_ids_are_described_and_listed(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.add(T0)
    other = Producer(world, producer.coordinator, producer.leader, transactional_id="a")
    await other.begin()

    assert {world.partition(T0)} == (await producer.coordinator.describe(ID)).partitions
    listed = [(name, each.state) for name, each in await producer.coordinator.listed(lambda _: True)]
    assert [("a", State.EMPTY), (ID, State.ONGOING)] == listed
    assert ["a"] == [name for name, _ in await producer.coordinator.listed(lambda name: name == "a")]


async def test_partition_of_a_deleted_topic_counts_as_ended(
    autojump_clock: MockClock, world: World, producer: Producer
) -> None:
    await producer.send(T0, b"a")
    await producer.send(U0, b"b")
    topic = await world.storage.topic("u")
    assert topic is not None
    await world.storage.delete_topic(topic)
    await world.storage.create_topic("u", 1, {})
    await producer.end()
    await world.until(State.COMPLETE_COMMIT)

    assert [b"a"] == await world.committed(T0)
    assert 0 == (await world.storage.latest(U0)).high_watermark


async def test_no_producer_begins_beside_a_broker_that_knows_no_transactions(
    autojump_clock: MockClock, world: World
) -> None:
    """That broker would append records of transactions as plain ones."""
    member = world.members[0]
    old = evolve(member.own, node_id=2, knows_transactions=False)
    producer = Producer(world, world.brokers[0], world.brokers[0])
    member._use({1: member.own, 2: old}, {})
    ids = [f"id-{number}" for number in range(20)]
    own = [each for each in ids if world.brokers[0].routing.coordinates(each)]
    with pytest.raises(CoordinatorNotAvailable, match="broker 2 "):
        await world.brokers[0].initialize(own[0], timeout_ms=1000, expected=None)
    member.set(1)
    await producer.begin()


# --- The end of the previous transaction ------------------------------------------------------------------


async def end_slowly(world: World, producer: Producer, seconds: float) -> None:
    """Commit a transaction whose markers take that time."""

    async def write_markers(markers: Any, **named: Any) -> AppendResults:
        await trio.sleep(seconds)
        return await world.storage.write_markers(markers, **named)

    await producer.send(T0, b"a")
    producer.coordinator.storage = Shim(world.storage, write_markers=write_markers)
    await producer.end()


async def test_next_transaction_of_version_2_begins_when_the_previous_one_has_ended(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.brokers[0]
    producer = Producer(world, broker, broker)
    await producer.begin()
    await end_slowly(world, producer, 0.03)
    begun_s = trio.current_time()
    added = await broker.add(ID, *producer.producer, version=2)

    assert 2 == added.number
    assert 0.03 <= trio.current_time() - begun_s < 0.05


@pytest.mark.parametrize("version", [1, 2])
async def test_next_transaction_is_refused_if_the_previous_one_does_not_end(
    autojump_clock: MockClock, world: World, version: int
) -> None:
    broker = world.brokers[0]
    producer = Producer(world, broker, broker, version)
    await producer.begin()
    await end_slowly(world, producer, 1)
    begun_s = trio.current_time()
    with pytest.raises(ConcurrentTransactions):
        await broker.add(ID, *producer.producer, version=version)

    assert pytest.approx(0.1, abs=0.01) == trio.current_time() - begun_s


async def test_transaction_that_ends_while_its_id_is_looked_at_is_ended(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.brokers[0]
    producer = Producer(world, broker, broker)
    await producer.begin()
    has_read, may_go_on = trio.Event(), trio.Event()

    async def load(kind: str, key: str) -> Document | None:
        found = await world.storage.load(kind, key)
        has_read.set()
        await may_go_on.wait()
        return found

    broker.storage = Shim(world.storage, load=load)
    broker._look_in(ID, 0)
    await has_read.wait()  # the look finds an id without a transaction
    await producer.send(T0, b"a")
    await producer.end()
    await wait_all_tasks_blocked()
    may_go_on.set()
    await world.until(State.COMPLETE_COMMIT)

    assert [b"a"] == await world.committed(T0)


@pytest.mark.parametrize("group", ["", "unknown"])
async def test_any_group_can_be_added(autojump_clock: MockClock, world: World, group: str) -> None:
    """Apache Kafka adds an unknown group, and the one without a name, which TxnOffsetCommit refuses."""
    broker = world.brokers[0]
    producer = Producer(world, broker, broker, version=1)
    await producer.begin()
    await broker.add(ID, *producer.producer, groups=[group], version=1)
    await producer.end()
    await world.until(State.COMPLETE_COMMIT)
