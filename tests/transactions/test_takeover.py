"""Transactions that time out, and transactions whose process or broker ends before they do."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionalIdNotFound,
)
from korvet.storage.interface import AppendResults, Document, TopicPartition
from korvet.transactions.coordinator import LOOK_AGAIN_MS, SWEEP_S
from korvet.transactions.document import State
from korvet.transactions.machine import Init
from tests.handlers.support import Shim, away
from tests.transactions.support import ID, Producer, World, running

T0, T1, INPUT = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("input", 0)
DAY_S = 86_400
INIT = Init(timeout_ms=1000)


@pytest.fixture
async def world() -> World:
    """Two brokers, which the tests run."""
    world = World()
    for topic in ("t", "input"):
        await world.create_topic(topic)
    world.add_broker()
    world.add_broker()
    return world


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


async def started(world: World, version: int, *, leader: int = 2, timeout_ms: int = 60_000) -> Producer:
    """Return a producer whose partitions are led by that broker."""
    producer = Producer(world, world.brokers[0], world.brokers[leader - 1], version, timeout_ms=timeout_ms)
    await producer.begin()
    return producer


# --- Timeouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leader", [1, 2])
async def test_transaction_is_aborted_after_its_timeout(
    autojump_clock: MockClock, world: World, version: int, leader: int
) -> None:
    async with running(*world.brokers):
        producer = await started(world, version, leader=leader, timeout_ms=5000)
        await trio.sleep(3)
        await producer.send(T0, b"a")
        await producer.stage({INPUT: 3})
        await trio.sleep(4.9)
        assert State.ONGOING is (await world.state()).state
        await trio.sleep(0.2)

        assert State.COMPLETE_ABORT is (await world.state()).state
        assert ([], -1) == (await world.committed(T0), await world.offset(INPUT))
        assert 1 == sum(broker.counts.timeouts for broker in world.brokers)
        with pytest.raises(ProducerFenced):
            await producer.end()


async def test_timeout_of_an_earlier_transaction_does_not_end_the_next(
    autojump_clock: MockClock, world: World, version: int
) -> None:
    async with running(*world.brokers):
        producer = await started(world, version, timeout_ms=5000)
        for _ in range(4):
            await producer.send(T0, b"a")
            await trio.sleep(4)
            await producer.end()
            await world.until(State.COMPLETE_COMMIT)

        assert [b"a"] * 4 == await world.committed(T0)


async def test_timeout_of_a_transaction_that_an_ended_broker_began(
    autojump_clock: MockClock, world: World
) -> None:
    async with running(world.brokers[0]):
        producer = await started(world, 2, timeout_ms=5000)
        async with running(world.brokers[1]):
            await producer.send(T0, b"a")
        world.give_to(1)  # the membership changes
        await trio.sleep(5.1)

        assert State.COMPLETE_ABORT is (await world.state()).state


async def test_owner_finds_what_another_process_has_left_without_a_change_of_the_membership(
    autojump_clock: MockClock,
    world: World,
) -> None:
    async with running(world.brokers[0]):
        producer = await started(world, 2, timeout_ms=5000)
        async with running(world.brokers[1]):
            await producer.send(T0, b"a")
        await trio.sleep(SWEEP_S + 5.1)

        assert State.COMPLETE_ABORT is (await world.state()).state


async def test_abort_of_unknown_outcome_is_continued_by_the_process_that_tried_it(
    autojump_clock: MockClock, world: World
) -> None:
    """The owner of the id would look only with its next sweep."""

    async def save(kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        await world.storage.save(kind, key, value, expected_version=expected_version)
        raise KafkaStorageError("the answer was lost")

    async with running(*world.brokers):
        producer = await started(world, 2, timeout_ms=5000)
        await producer.send(T0, b"a")
        world.brokers[1].storage = Shim(world.storage, save=save)
        await trio.sleep(5.1)
        world.brokers[1].storage = world.storage
        assert State.PREPARE_ABORT is (await world.state()).state
        await trio.sleep(LOOK_AGAIN_MS / 1000 + 0.1)

        assert State.COMPLETE_ABORT is (await world.state()).state


# --- What a store refuses or has lost -----------------------------------------------------------------------


async def test_refused_deletions_of_expired_ids_stop_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    await world.create_topic("t")
    broker = world.add_broker(transactional_id_expiration_ms=1000)
    for name in ("a", "b"):
        await broker.initialize(name, timeout_ms=1000, expected=None)
    await trio.sleep(5)
    broker.storage = Shim(world.storage, save=away)
    async with running(broker):
        await trio.sleep(SWEEP_S + 1)
        broker.storage = world.storage
        await trio.sleep(SWEEP_S)

    assert [] == list(await world.storage.documents("transaction"))
    assert [] == [each for each in caplog.records if each.exc_info]


async def test_ending_stops_when_the_store_has_lost_the_document(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    broker = world.brokers[0]
    producer = await started(world, 2, leader=1)
    await producer.send(T0, b"a")
    await producer.end()
    saved = await broker.states.read(ID)
    assert saved is not None
    await world.storage.save("transaction", ID, None, expected_version=saved.version)
    async with running(broker):
        await trio.sleep(LOOK_AGAIN_MS / 1000)

        assert 0 == broker.ending
        assert [] == caplog.records


async def test_unreadable_document_is_logged_once(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.storage.save("transaction", ID, b"{}", expected_version=0)
    async with running(world.brokers[0]):
        await trio.sleep(3 * SWEEP_S)

    assert ["ERROR"] == [each.levelname for each in caplog.records]


# --- Takeover ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
async def test_next_owner_ends_a_prepared_transaction(
    autojump_clock: MockClock, world: World, version: int, is_commit: bool
) -> None:
    producer = await started(world, version)
    await producer.send(T0, b"a")
    await producer.stage({INPUT: 3})
    await producer.end(is_commit=is_commit)
    assert (await world.state()).is_prepared
    async with running(world.brokers[1]):
        assert (await world.state()).is_prepared  # the first broker may be about to end it
        world.give_to(2)
        state = await world.until(State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT)

        assert 1 == state.coordinator_epoch
        assert ([b"a"] if is_commit else []) == await world.committed(T0)
        assert (3 if is_commit else -1) == await world.offset(INPUT)
        producer.coordinator = world.brokers[1]
        await producer.send(T0, b"b")
        await producer.end()
        await world.until(State.COMPLETE_COMMIT)
        assert b"b" == (await world.committed(T0))[-1]


async def test_next_owner_ends_a_transaction_whose_document_it_cannot_read_at_first(
    autojump_clock: MockClock, world: World
) -> None:
    producer = await started(world, 2)
    await producer.send(T0, b"a")
    await producer.end()
    reads = 0

    async def load(kind: str, key: str) -> Document | None:
        nonlocal reads
        reads += 1
        if reads < 3:
            raise KafkaStorageError
        return await world.storage.load(kind, key)

    world.brokers[1].storage = Shim(world.storage, load=load)
    world.give_to(2)
    async with running(world.brokers[1]):
        await trio.sleep(2 * LOOK_AGAIN_MS / 1000 + 0.1)
        assert State.COMPLETE_COMMIT is (await world.state()).state


async def test_next_owner_times_out_an_open_transaction(
    autojump_clock: MockClock, world: World, version: int
) -> None:
    async with running(world.brokers[0]):
        producer = await started(world, version, timeout_ms=5000)
        await producer.send(T0, b"a")
    await trio.sleep(1)
    async with running(world.brokers[1]):
        world.give_to(2)
        await trio.sleep(3.9)
        assert State.ONGOING is (await world.state()).state
        await trio.sleep(0.2)
        assert State.COMPLETE_ABORT is (await world.state()).state


async def test_next_owner_times_out_what_expired_while_no_broker_ran(
    autojump_clock: MockClock, world: World
) -> None:
    producer = await started(world, 2, timeout_ms=5000)
    await producer.send(T0, b"a")
    await trio.sleep(100)
    async with running(world.brokers[0]):
        await world.until(State.COMPLETE_ABORT)


async def test_previous_owner_answers_nothing_and_ends_what_it_has_prepared(
    autojump_clock: MockClock, world: World, version: int
) -> None:
    async with running(*world.brokers):
        producer = await started(world, version)
        await producer.send(T0, b"a")
        await producer.end()
        world.give_to(2)
        with pytest.raises(NotCoordinator):
            await producer.end()
        await world.until(State.COMPLETE_COMMIT)

        assert [b"a"] == await world.committed(T0)


async def test_markers_of_the_previous_owner_are_fenced(autojump_clock: MockClock, world: World) -> None:
    """The previous owner stops before its markers, and goes on after the next owner has ended the transaction."""
    producer = await started(world, 2)
    await producer.send(T0, b"a")
    await producer.send(T1, b"a")
    await producer.end()
    world.give_to(2)
    async with running(world.brokers[1]):
        await world.until(State.COMPLETE_COMMIT)
        producer.coordinator = world.brokers[1]
        await producer.send(T0, b"b")
        async with running(world.brokers[0]):
            await trio.sleep(LOOK_AGAIN_MS / 1000 + 1)

        assert State.ONGOING is (await world.state()).state
        await producer.end(is_commit=False)
        await world.until(State.COMPLETE_ABORT)
        assert [b"a"] == await world.committed(T0)


async def test_request_ends_a_prepared_transaction_that_no_sweep_has_found(
    autojump_clock: MockClock, world: World
) -> None:
    async with running(world.brokers[0]):
        producer = await started(world, 2, timeout_ms=1000)
        await producer.send(T0, b"a")
        async with running(world.brokers[1]):
            await trio.sleep(0.9995)
        # As if the broker that began the transaction had ended between its save and its markers.
        await trio.sleep(0.01)
        other = world.brokers[1]
        other._due.set(ID, 0)
        await other._look(ID)
        assert State.PREPARE_ABORT is (await world.state()).state
        await started(world, 2)

        assert State.EMPTY is (await world.state()).state


# --- Expiry -----------------------------------------------------------------------------------------------


async def test_unused_ids_expire(autojump_clock: MockClock, world: World) -> None:
    async with running(world.brokers[0]):
        producer = await started(world, 2)
        await producer.send(T0, b"a")
        await producer.end()
        await trio.sleep(6.9 * DAY_S)
        assert State.COMPLETE_COMMIT is (await world.brokers[0].describe(ID)).state
        await trio.sleep(0.2 * DAY_S)

        with pytest.raises(TransactionalIdNotFound):
            await world.brokers[0].describe(ID)
        with pytest.raises(InvalidProducerIdMapping):
            await producer.send(T0, b"b")
        again = await started(world, 2)
        assert again.producer_id != producer.producer_id


async def test_id_that_was_created_again_is_not_replaced_from_a_cache(
    autojump_clock: MockClock, world: World
) -> None:
    async with running(world.brokers[0]):
        await started(world, 2)
        stale = world.brokers[1]
        await stale.states.decide(ID, INIT)
        producer = stale.states.known(ID)
        assert producer is not None
        await trio.sleep(8 * DAY_S)
        again = await started(world, 2)
        await again.begin()  # the document has the version that the second broker has cached
        with pytest.raises(InvalidProducerIdMapping):
            await stale.add(ID, producer.producer_id, producer.producer_epoch, version=2)

        assert again.producer_id == (await world.state()).producer_id


# --- Several processes ------------------------------------------------------------------------------------


async def test_next_transaction_begins_in_a_process_that_has_not_seen_the_end(
    autojump_clock: MockClock, world: World
) -> None:
    async with running(world.brokers[0]):
        producer = await started(world, 1)
        other = world.brokers[1]
        for number in (1, 2):
            partitions = [world.partition(T0)]
            added = await other.add(ID, *producer.producer, partitions=partitions, version=1)
            await producer.end()
            await world.until(State.COMPLETE_COMMIT)

            assert number == added.number


async def test_process_that_began_a_transaction_does_not_take_it_over_from_its_owner(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    async def write_markers(markers: Any, **named: Any) -> AppendResults:
        if is_away:
            return dict.fromkeys(markers, NotEnoughReplicas())
        return await world.storage.write_markers(markers, **named)

    world.brokers[0].storage = Shim(world.storage, write_markers=write_markers)
    async with running(*world.brokers):
        producer = await started(world, 2, timeout_ms=1000)
        await producer.send(T0, b"a")
        await producer.end()
        await trio.sleep(100)
        assert State.PREPARE_COMMIT is (await world.state()).state
        assert (1, 1) == (world.brokers[0].ending, world.brokers[0].waiting_markers)
        is_away = False
        state = await world.until(State.COMPLETE_COMMIT)

        assert 0 == state.coordinator_epoch
        assert [b"a"] == await world.committed(T0)
        assert [] == caplog.records


async def test_owner_ends_a_transaction_that_was_prepared_while_it_wrote_late_markers(
    autojump_clock: MockClock, world: World
) -> None:
    """The first broker waits for its markers; meanwhile the second one ends that transaction."""
    waiting, may_write = trio.Event(), trio.Event()

    async def write_markers(markers: Any, **named: Any) -> AppendResults:
        waiting.set()
        await may_write.wait()
        return await world.storage.write_markers(markers, **named)

    world.brokers[0].storage = Shim(world.storage, write_markers=write_markers)
    async with running(world.brokers[0]):
        producer = await started(world, 2, leader=1)
        await producer.send(T0, b"a")
        await producer.end()
        await waiting.wait()
        async with running(world.brokers[1]):
            world.give_to(2)
            await world.until(State.COMPLETE_COMMIT)
        world.give_to(1)
        await producer.send(T0, b"b")
        await producer.end()
        await wait_all_tasks_blocked()
        may_write.set()
        await world.until(State.COMPLETE_COMMIT)

        assert [b"a", b"b"] == await world.committed(T0)


# --- Conflicts --------------------------------------------------------------------------------------------


async def test_partitions_that_several_brokers_add_are_all_in_the_transaction(
    autojump_clock: MockClock, world: World
) -> None:
    async with running(*world.brokers):
        producer = await started(world, 2)
        tps = [TopicPartition("wide", number) for number in range(12)]
        await world.create_topic("wide", 12)
        numbers: set[int] = set()

        async def add(number: int) -> None:
            broker = world.brokers[number % 2]
            added = await broker.add(
                ID, *producer.producer, partitions=[world.partition(tps[number])], version=2
            )
            numbers.add(added.number)

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(add, number)

        assert {1} == numbers
        assert {world.partition(tp) for tp in tps} == (await world.state()).partitions


async def test_request_is_refused_while_other_processes_always_save_first(
    autojump_clock: MockClock, world: World
) -> None:
    producer = await started(world, 2)
    other = world.brokers[1]
    saves = 0

    async def save(kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        nonlocal saves
        saves += 1
        await other.states.decide(ID, INIT)
        return await world.storage.save(kind, key, value, expected_version=expected_version)

    world.brokers[0].storage = Shim(world.storage, save=save)
    with pytest.raises(ConcurrentTransactions):
        await world.brokers[0].initialize(ID, timeout_ms=1000, expected=None)
    assert 9 == saves
    assert (await world.state()).producer_epoch == producer.epoch + 9


async def test_owner_looks_at_an_id_whose_save_may_have_succeeded(
    autojump_clock: MockClock, world: World
) -> None:
    producer = await started(world, 2)
    await producer.send(T0, b"a")

    async def save(kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        await world.storage.save(kind, key, value, expected_version=expected_version)
        raise KafkaStorageError

    async with running(world.brokers[0]):
        world.brokers[0].storage = Shim(world.storage, save=save)
        with pytest.raises(KafkaStorageError):
            await world.brokers[0].end(ID, *producer.producer, is_commit=True, version=2, can_abort=True)
        world.brokers[0].storage = world.storage
        await wait_all_tasks_blocked()
        assert State.PREPARE_COMMIT is (await world.state()).state
        await trio.sleep(LOOK_AGAIN_MS / 1000 + 0.1)

        assert State.COMPLETE_COMMIT is (await world.state()).state
        assert [b"a"] == await world.committed(T0)
