"""Staying awake: as long as there are answers, and no longer."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from attrs import define

from korvet import vigil
from korvet.vigil import AWAKE_S, Vigil


@define
class Clock:
    """What `monotonic` says, and how often it was asked: once whenever the vigil is run."""

    now: float = 1000.0
    asked: int = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(vigil, "monotonic", clock)
    return clock


async def times_run(clock: Clock, rounds: int) -> int:
    """How often the vigil is run in so many rounds of the scheduler."""
    before = clock.asked
    for _ in range(rounds):
        await trio.lowlevel.checkpoint()
    return clock.asked - before


async def test_it_keeps_the_event_loop_awake_for_a_moment_after_the_last_answer(clock: Clock) -> None:
    watch = Vigil()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.keep)
        await trio.testing.wait_all_tasks_blocked()
        assert 0 == await times_run(clock, 10)
        for _ in range(3):
            watch.prolong(clock.now)
            assert 9 <= await times_run(clock, 10)
            clock.now += 0.9 * AWAKE_S
        assert 9 <= await times_run(clock, 10)
        clock.now += AWAKE_S
        await trio.testing.wait_all_tasks_blocked()
        assert 0 == await times_run(clock, 10)
        watch.prolong(clock.now)
        assert 9 <= await times_run(clock, 10)
        nursery.cancel_scope.cancel()
