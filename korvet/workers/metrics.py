"""The metrics of a broker with several processes: the parent adds up those of its workers.

A counter never decreases. The last counts of a process that has ended are added to those of its successor, and the last
counts of a process that does not answer stand for it; what they counted since then is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import define, field

from korvet.concurrency.tasks import in_parallel
from korvet.metrics import names
from korvet.metrics.definitions import METRICS, Kind, Scope
from korvet.metrics.samples import Samples, merged


class MeasuredWorker(Protocol):
    """A worker as its metrics need it."""

    @property
    def pid(self) -> int: ...

    @property
    def is_serving(self) -> bool: ...

    async def measure(self, *, reads_store: bool) -> Samples | None: ...


@define(eq=False)
class FamilyMetrics:
    """The metrics of all workers, for the HTTP port."""

    workers: Sequence[MeasuredWorker]
    _last: dict[int, Samples] = field(factory=dict)  # by process id
    _ended: Samples = field(factory=dict)  # of processes that have ended

    async def is_ready(self) -> bool:
        """Return True if a worker serves and its store answers."""
        return (await self.samples()).get(names.READY, {}).get((), 0) == 1

    async def samples(self) -> Samples:
        """Return the metrics of the broker."""
        serving = [worker for worker in self.workers if worker.is_serving]
        first = serving[0] if serving else None

        async def measure(worker: MeasuredWorker) -> tuple[int, Samples | None]:
            pid = worker.pid
            return pid, await worker.measure(reads_store=worker is first)

        answers = {
            pid: samples for pid, samples in await in_parallel(measure, serving) if samples is not None
        }
        self._last |= {pid: counters_in(samples) for pid, samples in answers.items()}
        living = {worker.pid for worker in self.workers}
        for pid in [pid for pid in self._last if pid not in living]:
            self._ended = merged([self._ended, self._last.pop(pid)])
        silent = [samples for pid, samples in self._last.items() if pid not in answers]
        return merged([self._ended, *silent, *answers.values()])


def counters_in(samples: Samples) -> Samples:
    """Return the samples that only increase, and are about this process."""
    return {
        name: values
        for name, values in samples.items()
        if METRICS[name].kind is not Kind.GAUGE and METRICS[name].scope is Scope.BROKER
    }
