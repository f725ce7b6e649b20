"""Child processes that end with this process, also if it is killed.

A killed process cannot stop its children, so a guard does: a shell that leads the process group of all children, and
kills this group when the pipe from this process closes. PR_SET_PDEATHSIG cannot do it: it sends the signal when the
*thread* that started the child ends, and Trio starts children from threads that end when they are idle.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from korvet.concurrency.background import background_nursery

LOOK_AGAIN_S = 0.02
# A broker that drains, or a server that writes its data, is given this time before it is killed.
STOP_LIMIT_S = 15.0
LAST_LINES = 3

# `read` returns when the pipe closes, and `kill 0` ends the whole group with the shell itself, hence last.
# A node that starts may add a file to a folder that is being removed, so that the removal fails and is repeated.
GUARD = 'read -r line; for _ in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$@" && break; done; kill -s KILL 0'


class DevClusterError(Exception):
    """A process of the cluster does not start or does not answer. The message is one line for the user."""


@define(eq=False)
class Child:
    """A child process, its name and address in messages, and the file of its output."""

    name: str
    address: str
    log: Path
    process: trio.Process = field(init=False)
    is_ready: bool = False  # from then on, its end is reported

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self.process.poll() is not None

    async def wait_ready(self, is_ready: Callable[[], Awaitable[bool]], limit_s: float) -> None:
        """Wait until `is_ready` returns True. Raise DevClusterError if the process ends or takes too long."""
        with trio.move_on_after(limit_s):
            while not await is_ready():
                if self.has_ended:
                    raise DevClusterError(f"{self.name} does not start: {self.last_lines()}")
                await trio.sleep(LOOK_AGAIN_S)
            self.is_ready = True
            return
        raise DevClusterError(f"{self.name} is not ready after {limit_s:g} s: {self.last_lines()}")

    def last_lines(self) -> str:
        """Return the last lines of the output, as one line."""
        with suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            if words := [line for line in lines if line][-LAST_LINES:]:
                return f"its output ends: {'; '.join(words)}"
        return "it printed nothing"


@define(eq=False)
class ProcessGroup:
    """Starts children, and calls `report` with a line when one ends unexpectedly."""

    report: Callable[[str], None]
    _pgid: int
    _inherited: Sequence[int]
    hurry: trio.Event  # set to kill the children that are being stopped

    async def start(
        self,
        child: Child,
        command: Sequence[str],
        nursery: trio.Nursery,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the child's process. The nursery owns it: cancelling the nursery stops the process."""
        child.process = await nursery.start(self._run, child, command, environment)

    async def _run(
        self,
        child: Child,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        *,
        task_status: trio.TaskStatus[trio.Process],
    ) -> None:
        with child.log.open("wb") as output:
            await trio.run_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=self._pgid,
                pass_fds=self._inherited,
                check=False,
                deliver_cancel=self._stop,
                task_status=task_status,
            )
        if child.is_ready:
            self.report(f"{child.name} ({child.address}, process {child.pid}) {ending_of(child)}")

    async def _stop(self, process: trio.Process) -> None:
        """Terminate the process; kill it after a time limit, or immediately in a hurry."""
        with suppress(ProcessLookupError):
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a paused process does not handle SIGTERM
        with trio.move_on_after(STOP_LIMIT_S):
            await self.hurry.wait()
        process.kill()


def ending_of(child: Child) -> str:
    """Return how an ended process ended."""
    status = child.process.returncode
    if not status:
        return "has ended"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"has ended with status {status}: {child.last_lines()}"


@asynccontextmanager
async def process_group(
    report: Callable[[str], None],
    hurry: trio.Event,
    folder: Path,
    *,
    is_temporary: bool = False,
    inherited: Sequence[int] = (),
) -> AsyncIterator[ProcessGroup]:
    """Yield a group for child processes, which all have to end within the block.

    If this process is killed, the children are killed, and the folder is deleted if it is temporary. The guard is shown
    with the folder by `ps`. Children inherit the descriptors `inherited`.
    """
    deleted = [str(folder)] if is_temporary else []
    reading, writing = os.pipe()
    try:
        async with background_nursery() as nursery:
            start = partial(
                trio.run_process,
                ["/bin/sh", "-c", GUARD, f"korvet-dev-cluster-guard of {folder}", *deleted],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
                pass_fds=inherited,
                check=False,
                deliver_cancel=kill,
            )
            try:
                guard: trio.Process = await nursery.start(start)
            finally:
                os.close(reading)
            yield ProcessGroup(report, guard.pid, inherited, hurry)
    finally:
        os.close(writing)


async def kill(process: trio.Process) -> None:
    """Kill a process."""
    process.kill()
    await trio.lowlevel.checkpoint()
