"""One socket to Redis from its greeting to its end: many tasks' commands in, their replies out, first in first out.

Commands are answered in the order they were written, so a reply belongs to the oldest command without one. Where
nothing is under way a command leaves at once. Else what tasks send within one turn of the scheduler leaves in one
write; a reply wakes its task and nobody else. That is some 170,000 small commands a second, where a connection per task
or a lock around one reaches a tenth of it.

A server that takes bytes and answers nothing (a stopped process, a network that swallows packets) is noticed by
the oldest command's time limit. Time counts only while nothing arrives at all, so a long queue of commands behind
a slow one is not mistaken for it.

A link is not made anew; `RedisConnection` does that, and says what becomes of commands then.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import hiredis
import trio
from attrs import define

from korvet.protocol.buffers import Buffer
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.errors import (
    AuthenticationError,
    NoPermissionError,
    ReadOnlyError,
    RedisConnectionError,
)
from korvet.storage.redis.client.replies import Command, Reply, pack, reply_error
from korvet.storage.redis.client.transport import Transport, open_transport

RECEIVE_BYTES = 256 * 1024

# A connection to a server that has become a replica is given up, since its name may lead to the new primary by
# now; not before it has lived this long, lest a server that stays read-only costs a connection per command.
READ_ONLY_AFTER_S = 5.0

RUN_ID = b"run_id:"
INCOMPLETE = object()


class RedisUnavailable(RedisConnectionError):  # noqa: N818  a state, as trio.Cancelled
    """There is no connection; the message says why."""


class NotConnected(RedisUnavailable):
    """The command was not written."""


class ConnectionLost(RedisUnavailable):
    """The connection broke after the command was written, or while it was: its outcome is unknown."""


class LinkEnded(Exception):  # noqa: N818  caught in this package; the reason why a link ends
    """The link has to end for the reason that the message gives."""


@define(eq=False)
class Pending:
    """One write of one or more commands, and in time its reply (a list of them for more than one).

    An error reply is the exception itself. `notify`, when given, is called with the Pending as soon as `reply` is
    there, from the task that reads the link: it must be quick, and may not raise.
    """

    buffers: list[Buffer]
    expected: int  # replies that `reply` will list; 0 where there is one, and it is `reply` itself
    limit_s: float
    notify: Callable[[Pending], None] | None = None
    reply: Reply = None
    done: bool = False
    abandoned: bool = False
    task: trio.lowlevel.Task | None = None

    async def wait(self) -> Reply:
        """The reply; raises it where it is an exception. Only one task may wait.

        On cancellation what is not yet written is dropped; what is written will be executed all the same.
        """
        if self.done:
            await trio.lowlevel.checkpoint()
        else:
            self.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abandon)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def _abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        self.abandoned = True
        return trio.lowlevel.Abort.SUCCEEDED

    def resolve(self, reply: Reply) -> None:
        """Give the reply to whoever waits for it."""
        self.reply = reply
        self.done = True
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
        if self.notify is not None:
            self.notify(self)


class Link:
    """One socket: who waits for replies, and what is still to be written."""

    def __init__(self, transport: Transport, answer_limit_s: float) -> None:
        self.transport = transport
        self.answer_limit_s = answer_limit_s
        self.opened_at = trio.current_time()
        self.cause = ""
        self._unsent: list[Pending] = []
        self._rest: Sequence[Buffer] = ()  # of a command of which some is written
        self._waiting: deque[Pending] = deque()
        self._writer: trio.lowlevel.Task | None = None  # while it has nothing to do
        self._reader = hiredis.Reader(
            protocolError=LinkEnded, replyError=self._note_error, notEnoughData=INCOMPLETE
        )
        self._silence = trio.CancelScope()  # around the reading; its deadline is the oldest command's limit
        self._read_only = False
        self.run_id = b""  # of the server process, as INFO names it; empty if the user may not ask

    def __repr__(self) -> str:
        return f"<Link unsent={len(self._unsent)} waiting={len(self._waiting)} {self.cause or 'open'}>"

    def enqueue(self, pending: Pending) -> None:
        """Have `pending` written: at once, or with whatever else is sent in this turn of the scheduler."""
        if self._writer is None:
            self._unsent.append(pending)
            return
        if self._waiting:
            self._unsent.append(pending)
        else:
            self._rest = self.transport.send_now(pending.buffers)
            pending.buffers = []
            self._waiting.append(pending)
            self._expect_answer()
            if not self._rest:
                return
        trio.lowlevel.reschedule(self._writer)
        self._writer = None

    async def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands before `serve` runs, and return their replies, errors among them."""
        await self.transport.send([buffer for command in commands for buffer in pack(command)])
        replies: list[Reply] = []
        buffer = bytearray(4096)
        while len(replies) < len(commands):
            while (reply := self._reader.gets()) is not INCOMPLETE:
                replies.append(reply)
            if len(replies) < len(commands):
                await self._receive_into(buffer)
        return replies

    async def serve(self) -> None:
        """Write and read until the link ends; `cause` says why. Then it is for the caller to `fail_all`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_it_ends, self._write, nursery.cancel_scope)
                nursery.start_soon(self._until_it_ends, self._read, nursery.cancel_scope)
        finally:
            self.cause = self.cause or "it was closed"
            await self.transport.aclose()

    def end(self, cause: str) -> None:
        """Make `serve` end, for that reason."""
        self.cause = self.cause or cause
        self._silence.cancel()

    def fail_all(self) -> None:
        """Tell everybody who waits that the link has ended."""
        waiting, self._waiting = self._waiting, deque()
        unsent, self._unsent = self._unsent, []
        for pending in waiting:
            pending.resolve(ConnectionLost(f"lost the connection, outcome unknown: {self.cause}"))
        for pending in unsent:
            pending.resolve(NotConnected(f"not sent: {self.cause}"))

    async def _until_it_ends(self, work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        try:
            await work()
        except (LinkEnded, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.cause = self.cause or explain(error)
            scope.cancel()

    async def _write(self) -> None:
        while True:
            if not self._unsent:
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_writing)
            # No names for what is sent: they would keep it, and its reply, until something else is.
            await self.transport.send(self._to_be_sent())

    def _to_be_sent(self) -> list[Buffer]:
        """Everything by now, of which the replies are waited for from here on."""
        batch, self._unsent = self._unsent, []
        buffers, self._rest = [*self._rest], ()
        was_idle = not self._waiting
        for pending in batch:
            if not pending.abandoned:
                buffers += pending.buffers
                pending.buffers = []
                self._waiting.append(pending)
        if was_idle:
            self._expect_answer()
        return buffers

    def _stop_writing(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _read(self) -> None:
        buffer = bytearray(RECEIVE_BYTES)
        with self._silence:
            while True:
                await self._receive_into(buffer)
                self._deliver()
                self._expect_answer()
        raise LinkEnded("it does not answer")

    async def _receive_into(self, buffer: bytearray) -> None:
        received = await self.transport.receive_into(buffer)
        if not received:
            raise LinkEnded("it closed the connection")
        self._reader.feed(cast(bytes, buffer), 0, received)  # it takes any buffer, but does not say so

    def _deliver(self) -> None:
        gets, waiting = self._reader.gets, self._waiting
        while (reply := gets()) is not INCOMPLETE:
            if type(reply) is hiredis.PushNotification:
                continue  # RESP3 can announce things, but nothing here asks for any
            if not waiting:
                raise LinkEnded(f"it spoke unasked: {reply!s:.200}")
            pending = waiting[0]
            if pending.expected:
                replies = cast(list[Reply], pending.reply)
                replies.append(reply)
                if len(replies) < pending.expected:
                    continue
                reply = replies
            waiting.popleft()
            pending.resolve(reply)
        if self._read_only and trio.current_time() > self.opened_at + READ_ONLY_AFTER_S:
            raise LinkEnded("it has become read-only")

    def _expect_answer(self) -> None:
        """Start the oldest command's time limit anew. An abandoned one counts, too: the server is to answer."""
        limit_s = self._waiting[0].limit_s if self._waiting else math.inf
        self._silence.deadline = trio.current_time() + limit_s

    def _note_error(self, line: str) -> Exception:
        error = reply_error(line)
        self._read_only = self._read_only or isinstance(error, ReadOnlyError)
        return error


async def open_link(address: RedisAddress) -> Link:
    """Connect and greet, within the address's time limit.

    Raises OSError, trio.BrokenResourceError, LinkEnded, or the error reply of a server that lets nobody in (yet).
    """
    with trio.move_on_after(address.connect_limit_s):
        transport = await open_transport(address)
        try:
            link = Link(transport, address.answer_limit_s)
            await greet(link, address)
        except BaseException:
            await transport.aclose()
            raise
        return link
    raise LinkEnded(f"it has not answered for {address.connect_limit_s:g} s")


async def greet(link: Link, address: RedisAddress) -> None:
    """Log in, choose the database, leave our name, and make sure that the server serves (is not loading).

    The name is a courtesy, and a user who may not PING may have other rights: neither is insisted on. Nor is
    RESP3, which not every proxy knows, nor the server's run_id.
    """
    greeted = address.protocol == 3 and await greet_in_resp3(link, address)
    required: list[Command] = []
    if address.password and not greeted:
        user = (address.username,) if address.username else ()
        required.append((b"AUTH", *user, address.password))
    if address.db:
        required.append((b"SELECT", address.db))

    optional: list[Command] = [(b"CLIENT", b"SETNAME", address.client_name), (b"INFO", b"server")]
    *accepted, pong, _, info = await link.ask([*required, (b"PING",), *optional])
    if not isinstance(pong, NoPermissionError):
        accepted.append(pong)
    for reply in accepted:
        if isinstance(reply, Exception):
            raise reply
    link.run_id = run_id_in(info)


def run_id_in(info: Reply) -> bytes:
    """Return the `run_id` in a reply to INFO, or nothing if the server refused to answer."""
    lines = info.splitlines() if isinstance(info, bytes) else []
    return next((line[len(RUN_ID) :] for line in lines if line.startswith(RUN_ID)), b"")


async def greet_in_resp3(link: Link, address: RedisAddress) -> bool:
    """Ask for RESP3, logging in along the way; False where the server stays with RESP2."""
    login = (b"AUTH", address.username or b"default", address.password) if address.password else ()
    (hello,) = await link.ask([(b"HELLO", b"3", *login)])
    if isinstance(hello, AuthenticationError):
        raise hello
    return not isinstance(hello, Exception)


def explain(error: BaseException) -> str:
    """Why, in the words of the innermost error: a stream's own says only that it is broken."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror
    return str(error) or type(error).__name__
