"""The time for which a Trio task has run, without the time in which it waited."""

from __future__ import annotations

from time import perf_counter

import trio
from trio.lowlevel import Task, current_task


class TaskTimes(trio.abc.Instrument):
    """Measures the tasks that call `take`, while it is an instrument of the Trio run."""

    def __init__(self) -> None:
        self._spent: dict[Task, float] = {}  # seconds in the steps before the current one
        self._began = perf_counter()  # of the current step, or of its part that was not taken

    def before_task_step(self, task: Task) -> None:  # noqa: ARG002  of the interface
        self._began = perf_counter()

    def after_task_step(self, task: Task) -> None:
        if task in self._spent:
            self._spent[task] += perf_counter() - self._began

    def task_exited(self, task: Task) -> None:
        self._spent.pop(task, None)

    def take(self) -> float:
        """Return the seconds for which the current task has run since its last call, or in this step."""
        task, now = current_task(), perf_counter()
        spent = self._spent.get(task, 0.0) + now - self._began
        self._spent[task], self._began = 0.0, now
        return spent
