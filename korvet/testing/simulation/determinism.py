"""Repeatable runs: the scheduler, the clocks and the random numbers of a Trio program, all from one seed.

Three things make a run of a Trio program differ from the next one: the order in which Trio runs tasks that are ready,
the system's clocks, and random bytes of the system. `deterministic` replaces them until its block ends. It is the only
place that depends on internals of Trio (`trio._core._run`): Trio shuffles each batch of ready tasks with the random
generator `_r`, and sorts the batch before if `_ALLOW_DETERMINISTIC_SCHEDULING` is set, as pytest-trio does for
Hypothesis.

Trio passes every batch to the generator, so `Scheduler` also pauses tasks: those of a paused owner are not in the batch
until the owner is resumed. Deadlines pass in the meantime, as they do for a process that is stopped by SIGSTOP.

Programs that hash objects by address, start threads, or read sockets are not repeatable.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any
from unittest.mock import patch

import trio
from attrs import define, field
from trio.testing import MockClock

#: The name under which a task and its children are paused.
OWNER: ContextVar[str] = ContextVar("owner", default="")


@define(eq=False)
class Scheduler(Random):
    """Trio's source of randomness, which also withholds the tasks of paused owners."""

    chance: Random
    _paused: set[str] = field(factory=set)
    _held: list[trio.lowlevel.Task] = field(factory=list)

    def shuffle(self, x: Any) -> None:
        """Reorder a batch of ready tasks in place."""
        if self._paused or self._held:
            x += self._held
            self._held = [task for task in x if task.context.get(OWNER) in self._paused]
            if self._held:
                x[:] = [task for task in x if task.context.get(OWNER) not in self._paused]
        self.chance.shuffle(x)

    def pause(self, owner: str) -> None:
        """Run no task of this owner until `resume`."""
        self._paused.add(owner)

    async def resume(self, owner: str) -> None:
        """Run the owner's tasks again."""
        self._paused.discard(owner)
        # Trio asks for an order only if a task is ready. Without one, the clock would jump first.
        await trio.lowlevel.checkpoint()

    def is_paused(self, owner: str) -> bool:
        """Return True between `pause` and `resume`."""
        return owner in self._paused


def start_owned(nursery: trio.Nursery, owner: str, function: Callable[[], Any]) -> None:
    """Start a task that belongs to an owner, as do the tasks that it starts."""
    context = copy_context()
    context.run(OWNER.set, owner)
    context.run(nursery.start_soon, function)


def chance_of(seed: int, purpose: str) -> Random:
    """Return the random numbers for one purpose. Their number does not change those of other purposes."""
    return Random(f"{seed} {purpose}")  # noqa: S311  repeatable


@contextmanager
def deterministic(seed: int, clock: MockClock) -> Iterator[Scheduler]:
    """Make the block repeatable, including `trio.run(…, clock=clock)` in it. Yield its scheduler.

    korvet's modules read Trio's clock instead of `time.monotonic`, and log nothing below CRITICAL. The garbage
    collector is off, since it ends asynchronous generators at any time.
    """
    scheduler = Scheduler(chance_of(seed, "scheduler"))
    random_bytes = chance_of(seed, "bytes").randbytes
    run = trio._core._run  # noqa: SLF001  see above
    with ExitStack() as stack:
        stack.enter_context(patch.object(run, "_r", scheduler))
        stack.enter_context(patch.object(run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True))
        stack.enter_context(patch("os.urandom", random_bytes))
        stack.enter_context(patch("random._urandom", random_bytes))
        real = time.monotonic
        for name, module in list(sys.modules.items()):
            if name.startswith("korvet.") and vars(module).get("monotonic") is real:
                stack.enter_context(patch.object(module, "monotonic", clock.current_time))
        stack.enter_context(patch("time.monotonic", clock.current_time))
        stack.enter_context(quiet())
        yield scheduler


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off korvet's log and the garbage collector."""
    logger = logging.getLogger("korvet")
    level, collects = logger.level, gc.isenabled()
    logger.setLevel(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(level)
        if collects:
            gc.enable()
