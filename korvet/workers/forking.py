"""The forker: a process that has imported all modules, runs no tasks and no threads, and forks the workers.

Starting Python and importing the broker takes half a second of processor time, and tens of megabytes in each process.
A fork takes milliseconds and shares that memory, so that a killed worker is replaced immediately. Only a process that
does nothing else can fork safely, because neither threads nor Trio's tasks survive a fork. So the parent forks the
*forker* before it starts Trio, and requests each worker from it over a socket pair:

    parent                                   forker
    1 byte, and the worker's descriptor ──▶
                                        ◀──  FORKED, process id
                                        ◀──  ENDED, process id, exit status      whenever a worker ends

The forker ends when the parent ends. Workers detect the end of the parent on their own sockets.
"""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NoReturn, Self

import trio
from attrs import define, field

REPORT = Struct(">Biq")
FORKED, ENDED = 1, 2
ASK = b"f"
UNKNOWN = -1
RECEIVE_BYTES = 4096


class ForkerEnded(Exception):  # noqa: N818  names the event
    """The forker has ended, so no worker can be started. The message is one line for the operator."""


# --- In the parent -------------------------------------------------------------------------------------------


@define(eq=False)
class Process:
    """A worker's process."""

    pid: int
    returncode: int | None = None  # as in `subprocess`; None while the process runs
    _ended: trio.Event = field(factory=trio.Event)

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._ended.wait()

    def kill(self) -> None:
        """Send SIGKILL if the process runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def note_end(self, returncode: int) -> None:
        """Set the return code and wake `wait`."""
        self.returncode = returncode
        self._ended.set()


@define(eq=False)
class Forker:
    """The parent's interface to the forker. Call `start` before Trio runs, then `run` in a nursery."""

    sock: socket.socket
    _processes: dict[int, Process] = field(factory=dict)
    _asking: trio.Lock = field(factory=trio.Lock)
    _forked: trio.MemorySendChannel[Process] = field(init=False)
    _forks: trio.MemoryReceiveChannel[Process] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._forked, self._forks = trio.open_memory_channel(math.inf)

    @classmethod
    def start(cls, work: Callable[[socket.socket], None]) -> Self:
        """Fork the forker. Each worker calls `work` with its socket and ends when `work` returns."""
        ours, theirs = socket.socketpair()
        gc.collect()
        gc.freeze()  # keeps memory pages shared: the collector writes to the objects that it visits
        if not os.fork():
            ours.close()
            leave(partial(fork_for_ever, theirs, work))
        theirs.close()
        ours.settimeout(0)
        return cls(ours)

    async def run(self) -> None:
        """Read the forker's reports, forever. Raises ForkerEnded."""
        received = bytearray()
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            chunk = self.sock.recv(RECEIVE_BYTES)
            if not chunk:
                for process in self._processes.values():
                    process.note_end(
                        UNKNOWN
                    )  # no report will come; the parent drains the workers, and they end
                raise ForkerEnded(
                    "the process that korvet's processes are forked from has ended; so korvet ends"
                )
            received += chunk
            while len(received) >= REPORT.size:
                self._take(*REPORT.unpack_from(received))
                del received[: REPORT.size]

    async def fork(self, theirs: socket.socket) -> Process:
        """Start a worker with that socket and return its process."""
        # If this is cancelled, the parent must end: the next call would return the process of the cancelled one.
        async with self._asking:
            socket.send_fds(self.sock, [ASK], [theirs.fileno()])
            return await self._forks.receive()

    def _take(self, kind: int, pid: int, status: int) -> None:
        if kind == FORKED:
            self._processes[pid] = Process(pid)
            self._forked.send_nowait(self._processes[pid])
        elif (process := self._processes.pop(pid, None)) is not None:
            process.note_end(os.waitstatus_to_exitcode(status))


# --- In the forker -------------------------------------------------------------------------------------------


def fork_for_ever(parent: socket.socket, work: Callable[[socket.socket], None]) -> None:
    """Fork workers on request and report those that have ended, until the parent ends."""
    call_myself("korvet forker")
    # The parent handles these signals and drains its workers. Workers keep ignoring SIGHUP.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ends, wakeup = socket.socketpair()
    wakeup.settimeout(0)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    # The kernel resets the connection if the parent ends with unread reports, and breaks the pipe of a later report.
    with suppress(ConnectionError):
        answer_parent(parent, ends, wakeup, work)
    # The sockets are closed next. Python would print that it cannot write a later SIGCHLD to them.
    signal.set_wakeup_fd(-1)


def answer_parent(
    parent: socket.socket, ends: socket.socket, wakeup: socket.socket, work: Callable[[socket.socket], None]
) -> None:
    """Fork workers and report those that have ended. Return, or raise ConnectionError, when the parent ends."""
    while True:
        readable, _, _ = select.select([parent, ends], [], [])
        if ends in readable:
            ends.recv(RECEIVE_BYTES)
            report_ends(parent)
        if parent in readable:
            asked, descriptors, _, _ = socket.recv_fds(parent, len(ASK), 1)
            if not asked:
                return
            pid = os.fork()
            if not pid:
                for sock in (parent, ends, wakeup):
                    sock.close()
                leave(partial(become_worker, descriptors[0], work))
            os.close(descriptors[0])
            parent.sendall(REPORT.pack(FORKED, pid, 0))


def report_ends(parent: socket.socket) -> None:
    """Report every worker that has ended to the parent."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        parent.sendall(REPORT.pack(ENDED, pid, status))


def become_worker(descriptor: int, work: Callable[[socket.socket], None]) -> None:
    """Restore the signal handling that the forker has changed, and call `work`."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    work(socket.socket(fileno=descriptor))


def leave(main: Callable[[], None]) -> NoReturn:
    """Call `main` and end the process without the exit handlers of the process it was forked from."""
    status = 1
    try:
        main()
        status = 0
    except BaseException:  # noqa: BLE001  the outermost frame of the process
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def call_myself(name: str) -> None:
    """Set the process name that `ps` shows (15 characters), on systems with /proc."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name)
