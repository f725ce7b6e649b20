"""A connection to Redis that many tasks share, and that reconnects whenever it breaks.

If the connection breaks, a command raises one of these errors:

- `NotConnected`: it was never written. Trying again cannot execute it twice.
- `ConnectionLost`: it was written, at least in part. It may have been executed or not.

A command is repeated only if the caller declares it harmless with `repeatable=True` (reads, and scripts that recognise
their own token): such a command waits for the next connection and is sent again, until it is answered or cancelled.
Cancelling a task that waits abandons its reply, not the command: commands that are not written yet are dropped; written
ones will be executed, and their replies discarded.

Replies stay bytes. Error replies are the exceptions of `korvet.storage.redis.client.errors`.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast

import trio
from attrs import evolve

from korvet.concurrency.background import background_nursery
from korvet.protocol.buffers import Buffer
from korvet.storage.redis.client.address import RedisAddress, address_of
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.link import (
    UNKNOWN,
    ConnectionLost,
    Link,
    LinkEnded,
    NotConnected,
    Pending,
    RedisUnavailable,
    explain,
)
from korvet.storage.redis.client.replies import Argument, Command, Reply, is_temporary, pack, pack_all
from korvet.storage.redis.client.script import Script, ScriptCall
from korvet.storage.redis.client.sentinel import open_link
from korvet.storage.redis.client.statistics import Statistics

__all__ = [
    "ConnectionLost",
    "NotConnected",
    "Pending",
    "RedisConnection",
    "RedisUnavailable",
    "Script",
    "ScriptCall",
    "open_connection",
]

logger = logging.getLogger(__name__)

# The first attempt after a break is immediate; the delays before later ones grow, and are random so that many brokers
# do not reconnect in one wave. A connection shorter than SETTLED_S counts as another failed attempt: a command that
# makes the server close the connection must not be repeated in a tight loop.
BACKOFF_FIRST_S = 0.05
BACKOFF_LIMIT_S = 1.0
SETTLED_S = 5.0
SAY_AGAIN_S = 30.0


@asynccontextmanager
async def open_connection(
    where: str | RedisAddress, *, name: str = "", announce: bool = True, limit_s: float = math.inf
) -> AsyncIterator[RedisConnection]:
    """Connect, and stay connected until the block ends; unanswered commands then fail.

    Wait while the server is unavailable, at most `limit_s`, and then raise NotConnected; connections that `announce`
    log that. Raise StorageUsageError for a bad URL, and AuthenticationError and others (or
    ssl.SSLCertVerificationError) for a refusal that a later attempt would meet again. `name` is added to the name that
    CLIENT LIST shows.
    """
    address = address_of(where)
    client_name = ":".join(filter(None, (address.client_name or "korvet", name)))
    connection = RedisConnection(evolve(address, client_name=client_name), announce=announce)
    with trio.move_on_after(limit_s) as opening:
        await connection.connect()
    if opening.cancelled_caught:
        raise NotConnected(f"no connection to {address.description} for {limit_s:g} s")
    async with background_nursery() as nursery:
        nursery.start_soon(connection.keep_connected)
        yield connection


class RedisConnection:
    """A connection, opened by `open_connection`, that tasks may use concurrently."""

    def __init__(self, address: RedisAddress, *, announce: bool = True) -> None:
        self.address = address
        self._announce = announce
        self._link: Link | None = None
        self._peer = UNKNOWN  # of the present link, or of the last one
        self._cause = "not yet connected"
        self._connected = trio.Event()
        self._closed = False
        self._failures = 0
        self._said_at = -math.inf
        self._statistics: Statistics | None = None

    def __repr__(self) -> str:
        return f"<RedisConnection {self.address.description} {self._link or self._cause}>"

    @property
    def is_connected(self) -> bool:
        """True if a command sent now would be written."""
        return self._link is not None

    @property
    def run_id(self) -> bytes:
        """The `run_id` of the server process that was connected last; empty if the Redis user may not send INFO."""
        return self._peer.run_id

    @property
    def primary(self) -> str:
        """Host and port of the present server, as a Sentinel named them; empty without Sentinels or a connection."""
        return "" if self._link is None else self._link.primary

    def count_in(self, statistics: Statistics) -> None:
        """Count round trips and lost connections from now on."""
        self._statistics = statistics
        if self._link is not None:
            self._link.statistics = statistics

    def leave_other_servers(self, run_id: bytes, cause: str) -> bool:
        """End the connection, and connect again, if the present server process has another `run_id`.

        Return True if it has. A server without a known `run_id` counts as the same.
        """
        link = self._link
        if link is None or link.peer.run_id in (b"", run_id):
            return False
        self.end(cause)
        return True

    def end(self, cause: str) -> None:
        """End the present link, if there is one, and connect again."""
        if self._link is not None:
            self._link.end(cause)
            self._unuse(cause)

    async def wait_connected(self) -> None:
        """Wait until there is a connection. Raise NotConnected after the end of the `open_connection` block."""
        await self._connected.wait()
        if self._closed:
            raise NotConnected(f"no connection to {self.address.description}: it was closed")

    # --- Commands --------------------------------------------------------------------------------------

    async def execute(
        self,
        *command: Argument,
        limit_s: float | None = None,
        repeatable: bool = False,
        scripts: Collection[Script] = (),
    ) -> Reply:
        """Send one command and return its reply, in bytes; raise error replies.

        If the server sends nothing for `limit_s` (longer for blocking commands), the connection ends. Callers set their
        own deadline by a cancel scope around this.
        """
        if repeatable:
            return await self._repeat(lambda: self.send(command, limit_s=limit_s, scripts=scripts))
        return await self.send(command, limit_s=limit_s, scripts=scripts).wait()

    async def pipeline(
        self, commands: Sequence[Command], *, limit_s: float | None = None, repeatable: bool = False
    ) -> list[Reply]:
        """Send commands in one write; return their replies in order, with error replies as exceptions."""
        if not commands:
            return []
        if repeatable:
            replies = await self._repeat(lambda: self.send_all(commands, limit_s=limit_s))
        else:
            replies = await self.send_all(commands, limit_s=limit_s).wait()
        return cast(list[Reply], replies)

    async def transaction(self, commands: Sequence[Command], *, repeatable: bool = False) -> list[Reply]:
        """Send commands between MULTI and EXEC; return their replies as `pipeline` does.

        Raise the first error if a command was refused before EXEC, which then executes none.
        """
        replies = await self.pipeline([(b"MULTI",), *commands, (b"EXEC",)], repeatable=repeatable)
        executed = replies[-1]
        if isinstance(executed, Exception):
            raise next(reply for reply in replies if isinstance(reply, Exception))
        return cast(list[Reply], executed)

    async def load(self, scripts: Iterable[Script]) -> None:
        """Load scripts into the server."""
        replies = await self.pipeline(
            [(b"SCRIPT", b"LOAD", script.source) for script in scripts], repeatable=True
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    def send(
        self,
        command: Command,
        *,
        limit_s: float | None = None,
        notify: Callable[[Pending], None] | None = None,
        scripts: Collection[Script] = (),
    ) -> Pending:
        """Enqueue a command immediately, before all commands that are sent later. Raise NotConnected.

        `scripts` are those that it calls. If the server has lost one of them, all are loaded, and the command is sent
        again, so it has to be repeatable.
        """
        return self.send_packed(pack(command), 0, limit_s, notify, scripts)

    def send_all(
        self,
        commands: Sequence[Command],
        *,
        limit_s: float | None = None,
        notify: Callable[[Pending], None] | None = None,
        scripts: Collection[Script] = (),
    ) -> Pending:
        """Enqueue commands that are written, and answered, together, as `send` does."""
        return self.send_packed(pack_all(commands), len(commands), limit_s, notify, scripts)

    def send_packed(
        self,
        buffers: list[Buffer],
        expected: int = 0,
        limit_s: float | None = None,
        notify: Callable[[Pending], None] | None = None,
        scripts: Collection[Script] = (),
    ) -> Pending:
        """Enqueue packed commands, as `send` does. `expected` is their number for `send_all`, or 0 for `send`."""
        link = self._link
        if link is None:
            raise NotConnected(f"no connection to {self.address.description}: {self._cause}")
        limit_s = link.answer_limit_s if limit_s is None else limit_s
        pending = Pending(buffers, expected, limit_s, notify, scripts, [] if expected else None)
        link.enqueue(pending)
        return pending

    async def _repeat(self, send: Callable[[], Pending]) -> Reply:
        while True:
            await self.wait_connected()
            with suppress(RedisUnavailable):
                return await send().wait()

    # --- Connecting ------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect for the first time; keep trying while the server is unavailable.

        Raise errors that a later attempt would meet again: a refused password, database or certificate.
        """
        self._use(await self._open_link_patiently(first=True))

    async def stay_connected(self) -> None:
        """Connect, and stay connected until cancelled, even if the server refuses the connection at first."""
        try:
            self._use(await self._open_link_patiently())
            await self.keep_connected()
        finally:
            self._closed = True
            self._connected.set()

    async def keep_connected(self) -> None:
        """Serve the connection, and connect again whenever it breaks, until cancelled."""
        try:
            while self._link is not None:
                await self._serve(self._link)
                self._use(await self._open_link_patiently())
        finally:
            self._closed = True
            self._connected.set()

    async def _serve(self, link: Link) -> None:
        try:
            await link.serve()
        finally:
            # Before `fail_all`, so that a task that it resumes cannot send on the ended link.
            self._unuse(link.cause)
            link.fail_all()
        if trio.current_time() > link.opened_at + SETTLED_S:
            self._failures = 0
        if self._statistics is not None:
            self._statistics.lost += 1
        self._said_at = -math.inf
        self._say("lost the connection to Redis at %(redis)s: %(error)s; connecting again", link.cause)

    def _use(self, link: Link) -> None:
        if self._said_at > -math.inf:
            primary = f", whose primary is {link.primary}" if link.primary else ""
            fields = {"redis": self.address.description, "_primary": primary}
            logger.info("connected to Redis at %(redis)s%(_primary)s", fields)
        self._link = link
        link.statistics = self._statistics
        self._peer = link.peer
        self._connected.set()

    def _unuse(self, cause: str) -> None:
        if self._link is not None:
            self._link, self._cause, self._connected = None, cause, trio.Event()

    async def _open_link_patiently(self, *, first: bool = False) -> Link:
        while True:
            await trio.sleep(self._backoff_s())
            self._failures += 1
            try:
                return await open_link(self.address, self._peer)
            except (OSError, trio.BrokenResourceError, RedisError, LinkEnded) as error:
                if first and is_for_good(error):
                    raise
                cause, known = explain(error), self._cause
                if is_for_good(error) and cause != known:
                    self._said_at = -math.inf  # the operator has to act
                self._cause = cause
                self._say("cannot reach Redis at %(redis)s: %(error)s; trying again", self._cause)

    def _backoff_s(self) -> float:
        if not self._failures:
            return 0.0
        longest_s = min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, 10))
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311  it hides nothing

    def _say(self, message: str, cause: str) -> None:
        now = trio.current_time()
        if self._announce and now >= self._said_at + SAY_AGAIN_S:
            self._said_at = now
            logger.warning(message, {"redis": self.address.description, "error": cause})


def is_for_good(error: BaseException) -> bool:
    """Return True if a later attempt would fail in the same way: wrong credentials, database or certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    return isinstance(error, RedisError) and not is_temporary(error)
