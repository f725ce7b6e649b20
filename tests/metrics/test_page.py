"""The HTTP port, over real sockets."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection

import pytest
import trio

from korvet.config import Config, ConfigError
from korvet.metrics.gather import Gatherer
from korvet.metrics.page import MOST_CONNECTIONS, page
from korvet.metrics.recorder import Recorder
from korvet.protocol.errors import KafkaStorageError
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.server.listeners import ListenError
from korvet.storage.memory import MemoryStorage
from tests.talk import connect, serving

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@asynccontextmanager
async def served(storage: MemoryStorage | None = None) -> AsyncIterator[tuple[int, Gatherer]]:
    """Run a broker with a metrics port, and a client that has sent a request. Yield the port."""
    gatherer = Gatherer(Recorder(10))
    config = Config(metrics_listener="127.0.0.1:0")
    async with (
        page(config, gatherer) as port,
        serving(storage=storage, counters=gatherer.recorder) as server,
        connect(server) as client,
    ):
        gatherer.server = server
        await client.ask(MetadataRequest(topics=[]), 9)
        yield port, gatherer


async def get(port: int, path: str, *, method: str = "GET", accept: str = "") -> tuple[int, str, str]:
    """Return the status, the content type and the body of a response."""

    def ask() -> tuple[int, str, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(method, path, headers={"Accept": accept})
            response = connection.getresponse()
            return response.status, response.getheader("Content-Type", ""), response.read().decode()
        finally:
            connection.close()

    return await trio.to_thread.run_sync(ask)


def promtool(*arguments: str, given: str = "") -> tuple[int, str]:
    """Run promtool, and return its status and output."""
    done = subprocess.run(
        ["promtool", *arguments], input=given, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


async def raw(port: int, data: bytes) -> bytes:
    """Send bytes, and return all that is answered."""
    answer = b""
    with trio.fail_after(10):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(data)
            await stream.send_eof()
            async for chunk in stream:
                answer += chunk
    return answer


async def received(stream: trio.SocketStream) -> bytes:
    """Return what arrives; nothing if the connection is closed or reset."""
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""


async def test_metrics_are_accepted_by_promtool() -> None:
    async with served() as (port, _):
        status, content_type, text = await get(port, "/metrics")

    assert (0, "") == promtool("check", "metrics", given=text)
    assert (200, "text/plain") == (status, content_type.partition(";")[0])
    assert 'korvet_requests_total{api="Metadata",version="9"} 1.0' in text.splitlines()


async def test_scraper_that_accepts_openmetrics_gets_it() -> None:
    async with served() as (port, _):
        _, content_type, text = await get(port, "/metrics", accept=OPENMETRICS)

    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_broker_is_alive_and_ready_while_it_serves() -> None:
    async with served() as (port, gatherer):
        serving_now = [(await get(port, path))[0] for path in ("/livez", "/readyz")]
        assert gatherer.server is not None
        gatherer.server.stop()
        draining = [(await get(port, path))[0] for path in ("/livez", "/readyz")]

    assert [200, 200] == serving_now
    assert [200, 503] == draining


async def test_broker_is_not_ready_before_it_serves() -> None:
    async with page(Config(metrics_listener="127.0.0.1:0"), Gatherer(Recorder(10))) as port:
        answers = [(await get(port, path))[0] for path in ("/livez", "/readyz", "/metrics")]

    assert [200, 503, 200] == answers


async def test_broker_is_not_ready_while_its_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    async with served(storage) as (port, _):

        async def fail(*_: object) -> None:
            raise KafkaStorageError("gone")

        monkeypatch.setattr(storage, "load", fail)
        failing = await get(port, "/readyz")
        monkeypatch.setattr("korvet.metrics.gather.READY_LIMIT_S", 0.01)

        async def hang(*_: object) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(storage, "load", hang)
        hanging = await get(port, "/readyz")
        _, _, text = await get(port, "/metrics")

    assert (503, 503) == (failing[0], hanging[0])
    assert "korvet_ready 0.0" in text.splitlines()


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/", 404),
        ("GET", "/metrics/x", 404),
        ("POST", "/metrics", 405),
        ("GET", "/livez?verbose", 200),
    ],
)
async def test_other_requests_are_refused_in_one_line(method: str, path: str, status: int) -> None:
    async with served() as (port, _):
        found, _, text = await get(port, path, method=method)

    assert (status, 1) == (found, text.count("\n"))


async def test_head_request_has_no_body() -> None:
    async with served() as (port, _):
        status, _, text = await get(port, "/metrics", method="HEAD")

    assert (200, "") == (status, text)


@pytest.mark.parametrize(
    "data",
    [b"nonsense\r\n\r\n", b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000, b"\0" * 100],
    ids=["no HTTP", "large head", "zeros"],
)
async def test_malformed_requests_are_answered_with_an_error_of_the_client(data: bytes) -> None:
    async with served() as (port, _):
        answer = await raw(port, data)
        status, _, _ = await get(port, "/livez")

    assert re.match(rb"HTTP/1.1 4\d\d ", answer)
    assert 200 == status


async def test_connection_serves_several_requests() -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    async with served() as (port, _):
        answer = await raw(port, request * 3)

    assert 3 == answer.count(b"HTTP/1.1 200")


async def test_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.metrics.page.REQUEST_LIMIT_S", 0.05)
    async with served() as (port, _), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.fail_after(10):
            assert b"" == await stream.receive_some()


async def test_connections_above_the_limit_are_closed() -> None:
    async with served() as (port, _), trio.open_nursery() as nursery:
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        with trio.fail_after(10):
            for stream in streams:  # an answer shows that the connection is served
                await stream.send_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" in await stream.receive_some()
            more = await trio.open_tcp_stream("127.0.0.1", port)
            assert b"" == await received(more)
            for stream in [*streams, more]:
                await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_port_in_use_is_one_line() -> None:
    async with page(Config(metrics_listener="127.0.0.1:0"), Gatherer(Recorder(1))) as port:
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: port {port} is in use"):
            async with page(Config(metrics_listener=f"127.0.0.1:{port}"), Gatherer(Recorder(1))):
                pass


@pytest.mark.parametrize(
    "address", ["localhost", "9404", "a b:1", "http://localhost:9404", "localhost:70000"]
)
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address; accepted: HOST:PORT"):
        Config(metrics_listener=address)
