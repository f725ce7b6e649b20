"""Long work in turns with other tasks: nobody waits for much more than 0.3 ms of somebody else's."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from korvet.protocol.errors import KafkaError, detached
from korvet.protocol.steps import Steps

T = TypeVar("T")

SLICE_S = 0.0003
# Bytes of memory for decompressed records and for what is made of them, until they are stored. Compressed records may
# be some thousand times as small.
DECODED_BYTES = 48 * 1024 * 1024
# Threads that decompress.
THREADS = 4


@define(eq=False)
class DecodedShare:
    """The bytes that one request or maintenance task has of a DecodedBudget. `end` gives them back."""

    budget: DecodedBudget = field(factory=lambda: DECODED)
    size: int = 0

    async def take(self, size: int) -> None:
        """Wait until `size` more bytes may be taken."""
        await self.budget.take(self, size)

    def hold(self, size: int) -> None:
        """Have `size` bytes from now on, without waiting."""
        self.budget.resize(self, size)

    def end(self) -> None:
        self.hold(0)


@frozen(eq=False)
class Waiting:
    """A share that waits for bytes."""

    share: DecodedShare
    size: int
    is_granted: trio.Event = field(factory=trio.Event)


@define(eq=False)
class DecodedBudget:
    """Bytes of decompressed records, which shares take in the order of asking.

    If everything belongs to shares that wait, the first of them passes the limit: nothing else could go on.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # the largest `taken` since the last reset
    _waiting: deque[Waiting] = field(factory=deque)
    _taken_by_waiting: int = 0

    async def take(self, share: DecodedShare, size: int) -> None:
        """Wait for bytes. Returns immediately, without a checkpoint, if there are enough.

        Taking 0 bytes waits while the limit is passed, but not for shares that asked before.
        """
        if self._has_room(size) and not (size and self._waiting):
            self.resize(share, share.size + size)
            return
        waiting = Waiting(share, size)
        self._waiting.append(waiting)
        self._taken_by_waiting += share.size
        self._grant_first()
        try:
            await waiting.is_granted.wait()
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._taken_by_waiting -= share.size
                self._grant_first()
            raise

    def resize(self, share: DecodedShare, size: int) -> None:
        """Let a share that does not wait have `size` bytes."""
        self._add(size - share.size)
        share.size = size
        self._grant_first()

    def _add(self, size: int) -> None:
        self.taken += size
        self.highest = max(self.highest, self.taken)

    def _has_room(self, size: int) -> bool:
        return self.taken + size <= self.limit

    def _grant_first(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if not self._has_room(first.size) and self.taken > self._taken_by_waiting:
                return
            self._waiting.popleft()
            self._taken_by_waiting -= first.share.size
            first.share.size += first.size
            self._add(first.size)
            first.is_granted.set()


DECODED: DecodedBudget = DecodedBudget(DECODED_BYTES)
_THREADS = trio.CapacityLimiter(THREADS)


@define
class Turns:
    """Lets others have theirs, once a slice of time is over."""

    _slice_end_s: float = field(factory=lambda: monotonic() + SLICE_S)

    async def next(self) -> None:
        """To be called after each piece of work."""
        if monotonic() > self._slice_end_s:
            await trio.lowlevel.checkpoint()
            self._slice_end_s = monotonic() + SLICE_S


async def in_turns(steps: Steps[T], turns: Turns | None = None, share: DecodedShare | None = None) -> T:
    """Return the result of steps. Long calls are made in a thread, with bytes of DECODED, while other tasks run.

    The caller's share keeps the bytes of the last call; without one they are given back at the end. Raises what the
    steps do; a KafkaError of a call is theirs to catch.
    """
    if share is not None:
        return await _in_turns(steps, turns or Turns(), share)
    share = DecodedShare()
    try:
        return await _in_turns(steps, turns or Turns(), share)
    finally:
        share.end()


async def _in_turns(steps: Steps[T], turns: Turns, share: DecodedShare) -> T:
    answer: Any = None
    failure: KafkaError | None = None
    kept = share.size
    while True:
        try:
            call = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = failure = None
        if call is None:
            await turns.next()
            continue
        share.hold(kept)
        await share.take(call.max_bytes)
        try:
            answer = await trio.to_thread.run_sync(call, limiter=_THREADS)
        except KafkaError as error:
            share.hold(kept)
            # Its traceback refers to frames that refer to it, and one of them will have the result of the steps.
            failure = detached(error)
        else:
            share.hold(kept + min(2 * len(answer), call.max_bytes))
