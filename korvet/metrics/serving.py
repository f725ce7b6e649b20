"""Run a server of one process with its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import trio

from korvet.broker.counters import Counters
from korvet.concurrency.background import background_nursery
from korvet.config import Config
from korvet.handlers import APIS
from korvet.metrics.gather import Gatherer
from korvet.metrics.page import page
from korvet.metrics.recorder import Recorder
from korvet.protocol.connection import Api
from korvet.server.server import Server


class Run(Protocol):
    """`korvet.server.assembly.run`, or a function around it."""

    async def __call__(
        self,
        config: Config,
        *,
        counters: Counters | None = None,
        apis: Mapping[int, Api] = APIS,
        task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
    ) -> None: ...


async def run_with_metrics(
    run: Run,
    config: Config,
    *,
    apis: Mapping[int, Api] = APIS,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `run`, and serve its metrics from before its start until its end. Raises ListenError, and what it raises."""
    gatherer = Gatherer(Recorder(config.metrics_max_topics))
    async with page(config, gatherer), background_nursery() as watching:
        watching.start_soon(gatherer.watch_event_loop)
        async with trio.open_nursery() as nursery:
            run_counted = partial(run, config, counters=gatherer.recorder, apis=apis)
            gatherer.server = server = await nursery.start(run_counted)
            task_status.started(server)
