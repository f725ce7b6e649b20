"""Read the metrics of a process: what the recorder has counted, and what is only known when it is requested.

Every read has a deadline, so that a store that does not answer cannot delay a scrape for longer.
"""

from __future__ import annotations

import trio
from attrs import define, field

import korvet
from korvet.metrics.definitions import METRICS
from korvet.metrics.recorder import Recorder, observe
from korvet.metrics.samples import Samples
from korvet.protocol.errors import KafkaError
from korvet.server.server import Server

READY_LIMIT_S = 1.0
LOOP_INTERVAL_S = 0.1


@define(eq=False)
class Gatherer:
    """The metrics of one process. Until `server` is set, the process does not serve."""

    recorder: Recorder
    server: Server | None = None
    _process: object = field(default=None, init=False)

    async def is_ready(self) -> bool:
        """Return True if the process serves and its store answers within READY_LIMIT_S."""
        if self.server is None or self.server.is_stopping:
            return False
        with trio.move_on_after(READY_LIMIT_S):
            try:
                await self.server.broker.check_store()
            except KafkaError:
                return False
            return True
        return False

    async def samples(self) -> Samples:
        """Return the present values of all metrics."""
        began = trio.current_time()
        is_ready = await self.is_ready()
        samples = self.recorder.samples()
        samples["korvet_build_info"] = {(korvet.__version__,): 1}
        samples["korvet_ready"] = {(): float(is_ready)}
        samples["korvet_processes"] = {(): 1}
        if self.server is not None:
            self._add_server(self.server, samples)
        self._add_process(samples)
        samples["korvet_scrape_seconds"] = {(): trio.current_time() - began}
        return samples

    def _add_server(self, server: Server, samples: Samples) -> None:
        budgets = server.budgets.items()
        samples["korvet_memory_budget_used_bytes"] = {(name,): used for name, (used, _) in budgets}
        samples["korvet_memory_budget_limit_bytes"] = {(name,): limit for name, (_, limit) in budgets}
        samples["korvet_memory_storage_bytes"] = {(): server.broker.store.held_bytes}

    def _add_process(self, samples: Samples) -> None:
        from prometheus_client import ProcessCollector  # noqa: PLC0415  only if metrics are read

        for metric in ProcessCollector(registry=None).collect():
            for sample in metric.samples:
                if sample.name in METRICS:
                    samples[sample.name] = {(): sample.value}

    async def watch_event_loop(self) -> None:
        """Measure the delay of the event loop, until cancelled."""
        while True:
            due = trio.current_time() + LOOP_INTERVAL_S
            await trio.sleep_until(due)
            observe(self.recorder.event_loop_delay, max(trio.current_time() - due, 0.0))
