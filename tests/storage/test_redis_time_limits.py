"""Time limits of appends that one task watches."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.concurrency.background import background_nursery
from korvet.storage.redis.time_limits import INTERVAL_S, TimeLimits


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_limit_expires_at_its_deadline_or_soon_after(clock: MockClock) -> None:
    expired: dict[str, float] = {}
    ended = trio.Event()

    def expire(name: str) -> None:
        expired[name] = trio.current_time()
        if len(expired) == 2:
            ended.set()

    async with background_nursery() as nursery:
        limits = TimeLimits(nursery)
        start = trio.current_time()
        never = partial(expire, "removed")
        assert limits.add(never, start + 3)
        assert limits.add(partial(expire, "later"), start + 25)
        assert limits.add(partial(expire, "first"), start + 7)
        limits.remove(never)
        await ended.wait()
    assert list(expired) == ["first", "later"]
    assert 7 <= expired["first"] - start <= 7 + 2 * INTERVAL_S
    assert 25 <= expired["later"] - start <= 25 + 2 * INTERVAL_S


async def test_task_ends_without_limits_and_starts_again(clock: MockClock) -> None:
    async with background_nursery() as nursery:
        limits = TimeLimits(nursery)
        for _ in range(2):
            expired = trio.Event()
            assert limits.add(expired.set, trio.current_time() + 1)
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            await expired.wait()
            await wait_all_tasks_blocked()
            assert not nursery.child_tasks


async def test_closed_storage_watches_no_limit(clock: MockClock) -> None:
    async with background_nursery() as nursery:
        limits = TimeLimits(nursery)
    assert not limits.add(lambda: None, 0.0)
