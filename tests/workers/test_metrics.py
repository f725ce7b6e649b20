"""The sums over worker processes."""

from __future__ import annotations

from typing import Any

from attrs import define

from korvet.metrics.samples import Samples
from korvet.workers.metrics import FamilyMetrics


@define(eq=False)
class FakeWorker:
    """A worker that returns the given number of requests, or does not answer."""

    pid: int
    requests: int | None
    is_serving: bool = True
    reads_store: bool | None = None

    async def measure(self, *, reads_store: bool) -> Samples | None:
        self.reads_store = reads_store
        if self.requests is None:
            return None
        return {
            "korvet_requests_total": {("Fetch", "4"): self.requests},
            "korvet_processes": {(): 1},
            "korvet_ready": {(): 1},
        }


def of(*workers: FakeWorker) -> tuple[FamilyMetrics, Any]:
    metrics = FamilyMetrics(workers)

    async def read() -> tuple[float, float]:
        samples = await metrics.samples()
        requests = samples.get("korvet_requests_total", {}).get(("Fetch", "4"), 0)
        processes = samples.get("korvet_processes", {}).get((), 0)
        assert not isinstance(requests, list)
        assert not isinstance(processes, list)
        return requests, processes

    return metrics, read


async def test_values_of_all_workers_are_added() -> None:
    _, read = of(FakeWorker(1, 10), FakeWorker(2, 5))

    assert (15, 2) == await read()


async def test_counter_does_not_decrease_when_a_worker_is_replaced() -> None:
    one, other = FakeWorker(1, 10), FakeWorker(2, 5)
    _, read = of(one, other)
    before = await read()
    one.pid, one.is_serving = 0, False
    ended = await read()
    one.pid, one.requests, one.is_serving = 3, 1, True
    replaced = await read()

    assert [(15, 2), (15, 1), (16, 2)] == [before, ended, replaced]


async def test_last_counts_of_a_worker_that_does_not_answer_are_used() -> None:
    one = FakeWorker(1, 10)
    _, read = of(one, FakeWorker(2, 5))
    await read()
    one.requests = None

    assert (15, 1) == await read()


async def test_one_serving_worker_reads_the_store() -> None:
    workers = [FakeWorker(0, None, is_serving=False), FakeWorker(1, 1), FakeWorker(2, 1)]
    _, read = of(*workers)
    await read()

    assert [None, True, False] == [worker.reads_store for worker in workers]


async def test_broker_is_ready_if_one_worker_is() -> None:
    nobody, _ = of(FakeWorker(0, None, is_serving=False), FakeWorker(1, None))
    one, _ = of(FakeWorker(0, None, is_serving=False), FakeWorker(1, 1))

    assert [False, True] == [await nobody.is_ready(), await one.is_ready()]
