"""The parent of a broker's worker processes. It serves no clients itself.

It binds the ports, so that no other program can take them while no worker listens, runs the embedded server if
configured, and keeps `processes` workers running. It restarts a worker that ends, after a pause that doubles each
time. If a worker ends repeatedly, the broker ends, because another restart would not help.

Once all workers serve, a signal drains them; before that, it ends all processes immediately. A draining worker answers
the RPC requests of the others until all have drained, for at most `shutdown.deadline.ms`. A second signal ends the
workers immediately. Workers whose parent has ended drain and end.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import trio
from attrs import define, evolve, field

from korvet.cluster.membership import NodeIdTaken
from korvet.cluster.registered import new_incarnation
from korvet.config import Config
from korvet.metrics.samples import Samples
from korvet.server.listeners import ListenError, PortInUse, held_ports
from korvet.server.reloading import ReadConfig, report_changes
from korvet.server.signals import Ending, ended_by_signals
from korvet.storage.open import check_url
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
from korvet.workers.forking import Forker, Process

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
# A worker that ran for this long had recovered: its count of ends and its pause start again.
RECOVERED_AFTER_S = 60.0
ENDS_AT_MOST = 6
# Time that a worker gets after the deadline of a drain before it is killed.
GRACE_S = 5.0
# Limit of the time for the response of a worker to a request for metrics. Its own reads have shorter limits.
MEASURE_LIMIT_S = 8.0
PORT_PATIENCE_S = 1.0
LOOK_AGAIN_S = 0.05
# The path of a Unix socket has at most 103 bytes on some systems; this leaves space for the file name.
LONGEST_FOLDER = 90


class WorkersFail(Exception):  # noqa: N818  reads as a sentence
    """A worker ends repeatedly. The message is one line for the operator."""


@define(eq=False)
class Answered:
    """The response to a request for metrics, once it has arrived."""

    event: trio.Event = field(factory=trio.Event)
    samples: Samples | None = None


@define(eq=False)
class Worker:
    """One of the N workers, and the process that currently runs it."""

    setup: Setup
    family: Family
    pid: int = 0
    _control: Control | None = None
    _is_serving: bool = False
    # Responses with metrics that are waited for, by the number of the request.
    _measured: dict[int, Answered] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=count)

    def __repr__(self) -> str:
        return f"<Worker {self.setup.index} process={self.pid} serving={self._is_serving}>"

    @property
    def is_serving(self) -> bool:
        """True if the worker's process serves clients."""
        return self._is_serving

    @property
    def name(self) -> str:
        """The worker's name in log lines."""
        return f"process {self.setup.index + 1} of {self.setup.config.processes}"

    async def keep_running(self) -> None:
        """Run the worker, and restart it when it ends, until the broker stops.

        Raises WorkersFail, and the error of a worker that could not serve.
        """
        ends, pause_s = 0, FIRST_PAUSE_S
        while True:
            began_s = trio.current_time()
            process = await self._run()
            if self.family.stopping.is_set():
                return
            if trio.current_time() - began_s > RECOVERED_AFTER_S:
                ends, pause_s = 0, FIRST_PAUSE_S
            was_requested = process.returncode == 0
            ends = 0 if was_requested else ends + 1
            reason = how(process.returncode)
            if ends == ENDS_AT_MOST:
                what = f"{self.name} ({process.pid}) has ended: {reason}"
                raise WorkersFail(f"{what}, for the {ENDS_AT_MOST}th time in a row; so korvet ends")
            logger.log(
                logging.INFO if was_requested else logging.ERROR,
                "%(worker)s (%(pid)d) has ended: %(reason)s; starting it again",
                {"worker": self.name, "pid": process.pid, "reason": reason},
            )
            with trio.move_on_after(pause_s):
                await self.family.stopping.wait()
            if self.family.stopping.is_set():
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def tell(self, message: Reload | Drain | End) -> None:
        """Send a message to the worker's process, if there is one."""
        if self._control is not None:
            await self._control.send(message)

    async def measure(self, *, reads_store: bool) -> Samples | None:
        """Return the metrics of the worker's process, or None if it does not answer within MEASURE_LIMIT_S."""
        number, answered = next(self._numbers), Answered()
        self._measured[number] = answered
        try:
            with trio.move_on_after(MEASURE_LIMIT_S):
                if self._is_serving and self._control is not None:
                    await self._control.send(Measure(number, reads_store))
                    await answered.event.wait()
        finally:
            del self._measured[number]
        return answered.samples

    async def _run(self) -> Process:
        """Start a process and wait until it has ended. If cancelled, end it first."""
        ours, theirs = socket.socketpair()
        self._control = Control.on(ours)
        with theirs:
            process = await self.family.forker.fork(theirs)
        self.pid = process.pid
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_when_overdue, process)
                await self._control.send(self.setup)
                await self._listen(self._control)
                nursery.cancel_scope.cancel()
        finally:
            await self._see_it_end(process)
        return process

    async def _listen(self, control: Control) -> None:
        """Handle the process's messages until it closes its socket."""
        while (message := await control.receive()) is not None:
            match message:
                case Ready():
                    self._is_serving = True
                    logger.info("%(worker)s (%(pid)d) serves", {"worker": self.name, "pid": self.pid})
                    self.family.is_ready(self.setup.index, message)
                case Refused(error) if not self._is_serving or isinstance(error, NodeIdTaken):
                    raise error
                case Refused(error):
                    logger.error("%(error)s", {"worker": self.name, "error": error})
                case Measured(number, samples) if number in self._measured:
                    self._measured[number].samples = samples
                    self._measured[number].event.set()
                case Drained():
                    await self.family.has_drained(self)

    async def _kill_when_overdue(self, process: Process) -> None:
        await self.family.stopping.wait()
        await self._kill_late(process)

    async def _kill_late(self, process: Process) -> None:
        await trio.sleep(self.setup.config.shutdown_deadline_ms / 1000 + GRACE_S)
        fields = {"worker": self.name, "pid": process.pid}
        logger.error("%(worker)s (%(pid)d) has not ended in time; killing it", fields)
        process.kill()

    async def _see_it_end(self, process: Process) -> None:
        """Close the socket, which makes the process drain, wait until it has ended, and kill it if it is late."""
        with trio.CancelScope(shield=True):
            if self._control is not None:
                await self._control.stream.aclose()
                self._control = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_late, process)
                await process.wait()
                nursery.cancel_scope.cancel()
            self._is_serving = False
            await self.family.has_gone(self)


@define(eq=False)
class Family:
    """The workers of a broker."""

    forker: Forker
    workers: list[Worker] = field(factory=list)
    stopping: trio.Event = field(factory=trio.Event)
    _ready: dict[int, Ready] = field(factory=dict)
    _all_ready: trio.Event = field(factory=trio.Event)
    _drained: set[Worker] = field(factory=set)

    async def run(
        self, ending: Ending, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep all workers running until a signal ends them. Report the Ready of the first once all serve."""
        # The forker's reports are needed until the last worker has ended, hence the shielded scope.
        hearing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_forker, hearing)
            nursery.start_soon(self._report, ending, task_status)
            try:
                async with trio.open_nursery() as running:
                    for worker in self.workers:
                        running.start_soon(worker.keep_running)
            finally:
                hearing.cancel()
            nursery.cancel_scope.cancel()

    async def _read_forker(self, scope: trio.CancelScope) -> None:
        with scope:
            await self.forker.run()

    async def stop(self) -> None:
        """Drain all workers; the second call ends them immediately."""
        at_once = self.stopping.is_set()
        self.stopping.set()
        for worker in self.workers:
            await worker.tell(Drain(at_once=at_once))

    async def reload(self) -> None:
        """Let all workers reload."""
        for worker in self.workers:
            await worker.tell(Reload())

    def is_ready(self, index: int, message: Ready) -> None:
        """Record that a worker serves."""
        self._ready[index] = message
        if len(self._ready) == len(self.workers):
            self._all_ready.set()

    async def has_drained(self, worker: Worker) -> None:
        """Record that a worker has drained. Send End to it if it drained alone, or to all once all have drained."""
        self._drained.add(worker)
        if not self.stopping.is_set():
            await worker.tell(End())
        await self._end_if_all_have_drained()

    async def has_gone(self, worker: Worker) -> None:
        """Record that a worker's process has ended, so that the others do not wait for it to drain."""
        worker.pid = 0
        self._drained.discard(worker)
        await self._end_if_all_have_drained()

    async def _end_if_all_have_drained(self) -> None:
        living = [worker for worker in self.workers if worker.pid]
        if self.stopping.is_set() and all(worker in self._drained for worker in living):
            for worker in living:
                await worker.tell(End())

    async def _report(self, ending: Ending, task_status: trio.TaskStatus[Ready]) -> None:
        """Report that the broker has started once all workers serve. From then on a signal drains them."""
        await self._all_ready.wait()
        ending.tell = self.stop
        task_status.started(self._ready[0])


async def run(
    config: Config,
    forker: Forker,
    *,
    reread: ReadConfig | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve with `config.processes` workers until a signal ends them. Report a worker's Ready once all serve.

    A reload calls `reread` for the present settings, and logs those that only a restart applies.

    The caller has started `forker` before Trio, with `korvet.workers.worker.main`. Raises ListenError,
    StorageUsageError, WorkersFail and ForkerEnded, whose messages are one line for the operator, and SystemExit for a
    signal that arrives before all workers serve.
    """
    async with ended_by_signals() as ending:
        check_url(config.storage)
        with private_folder() as folder:
            async with ports_of_its_own(config) as found, shared_storage(found) as shared:
                family = Family(forker)
                incarnation = new_incarnation()
                family.workers = [
                    Worker(Setup(shared, index, folder, incarnation), family)
                    for index in range(config.processes)
                ]

                async def reload() -> None:
                    await family.reload()
                    report_changes(config, reread)

                ending.reload = reload
                async with measured(config, family):
                    await family.run(ending, task_status=task_status)


@asynccontextmanager
async def measured(config: Config, family: Family) -> AsyncIterator[None]:
    """Serve the metrics of all workers for the block, if configured. Raises ListenError."""
    if not config.metrics_listener:
        yield
        return
    from korvet.metrics.page import page  # noqa: PLC0415  only if configured
    from korvet.workers.metrics import FamilyMetrics  # noqa: PLC0415  as above

    async with page(config, FamilyMetrics(family.workers)):
        yield


@asynccontextmanager
async def ports_of_its_own(config: Config) -> AsyncIterator[Config]:
    """Bind the ports for the block. Wait up to PORT_PATIENCE_S for the workers of a killed parent to release them."""
    patience_ends = trio.current_time() + PORT_PATIENCE_S
    with ExitStack() as stack:
        while True:
            try:
                found = stack.enter_context(held_ports(config))
                break
            except PortInUse:
                if trio.current_time() > patience_ends:
                    raise
                await trio.sleep(LOOK_AGAIN_S)
        yield found


@asynccontextmanager
async def shared_storage(config: Config) -> AsyncIterator[Config]:
    """Run the embedded server for the block, if configured. Yield the settings with the storage URL for workers."""
    if not config.storage.startswith("embedded:"):
        yield config
        return
    from korvet.storage.embedded.server import embedded_server  # noqa: PLC0415  only if configured
    from korvet.storage.open import RUNNING, embedded_folder  # noqa: PLC0415  as above

    folder = embedded_folder(config.storage)
    async with embedded_server(
        folder,
        appendfsync=config.embedded_appendfsync,
        fsync=config.acks_all_fsync,
        binary=config.embedded_server,
    ) as server:
        yield evolve(config, storage=f"{RUNNING}:{server.folder}")


@contextmanager
def private_folder() -> Iterator[Path]:
    """Create a folder with access for this user only, for the block. Raises ListenError if its path is too long."""
    folder = Path(tempfile.mkdtemp(prefix="korvet-"))
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        folder.rmdir()
        raise ListenError(
            f"processes need sockets in {folder}, whose path is too long for them; set TMPDIR to a shorter path"
        )
    try:
        yield folder
    finally:
        for path in folder.glob("*.sock"):  # of workers that were killed
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def how(returncode: int | None) -> str:
    """Return a description of a process's end, for the log."""
    if returncode is not None and returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"with status {returncode}"
