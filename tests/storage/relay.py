"""A relay between a broker and its Redis that can hold back what a connection sends, beyond the connection's end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio
from attrs import define, field

from tests.servers import RedisServer


@define(eq=False)
class RelayedConnection:
    """One connection of the broker, and the one to the server that belongs to it."""

    client: trio.SocketStream
    server: trio.SocketStream
    is_held: bool = False
    hold_from: bytes | None = None  # hold the connection when the broker sends this
    lose_from: bytes | None = None  # lose the reply to the request with this, and the connection
    is_losing: bool = False
    held: bytearray = field(factory=bytearray)
    has_held: trio.Event = field(factory=trio.Event)
    has_answered: trio.Event = field(factory=trio.Event)

    async def relay_requests(self) -> None:
        """Pass on what the broker sends, or keep it while the connection is held."""
        async for data in self.client:
            if self.hold_from is not None and self.hold_from in data:
                self.is_held = True
            if self.lose_from is not None and self.lose_from in data:
                self.is_losing = True
            if self.is_held:
                self.held += data
                self.has_held.set()
            else:
                await self.server.send_all(data)

    async def relay_replies(self) -> None:
        """Pass on what the server answers."""
        async for data in self.server:
            if self.is_losing:
                await self.client.aclose()
                return
            if self.held:
                self.has_answered.set()
            else:
                await self.client.send_all(data)
        self.has_answered.set()  # the server closed the connection


@define(eq=False)
class Relay:
    """The connections that were opened through it, and what they sent while they were held."""

    socket: Path
    upstream: Path
    connections: list[RelayedConnection] = field(factory=list)

    @property
    def url(self) -> str:
        """The URL for the broker."""
        return f"unix://{self.socket}"

    async def serve(self, client: trio.SocketStream) -> None:
        """Relay one connection until the broker ends it, or, if it is held, the relay."""
        async with await trio.open_unix_socket(str(self.upstream)) as server, trio.open_nursery() as nursery:
            connection = RelayedConnection(client, server)
            self.connections.append(connection)
            nursery.start_soon(self._until_closed, connection.relay_replies)
            await self._until_closed(connection.relay_requests)
            if not connection.held:
                nursery.cancel_scope.cancel()
            await trio.sleep_forever()

    @staticmethod
    async def _until_closed(relay: Callable[[], Awaitable[None]]) -> None:
        try:
            await relay()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def lose_reply(self, lose_from: bytes) -> None:
        """End each present connection that sends these bytes, once the server has answered it."""
        for connection in self.connections:
            connection.lose_from = lose_from

    def hold(self, hold_from: bytes = b"") -> None:
        """Keep what a present connection sends from these bytes on; connections opened later are not held."""
        for connection in self.connections:
            connection.hold_from = hold_from

    async def wait_held(self) -> None:
        """Return when a held connection has sent something."""
        async with trio.open_nursery() as nursery:
            for connection in self.connections:
                nursery.start_soon(self._until_held, connection, nursery.cancel_scope)

    @staticmethod
    async def _until_held(connection: RelayedConnection, scope: trio.CancelScope) -> None:
        await connection.has_held.wait()
        scope.cancel()

    async def cut(self) -> None:
        """Close the held connections towards the broker. The server does not learn of it."""
        for connection in self.connections:
            if connection.is_held:
                await connection.client.aclose()

    async def release(self) -> None:
        """Send what the held connections sent to the server, and return once the server has answered or closed them."""
        for connection in self.connections:
            if connection.held:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await connection.server.send_all(connection.held)
                await connection.has_answered.wait()


@asynccontextmanager
async def open_relay(server: RedisServer) -> AsyncIterator[Relay]:
    """Listen beside the server's own socket until the block ends."""
    relay = Relay(server.folder / "r", server.socket)
    relay.socket.unlink(missing_ok=True)
    async with trio.open_nursery() as nursery:
        with trio.socket.socket(trio.socket.AF_UNIX) as listening:
            await listening.bind(str(relay.socket))
            listening.listen()
            nursery.start_soon(trio.serve_listeners, relay.serve, [trio.SocketListener(listening)])
            yield relay
            nursery.cancel_scope.cancel()
