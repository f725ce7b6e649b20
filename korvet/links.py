"""Questions between the processes of one broker, over Unix sockets in a folder that nobody else may enter.

Whoever asks has a `Link` to each of the others, connected when it is first needed and again after it broke. Many
questions are under way at once, and are answered in any order. A frame, as those of the protocol are, holds

    8 bytes   number of the question     1 byte   kind     payload

and a payload is a pickle: both ends are the same program, started by the same parent, in a folder of mode 700.

No question is left without an answer. The kernel tells at once when the other process ends, and for one that stands
still there is a PING every few seconds: where nothing has come back for `SILENCE_LIMIT_S` the link is given up, and
with it whatever was asked, by LinkBroken. Who asked may have been heard all the same.

A question may take as long as it likes at the other end. One whose answer may be waited for (`Parked`) has these waits
ended when the asker's wait is: by a drain, or since the client has gone. The answer, as the other end then gives it,
is still awaited.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
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

# Something that bounds a wait: entered with the seconds it may take at most, and ended from outside.
Parked = Callable[[float], AbstractContextManager[object]]


class LinkBroken(Exception):  # noqa: N818  what happened to it, not a fault of ours
    """The other process is not there, or has gone before it answered."""


class Kind(IntEnum):
    """What a frame is."""

    QUESTION = 0
    ANSWER = 1
    END_WAITS = 2  # of the question with that number
    PING = 3
    PONG = 4


@frozen
class Question:
    """A verb of the other process, and what it is called with."""

    verb: str
    arguments: tuple[Any, ...] = ()


# Answers questions; the waits of one that may take long are entered through its second argument.
Answering = Callable[[Question, Parked], Awaitable[object]]


@define(eq=False)
class Wire:
    """Frames over one connection. Sending never waits: `run` writes what has come up."""

    stream: trio.SocketStream
    _outgoing: list[Buffer] = field(factory=list)
    _has_outgoing: trio.Event = field(factory=trio.Event)
    _heard: float = field(factory=trio.current_time)

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame, soon."""
        self._outgoing += framed([HEAD.pack(number, kind), payload])
        self._has_outgoing.set()

    async def run(self, take: Callable[[Kind, int, bytes], None]) -> None:
        """Send, and hand over what arrives, until the other side closes. Raises what a broken connection does."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            await self._read(take)
            nursery.cancel_scope.cancel()

    async def ping(self) -> None:
        """Ask now and then whether the other process lives, and return when it does not."""
        while trio.current_time() - self._heard < SILENCE_LIMIT_S:
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
            self._heard = trio.current_time()
            frames.receive_data(chunk)
            while (frame := frames.next_frame()) is not None:
                number, kind = HEAD.unpack_from(frame)
                take(Kind(kind), number, bytes(frame[HEAD.size :]))


# --- Asking --------------------------------------------------------------------------------------------------


@define(eq=False)
class Asked:
    """A question that is under way."""

    done: trio.Event = field(factory=trio.Event)
    answer: bytes | None = None  # None once it is done: it will never come


@define(eq=False)
class Link:
    """The way to another process, which listens at `path`. Lives in `nursery`."""

    path: Path
    _nursery: trio.Nursery
    _wire: Wire | None = None
    _asked: dict[int, Asked] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=lambda: count(1))
    _connecting: trio.Lock = field(factory=trio.Lock)

    def __repr__(self) -> str:
        state = "connected" if self._wire is not None else "not connected"
        return f"<Link {self.path.name} {state} asked={len(self._asked)}>"

    async def ask(self, question: Question, parked: Parked | None = None) -> Any:
        """The answer. Raises LinkBroken; when cancelled, the waits at the other end are ended."""
        wire = await self._connected()
        number, asked = next(self._numbers), Asked()
        self._asked[number] = asked
        wire.send(Kind.QUESTION, number, pickle.dumps(question))
        try:
            if parked is not None:
                with parked(math.inf):
                    await asked.done.wait()
                if not asked.done.is_set():
                    wire.send(Kind.END_WAITS, number)
            await asked.done.wait()
        finally:
            if self._asked.pop(number, None) is not None and not asked.done.is_set():
                wire.send(Kind.END_WAITS, number)
        if asked.answer is None:
            raise LinkBroken(f"the process at {self.path.name} has gone before it answered")
        return pickle.loads(asked.answer)  # noqa: S301  see the module

    async def _connected(self) -> Wire:
        if self._wire is None:
            async with self._connecting:
                if self._wire is None:
                    self._wire = await self._connect()
        return self._wire

    async def _connect(self) -> Wire:
        try:
            with trio.fail_after(CONNECT_LIMIT_S):
                wire = Wire(await trio.open_unix_socket(str(self.path)))
        except (OSError, trio.TooSlowError):
            raise LinkBroken(f"there is no process at {self.path.name} just now") from None
        self._nursery.start_soon(self._run, wire)
        return wire

    async def _run(self, wire: Wire) -> None:
        """Take answers until the link breaks; then nothing that was asked through it is answered any more."""
        try:
            async with wire.stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_silent, wire, nursery.cancel_scope)
                await wire.run(self._take)
                nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError as broken:
            logger.debug("the link to %s is broken: %s", self.path.name, broken.exceptions[0])
        finally:
            self._wire = None
            asked, self._asked = self._asked, {}
            for each in asked.values():
                each.done.set()

    async def _end_when_silent(self, wire: Wire, scope: trio.CancelScope) -> None:
        await wire.ping()
        logger.warning("the process at %s says nothing; the link to it is given up", self.path.name)
        scope.cancel()

    def _take(self, kind: Kind, number: int, payload: bytes) -> None:
        if kind is Kind.ANSWER and number in self._asked:
            asked = self._asked.pop(number)
            asked.answer = payload
            asked.done.set()


# --- Answering -----------------------------------------------------------------------------------------------


@define(eq=False)
class Waits:
    """Those of one question: entered by whoever answers it, ended by whoever asked."""

    bound: Parked
    are_ended: bool = False
    _scopes: set[trio.CancelScope] = field(factory=set)

    @contextmanager
    def parked(self, wait_s: float) -> Iterator[None]:
        """Wait inside this block, at most `wait_s`; ended from here, and by what bounds waits in this process."""
        with trio.move_on_after(0 if self.are_ended else math.inf) as scope:
            self._scopes.add(scope)
            try:
                with self.bound(wait_s):
                    yield
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        """End those there are, and let no new ones begin."""
        self.are_ended = True
        for scope in self._scopes:
            scope.cancel()


@define(eq=False)
class AnsweredLink:
    """A link as the process that is asked has it. Answers are worked on in `answering`, which outlives the link."""

    wire: Wire
    answer: Answering
    bound: Parked
    answering: trio.Nursery
    _waits: dict[int, Waits] = field(factory=dict)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def serve(self) -> None:
        """Take questions until the link breaks. What was asked is still done, without waiting any longer."""
        try:
            with self._scope:
                async with self.wire.stream:
                    await self.wire.run(self._take)
        except* trio.BrokenResourceError as broken:
            logger.debug("a link is broken: %s", broken.exceptions[0])
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
            logger.exception("a link is given up for an error in korvet")
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
    """Listen at `path` for ever, and answer what is asked there. `bound` bounds all waits.

    `answer` is to raise nothing: an error is logged, and breaks the link it came by.
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
