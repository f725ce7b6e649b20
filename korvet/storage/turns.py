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


@define
class Turns:
    """Lets others have theirs, once a slice of time is over."""

    _slice_end_s: float = field(factory=lambda: monotonic() + SLICE_S)

    async def next(self) -> None:
        """To be called after each piece of work."""
        if monotonic() > self._slice_end_s:
            await trio.lowlevel.checkpoint()
            self._slice_end_s = monotonic() + SLICE_S


async def in_turns(steps: Steps[T], turns: Turns | None = None) -> T:
    """The result of steps. One call that takes long is made in a thread: what compresses lets others run meanwhile.

    Raises what the steps do; a KafkaError of such a call is theirs to catch.
    """
    turns = turns or Turns()
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
        try:
            answer = await trio.to_thread.run_sync(work)
        except KafkaError as error:
            failure = error
