"""The runtime with a machine that only counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.coordination.deadlines import NEVER
from korvet.coordination.routing import Routing
from korvet.coordination.runtime import Machines, Runtime, Ticket, current_ms
from korvet.protocol.errors import ErrorCode, KafkaError, KafkaStorageError, NotCoordinator
from korvet.storage.interface import Document
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim

KIND, KEY = "counter", "c"


@define(eq=False)
class Counter:
    """Counts, and may have a limit and a timeout that counts, too."""

    value: int = 0
    answers: list[tuple[object, Any]] = field(factory=list)
    is_unsaved: bool = False
    wake_ms: float = NEVER
    ends_writes: bool = False
    parked: list[object] = field(factory=list)

    @property
    def is_used(self) -> bool:
        return self.value > 0

    def add(self, ticket: object) -> None:
        self.value += 1
        self.is_unsaved = True
        self.answers.append((ticket, self.value))

    def tick(self, now_ms: float) -> None:
        if now_ms >= self.wake_ms:
            self.wake_ms = NEVER
            self.add(None)

    def resume(self, now_ms: float) -> None:
        pass

    def written(self) -> bytes:
        self.is_unsaved = self.ends_writes = False
        return b"%d" % self.value

    def give_up(self, error_code: ErrorCode) -> None:
        self.answers += [(ticket, None) for ticket in self.parked]
        self.answers = [(ticket, error_code) for ticket, _ in self.answers]


class Settable(Membership):
    """A membership that the test changes."""

    def give_to(self, node_id: int) -> None:
        self._use({node_id: evolve(self.own, node_id=node_id)}, {})


@define(eq=False)
class World:
    """A runtime, whose saves the test lets pass."""

    storage: MemoryStorage = field(factory=MemoryStorage)
    membership: Settable = field(factory=lambda: Settable(Registration(1, "", {})))
    runtime: Runtime[Counter] = field(init=False)
    saves: list[bytes | None] = field(factory=list)
    gates: list[trio.Event] = field(factory=list)  # one for each save that waits
    is_open: bool = True
    error: KafkaError | None = None
    results: list[object] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        def read(_: str, document: bytes, _parts: object) -> Counter:
            return Counter(int(document))

        machines = Machines(KIND, lambda _: Counter(), read)
        self.runtime = Runtime(machines, Shim(self.storage, save=self.save), Routing(self.membership))

    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        self.saves.append(value)
        if not self.is_open:
            self.gates.append(trio.Event())
            await self.gates[-1].wait()
        if self.error is not None:
            raise self.error
        return await self.storage.save(kind, key, value, expected_version=expected_version)

    async def add(self) -> None:
        """Count one more, and note the answer, or the error."""
        ticket = Ticket()
        try:
            async with self.runtime.hold(KEY) as held:
                held.machine.add(ticket)
            self.results.append(ticket.answer)
        except KafkaError as error:
            self.results.append(error.error_code)

    async def pass_save(self) -> None:
        """Let the save that waits pass."""
        self.gates.pop(0).set()
        await wait_all_tasks_blocked()


@pytest.fixture
def world() -> World:
    return World()


@asynccontextmanager
async def adding(world: World, count: int) -> AsyncIterator[trio.Nursery]:
    """Send that many requests, each when the earlier ones wait. The first save has begun."""
    world.is_open = False
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(world.add)
            await wait_all_tasks_blocked()
        yield nursery


# --- Saving -----------------------------------------------------------------------------------------------


async def test_changes_that_arrive_during_a_save_leave_with_the_next(world: World) -> None:
    async with adding(world, 4):
        assert ([b"1"], []) == (world.saves, world.results)
        await world.pass_save()
        assert ([b"1", b"4"], [1]) == (world.saves, world.results)
        await world.pass_save()

    assert [1, 2, 3, 4] == sorted(world.results)  # type: ignore[type-var]
    assert Document(b"4", 2) == await world.storage.load(KIND, KEY)


async def test_change_waits_for_one_save_only(world: World) -> None:
    async with adding(world, 2) as nursery:
        await world.pass_save()
        nursery.start_soon(world.add)  # during the save that has the second change
        await wait_all_tasks_blocked()
        await world.pass_save()
        assert [1, 2] == world.results
        await world.pass_save()

    assert [b"1", b"2", b"3"] == world.saves


async def test_request_without_a_change_waits_for_what_it_has_seen(world: World) -> None:
    seen: list[int] = []

    async def look() -> None:
        async with world.runtime.hold(KEY) as held:
            value = held.machine.value
        seen.append(value)

    async with adding(world, 1) as nursery:
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        assert ([], None) == (seen, world.runtime.at_rest(KEY, 0))
        await world.pass_save()

    assert ([1], [b"1"]) == (seen, world.saves)
    assert world.runtime.at_rest(KEY, 0) is not None


async def test_failed_save_fails_all_requests_and_the_next_loads_the_stored_machine(world: World) -> None:
    await world.add()
    async with adding(world, 3):
        world.error = KafkaStorageError()
        await world.pass_save()
    world.error, world.is_open = None, True
    await world.add()

    assert world.results[0] == 1
    assert ErrorCode.KAFKA_STORAGE_ERROR in world.results
    assert 2 == world.results.count(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.results[-1] == 2


async def test_save_of_another_broker_wins(world: World) -> None:
    await world.add()
    await world.storage.save(KIND, KEY, b"7", expected_version=1)
    await world.add()
    await world.add()

    assert [1, ErrorCode.NOT_COORDINATOR, 8] == world.results


async def test_cancelled_save_fails_the_requests_that_wait_for_it(world: World) -> None:
    world.is_open = False
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as cancelled:
                cancelled.start_soon(world.add)
                await wait_all_tasks_blocked()
                nursery.start_soon(world.add)
                await wait_all_tasks_blocked()
                scope.cancel()

    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == world.results
    assert {} == world.runtime.held


# --- Holding alone, and writes ----------------------------------------------------------------------------


async def test_requests_wait_for_one_that_holds_the_machine_alone(world: World) -> None:
    await world.add()
    async with trio.open_nursery() as nursery, world.runtime.hold_alone(KEY) as held:
        nursery.start_soon(world.add)
        await wait_all_tasks_blocked()
        assert 1 == held.machine.value
        held.machine.add(None)

    assert [1, 3] == world.results


async def test_machine_is_held_alone_after_earlier_changes_are_saved(world: World) -> None:
    saved: list[bytes | None] = []

    async def alone() -> None:
        async with world.runtime.hold_alone(KEY):
            saved.extend(world.saves)

    async with adding(world, 2) as nursery:
        nursery.start_soon(alone)
        await wait_all_tasks_blocked()
        await world.pass_save()
        await world.pass_save()

    assert [b"1", b"2"] == saved


async def test_deleted_machine_begins_again(world: World) -> None:
    await world.add()
    async with world.runtime.hold_alone(KEY) as held:
        await world.runtime.delete(held)
    assert ({}, None) == (world.runtime.held, await world.storage.load(KIND, KEY))
    await world.add()

    assert [1, 1] == world.results


async def test_save_that_ends_writes_waits_for_those_in_flight(world: World) -> None:
    async with trio.open_nursery() as nursery:
        async with world.runtime.hold(KEY) as held:
            held.machine.add(None)
        with held.writing():
            held.machine.ends_writes = True
            nursery.start_soon(world.add)
            await wait_all_tasks_blocked()
            assert [b"1"] == world.saves

    assert [b"1", b"2"] == world.saves


async def test_machine_that_does_not_exist_leaves_the_memory(world: World) -> None:
    async with world.runtime.hold(KEY):
        pass

    assert ({}, []) == (world.runtime.held, world.saves)


# --- Time and membership ----------------------------------------------------------------------------------


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.runtime.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_timeouts_are_handled_and_saved(autojump_clock: MockClock, world: World) -> None:
    async with running(world):
        async with world.runtime.hold(KEY) as held:
            held.machine.add(None)
            held.machine.wake_ms = 3000
        await trio.sleep(2.9)
        assert 1 == held.machine.value
        await trio.sleep(0.2)

        assert Document(b"2", 2) == await world.storage.load(KIND, KEY)


class Lenient(Routing):
    """Lets requests for keys of other brokers pass, as that of share partitions does."""

    def check(self, key: str) -> None: ...


async def test_timeouts_of_a_key_that_has_moved_away_are_left_to_its_coordinator(
    autojump_clock: MockClock, world: World
) -> None:
    world.runtime.routing = Lenient(world.membership)
    async with running(world):
        async with world.runtime.hold(KEY) as held:
            held.machine.add(None)
        world.membership.give_to(2)
        await trio.sleep(10)
        assert {} == world.runtime.held
        async with world.runtime.hold(KEY) as held:  # for a request that was on its way
            held.machine.add(None)
            held.machine.wake_ms = current_ms() + 3000
        await trio.sleep(10)

        assert {} == world.runtime.held
        assert 2 == held.machine.value


async def test_machine_is_loaded_fenced_and_saved_when_its_key_moves_here(
    autojump_clock: MockClock, world: World
) -> None:
    await world.storage.save(KIND, KEY, b"5", expected_version=0)
    world.membership.give_to(2)
    async with running(world):
        with pytest.raises(NotCoordinator):
            async with world.runtime.hold(KEY):
                pass
        assert [] == world.saves
        world.membership.give_to(1)
        await wait_all_tasks_blocked()

        held = world.runtime.held[KEY]
        assert (5, 2, 1) == (held.machine.value, held.version, held.epoch)


async def test_waiting_requests_are_answered_when_the_key_moves_away(
    autojump_clock: MockClock, world: World
) -> None:
    ticket = Ticket()
    async with running(world):
        async with world.runtime.hold(KEY) as held:
            held.machine.add(None)
            held.machine.parked.append(ticket)
        world.membership.give_to(2)

        assert ErrorCode.NOT_COORDINATOR == await ticket.wait(trio.move_on_after)
        assert {} == world.runtime.held


async def test_machine_is_loaded_again_after_a_failed_save(autojump_clock: MockClock, world: World) -> None:
    async with running(world):
        await world.add()
        world.error = KafkaStorageError()
        await world.add()
        assert {} == world.runtime.held
        world.error = None
        await trio.sleep(6)

        assert [KEY] == list(world.runtime.held)
