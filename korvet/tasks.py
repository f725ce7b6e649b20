"""Tasks that go on in the background, and tasks that go on side by side.

`supervise` is the one supervisor of background tasks: a task that fails is logged and started again, ever later.

Background tasks run beside the requests and are nobody's caller: an error that left one of them would end the
broker, or, worse, nothing would, and the task would silently be gone. They end by cancellation, with the
nursery that they were started in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
# A task that ran this long before it failed has recovered in between.
RECOVERED_AFTER_S = 60.0


async def supervise(
    name: str,
    task: Callable[[], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `task` until it returns or is cancelled, again after every error. Started by `nursery.start`."""
    task_status.started()
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = trio.current_time()
        try:
            await task()
        except Exception:
            if trio.current_time() - began_s > RECOVERED_AFTER_S:
                pause_s = FIRST_PAUSE_S
            logger.exception("background task %r failed; it starts again in %.1f s", name, pause_s)
        else:
            return
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def in_parallel(
    function: Callable[[T], Awaitable[R]], arguments: Sequence[T], *, at_once: int = 50
) -> list[R]:
    """`function` of each argument, in order; so many wait for the store together as `at_once` says."""
    if len(arguments) < 2:
        return [await function(argument) for argument in arguments]
    results: dict[int, R] = {}
    numbered = enumerate(arguments)
    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(arguments))):
            nursery.start_soon(_work, function, numbered, results)
    return [results[number] for number in range(len(arguments))]


async def _work(
    function: Callable[[T], Awaitable[R]], numbered: Iterator[tuple[int, T]], results: dict[int, R]
) -> None:
    for number, argument in numbered:
        results[number] = await function(argument)
