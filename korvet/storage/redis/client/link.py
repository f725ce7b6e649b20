"""One socket to Redis, from its greeting to its end, which pipelines the commands of many tasks.

Redis answers commands in the order they were written, so a reply belongs to the oldest command without one. If no
command is waiting for a reply, a command is written immediately. Otherwise all commands that tasks send within one
scheduler tick leave in one write. A reply wakes only its own task. This reaches some 170,000 small commands a second;
a connection per task, or a lock around one connection, reaches a tenth of it.

The oldest command's time limit detects a server that accepts bytes and does not answer (a stopped process, a network
that drops packets). The limit starts again whenever bytes arrive, so a long queue of commands after a slow one does not
exceed it.

A link does not reconnect; `RedisConnection` does that, and documents the outcome of commands in that case. A command
that the network has delayed must not be executed after those of the next link: it could overwrite what they wrote. The
next link's greeting therefore closes the socket at the server (CLIENT KILL), if it leads to the same server process.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import chain
from time import monotonic
from typing import cast

import hiredis
import trio
from attrs import define, frozen

from korvet.concurrency.histograms import observe
from korvet.protocol.buffers import Buffer
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.errors import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisConnectionError,
)
from korvet.storage.redis.client.replies import Command, Reply, error_code, pack, reply_error
from korvet.storage.redis.client.script import Script
from korvet.storage.redis.client.statistics import Statistics
from korvet.storage.redis.client.transport import Transport, open_transport

RECEIVE_BYTES = 256 * 1024

# A connection to a server that has become a replica is closed, since its name may lead to the new primary by now; but
# only after this time, since otherwise a server that stays read-only would cost a connection per command. A primary
# that Sentinels named has been replaced by then, and is left immediately.
READ_ONLY_AFTER_S = 5.0

RUN_ID = b"run_id:"
INCOMPLETE = object()


class RedisUnavailable(RedisConnectionError):  # noqa: N818  a state, as trio.Cancelled
    """There is no connection; the message has the reason."""


class NotConnected(RedisUnavailable):
    """The command was not written."""


class ConnectionLost(RedisUnavailable):
    """The connection broke during or after the write of the command: its outcome is unknown."""


class LinkEnded(Exception):  # noqa: N818  caught in this package; the reason why a link ends
    """The link has to end; the message has the reason."""


@frozen
class Peer:
    """The server's end of a link, as the server names it; empty if the Redis user may not send INFO or CLIENT ID."""

    run_id: bytes = b""  # of the server process
    client_id: int = 0


UNKNOWN = Peer()


@define(eq=False)
class Pending:
    """One write of one or more commands, and later its reply (for `send_all`, a list of replies).

    An error reply is the exception itself. If `notify` is given, the task that reads the link calls it with the Pending
    as soon as `reply` is set: it must be quick, and must not raise.
    """

    buffers: list[Buffer]
    expected: int  # number of replies in the list `reply`; 0 if `reply` is the only reply itself
    limit_s: float
    notify: Callable[[Pending], None] | None = None
    scripts: Collection[Script] = ()  # those that the commands call; see `Link._sends_again`
    reply: Reply = None
    done: bool = False
    abandoned: bool = False
    sent_s: float = 0.0  # on `monotonic`, if round trips are counted
    task: trio.lowlevel.Task | None = None

    async def wait(self) -> Reply:
        """Wait for the reply and return it; raise it if it is an exception. Only one task may wait.

        On cancellation, commands that are not written yet are dropped; written ones will be executed.
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
        """Set the reply; wake the waiting task, and call `notify`."""
        self.reply = reply
        self.done = True
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
        if self.notify is not None:
            self.notify(self)


class Link:
    """One socket, the commands that wait for replies, and those that are not written yet."""

    def __init__(self, transport: Transport, answer_limit_s: float) -> None:
        self.transport = transport
        self.answer_limit_s = answer_limit_s
        self.opened_at = trio.current_time()
        self.read_only_after_s = READ_ONLY_AFTER_S
        self.primary = ""  # the server's host and port, if Sentinels named it
        self.cause = ""
        self._unsent: list[Pending] = []
        self._rest: Sequence[Buffer] = ()  # the rest of a command that is written in part
        self._waiting: deque[Pending] = deque()
        self._writer: trio.lowlevel.Task | None = None  # the writing task while it is idle
        self._reader = hiredis.Reader(
            protocolError=LinkEnded, replyError=self._note_error, notEnoughData=INCOMPLETE
        )
        self._answer_by = math.inf  # the oldest command's limit
        # Around the wait of `_watch`; its deadline is at or before that limit.
        self._alarm = trio.CancelScope()
        self._read_only = False
        self._has_refused_script = False  # since the last write that was answered
        self.peer = UNKNOWN
        self.statistics: Statistics | None = None

    def __repr__(self) -> str:
        return f"<Link unsent={len(self._unsent)} waiting={len(self._waiting)} {self.cause or 'open'}>"

    def enqueue(self, pending: Pending) -> None:
        """Write `pending` immediately, or together with all other commands of this scheduler tick."""
        if self._writer is None:
            self._unsent.append(pending)
            return
        if self._waiting:
            self._unsent.append(pending)
        else:
            self._rest = self.transport.send_now(pending.buffers)
            if not pending.scripts:
                pending.buffers = []
            if self.statistics is not None:
                pending.sent_s = monotonic()
            self._waiting.append(pending)
            self._expect_answer()
            if not self._rest:
                return
        trio.lowlevel.reschedule(self._writer)
        self._writer = None

    async def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands before `serve` runs, and return their replies, errors among them."""
        await self.transport.send([buffer for command in commands for buffer in pack(command)])
        return [await self.next_reply() for _ in commands]

    async def next_reply(self) -> Reply:
        """Return the next reply, or message of a subscription, before `serve` runs."""
        while (reply := self._reader.gets()) is INCOMPLETE:
            await self._receive_into(bytearray(4096))
        return cast(Reply, reply)

    async def serve(self) -> None:
        """Write and read until the link ends; `cause` has the reason. The caller then has to call `fail_all`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_it_ends, self._write, nursery.cancel_scope)
                nursery.start_soon(self._until_it_ends, self._read, nursery.cancel_scope)
                nursery.start_soon(self._until_it_ends, self._watch, nursery.cancel_scope)
        finally:
            self.cause = self.cause or "it was closed"
            await self.transport.aclose()

    def end(self, cause: str) -> None:
        """End `serve`, with that cause."""
        self.cause = self.cause or cause
        self._alarm.cancel()

    def fail_all(self) -> None:
        """Resolve all commands without a reply: ConnectionLost for written ones, NotConnected for the others."""
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
            # A local name would keep the buffers, and their replies, alive until the next write.
            await self.transport.send(self._to_be_sent())

    def _to_be_sent(self) -> list[Buffer]:
        """Return the buffers of all unsent commands, and move these commands to those that wait for replies."""
        batch, self._unsent = self._unsent, []
        buffers, self._rest = [*self._rest], ()
        was_idle = not self._waiting
        now_s = 0.0 if self.statistics is None else monotonic()
        for pending in batch:
            if not pending.abandoned:
                pending.sent_s = now_s
                buffers += pending.buffers
                if not pending.scripts:
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
        while True:
            await self._receive_into(buffer)
            self._deliver()
            self._expect_answer()

    async def _watch(self) -> None:
        """End the link when the oldest command has waited too long, or at `end`."""
        while not self.cause and trio.current_time() < self._answer_by:
            with self._alarm:
                await trio.sleep_forever()
            self._alarm = trio.CancelScope(deadline=self._answer_by)
        raise LinkEnded("it does not answer")

    async def _receive_into(self, buffer: bytearray) -> None:
        received = await self.transport.receive_into(buffer)
        if not received:
            raise LinkEnded("it closed the connection")
        self._reader.feed(cast(bytes, buffer), 0, received)  # it accepts any buffer

    def _deliver(self) -> None:
        gets, waiting = self._reader.gets, self._waiting
        round_trips = None if self.statistics is None else self.statistics.round_trips
        now_s = 0.0 if round_trips is None else monotonic()
        while (reply := gets()) is not INCOMPLETE:
            if type(reply) is hiredis.PushNotification:
                continue  # RESP3 has push messages; korvet subscribes to none
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
            if self._has_refused_script and self._sends_again(pending, reply):
                continue
            if round_trips is not None and pending.sent_s:
                observe(round_trips, now_s - pending.sent_s)
            pending.resolve(reply)
        if self._read_only and trio.current_time() > self.opened_at + self.read_only_after_s:
            raise LinkEnded("it has become read-only")

    def _sends_again(self, pending: Pending, reply: Reply) -> bool:
        """Send commands again, behind the scripts that the server has lost; return False if it has lost none.

        All commands of the write are sent again, in their order, so a write that calls scripts has to be repeatable.
        """
        self._has_refused_script = False
        replies = cast(list[Reply], reply) if pending.expected else [reply]
        has_lost = any(isinstance(each, NoScriptError) for each in replies)
        if not has_lost or not pending.scripts or pending.abandoned:
            return False
        load = [pack((b"SCRIPT", b"LOAD", script.source)) for script in pending.scripts]
        loading = Pending(list(chain.from_iterable(load)), len(load), pending.limit_s, reply=[])
        pending.scripts = ()  # another refusal is the answer
        pending.reply = [] if pending.expected else None
        self._unsent += (loading, pending)  # in one write, since scripts could be flushed between two
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None
        return True

    def _expect_answer(self) -> None:
        """Restart the oldest command's time limit, even if that is abandoned: the server has to answer it, too."""
        limit_s = self._waiting[0].limit_s if self._waiting else math.inf
        self._answer_by = trio.current_time() + limit_s
        # Setting a deadline takes 3 us. A later one is set when the alarm goes off, once in the time of a limit.
        if self._answer_by < self._alarm.deadline:  # noqa: PLR1730  min() would set it each time
            self._alarm.deadline = self._answer_by

    def _note_error(self, line: str) -> Exception:
        error = reply_error(line)
        is_replica = isinstance(error, ReadOnlyError) or error_code(error) == "MASTERDOWN"
        self._read_only = self._read_only or is_replica
        self._has_refused_script = self._has_refused_script or isinstance(error, NoScriptError)
        return error


async def open_link_to(address: RedisAddress, previous: Peer = UNKNOWN) -> Link:
    """Connect to one server, greet, and close its end of a previous link, within the address's time limit.

    Raise as `korvet.storage.redis.client.sentinel.open_link` does.
    """
    with trio.move_on_after(address.connect_limit_s):
        transport = await open_transport(address)
        try:
            link = Link(transport, address.answer_limit_s)
            await greet(link, address)
            if previous.client_id and previous.run_id == link.peer.run_id:
                await link.ask([(b"CLIENT", b"KILL", b"ID", previous.client_id)])
        except BaseException:
            await transport.aclose()
            raise
        return link
    raise LinkEnded(f"it has not answered for {address.connect_limit_s:g} s")


async def greet(link: Link, address: RedisAddress) -> None:
    """Log in, select the database, set the client's name, and check that the server serves (is not loading).

    The name, the permission for PING, RESP3 and the peer are optional: a Redis user without PING may have all other
    permissions, and not every proxy supports RESP3.
    """
    greeted = address.protocol == 3 and await greet_in_resp3(link, address)
    required: list[Command] = []
    if address.password and not greeted:
        user = (address.username,) if address.username else ()
        required.append((b"AUTH", *user, address.password))
    if address.db:
        required.append((b"SELECT", address.db))

    optional: list[Command] = [
        (b"CLIENT", b"SETNAME", address.client_name),
        (b"CLIENT", b"ID"),
        (b"INFO", b"server"),
    ]
    *accepted, pong, _, client_id, info = await link.ask([*required, (b"PING",), *optional])
    if not isinstance(pong, NoPermissionError):
        accepted.append(pong)
    for reply in accepted:
        if isinstance(reply, Exception):
            raise reply
    run_id = run_id_in(info)
    link.peer = Peer(run_id, client_id if run_id and isinstance(client_id, int) else 0)


def run_id_in(info: Reply) -> bytes:
    """Return the `run_id` in a reply to INFO, or b"" if the server refused INFO."""
    lines = info.splitlines() if isinstance(info, bytes) else []
    return next((line[len(RUN_ID) :] for line in lines if line.startswith(RUN_ID)), b"")


async def greet_in_resp3(link: Link, address: RedisAddress) -> bool:
    """Request RESP3, with the login in the same command; return False if the server stays with RESP2."""
    login = (b"AUTH", address.username or b"default", address.password) if address.password else ()
    (hello,) = await link.ask([(b"HELLO", b"3", *login)])
    if isinstance(hello, AuthenticationError):
        raise hello
    return not isinstance(hello, Exception)


def explain(error: BaseException) -> str:
    """Return the message of the innermost cause, since a broken stream's own error does not name the reason.

    trio raises several failed attempts as a group, of which the last one is used.
    """
    while isinstance(error, BaseExceptionGroup) or error.__cause__ is not None:
        error = (
            error.exceptions[-1]
            if isinstance(error, BaseExceptionGroup)
            else cast(BaseException, error.__cause__)
        )
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror
    return str(error) or type(error).__name__
