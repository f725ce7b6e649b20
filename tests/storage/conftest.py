"""Servers as fixtures: a shared one per kind, emptied before every test, and new ones for tests that kill them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.servers import (
    VALKEY,
    RedisServer,
    ServerKind,
    ServerPair,
    StartServer,
    start_replica,
    start_server,
    storage_kinds,
)

FOLDER = f"{Path(__file__).parent}/"
# Each layout and each mapping is in one of the two other pairs, with which `make test` covers each server.
PAIRS_ON_VALKEY = ({"record", "dense"}, {"batch", "timestamp"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave two of the four pairs of layout and mapping to `make soak` on servers other than Valkey."""
    for item in items:
        if not str(item.path).startswith(FOLDER) or (call := getattr(item, "callspec", None)) is None:
            continue
        words = set(call.id.split("-"))
        if call.params.get("server_kind", VALKEY) != VALKEY and any(
            pair <= words for pair in PAIRS_ON_VALKEY
        ):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session", params=storage_kinds())
def server_kind(request: pytest.FixtureRequest) -> ServerKind:
    """Each of the servers the tests run on, in turn."""
    kind: ServerKind = request.param
    return kind


@pytest.fixture(scope="session")
def shared_server(server_kind: ServerKind) -> Iterator[RedisServer]:
    """One server for all tests of a kind; use `redis_server`, which empties it first."""
    server = start_server(server_kind, tcp=True)
    yield server
    server.remove()


@pytest.fixture
def redis_server(shared_server: RedisServer) -> RedisServer:
    """An empty server that keeps its data in memory. A test that stops it, or sets it up otherwise, undoes it."""
    with shared_server.client() as client:
        client.flushall()
        client.script_flush()
    return shared_server


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Anybody else who uses that server."""
    with redis_server.client() as client:
        yield client


@pytest.fixture
def new_server(server_kind: ServerKind) -> Iterator[StartServer]:
    """Starts servers for this test alone: `new_server(tcp=…, durable=…, options=…)`, as `start_server`."""
    with ExitStack() as servers:

        def start(
            *, tcp: bool = False, durable: bool = False, options: dict[str, str] | None = None
        ) -> RedisServer:
            server = start_server(server_kind, tcp=tcp, durable=durable, options=options)
            servers.callback(server.remove)
            return server

        yield start


@pytest.fixture
def durable_server(new_server: StartServer) -> RedisServer:
    """A server of this test's own that loses nothing it acknowledged, however often it is killed."""
    return new_server(durable=True)


@pytest.fixture
def replica_pair(new_server: StartServer) -> Iterator[ServerPair]:
    """A primary and its replica, in step."""
    primary = new_server(tcp=True)
    replica = start_replica(primary)
    yield primary, replica
    replica.remove()
