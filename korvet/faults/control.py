"""The port through which other programs inject faults: HTTP with JSON, on IPv4 loopback only.

    POST /faults           inject a fault; return its id
    GET /faults            list the faults by id, with their hits
    GET /faults/ID         return one of them
    DELETE /faults/ID      end one of them
    DELETE /faults         end all
    POST /expire-member    {"group": …, "member": …}: remove a member, or all if `member` is missing

An error is {"error": …} with status 400, 404 or 415. The port refuses requests that a web page could send: a POST must
be application/json, which browsers do not send to other sites unasked, and the host must be this machine.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import trio
from attrs import define, field

from korvet.broker.broker import Broker
from korvet.concurrency.background import background_nursery
from korvet.faults.documents import InvalidFault, read_fault, written_fault
from korvet.faults.injection import Faults, Injected, expire
from korvet.protocol.errors import KafkaError

LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024
POLL_S = 0.05

Answer = tuple[HTTPStatus, Any]


class RequestRefused(Exception):  # noqa: N818  names the condition
    """The request is refused with a status. The message is one line."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@define(eq=False)
class Control:
    """The operations of the port. They are called from threads."""

    faults: Faults
    broker: Broker
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)
    _ids: count[int] = field(factory=partial(count, 1))
    _added: dict[str, Injected] = field(factory=dict)

    def answer(self, method: str, path: str, body: object) -> Answer:
        """Return the status and the document that answer a request. Raises RequestRefused."""
        match method, path.strip("/").split("/"):
            case "POST", ["faults"]:
                return self._add(body)
            case "GET", ["faults"]:
                return HTTPStatus.OK, [self._written(number) for number in self._added]
            case "GET", ["faults", number]:
                self._find(number)
                return HTTPStatus.OK, self._written(number)
            case "DELETE", ["faults", *numbers]:
                return self._end(numbers)
            case "POST", ["expire-member"]:
                return self._expire(body)
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"{method} {path} is not served")

    def _add(self, body: object) -> Answer:
        number = str(next(self._ids))
        self._added[number] = self.faults.add(read_fault(body))
        return HTTPStatus.CREATED, self._written(number)

    def _end(self, numbers: list[str]) -> Answer:
        for number in numbers or [*self._added]:
            self._find(number).end()
            del self._added[number]
        return HTTPStatus.OK, []

    def _expire(self, body: object) -> Answer:
        match body:
            case {"group": str(group), "member": str(member)}:
                wanted: str | None = member
            case {"group": str(group)}:
                wanted = None
            case _:
                raise RequestRefused(HTTPStatus.BAD_REQUEST, 'expire-member needs {"group": NAME}')
        trio.from_thread.run(expire, self.broker, group, wanted, trio_token=self._token)
        return HTTPStatus.OK, {}

    def _find(self, number: str) -> Injected:
        try:
            return self._added[number]
        except KeyError:
            raise RequestRefused(HTTPStatus.NOT_FOUND, f"there is no fault {number}") from None

    def _written(self, number: str) -> dict[str, Any]:
        return {"id": number, **written_fault(self._added[number])}


class Handler(BaseHTTPRequestHandler):
    """One request to the port."""

    timeout = 10

    def __init__(self, control: Control, *arguments: Any) -> None:
        self.control = control
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer a request; the name is that of the standard library."""
        try:
            status, document = self.control.answer(self.command, self.path, self._body())
        except RequestRefused as error:
            status, document = error.status, {"error": str(error)}
        except InvalidFault as error:
            status, document = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except KafkaError as error:
            status, document = HTTPStatus.BAD_REQUEST, {"error": f"{error} ({error.error_code.name})"}
        self._send(status, document)

    do_POST = do_DELETE = do_GET  # noqa: N815  names of the standard library

    def _body(self) -> object:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in ("", LOOPBACK, "localhost"):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, f"the host is not {LOOPBACK}")
        if self.command != "POST":
            return None
        if self.headers.get_content_type() != "application/json":
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")
        try:
            return json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), MAX_BODY_BYTES)))
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None

    def _send(self, status: HTTPStatus, document: object) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  the standard library's name
        """Log nothing for a request."""


@asynccontextmanager
async def fault_port(port: int, faults: Faults, broker: Broker) -> AsyncIterator[int]:
    """Serve the control port for the time of the block. Yield the port, which is a free one for 0. Raises OSError."""
    make: Callable[..., Handler] = partial(Handler, Control(faults, broker))
    server = ThreadingHTTPServer((LOOPBACK, port), make)
    server.daemon_threads = True
    try:
        async with background_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, server.serve_forever, POLL_S)
            try:
                yield server.server_port
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(server.shutdown)
    finally:
        server.server_close()
