from __future__ import annotations

import itertools
import logging

import pytest
import trio
from trio.testing import MockClock

from korvet.concurrency.tasks import LONGEST_PAUSE_S, RECOVERED_AFTER_S, in_parallel, supervise


async def test_task_that_returns_is_not_restarted() -> None:
    runs = []

    async def task() -> None:
        runs.append(trio.current_time())

    await supervise("task", task)

    assert 1 == len(runs)


async def test_failing_task_is_logged_and_restarted_with_growing_pauses(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[float] = []

    async def task() -> None:
        starts.append(trio.current_time())
        if len(starts) < 12:
            raise ValueError("wrong")

    await supervise("task", task)

    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert [pytest.approx(min(0.1 * 2**number, LONGEST_PAUSE_S)) for number in range(11)] == pauses
    assert 11 == len([each for each in caplog.records if each.levelno == logging.ERROR and each.exc_info])


async def test_pause_is_reset_after_a_long_run(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[float] = []

    async def task() -> None:
        starts.append(trio.current_time())
        if len(starts) == 6:
            await trio.sleep(RECOVERED_AFTER_S + 1)
        if len(starts) < 7:
            raise ValueError("wrong")

    await supervise("task", task)

    assert pytest.approx(RECOVERED_AFTER_S + 1.1) == starts[6] - starts[5]


async def test_task_ends_with_its_nursery(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(supervise, "task", trio.sleep_forever)
        nursery.cancel_scope.cancel()

    assert nursery.cancel_scope.cancelled_caught


async def test_results_are_in_the_order_of_the_arguments(autojump_clock: MockClock) -> None:
    async def slower_first(number: int) -> int:
        await trio.sleep(10 - number)
        return number

    assert list(range(10)) == await in_parallel(slower_first, range(10))


async def test_in_parallel_limits_concurrent_tasks(autojump_clock: MockClock) -> None:
    running = most = 0

    async def count(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1

    await in_parallel(count, range(100), at_once=7)

    assert 7 == most


@pytest.mark.parametrize("arguments", [[], [1]], ids=["none", "one"])
async def test_in_parallel_with_no_or_one_argument(arguments: list[int]) -> None:
    async def double(number: int) -> int:
        return 2 * number

    assert [2 * number for number in arguments] == await in_parallel(double, arguments)


async def test_in_parallel_raises_the_first_exception_alone_and_ends_the_other_calls(
    autojump_clock: MockClock,
) -> None:
    ended = []

    async def fail(number: int) -> None:
        try:
            await trio.sleep(number)
        finally:
            ended.append(trio.current_time())
        raise ValueError(str(number))

    began_s = trio.current_time()
    with pytest.raises(ValueError, match="^1$"):
        await in_parallel(fail, [3, 1, 2])

    assert [began_s + 1] * 3 == ended
