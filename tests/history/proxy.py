"""A TCP proxy whose connections can be cut as a network cuts them: nothing arrives, and no peer gets an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import trio
from attrs import define, field

CHUNK = 65_536
START_LIMIT_S = 10.0


@define(eq=False)
class Proxy:
    """Forwards connections to a loopback port, from a thread. A context manager."""

    target: int
    port: int = 0
    _thread: threading.Thread | None = None
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _flows: trio.Event = field(factory=trio.Event)  # set unless the proxy is cut
    _connections: set[trio.CancelScope] = field(factory=set)
    _is_ready: threading.Event = field(factory=threading.Event)

    def cut(self) -> None:
        """Forward nothing from now on. Connections stay open, and new ones are accepted."""
        self._call(self._cut)

    def heal(self) -> None:
        """Close all connections, as the peers of a healed network do, and forward those that follow."""
        self._call(self._heal)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), daemon=True)
        self._thread.start()
        assert self._is_ready.wait(START_LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._scope.cancel)
        assert self._thread is not None
        self._thread.join()

    def _call(self, function: Callable[[], None]) -> None:
        assert self._token is not None
        trio.from_thread.run_sync(function, trio_token=self._token)

    def _cut(self) -> None:
        self._flows = trio.Event()

    def _heal(self) -> None:
        for connection in self._connections:
            connection.cancel()
        self._flows.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._flows.set()
        with self._scope:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            self._is_ready.set()
            await trio.serve_listeners(self._forward, listeners)

    async def _forward(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as connection:
            self._connections.add(connection)
            try:
                async with client:
                    await self._flows.wait()
                    server = await trio.open_tcp_stream("127.0.0.1", self.target)
                    async with server, trio.open_nursery() as nursery:
                        nursery.start_soon(self._copy, client, server, connection)
                        await self._copy(server, client, connection)
            except OSError:  # nothing listens there
                pass
            finally:
                self._connections.discard(connection)

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, connection: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(CHUNK):
                await self._flows.wait()
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        connection.cancel()
