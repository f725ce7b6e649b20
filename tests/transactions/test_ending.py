"""The rounds of a transaction's end, with stores that refuse some of it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from korvet.protocol.errors import InvalidProducerEpoch, KafkaError, NotEnoughReplicas, UnsupportedVersion
from korvet.storage.interface import (
    AppendResults,
    Marker,
    Storage,
    TopicPartition,
    TransactionNumber,
    TransactionResult,
)
from korvet.storage.memory import MemoryStorage
from korvet.testing.contract.transactions import YOUNG, Client
from korvet.testing.records import Record
from korvet.transactions.document import Partition, State, Transaction
from korvet.transactions.ending import ERROR_PAUSE_MS, LONGEST_PAUSE_MS, MARKERS_AT_ONCE, Ending
from tests.handlers.support import Shim
from tests.transactions.support import Producer, World, running

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def new_ending(storage: MemoryStorage, partitions: int = 2, groups: tuple[str, ...] = ("g",)) -> Ending:
    topic = await storage.create_topic("t", partitions, {})
    transaction = Transaction(
        state=State.PREPARE_COMMIT,
        producer_id=YOUNG,
        producer_epoch=1,
        timeout_ms=1000,
        number=3,
        partitions=frozenset(Partition("t", number, topic.topic_id) for number in range(partitions)),
        groups=frozenset(groups),
    )
    return Ending("payments", transaction)


def refusing(storage: MemoryStorage, error: KafkaError, refused: TopicPartition = T0) -> Storage:
    async def write_markers(markers: dict[TopicPartition, Marker], **named: Any) -> AppendResults:
        written = await storage.write_markers({tp: markers[tp] for tp in markers if tp != refused}, **named)
        return {**written, refused: error} if refused in markers else written

    return Shim(storage, write_markers=write_markers)


async def test_next_round_does_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    ending = await new_ending(storage)
    assert not await ending.run_round(refusing(storage, NotEnoughReplicas()))
    assert [0] == [each.partition for each in ending.partitions]
    assert set() == ending.groups
    assert await ending.run_round(storage)

    assert [1, 1] == [(await storage.latest(tp)).high_watermark for tp in (T0, T1)]
    assert [] == caplog.records


async def test_pause_grows_to_a_limit() -> None:
    storage = MemoryStorage()
    ending = await new_ending(storage)
    pauses = []
    for _ in range(8):
        await ending.run_round(refusing(storage, NotEnoughReplicas()))
        pauses.append(ending.pause_ms)

    assert sorted(pauses) == pauses
    assert LONGEST_PAUSE_MS == pauses[-1]


async def test_error_that_is_not_retriable_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    ending = await new_ending(storage)
    for _ in range(3):
        assert not await ending.run_round(refusing(storage, InvalidProducerEpoch("a later epoch")))
        assert ERROR_PAUSE_MS == ending.pause_ms

    (record,) = caplog.records
    assert "cannot end in partition t-0: a later epoch" in record.getMessage()


async def test_group_that_cannot_be_settled_is_settled_later(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    ending = await new_ending(storage, groups=("f", "g"))

    async def settle(group_id: str, **named: Any) -> None:
        if group_id == "g":
            raise UnsupportedVersion("not this group")
        await storage.settle(group_id, **named)

    assert not await ending.run_round(Shim(storage, settle=settle))
    assert (set(), {"g"}) == (ending.partitions, ending.groups)
    assert await ending.run_round(storage)
    assert "cannot end in group 'g'" in caplog.text


async def test_markers_are_written_in_slices() -> None:
    storage = MemoryStorage()
    ending = await new_ending(storage, 2 * MARKERS_AT_ONCE + 1)
    sizes: list[int] = []

    async def write_markers(markers: dict[TopicPartition, Marker], **named: Any) -> AppendResults:
        sizes.append(len(markers))
        return await storage.write_markers(markers, **named)

    assert await ending.run_round(Shim(storage, write_markers=write_markers))
    assert [MARKERS_AT_ONCE, MARKERS_AT_ONCE, 1] == sizes


async def test_earlier_transaction_whose_end_the_store_has_lost_is_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    ending = await new_ending(storage)
    await Client(storage, T0, producer_id=YOUNG, number=1).send(b"lost")
    assert not await ending.run_round(storage)
    assert await ending.run_round(storage)

    bounds = await storage.latest(T0)
    assert bounds.high_watermark == bounds.last_stable_offset
    assert "an earlier transaction is open in t-0" in caplog.text
    results = await storage.append(
        {T0: Client(storage, T0, producer_id=YOUNG).batch([Record(b"late")])},
        transactions={T0: TransactionNumber(1, 3)},
    )
    assert isinstance(results[T0], KafkaError)


async def test_owner_raises_its_epoch_until_partitions_accept_its_markers(autojump_clock: MockClock) -> None:
    """The store has lost the documents of later coordinators."""
    world = World()
    await world.create_topic("t")
    broker = world.add_broker()
    async with running(broker):
        producer = Producer(world, broker, broker)
        await producer.begin()
        later = Marker(producer.producer_id, 0, 4, TransactionResult.ABORT, 0)
        await world.storage.write_markers({T0: later})
        await producer.send(T0, b"a")
        await producer.end()
        await trio.sleep(60)

        state = await world.state()
        assert (State.COMPLETE_COMMIT, 4) == (state.state, state.coordinator_epoch)
        assert [b"a"] == await world.committed(T0)
        assert state == evolve(state, partitions=frozenset())
