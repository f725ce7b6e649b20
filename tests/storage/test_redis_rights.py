"""What a broker's user has to be allowed in Redis: everything works with just these rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from korvet.protocol.record_batch import RecordBatch, build_batch
from korvet.storage.interface import (
    OffsetAndMetadata,
    ReadRequest,
    Storage,
    StorageUsageError,
    TopicPartition,
)
from korvet.storage.redis_streams import open_redis_storage
from tests.servers import RedisServer

KEYS = "~korvet:* ~{korvet:*"
COMMANDS = (
    "+client|id +client|unblock +script|load +evalsha +multi +exec +time "
    "+get +set +exists +unlink +hget +hgetall +hmget +hset +hdel +hincrby +hscan +sadd +smembers +srem "
    "+xadd +xlen +xrange +xrevrange +xread +xtrim +xack +xpending "
    "+xgroup|create +xgroup|setid +xgroup|destroy +xinfo|groups +xinfo|stream"
)
# Not among them: SELECT (for a database other than 0), WAIT (for min.insync.replicas above 1), PING (a server that
# is still loading is noticed at once), CLIENT SETNAME (names in CLIENT LIST), CONFIG GET (the start line says what
# Redis keeps on disk).


@asynccontextmanager
async def opened(server: RedisServer, rights: str) -> AsyncIterator[Storage]:
    """The storage as a user with just those rights has it."""
    with server.client() as admin:
        admin.execute_command(
            "ACL", "SETUSER", "broker", "reset", "on", ">secret", *KEYS.split(), *rights.split()
        )
    async with open_redis_storage(f"unix://broker:secret@{server.socket}") as storage:
        yield storage
    with server.client() as admin:
        admin.acl_deluser("broker")


def prepare_by_hand(server: RedisServer) -> None:
    """A stream that once held something, and a consumer group with an entry pending."""
    with server.client() as admin:
        admin.xadd("korvet:orders:0", {"value": "gone"}, id="5-0")
        admin.xdel("korvet:orders:0", "5-0")
        admin.xgroup_create("korvet:orders:1", "billing", "0-0", mkstream=True)
        admin.xadd("korvet:orders:1", {"value": "pending"}, id="6-0")
        admin.xreadgroup("billing", "worker", {"korvet:orders:1": ">"})


async def use_everything(storage: Storage, settings: dict[str, str]) -> list[object]:
    """Do one of everything; what came of it, where errors would show."""
    topic = await storage.create_topic("orders", 2, settings)
    tp, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    seen: list[object] = []
    for sequence in range(2):
        records = [(0, 1000, None, b"value", ())]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        seen.append(await storage.append({tp: RecordBatch(batch)}))
    with storage.watch([tp]) as watch:
        await storage.read({tp: ReadRequest(0, 1000)}, max_bytes=1000)
        batch = build_batch([(0, 2000, b"key", b"value", (("header", b"x"),))])
        seen.append(await storage.append({tp: RecordBatch(batch), other: RecordBatch(batch[:])}))
        with trio.fail_after(5):
            await watch.wait()
    read = await storage.read({tp: ReadRequest(0, 1000)}, max_bytes=1000)
    latest = await storage.latest(tp)
    seen += [read, latest, await storage.earliest(tp), await storage.earliest(other)]
    seen += [await storage.seek_ts(tp, 1500), await storage.seek_max_ts(tp), await storage.epoch_end(tp, 0)]
    position = OffsetAndMetadata(latest.high_watermark)
    seen.append(await storage.ack("billing", {tp: position, other: position}, generation_id=1))
    seen.append(await storage.committed("billing"))
    seen.append(await storage.committed("nobody"))
    await storage.forget("billing", [tp])
    await storage.forget("billing")
    seen.append(await storage.truncate_before(tp, latest.high_watermark))
    version = await storage.save("kind", "key", b"value", expected_version=0)
    seen += [version, await storage.load("kind", "key")]
    await storage.save("kind", "key", None, expected_version=version)
    topic = await storage.alter_topic(topic, partitions=3)
    await storage.delete_topic(topic)
    return seen


def failures(seen: list[object]) -> list[object]:
    """Errors among results, also those of single partitions."""
    flat = [each for result in seen for each in (result.values() if isinstance(result, dict) else [result])]
    return [each for each in flat if isinstance(each, Exception)]


EACH_LAYOUT = pytest.mark.parametrize("layout", ["record", "batch"])


@EACH_LAYOUT
async def test_everything_works_with_just_these_rights(redis_server: RedisServer, layout: str) -> None:
    prepare_by_hand(redis_server)
    async with opened(redis_server, COMMANDS) as storage:
        seen = await use_everything(storage, {"storage.layout": layout})

    assert failures(seen) == []


async def test_a_user_who_may_not_interrupt_has_everything_too(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_server, COMMANDS.replace("+client|id +client|unblock", "")) as storage:
        seen = await use_everything(storage, {})

    assert failures(seen) == []
    assert "+client|id +client|unblock avoids that" in caplog.text


@pytest.mark.parametrize("right", ["+xread", "+xrevrange", "+script|load", "+set"])
async def test_a_user_who_may_too_little_is_told_at_the_start(redis_server: RedisServer, right: str) -> None:
    with (
        trio.fail_after(5),
        pytest.raises(StorageUsageError, match=r"NOPERM .* no permissions"),
    ):
        async with opened(redis_server, COMMANDS.replace(f"{right} ", "")):
            pass
