"""The address of Redis leads to a promoted replica while the old primary still answers: a split brain."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from korvet.storage.interface import TopicPartition
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.records import Record, append
from tests.servers import RedisServer, ServerPair

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
LARGE = bytes(100_000)


def point_to(link: Path, server: RedisServer) -> None:
    """Make the address point_to to the server, in one step."""
    new = link.with_suffix(".new")
    new.symlink_to(server.socket)
    new.rename(link)


def entries(server: RedisServer) -> int:
    with server.client() as client:
        return client.xlen(f"korvet:{TP.topic}:{TP.partition}")


async def write(storage: RedisStreamsStorage) -> None:
    """Write over the first connection, and over the one for large records once it is open."""
    await append(storage, TP, [Record(b"small")])
    await append(storage, TP, [Record(LARGE)])


async def test_broker_reconnects_when_its_address_points_to_another_primary(
    replica_pair: ServerPair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = replica_pair
    point_to(tmp_path / "redis", old)
    async with open_redis_storage(f"unix://{tmp_path}/redis") as storage:
        await storage.create_topic(TP.topic, 1, {})
        await write(storage)
        await storage.monitor.check()
        await write(storage)
        with old.client() as client:
            client.wait(1, 30_000)
        with new.client() as client:
            client.replicaof("NO", "ONE")
        point_to(tmp_path / "redis", new)
        await write(storage)  # to the old one
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                await storage.monitor.check()
                await write(storage)

    assert (6, 10) == (entries(old), entries(new))
    assert [True] == ["leads to another server" in each.getMessage() for each in caplog.records]
