"""The HTTP port of a broker, or of `korvet lake run`: /metrics, /livez and /readyz, and /status if there is one.

Everything is bounded: the number of connections, the size of a request's head, the time for a request and for its
response. Requests have no effect, and concurrent scrapes wait for each other.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Protocol

import h11
import trio
from attrs import define, field, frozen

from korvet.concurrency.background import background_nursery
from korvet.config import Config
from korvet.config.listeners import parse_address
from korvet.metrics.definitions import METRICS, Metric
from korvet.metrics.exposition import exposed
from korvet.metrics.samples import Samples
from korvet.server.listeners import is_loopback, open_address

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 50
MOST_HEAD_BYTES = 16 * 1024
REQUEST_LIMIT_S = 15.0  # between two requests, and for the head of one
RESPONSE_LIMIT_S = 30.0
RECEIVE_BYTES = 16 * 1024
NOT_READY = b"the broker does not serve, or its store does not answer\n"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Scraped(Protocol):
    """The broker, or another program, as the port uses it."""

    async def is_ready(self) -> bool:
        """Return True if clients are served, or if the program advances."""

    async def samples(self) -> Samples:
        """Return the present values of all metrics."""


@frozen
class Answer:
    """A response."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


@define(eq=False)
class Page:
    """Serves HTTP connections."""

    source: Scraped
    metrics: Mapping[str, Metric] = METRICS
    #: Returns the JSON of /status.
    status: Callable[[], str] | None = None
    not_ready: bytes = NOT_READY
    _open: int = 0
    _scraping: trio.Lock = field(factory=trio.Lock)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection, or close it if there are too many."""
        if self._open >= MOST_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            async with stream:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._serve_requests(stream)
        except Exception:
            logger.exception("metrics: a connection was closed by an error in korvet")
        finally:
            self._open -= 1

    async def _serve_requests(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        while True:
            try:
                with trio.fail_after(REQUEST_LIMIT_S):
                    request = await next_request(connection, stream)
                if request is None:
                    return
                with trio.fail_after(RESPONSE_LIMIT_S):
                    answer = await self._answer(request)
                    await send(connection, stream, answer, has_body=request.method != b"HEAD")
            except trio.TooSlowError:
                return
            except h11.RemoteProtocolError as error:
                answer = Answer(HTTPStatus(error.error_status_hint), f"{error}\n".encode())
                with trio.move_on_after(RESPONSE_LIMIT_S):
                    await send(connection, stream, answer)
                return
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()

    async def _answer(self, request: h11.Request) -> Answer:
        if request.method not in (b"GET", b"HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are served\n")
        match request.target.partition(b"?")[0]:
            case b"/metrics":
                return await self._metrics(request)
            case b"/livez":
                return Answer(HTTPStatus.OK, b"ok\n")
            case b"/readyz":
                if await self.source.is_ready():
                    return Answer(HTTPStatus.OK, b"ok\n")
                return Answer(HTTPStatus.SERVICE_UNAVAILABLE, self.not_ready)
            case b"/status" if self.status is not None:
                return Answer(HTTPStatus.OK, self.status().encode(), JSON)
        more = "" if self.status is None else ", and /status"
        return Answer(HTTPStatus.NOT_FOUND, f"served are /metrics, /livez and /readyz{more}\n".encode())

    async def _metrics(self, request: h11.Request) -> Answer:
        accept = next((value for name, value in request.headers if name == b"accept"), b"")
        async with self._scraping:
            samples = await self.source.samples()
            # In a thread: thousands of time series take tens of milliseconds.
            body, content_type = await trio.to_thread.run_sync(
                exposed, samples, accept.decode("latin-1"), self.metrics
            )
        return Answer(HTTPStatus.OK, body, content_type)


async def next_request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """Return the next request, whose body is ignored, or None if the client has closed the connection."""
    request = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(RECEIVE_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.ConnectionClosed):
            return None
        elif isinstance(event, h11.EndOfMessage):
            return request


async def send(
    connection: h11.Connection, stream: trio.SocketStream, answer: Answer, *, has_body: bool = True
) -> None:
    """Send a response, or only its head."""
    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    head = h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase)
    data = connection.send(head)
    body = connection.send(h11.Data(data=answer.body)) if has_body else b""
    end = connection.send(h11.EndOfMessage())
    await stream.send_all(b"".join(filter(None, (data, body, end))))


@asynccontextmanager
async def page(
    config: Config,
    source: Scraped,
    *,
    metrics: Mapping[str, Metric] = METRICS,
    status: Callable[[], str] | None = None,
    not_ready: bytes = NOT_READY,
) -> AsyncIterator[int]:
    """Serve the port of `metrics.listener` for the time of the block. Yield its port. Raises ListenError.

    Without other `metrics`, they are those of a broker.
    """
    wanted = parse_address(config.metrics_listener)
    sockets = open_address(wanted, config)
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
    host, port = wanted.host or "localhost", sockets[0].getsockname()[1]
    if not is_loopback(wanted.host):
        logger.warning(
            "metrics are readable without authentication by whoever reaches port %(port)d", {"port": port}
        )
    async with background_nursery() as nursery:
        serve: Callable[..., Awaitable[object]] = partial(
            trio.serve_listeners, Page(source, metrics, status, not_ready).serve, listeners
        )
        await nursery.start(serve)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        logger.info("metrics: http://%(address)s/metrics", {"address": address})
        yield port
