"""Long work in turns with other tasks: nobody waits for much more than 0.3 ms of somebody else's."""

from __future__ import annotations

from time import monotonic
from typing import Any, TypeVar

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError
from korvet.protocol.steps import Steps

T = TypeVar("T")

SLICE_S = 0.0003
# The number of requests and maintenance tasks that may hold large decompressed data at the same time: compressed data
# may become some thousand times as large.
LONG_WORK = trio.Semaphore(4)


@define
class Turns:
    """Lets others have theirs, once a slice of time is over."""

    _slice_end_s: float = field(factory=lambda: monotonic() + SLICE_S)

    async def next(self) -> None:
        """To be called after each piece of work."""
        if monotonic() > self._slice_end_s:
            await trio.lowlevel.checkpoint()
            self._slice_end_s = monotonic() + SLICE_S


@define
class LongWork:
    """A share of `LONG_WORK`, taken with the first long call and held until it is released."""

    _is_held: bool = False

    async def begin(self) -> None:
        """Wait for a share, unless it is held already."""
        if not self._is_held:
            await LONG_WORK.acquire()
            self._is_held = True

    def end(self) -> None:
        """Release the share, if it is held."""
        if self._is_held:
            self._is_held = False
            LONG_WORK.release()


async def in_turns(steps: Steps[T], turns: Turns | None = None, long_work: LongWork | None = None) -> T:
    """Return the result of steps. A long call is made in a thread, where compression lets other tasks run.

    `long_work` is for callers that keep the result of such a call; otherwise its share is released at the end.
    Raises what the steps do; a KafkaError of such a call is theirs to catch.
    """
    if long_work is not None:
        return await _in_turns(steps, turns or Turns(), long_work)
    long_work = LongWork()
    try:
        return await _in_turns(steps, turns or Turns(), long_work)
    finally:
        long_work.end()


async def _in_turns(steps: Steps[T], turns: Turns, long_work: LongWork) -> T:
    answer: Any = None
    failure: KafkaError | None = None
    while True:
        try:
            work = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = failure = None
        if work is None:
            await turns.next()
            continue
        await long_work.begin()
        try:
            answer = await trio.to_thread.run_sync(work)
        except KafkaError as error:
            failure = error
