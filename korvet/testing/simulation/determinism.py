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
from heapq import heappop, heappush
from itertools import count
from math import inf, nan
from random import Random
from typing import Any, NoReturn
from unittest.mock import patch

import trio
from attrs import define, field

#: The name under which a task and its children are paused.
OWNER: ContextVar[str] = ContextVar("owner", default="")


class VirtualClock(trio.abc.Clock):
    """A clock that jumps to the next deadline when no task is ready, as MockClock does with `autojump_threshold=0`.

    It jumps in the iteration of Trio's loop in which it finds that no task is ready, where MockClock needs a second
    one, and it wakes sleeping tasks itself, without a cancel scope for each. This halves the time of a simulation.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._alarms: list[tuple[float, int, Alarm]] = []  # a heap
        self._numbers = count()

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump to `deadline` or to the first alarm. Trio calls this only if no task is ready."""
        if trio._core._run.GLOBAL_RUN_CONTEXT.runner.waiting_for_idle:  # noqa: SLF001  wait_all_tasks_blocked is first
            return inf
        alarms = self._alarms
        while alarms and alarms[0][2].at != alarms[0][0]:
            heappop(alarms)
        due = min(deadline, alarms[0][0]) if alarms else deadline
        if due == inf:
            return inf
        self._now = now = max(due, self._now)
        while alarms and alarms[0][0] <= now:
            at, _, alarm = heappop(alarms)
            if alarm.at == at:
                alarm.ring()
        return 0

    def add(self, alarm: Alarm) -> None:
        """Let an alarm ring at its time, unless that changes."""
        heappush(self._alarms, (alarm.at, next(self._numbers), alarm))

    async def sleep_until(self, deadline: float) -> None:
        """Do what `trio.sleep_until` does."""
        if deadline <= self._now:
            await trio.lowlevel.checkpoint()
        else:
            await Alarm(self).wait_until(deadline)

    async def sleep(self, seconds: float) -> None:
        """Do what `trio.sleep` does."""
        if not seconds >= 0:
            raise ValueError("seconds must not be negative")
        await self.sleep_until(self._now + seconds)


@define(eq=False)
class Alarm:
    """Wakes one task at a time that may change while the task waits."""

    clock: VirtualClock
    at: float = nan  # when it rings; nan if no task waits, or it is about to run
    _task: trio.lowlevel.Task | None = None

    async def wait_until(self, at: float) -> None:
        """Wait until then, or until the time that was set meanwhile."""
        self._task = trio.lowlevel.current_task()
        self.set(at)
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def set(self, at: float) -> None:
        """Change when the alarm rings. Does nothing if no task waits."""
        if self._task is None:
            return
        self.at = at
        if at <= self.clock.current_time():
            self.ring()
        elif at != inf:
            self.clock.add(self)

    def ring(self) -> None:
        """Wake the task."""
        assert self._task is not None
        trio.lowlevel.reschedule(self._task)
        self._task, self.at = None, nan

    def _abort(self, _: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        self._task, self.at = None, nan
        return trio.lowlevel.Abort.SUCCEEDED


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
        if len(x) > 1:
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
def deterministic(seed: int, clock: trio.abc.Clock) -> Iterator[Scheduler]:
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
        if isinstance(clock, VirtualClock):
            stack.enter_context(patch("trio.sleep", clock.sleep))
            stack.enter_context(patch("trio.sleep_until", clock.sleep_until))
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
