"""A server inside a test, and clients that send exactly the given bytes.

async with serving(storage=…, **settings) as server:
    async with connect(server) as client:
        response = await client.ask(MetadataRequest(…), 12)
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio
from attrs import define, field

from korvet.broker.broker import open_broker, registration_of
from korvet.broker.counters import Counters
from korvet.cluster.membership import Membership
from korvet.config import Config, Listener
from korvet.handlers import APIS
from korvet.protocol.frames import Frame, FrameReader
from korvet.protocol.requests import decode_response, encode_request
from korvet.protocol.schema import schema_of
from korvet.server.listeners import advertised_addresses, open_listeners
from korvet.server.server import Server
from korvet.storage.interface import Storage
from korvet.storage.memory import MemoryStorage

R = TypeVar("R")

LOOPBACK = (Listener("PLAINTEXT", "localhost", 0),)
LIMIT_S = 30.0


class Seen(Counters):
    """Lets a test wait for what the server has counted."""

    def __init__(self) -> None:
        self.connections = 0
        self.names: list[str] = []
        self._changed = trio.Event()

    def opened(self, listener: str, connections: int) -> None:
        self.connections = connections
        self._notify()

    def closed(self, listener: str, software: tuple[str, str] | None, connections: int) -> None:
        self.connections = connections
        self._notify()

    def received(self, api: str) -> None:
        self.names.append(api)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


@asynccontextmanager
async def serving(
    *,
    storage: Storage | None = None,
    sweep_interval_s: float = 60.0,
    limit_s: float = LIMIT_S,
    counters: Counters | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """Serve on free ports, and drain at the end. The block may take `limit_s`."""
    config = Config(**{"listeners": LOOPBACK, "shutdown_deadline_ms": 2000, **settings})
    listeners = open_listeners(config)
    membership = Membership(registration_of(config, advertised_addresses(listeners), 0))
    broker = await open_broker(
        storage or MemoryStorage(), config, membership=membership, counters=counters or Seen()
    )
    server = Server(broker, listeners, sweep_interval_s)
    with trio.fail_after(limit_s):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            yield server
            server.stop()


def seen(server: Server) -> Seen:
    counters = server.broker.counters
    assert isinstance(counters, Seen)
    return counters


def port_of(server: Server) -> int:
    return server.listeners[0].listener.port


@define
class Client:
    """One connection. `ask` uses the protocol; `send` and `receive` transfer bytes."""

    stream: Any  # a stream of Trio
    frames: FrameReader = field(factory=lambda: FrameReader(2**31 - 1))
    correlation_id: int = 0

    @property
    def name(self) -> str:
        host, port = self.stream.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> Frame:
        """Return the next frame. Raises EOFError if the server closed the connection."""
        while (frame := self.frames.next_frame()) is None:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            if not data:
                raise EOFError
            self.frames.receive_data(data)
        return frame

    async def closed(self) -> None:
        """Wait until the server closes the connection. It must not send anything before."""
        try:
            frame = await self.receive()
        except EOFError:
            return
        raise AssertionError(f"the server answered {frame!r}")

    def frame_of(self, request: object, version: int) -> bytes:
        """Return the bytes of a request with the next correlation id."""
        self.correlation_id += 1
        return b"".join(encode_request(request, version, self.correlation_id, "test"))

    async def answer(self, request: type[object], version: int) -> tuple[int, Any]:
        """Return the correlation id and the message of the next response."""
        key = schema_of(request).key
        assert key is not None
        return decode_response(APIS[key].response, version, await self.receive())

    async def ask(self, request: object, version: int) -> Any:
        await self.send(self.frame_of(request, version))
        correlation_id, response = await self.answer(type(request), version)
        assert self.correlation_id == correlation_id
        return response


@asynccontextmanager
async def connect(
    server: Server,
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Client]:
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port or port_of(server))
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
    async with stream:
        yield Client(stream)


def reset(client: Client) -> None:
    """Reset a connection, as a client's crash does."""
    client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    client.stream.socket.close()


def joined(parts: Sequence[bytes | bytearray | memoryview] | None) -> bytes:
    return b"".join(parts or ())
