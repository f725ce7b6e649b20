"""The tests' own servers: that they are who they say, survive what they should, and follow their primary."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests import servers
from tests.servers import RedisServer, ServerKind, ServerUnavailable, kinds, start_replica, start_server

pytestmark = pytest.mark.servers


@pytest.fixture(params=kinds(), ids=lambda kind: kind.id)
def durable(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = start_server(request.param, tcp=True, durable=True)
    yield server
    server.remove()


def test_killed_server_keeps_acknowledged_writes(durable: RedisServer) -> None:
    with durable.client() as client:
        client.set("a", "1")

    durable.kill()
    durable.start()

    with durable.client() as client:
        assert b"1" == client.get("a")


def test_server_accepts_connections_on_its_port(durable: RedisServer) -> None:
    with redis.Redis.from_url(durable.tcp_url) as client:
        process_id = client.info("server")["process_id"]

    assert process_id == durable.pid


def test_replica_follows_its_primary(durable: RedisServer) -> None:
    replica = start_replica(durable)
    with durable.client() as primary, replica.client() as follower:
        primary.set("a", "1")
        primary.wait(1, 10_000)
        seen = follower.get("a")
    replica.remove()

    assert b"1" == seen


def test_port_in_use_is_reported() -> None:
    first = start_server(servers.VALKEY, tcp=True)
    second = RedisServer(servers.VALKEY, port=first.port)
    with pytest.raises(RuntimeError, match="in use"):
        second.start()
    second.remove()
    first.remove()

    assert not first.folder.exists()


def test_missing_wheel_is_named() -> None:
    with pytest.raises(ServerUnavailable, match="no_such_wheel"):
        servers.wheel_binary("no_such_wheel", "bin/redis-server")


def test_search_path_excludes_the_virtual_environment() -> None:
    found = [kind.binary() for kind in kinds() if kind is servers.REDIS_PATH]

    assert [] == [path for path in found if Path(sys.prefix) in path.parents]


def test_server_kinds_have_the_version_of_their_name() -> None:
    def version(kind: ServerKind) -> str:
        server = start_server(kind)
        with server.client() as client:
            info = client.info("server")
        server.remove()
        return str(info.get("valkey_version", info["redis_version"]))

    promised = {"valkey-9.1": "9.1", "redis-6.2": "6.2.14"}
    found = {kind.id: version(kind) for kind in kinds() if kind.id in promised}

    assert [] == [name for name, prefix in found.items() if not prefix.startswith(promised[name])]
