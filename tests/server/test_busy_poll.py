"""Busy polling: it continues while there are responses, and no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define

from korvet.server import busy_poll
from korvet.server.busy_poll import AWAKE_S, QUICK_S, BusyPoll


@define
class Clock:
    """A fake `monotonic` that counts its calls: one for each poll."""

    now: float = 1000.0
    asked: int = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(busy_poll, "monotonic", clock)
    return clock


async def times_run(clock: Clock, rounds: int) -> int:
    """Return the number of polls in that many rounds of the scheduler."""
    before = clock.asked
    for _ in range(rounds):
        await trio.lowlevel.checkpoint()
    return clock.asked - before


@asynccontextmanager
async def keeping(*, is_useful: bool = True) -> AsyncIterator[BusyPoll]:
    async with trio.open_nursery() as nursery:
        kept = BusyPoll(is_useful)
        nursery.start_soon(kept.keep)
        await trio.testing.wait_all_tasks_blocked()
        yield kept
        nursery.cancel_scope.cancel()


async def test_event_loop_polls_for_a_short_time_after_the_last_response(clock: Clock) -> None:
    async with keeping() as kept:
        kept.answered(clock.now, clock.now, has_waited=False)
        for _ in range(3):
            asked = clock.now + 0.5 * QUICK_S
            clock.now = asked + 0.001
            kept.answered(asked, clock.now, has_waited=False)
            assert 9 <= await times_run(clock, 10)
            clock.now += 0.9 * AWAKE_S
            assert 9 <= await times_run(clock, 10)
        clock.now += 0.2 * AWAKE_S
        await trio.testing.wait_all_tasks_blocked()

        assert 0 == await times_run(clock, 10)


async def test_slow_requests_do_not_start_polling(clock: Clock) -> None:
    async with keeping() as kept:
        for _ in range(3):
            kept.answered(clock.now, clock.now + 0.001, has_waited=False)
            assert 0 == await times_run(clock, 10)
            clock.now += 0.001 + 1.1 * QUICK_S


async def test_response_that_waited_counts_from_its_end(clock: Clock) -> None:
    """Such as a long poll that the request before has ended."""
    async with keeping() as kept:
        kept.answered(clock.now, clock.now, has_waited=False)
        clock.now += 0.5 * QUICK_S
        kept.answered(clock.now - 30.0, clock.now, has_waited=True)

        assert 9 <= await times_run(clock, 10)


async def test_polling_never_starts_for_remote_storage(clock: Clock) -> None:
    async with keeping(is_useful=False) as kept:
        for _ in range(3):
            kept.answered(clock.now, clock.now, has_waited=False)
            assert 0 == await times_run(clock, 10)
