"""A worker process of a broker, after it was forked (`korvet.workers.forking`).

The parent sends it its configuration, and the messages that drain and end it. It also ends if the parent ends for any
reason. A worker ignores SIGINT, because Ctrl-C in a terminal reaches all processes and only the parent handles it.
SIGTERM drains this worker alone, and the parent starts another in its place.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial

import trio
from attrs import define, field

from korvet.broker.broker import Broker, MakeGroups
from korvet.broker.context import RequestContext
from korvet.concurrency.rpc import Link, Parked, Question, answer_links, link_to
from korvet.config import ConfigError
from korvet.coordination.routing import answer
from korvet.groups.coordinator import GroupCoordinator
from korvet.logs import configure
from korvet.metrics.gather import Gatherer
from korvet.metrics.recorder import Recorder
from korvet.security.authorizer import AuthorizerUsageError
from korvet.server.assembly import keep_what_is_there, opened
from korvet.server.listeners import ListenError, Use, open_listeners
from korvet.server.server import Server
from korvet.server.start_lines import check_advertised, start_lines
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis_streams import RedisStreamsStorage  # noqa: F401  imported before the fork, so that workers share it
from korvet.workers.control import (
    Control,
    Drain,
    Drained,
    End,
    Measure,
    Measured,
    Ready,
    Refused,
    Reload,
    Setup,
)
from korvet.workers.forking import call_myself
from korvet.workers.groups import LinkedProcesses
from korvet.workers.quotas import USAGE, reporting

logger = logging.getLogger(__name__)


@define(eq=False)
class Worker:
    """The server of a worker process, controlled by the parent."""

    setup: Setup
    control: Control
    _server: Server | None = None  # None until the storage is open
    _gatherer: Gatherer | None = None  # None without metrics
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _may_end: trio.Event = field(factory=trio.Event)
    is_orphaned: bool = False

    async def run(self) -> None:
        """Serve until the parent or SIGTERM drains the worker. Raises StorageUsageError and ListenError, in a group."""
        config = self.setup.config
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._drain_on_sigterm)
                nursery.start_soon(self._obey, nursery)
                if config.metrics_listener:
                    self._gatherer = Gatherer(Recorder(config.metrics_max_topics))
                    nursery.start_soon(self._gatherer.watch_event_loop)
                listeners = open_listeners(config, Use.SHARED)
                links = links_to_others(self.setup, nursery)
                async with (
                    opened(
                        config,
                        listeners,
                        counters=self._recorder,
                        make_groups=sharded(self.setup, links),
                        process=self.setup.process,
                    ) as server,
                    answering(server.broker, self.setup),
                    reporting(server.broker.quotas, links),
                ):
                    self._server = server
                    await self._serve(server)
                    await self.control.send(Drained())
                    await self._may_end.wait()
                nursery.cancel_scope.cancel()

    async def _serve(self, server: Server) -> None:
        async with trio.open_nursery() as nursery:
            if self.setup.index == 0:
                nursery.start_soon(check_advertised, server.listeners)
            await nursery.start(server.serve)
            keep_what_is_there()
            if self._gatherer is not None:
                self._gatherer.server = server
            address = server.listeners[0].advertised.address
            await self.control.send(Ready(start_lines(server), address))

    @property
    def _recorder(self) -> Recorder | None:
        return None if self._gatherer is None else self._gatherer.recorder

    async def _obey(self, nursery: trio.Nursery) -> None:
        """Handle the parent's messages. When the parent has ended, drain and end."""
        while (message := await self.control.receive()) is not None:
            match message:
                case Reload() if self._server is not None:
                    self._server.reload()
                case Measure() if self._gatherer is not None:
                    nursery.start_soon(self._measure, self._gatherer, message)
                case Drain(at_once=at_once):
                    self._drain(at_once=at_once)
                case End():
                    self._may_end.set()
        self.is_orphaned = True
        self._drain()
        self._may_end.set()

    async def _measure(self, gatherer: Gatherer, request: Measure) -> None:
        try:
            samples = await gatherer.samples(reads_store=request.reads_store)
        except Exception:
            logger.exception("metrics: they are missing because of an error in korvet")
            return
        await self.control.send(Measured(request.number, samples))

    async def _drain_on_sigterm(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self._drain(leaves=False)

    def _drain(self, *, at_once: bool = False, leaves: bool = True) -> None:
        if self._server is None:
            self._scope.cancel()
            return
        if not self._server.is_stopping:
            self._server.stop(leaves=leaves)
        if at_once:
            self._server.stop()


def links_to_others(setup: Setup, nursery: trio.Nursery) -> Mapping[int, Link]:
    """Return the links to the other processes by their index. Their connections run in `nursery`."""
    return {
        index: link_to(setup.path_of(index), nursery)
        for index in range(setup.config.processes)
        if index != setup.index
    }


def sharded(setup: Setup, links: Mapping[int, Link]) -> MakeGroups:
    """Return a factory of this process's coordinator."""
    return partial(GroupCoordinator, processes=LinkedProcesses(setup.index, links))


@asynccontextmanager
async def answering(broker: Broker, setup: Setup) -> AsyncIterator[None]:
    """Answer requests of the other processes about this process's groups, and their reports, for the block."""

    def bound(wait_s: float) -> AbstractContextManager[object]:
        return broker.parked(RequestContext(version=0), wait_s)

    async def answered(question: Question, parked: Parked) -> object:
        if question.verb == USAGE:
            broker.quotas.add_usage(*question.arguments)
            return None
        return await answer([broker.groups, broker.transactions, broker.share.coordinator], question, parked)

    async with trio.open_nursery() as nursery:
        await nursery.start(answer_links, setup.path_of(setup.index), answered, bound)
        yield
        nursery.cancel_scope.cancel()


async def work(sock: socket.socket) -> None:
    """Run the worker from its first message, Setup, to its end."""
    control = Control.on(sock)
    setup = await control.receive()
    if not isinstance(setup, Setup):
        return
    call_myself(f"korvet {setup.index + 1}/{setup.config.processes}")
    configure(setup.config.logging_format, setup.config.logging_levels, process=setup.index + 1)
    worker = Worker(setup, control)
    try:
        await worker.run()
    except* (ConfigError, StorageUsageError, AuthorizerUsageError, ListenError) as refused:
        await control.send(Refused(_first(refused)))
    finally:
        tidy_up(setup, and_the_folder=worker.is_orphaned)


def tidy_up(setup: Setup, *, and_the_folder: bool) -> None:
    """Remove the worker's socket. With `and_the_folder`, remove the folder as well if it is empty."""
    setup.path_of(setup.index).unlink(missing_ok=True)
    if and_the_folder:
        with suppress(OSError):
            setup.folder.rmdir()


def _first(group: BaseExceptionGroup) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main(sock: socket.socket) -> None:
    """Run as a worker of the parent that has the other end of `sock`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trio.run(work, sock)
