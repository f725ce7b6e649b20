"""Where workers come from: a process that has imported everything, runs no tasks and no threads, and forks.

Starting Python and importing the broker takes half a second of processor time, and tens of megabytes in each process.
A fork takes milliseconds, shares that memory, and so a worker that was killed is back at once. It has to come from a
process that does nothing else: neither threads nor Trio's tasks survive one. So the parent forks the *forker*
before it starts Trio, and asks it for each worker, over a pair of sockets:

    parent                                   forker
    1 byte, and the worker's descriptor ──▶
                                        ◀──  FORKED, process id
                                        ◀──  ENDED, process id, exit status      whenever one does

The forker ends when the parent has gone. Workers learn of that by their own sockets.
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


class ForkerEnded(Exception):  # noqa: N818  what happened, for the operator
    """There is nobody to start workers any more; the message is one line for the operator."""


# --- In the parent -------------------------------------------------------------------------------------------


@define(eq=False)
class Process:
    """A worker's process."""

    pid: int
    returncode: int | None = None  # as `subprocess` has it; None while it runs
    _ended: trio.Event = field(factory=trio.Event)

    async def wait(self) -> None:
        """Return once it has ended."""
        await self._ended.wait()

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def note_end(self, returncode: int) -> None:
        """It has ended."""
        self.returncode = returncode
        self._ended.set()


@define(eq=False)
class Forker:
    """The forker, as the parent has it. Made by `start`, before Trio runs; then `run` in a nursery."""

    sock: socket.socket
    _processes: dict[int, Process] = field(factory=dict)
    _asking: trio.Lock = field(factory=trio.Lock)
    _forked: trio.MemorySendChannel[Process] = field(init=False)
    _forks: trio.MemoryReceiveChannel[Process] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._forked, self._forks = trio.open_memory_channel(math.inf)

    @classmethod
    def start(cls, work: Callable[[socket.socket], None]) -> Self:
        """Fork the forker. Each worker calls `work` with its socket, and ends when that returns."""
        ours, theirs = socket.socketpair()
        gc.collect()
        gc.freeze()  # what is there stays shared: the collector writes to what it looks at
        if not os.fork():
            ours.close()
            leave(partial(fork_for_ever, theirs, work))
        theirs.close()
        ours.settimeout(0)
        return cls(ours)

    async def run(self) -> None:
        """Take reports, for as long as there are processes. Raises ForkerEnded."""
        received = bytearray()
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            chunk = self.sock.recv(RECEIVE_BYTES)
            if not chunk:
                for process in self._processes.values():
                    process.note_end(UNKNOWN)  # nobody will tell; they are asked to end, and do
                raise ForkerEnded(
                    "the process that korvet's processes are forked from has ended; so korvet ends"
                )
            received += chunk
            while len(received) >= REPORT.size:
                self._take(*REPORT.unpack_from(received))
                del received[: REPORT.size]

    async def fork(self, theirs: socket.socket) -> Process:
        """A new worker, with that socket. When this is cancelled, so is everything: the next would get its process."""
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
    """Fork what is asked for, and tell what has ended, until the parent has gone."""
    call_myself("korvet forker")
    # The parent obeys these and drains its workers; workers go on ignoring SIGHUP.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ends, wakeup = socket.socketpair()
    wakeup.settimeout(0)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([parent, ends], [], [])
        if ends in readable:
            ends.recv(RECEIVE_BYTES)
            tell_ends(parent)
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


def tell_ends(parent: socket.socket) -> None:
    """Tell the parent of every worker that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        parent.sendall(REPORT.pack(ENDED, pid, status))


def become_worker(descriptor: int, work: Callable[[socket.socket], None]) -> None:
    """Undo what only the forker needs, and work."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    work(socket.socket(fileno=descriptor))


def leave(main: Callable[[], None]) -> NoReturn:
    """Be a process that does that and ends, whatever the process it was forked from had in mind for its end."""
    status = 1
    try:
        main()
        status = 0
    except BaseException:  # noqa: BLE001  the outermost place there is
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def call_myself(name: str) -> None:
    """Have the system's lists of processes show a name (15 characters), where that is to be had."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name)
