"""Background tasks, and concurrent calls.

`supervise` is the only supervisor of background tasks. It logs the exception of a task that fails and restarts the
task after a pause that doubles each time.

No caller handles the exceptions of a background task. Without a supervisor, an exception would end the broker, or the
task would end unnoticed. Background tasks end by cancellation of the nursery that they were started in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import trio

from korvet.concurrency.time_slices import TimeSlices

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
# A task that ran for this long had recovered: its pause starts again at FIRST_PAUSE_S.
RECOVERED_AFTER_S = 60.0
# Time slice of one of several concurrent calls. Trio runs all of them before another task.
WORKER_SLICE_S = 0.00003


async def supervise(
    name: str,
    task: Callable[[], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `task` until it returns or is cancelled, and restart it after an exception. For `nursery.start`."""
    task_status.started()
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = trio.current_time()
        try:
            await task()
        except Exception:
            if trio.current_time() - began_s > RECOVERED_AFTER_S:
                pause_s = FIRST_PAUSE_S
            logger.exception(
                "background task %(task)r failed; it starts again in %(seconds).1f s",
                {"task": name, "seconds": pause_s},
            )
        else:
            return
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def in_parallel(
    function: Callable[[T], Awaitable[R]], arguments: Sequence[T], *, at_once: int = 50
) -> list[R]:
    """Return the results of `function` for each argument, in order, with at most `at_once` concurrent calls.

    Raises the first exception of a call, not in a group, and cancels the other calls.
    """
    if len(arguments) < 2:
        return [await function(argument) for argument in arguments]
    results: dict[int, R] = {}
    failures: list[Exception] = []
    numbered = enumerate(arguments)
    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(arguments))):
            nursery.start_soon(_work, function, numbered, results, failures, nursery.cancel_scope)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(arguments))]


async def _work(
    function: Callable[[T], Awaitable[R]],
    numbered: Iterator[tuple[int, T]],
    results: dict[int, R],
    failures: list[Exception],
    scope: trio.CancelScope,
) -> None:
    time_slices = TimeSlices(WORKER_SLICE_S)
    try:
        for number, argument in numbered:
            results[number] = await function(argument)
            await time_slices.next()
    except Exception as error:  # noqa: BLE001  the caller raises it
        failures.append(error)
        scope.cancel()
