"""Long work in time slices of 0.3 ms, between which other tasks run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import merge
from time import monotonic
from typing import Any, TypeVar

import trio
from attrs import define, field

from korvet.concurrency.decoded_budget import DecodedReservation
from korvet.protocol.errors import KafkaError, detached
from korvet.protocol.steps import Steps

A = TypeVar("A")
T = TypeVar("T")

SLICE_S = 0.0003
# Calls of a quick function between two looks at the clock.
CALLS_AT_ONCE = 64
# Names that are sorted in some tenths of a millisecond.
SORTED_AT_ONCE = 2_000
# Threads that decompress.
THREADS = 4

_THREADS = trio.CapacityLimiter(THREADS)


@define
class TimeSlices:
    """The time slices of a task: lets other tasks run whenever a slice is over."""

    slice_s: float = SLICE_S
    _slice_end_s: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slice_end_s = monotonic() + self.slice_s

    async def next(self) -> None:
        """Let other tasks run if the time slice is over. Call it after each piece of work."""
        if monotonic() > self._slice_end_s:
            await trio.lowlevel.checkpoint()
            self._slice_end_s = monotonic() + self.slice_s


async def each_in_slices(function: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T]:
    """Return the results of `function` for each argument, in order. Call it in time slices, one after the other."""
    time_slices = TimeSlices()
    results = []
    for argument in arguments:
        results.append(await function(argument))
        await time_slices.next()
    return results


async def map_in_slices(function: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
    """Do the same with a function that takes a few microseconds and does not wait."""
    results = [function(argument) for argument in arguments[:CALLS_AT_ONCE]]
    if len(arguments) > CALLS_AT_ONCE:
        time_slices = TimeSlices()
        for first in range(CALLS_AT_ONCE, len(arguments), CALLS_AT_ONCE):
            results += [function(argument) for argument in arguments[first : first + CALLS_AT_ONCE]]
            await time_slices.next()
    return results


async def unique_in_slices(names: Sequence[str]) -> list[str]:
    """Return the names sorted, each once."""
    time_slices = TimeSlices()
    sorted_parts = []
    for first in range(0, len(names), SORTED_AT_ONCE):
        sorted_parts.append(sorted(names[first : first + SORTED_AT_ONCE]))
        await time_slices.next()
    unique: list[str] = []
    last = None
    for number, name in enumerate(merge(*sorted_parts)):
        if name != last:
            unique.append(name)
            last = name
        if not number % CALLS_AT_ONCE:
            await time_slices.next()
    return unique


async def run_in_slices(
    steps: Steps[T], time_slices: TimeSlices | None = None, reservation: DecodedReservation | None = None
) -> T:
    """Run steps in time slices and return their result. Run long calls in a thread, with bytes taken from DECODED.

    The caller's `reservation` keeps the bytes of the last call's result. Without it, all bytes are returned at the end.
    Raises the exceptions of the steps. A KafkaError of a call is thrown into the steps, which may catch it.
    """
    if reservation is not None:
        return await _run_in_slices(steps, time_slices or TimeSlices(), reservation)
    reservation = DecodedReservation()
    try:
        return await _run_in_slices(steps, time_slices or TimeSlices(), reservation)
    finally:
        reservation.end()


async def _run_in_slices(steps: Steps[T], time_slices: TimeSlices, reservation: DecodedReservation) -> T:
    answer: Any = None
    failure: KafkaError | None = None
    kept = reservation.size
    while True:
        try:
            call = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = failure = None
        if call is None:
            await time_slices.next()
            continue
        reservation.hold(kept)
        await reservation.take(call.max_bytes)
        try:
            answer = await trio.to_thread.run_sync(call, limiter=_THREADS)
        except KafkaError as error:
            reservation.hold(kept)
            # The traceback would form a reference cycle with frames, and keep the result of the steps alive.
            failure = detached(error)
        else:
            reservation.hold(kept + min(2 * len(answer), call.max_bytes))
