"""Leases: acquiring, expiry, takeover, and holders that do not detect the loss."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.maintenance.leases import KIND, LEASE_S, Leases
from korvet.protocol.errors import KafkaStorageError
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim


@define
class Worker:
    """A broker that works while it holds the lease, and records the times."""

    leases: Leases
    began_s: list[float] = field(factory=list)
    ended_s: list[float] = field(factory=list)

    async def work(self) -> None:
        self.began_s.append(trio.current_time())
        try:
            await trio.sleep_forever()
        finally:
            self.ended_s.append(trio.current_time())

    async def run(self) -> None:
        while True:
            await self.leases.while_held("work", self.work)


async def test_one_of_two_workers_holds_the_lease_while_it_renews(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    first, second = Worker(Leases(storage)), Worker(Leases(storage))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await wait_all_tasks_blocked()
        nursery.start_soon(second.run)
        await trio.sleep(100 * LEASE_S)

        assert [1, 0] == [len(first.began_s), len(second.began_s)]
        assert [] == first.ended_s
        nursery.cancel_scope.cancel()


async def test_lease_is_released_when_its_holder_ends(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    first, second = Worker(Leases(storage)), Worker(Leases(storage))
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(100):
            await first.run()
        ended_s = trio.current_time()
        nursery.start_soon(second.run)
        await wait_all_tasks_blocked()

        assert [ended_s] == second.began_s
        nursery.cancel_scope.cancel()


async def test_released_lease_is_taken_by_a_waiting_worker(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    first, second = Worker(Leases(storage)), Worker(Leases(storage))
    ending = trio.CancelScope()

    async def run_first() -> None:
        with ending:
            await first.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_first)
        await wait_all_tasks_blocked()
        nursery.start_soon(second.run)
        await trio.sleep(LEASE_S + 1)
        released_s = trio.current_time()
        ending.cancel()
        await trio.sleep(LEASE_S)
        nursery.cancel_scope.cancel()

    assert released_s <= second.began_s[0] <= released_s + LEASE_S / 3


async def test_lease_of_a_killed_holder_is_taken_after_it_expires(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    killed, second = Worker(Leases(Shim(storage))), Worker(Leases(storage))

    async def killed_save(*_: object, **__: object) -> Any:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(killed.run)
        await wait_all_tasks_blocked()
        nursery.start_soon(second.run)
        await trio.sleep(LEASE_S)
        killed.leases.storage = Shim(storage, save=killed_save)
        killed_s = trio.current_time()
        await trio.sleep(3 * LEASE_S)

        assert killed_s < second.began_s[0] <= killed_s + 2 * LEASE_S
        assert killed.ended_s[0] < second.began_s[0]
        nursery.cancel_scope.cancel()


async def test_holder_stops_before_its_lease_expires_when_the_store_is_unreachable(
    autojump_clock: MockClock,
) -> None:
    storage = MemoryStorage()
    first, second = Worker(Leases(Shim(storage))), Worker(Leases(storage))

    async def away(*_: object, **__: object) -> Any:
        raise KafkaStorageError("the store is away")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await trio.sleep(LEASE_S / 2)
        nursery.start_soon(second.run)
        first.leases.storage = Shim(storage, save=away, load=away)
        await trio.sleep(3 * LEASE_S)

        assert 1 == len(first.ended_s) == len(second.began_s)
        assert first.ended_s[0] < second.began_s[0]
        nursery.cancel_scope.cancel()


async def test_holder_keeps_the_lease_when_the_response_to_a_renewal_is_lost(
    autojump_clock: MockClock,
) -> None:
    storage = MemoryStorage()
    worker = Worker(Leases(Shim(storage)))

    async def saved_without_answer(*arguments: Any, **options: Any) -> Any:
        await storage.save(*arguments, **options)
        worker.leases.storage = Shim(storage)
        raise KafkaStorageError("the answer was lost")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await wait_all_tasks_blocked()
        worker.leases.storage = Shim(storage, save=saved_without_answer)
        await trio.sleep(10 * LEASE_S)

        assert [] == worker.ended_s
        nursery.cancel_scope.cancel()


async def test_holder_ends_at_its_next_renewal_when_the_lease_was_taken(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    worker = Worker(Leases(storage))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await wait_all_tasks_blocked()
        document = await storage.load(KIND, "work")
        await storage.save(KIND, "work", b"somebody else", expected_version=document.version)
        await trio.sleep(LEASE_S / 2)

        assert [LEASE_S / 3] == worker.ended_s
        assert "lease 'work' is lost" in caplog.text
        nursery.cancel_scope.cancel()


async def test_lease_is_released_when_its_work_returns(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    runs = []

    async def once() -> None:
        runs.append(trio.current_time())

    await Leases(storage).while_held("work", once)
    await Leases(storage).while_held("work", once)

    assert [0.0, 0.0] == runs


async def test_lease_versions_are_not_reused() -> None:
    """Otherwise a watcher that saw version 1 before could mistake another holder's version 1 for it."""
    storage = MemoryStorage()
    versions = []

    async def look() -> None:
        document = await storage.load(KIND, "work")
        versions.append(document.version)

    for _ in range(3):
        await Leases(storage).while_held("work", look)

    assert [1, 3, 5] == versions


async def test_leases_with_different_names_are_independent(autojump_clock: MockClock) -> None:
    leases = Leases(MemoryStorage())
    held = []

    async def other() -> None:
        held.append("other")

    await leases.while_held("one", lambda: leases.while_held("other", other))

    assert ["other"] == held
