"""The saved states of transactional ids: the cache, and what it may answer."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from attrs import define, field

from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    NotEnoughReplicasAfterAppend,
)
from korvet.storage.memory import MemoryStorage
from korvet.transactions.document import Partition
from korvet.transactions.machine import Add, End, Init, Verify
from korvet.transactions.states import TRANSACTION, States
from tests.handlers.support import Shim

ID = "payments"
TOPIC_ID = UUID(int=7)


@define(eq=False)
class World:
    """States on a store that counts calls."""

    storage: MemoryStorage = field(factory=MemoryStorage)
    calls: list[str] = field(factory=list)
    unsure: list[str] = field(factory=list)
    last_id: int = 100
    now_ms: int = 1_700_000_000_000
    is_confirmed: bool = True  # by replicas

    async def allocate(self) -> int:
        self.last_id += 1
        return self.last_id

    async def load(self, kind: str, key: str) -> object:
        self.calls.append("load")
        return await self.storage.load(kind, key)

    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        self.calls.append("save")
        version = await self.storage.save(kind, key, value, expected_version=expected_version)
        if not self.is_confirmed:
            raise NotEnoughReplicasAfterAppend
        return version

    def states(self, **values: int) -> States:
        storage = Shim(self.storage, load=self.load, save=self.save)
        return States(storage, lambda: self.now_ms, self.allocate, 10**9, self.unsure.append, **values)


@pytest.fixture
def world() -> World:
    return World()


def partitions(*numbers: int) -> frozenset[Partition]:
    return frozenset(Partition("t", number, TOPIC_ID) for number in numbers)


async def begun(states: States, *numbers: int, transactional_id: str = ID) -> tuple[int, int]:
    """Begin a transaction with these partitions. Return its producer id and epoch."""
    decision = await states.decide(transactional_id, Init(timeout_ms=1000))
    producer = decision.producer_id, decision.producer_epoch
    await states.decide(transactional_id, add(producer, *numbers))
    return producer


def add(producer: tuple[int, int], *numbers: int) -> Add:
    return Add(producer_id=producer[0], producer_epoch=producer[1], partitions=partitions(*numbers))


async def test_states_are_saved_from_the_cache(world: World) -> None:
    states = world.states()
    await begun(states, 0)

    assert ["load", "save", "save"] == world.calls


async def test_result_without_a_save_and_refusal_are_confirmed_by_the_document(world: World) -> None:
    states, other = world.states(), world.states()
    producer = await begun(states, 0)
    await other.decide(ID, add(producer, 1))
    world.calls.clear()
    verify = Verify(producer_id=producer[0], producer_epoch=producer[1], partitions=partitions(0))
    await states.decide(ID, verify)
    assert ["load"] == world.calls
    with pytest.raises(InvalidProducerIdMapping):
        await states.decide(ID, add((1, 0), 0))

    assert ["load", "load"] == world.calls
    assert states.number_of(ID, producer, partitions(1), frozenset()) == 1


async def test_repeated_add_succeeds_once_replicas_have_it(world: World) -> None:
    states = world.states()
    decision = await states.decide(ID, Init(timeout_ms=1000))
    producer = decision.producer_id, decision.producer_epoch
    world.is_confirmed = False
    for _ in range(2):
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await states.decide(ID, add(producer, 0))
        assert states.number_of(ID, producer, partitions(0), frozenset()) is None
    world.is_confirmed = True
    await states.decide(ID, add(producer, 0))

    assert 1 == states.number_of(ID, producer, partitions(0), frozenset())


async def test_conflict_costs_no_load_besides_the_one_of_the_document(world: World) -> None:
    states, other = world.states(), world.states()
    producer = await begun(states, 0)
    await other.decide(ID, add(producer, 1))
    world.calls.clear()
    decision = await states.decide(ID, add(producer, 2))

    assert ["save", "save"] == world.calls
    assert partitions(0, 1, 2) == decision.state.partitions


async def test_known_number_needs_the_producer_and_all_that_it_is_asked_for(world: World) -> None:
    states = world.states()
    producer = await begun(states, 0, 1)

    def number_of(producer: tuple[int, int], *numbers: int) -> int | None:
        return states.number_of(ID, producer, partitions(*numbers), frozenset())

    assert (1, 1, None) == (number_of(producer, 0, 1), number_of(producer), number_of(producer, 2))
    assert [None, None] == [
        number_of(other, 0) for other in ((producer[0], producer[1] + 1), (producer[0] + 1, producer[1]))
    ]
    assert states.number_of(ID, producer, frozenset(), frozenset(["g"])) is None
    await states.decide(
        ID, End(producer_id=producer[0], producer_epoch=producer[1], is_commit=True, version=1)
    )
    assert (None, None) == (number_of(producer, 0), number_of(producer))


async def test_number_is_not_known_any_more_after_the_transaction_has_timed_out(world: World) -> None:
    """Another process may have ended it long ago, and partitions may have forgotten its end."""
    states = world.states()
    producer = await begun(states, 0)
    assert 1 == states.number_of(ID, producer, partitions(0), frozenset())
    world.now_ms += 1000

    assert states.number_of(ID, producer, partitions(0), frozenset()) is None


async def test_cache_is_bounded_by_ids_and_partitions(world: World) -> None:
    states = world.states(max_items=20)
    for number in range(30):
        await begun(states, 0, 1, transactional_id=f"id-{number}")

    assert [f"id-{number}" for number in range(24, 30)] == [*states._cache]
    assert 18 == states._items
    await begun(states, *range(20), transactional_id="wide")
    assert states.known("wide") is None
    producer = await begun(states, 0, transactional_id="another")
    assert 1 == states.number_of("another", producer, partitions(0), frozenset())


async def test_requests_for_one_id_follow_each_other(world: World) -> None:
    states = world.states()
    producer = await begun(states, 0)
    world.calls.clear()
    async with trio.open_nursery() as nursery:
        for number in range(1, 9):
            nursery.start_soon(states.decide, ID, add(producer, number))

    assert ["save"] * 8 == world.calls
    assert {} == states._lines


async def test_unreadable_document_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.storage.save(TRANSACTION, ID, b'{"format": 2}', expected_version=0)
    states = world.states()
    for _ in range(2):
        with pytest.raises(CoordinatorNotAvailable):
            await states.decide(ID, Init(timeout_ms=1000))

    assert 1 == len(caplog.records)
