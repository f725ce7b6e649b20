"""RPC between the processes of one broker: its workers, and the process that reads tables.

A process has a `Link` to each of the others, which connects on first use and reconnects after it broke. Many requests
can be in flight on a link, and responses come in any order. A frame, delimited as in the protocol, holds

    8 bytes   number of the request      1 byte   kind     payload

and the payload is a pickle. Pickle is safe here: both ends are the same program, started by the same user, and no other
user can connect. Workers listen on Unix sockets in a folder with mode 700. The process that reads tables inherits one
end of a socket pair, which has no address.

Every request ends with a response or LinkBroken. The kernel reports immediately that the other process has ended. A
process that hangs is detected with a PING every few seconds: if nothing has arrived for `silence_limit_s`, the link is
closed and its requests raise LinkBroken. The other process may have executed them nevertheless.

A request has no time limit. If it may wait (`Parked`), its waits at the other end are ended when the wait of the
requester is ended: by a drain, or because the client has disconnected. The requester still waits for the response that
the other end sends then.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from enum import IntEnum
from functools import partial
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any

import trio
from attrs import define, field, frozen

from korvet.protocol.buffers import Buffer
from korvet.protocol.frames import LARGEST_FRAME, FrameReader, framed

logger = logging.getLogger(__name__)

HEAD = Struct(">QB")
RECEIVE_BYTES = 64 * 1024
CONNECT_LIMIT_S = 1.0
PING_EVERY_S = 3.0
SILENCE_LIMIT_S = 10.0

# A context manager that bounds a wait. The argument is the maximum in seconds; it can also be ended from outside.
Parked = Callable[[float], AbstractContextManager[object]]


class LinkBroken(Exception):  # noqa: N818  names the event
    """The other process does not run, or has ended before it answered."""


class Kind(IntEnum):
    """The kinds of frames."""

    QUESTION = 0
    ANSWER = 1
    END_WAITS = 2  # end the waits of the request with that number
    PING = 3
    PONG = 4


@frozen
class Question:
    """A request: a verb of the other process, and its arguments."""

    verb: str
    arguments: tuple[Any, ...] = ()


# Connects to another process, and disconnects at the end of the block. Raises LinkBroken.
Connection = Callable[[], AbstractAsyncContextManager[trio.SocketStream]]

# Handles a request. It enters `Parked`, the second argument, around long waits.
Answering = Callable[[Question, Parked], Awaitable[object]]


@define(eq=False)
class Wire:
    """Frames over one connection. `send` only queues a frame; `run` writes the queue."""

    stream: trio.SocketStream
    _outgoing: list[Buffer] = field(factory=list)
    _has_outgoing: trio.Event = field(factory=trio.Event)
    _received_at: float = field(factory=trio.current_time)

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Queue a frame."""
        self._outgoing += framed([HEAD.pack(number, kind), payload])
        self._has_outgoing.set()

    async def run(self, take: Callable[[Kind, int, bytes], None]) -> None:
        """Write queued frames and pass received ones to `take`, until the other side closes.

        Raises Trio's errors of broken connections, in a group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            await self._read(take)
            nursery.cancel_scope.cancel()

    async def ping(self, silence_limit_s: float) -> None:
        """Send a PING every PING_EVERY_S. Return when nothing has arrived for `silence_limit_s`."""
        while trio.current_time() - self._received_at < silence_limit_s:
            self.send(Kind.PING)
            await trio.sleep(PING_EVERY_S)

    async def _write(self) -> None:
        while True:
            await self._has_outgoing.wait()
            outgoing, self._outgoing = self._outgoing, []
            self._has_outgoing = trio.Event()
            await self.stream.send_all(b"".join(outgoing))

    async def _read(self, take: Callable[[Kind, int, bytes], None]) -> None:
        frames = FrameReader(LARGEST_FRAME)
        while chunk := await self.stream.receive_some(RECEIVE_BYTES):
            self._received_at = trio.current_time()
            frames.receive_data(chunk)
            while (frame := frames.next_frame()) is not None:
                number, kind = HEAD.unpack_from(frame)
                take(Kind(kind), number, bytes(frame[HEAD.size :]))


# --- Requesting ----------------------------------------------------------------------------------------------


@define(eq=False)
class Asked:
    """A request in flight."""

    done: trio.Event = field(factory=trio.Event)
    answer: bytes | None = None  # None after `done` is set: the link broke


@define(eq=False)
class Link:
    """The RPC client for another process, which `name` describes in messages. Its tasks run in `nursery`."""

    name: str
    _connection: Connection
    _nursery: trio.Nursery
    silence_limit_s: float = field(factory=lambda: SILENCE_LIMIT_S)
    _wire: Wire | None = None
    _requested: dict[int, Asked] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=lambda: count(1))
    _connecting: trio.Lock = field(factory=trio.Lock)

    def __repr__(self) -> str:
        state = "connected" if self._wire is not None else "not connected"
        return f"<Link {self.name} {state} asked={len(self._requested)}>"

    async def ask(self, question: Question, parked: Parked | None = None) -> Any:
        """Send a request and return its response. If cancelled, end the waits at the other end. Raises LinkBroken."""
        wire = await self._connected()
        number, asked = next(self._numbers), Asked()
        self._requested[number] = asked
        wire.send(Kind.QUESTION, number, pickle.dumps(question))
        try:
            if parked is not None:
                with parked(math.inf):
                    await asked.done.wait()
                if not asked.done.is_set():
                    wire.send(Kind.END_WAITS, number)
            await asked.done.wait()
        finally:
            if self._requested.pop(number, None) is not None and not asked.done.is_set():
                wire.send(Kind.END_WAITS, number)
        if asked.answer is None:
            raise LinkBroken(f"the link to the process at {self.name} broke before it answered")
        return pickle.loads(asked.answer)  # noqa: S301  see the module

    async def _connected(self) -> Wire:
        if self._wire is None:
            async with self._connecting:
                if self._wire is None:
                    self._wire = await self._nursery.start(self._run)
        return self._wire

    async def _run(self, *, task_status: trio.TaskStatus[Wire]) -> None:
        """Connect, and receive responses until the link breaks. Then end the requests that are in flight."""
        async with self._connection() as stream:
            wire = Wire(stream)
            task_status.started(wire)
            try:
                await self._receive(wire)
            except* trio.BrokenResourceError as broken:
                fields = {"link": self.name, "error": broken.exceptions[0]}
                logger.debug("the link to %(link)s is broken: %(error)s", fields)
            finally:
                self._wire = None
                asked, self._requested = self._requested, {}
                for each in asked.values():
                    each.done.set()

    async def _receive(self, wire: Wire) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_silent, wire, nursery.cancel_scope)
            await wire.run(self._take)
            nursery.cancel_scope.cancel()

    async def _end_when_silent(self, wire: Wire, scope: trio.CancelScope) -> None:
        await wire.ping(self.silence_limit_s)
        logger.warning(
            "the process at %(link)s does not respond; closing the link to it", {"link": self.name}
        )
        scope.cancel()

    def _take(self, kind: Kind, number: int, payload: bytes) -> None:
        if kind is Kind.ANSWER and number in self._requested:
            asked = self._requested.pop(number)
            asked.answer = payload
            asked.done.set()


def link_to(path: Path, nursery: trio.Nursery) -> Link:
    """Return a link to the process that listens at `path`."""
    return Link(path.name, partial(connected, path), nursery)


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[trio.SocketStream]:
    """Connect to the process that listens at `path`. Raises LinkBroken."""
    try:
        with trio.fail_after(CONNECT_LIMIT_S):
            stream = await trio.open_unix_socket(str(path))
    except (OSError, trio.TooSlowError):
        raise LinkBroken(f"no process is listening at {path.name}") from None
    async with stream:
        yield stream


# --- Answering -----------------------------------------------------------------------------------------------


@define(eq=False)
class Waits:
    """The waits of one request: entered by the process that answers, ended by the one that sent the request."""

    bound: Parked
    are_ended: bool = False
    _scopes: set[trio.CancelScope] = field(factory=set)

    @contextmanager
    def parked(self, wait_s: float) -> Iterator[None]:
        """Bound a wait inside the block by `wait_s`, by `end`, and by the limits on waits in this process."""
        with trio.move_on_after(0 if self.are_ended else math.inf) as scope:
            self._scopes.add(scope)
            try:
                with self.bound(wait_s):
                    yield
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        """End current waits, and let later ones return immediately."""
        self.are_ended = True
        for scope in self._scopes:
            scope.cancel()


@define(eq=False)
class AnsweredLink:
    """The RPC server's side of a link. Requests are handled in `answering`, a nursery that outlives the link."""

    wire: Wire
    answer: Answering
    bound: Parked
    answering: trio.Nursery
    _waits: dict[int, Waits] = field(factory=dict)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def serve(self) -> None:
        """Receive requests until the link breaks. Requests received before are completed, but their waits end."""
        try:
            with self._scope:
                async with self.wire.stream:
                    await self.wire.run(self._take)
        except* trio.BrokenResourceError as broken:
            logger.debug("a link is broken: %(error)s", {"error": broken.exceptions[0]})
        finally:
            for waits in self._waits.values():
                waits.end()

    def _take(self, kind: Kind, number: int, payload: bytes) -> None:
        if kind is Kind.PING:
            self.wire.send(Kind.PONG)
        elif kind is Kind.QUESTION:
            waits = self._waits[number] = Waits(self.bound)
            self.answering.start_soon(self._answer, number, payload, waits)
        elif number in self._waits:
            self._waits[number].end()

    async def _answer(self, number: int, payload: bytes, waits: Waits) -> None:
        try:
            question: Question = pickle.loads(payload)  # noqa: S301  see the module
            answer = await self.answer(question, waits.parked)
            self.wire.send(Kind.ANSWER, number, pickle.dumps(answer))
        except Exception:
            logger.exception("closing a link because of an error in korvet")
            self._scope.cancel()
        finally:
            del self._waits[number]


async def answer_links(
    path: Path,
    answer: Answering,
    bound: Parked,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen at `path` forever and answer requests. `bound` bounds all waits.

    `answer` must not raise: an exception is logged and closes the link of the request.
    """
    await trio.Path(path).unlink(missing_ok=True)
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(path))
    listening.listen()
    task_status.started()
    async with trio.open_nursery() as answering:

        async def serve(stream: trio.SocketStream) -> None:
            await AnsweredLink(Wire(stream), answer, bound, answering).serve()

        await trio.serve_listeners(serve, [trio.SocketListener(listening)])


async def answer_stream(stream: trio.SocketStream, answer: Answering, bound: Parked) -> None:
    """Answer the requests of one connection until the other end closes it. Then cancel those in flight."""
    async with trio.open_nursery() as answering:
        await AnsweredLink(Wire(stream), answer, bound, answering).serve()
        answering.cancel_scope.cancel()
