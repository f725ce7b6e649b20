"""A broker runs with just the rights that docs/storage.md names, and uses each of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trio
from redis.exceptions import NoPermissionError

from korvet.protocol.errors import KafkaError, KafkaStorageError, NotEnoughReplicas
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import (
    AppendResult,
    AppendResults,
    Marker,
    OffsetAndMetadata,
    Storage,
    StorageUsageError,
    Topic,
    TopicPartition,
    TransactionNumber,
    TransactionResult,
)
from korvet.storage.redis import scripts as redis_scripts
from korvet.storage.redis_streams import open_redis_storage
from korvet.storage.shares import Acknowledged, AckType, Acquisition, ShareLimits, SharePartitionKey
from korvet.testing.contract.base import eventually
from korvet.testing.records import Producer, Record, append, append_batch, batch, numbered, records_from
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
DOCUMENT = Path(__file__).parents[2] / "docs" / "storage.md"
PASSWORD = "secret"


def documented_cluster_rights() -> list[str]:
    """Return the rights that the document names for a Redis Cluster."""
    found = re.search(r"In a Redis Cluster the user also needs `(.*?)`", DOCUMENT.read_text())
    assert found is not None
    return found[1].split()


def documented_rights() -> list[str]:
    """Return the rules of the ACL SETUSER command in the document, after the password."""
    found = re.search(
        r"^    ACL SETUSER korvet on >PASSWORD (.*?)\n\n", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    return found[1].split()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        client.execute_command("ACL", "LOG", "RESET")
        yield client
        client.acl_deluser("korvet")


def allow(client: redis.Redis, rights: list[str]) -> None:
    client.acl_deluser("korvet")
    client.execute_command("ACL", "SETUSER", "korvet", "on", f">{PASSWORD}", *rights)


def url_of(server: RedisServer) -> str:
    return f"unix://korvet:{PASSWORD}@{server.socket}"


def denied(client: redis.Redis) -> set[str]:
    """Return the commands and keys that the server has refused so far, from its ACL log."""
    return {entry["object"] for entry in client.acl_log()}


async def do_everything(storage: Storage, other: Storage, layout: str) -> None:
    """Call each method of storage, in all ways that use different Redis commands."""
    topic = await storage.create_topic("orders", 2, {"storage.layout": layout, "retention.ms": "-1"})
    topic = await storage.alter_topic(topic, partitions=3)
    await storage.topics()
    await storage.topic_by_id(topic.topic_id)
    base = (await append(storage, TP, numbered(5), producer=Producer(7))).base_offset
    await append(storage, TP, [Record(b"x" * 100_000, headers=(("a", None),))])
    assert b"x" * 100_000 == (await records_from(other, TP))[-1].value
    await commit_transaction(storage)
    await storage.earliest(TP)
    await storage.seek_ts(TP, 0)
    await storage.seek_max_ts(TP)
    await storage.epoch_end(TP, 0)
    await storage.sizes([TP])
    await storage.ack("billing", {TP: OffsetAndMetadata(base + 2)})
    await storage.committed("billing")
    await storage.forget("billing", [TP])
    await storage.committed("billing", [TP])
    await storage.ack("billing", {TP: OffsetAndMetadata(base + 3)})
    await storage.forget("billing")
    await storage.truncate_before(TP, base + 1)
    await compact(storage, layout)
    if layout == "record":
        await share(storage, topic)
    version = await storage.save("kind", "key", b"value", expected_version=0)
    await storage.load("kind", "key")
    await storage.documents("kind")
    await storage.save("kind", "key", None, expected_version=version)
    with other.watch([TP]) as watch, trio.fail_after(5):
        await append(storage, TP, numbered(1))
        await watch.wait()
    await storage.delete_topic(topic)
    await eventually(other.topics, {})


async def share(storage: Storage, topic: Topic) -> None:
    """Acquire, acknowledge and release records of a share group, and delete the group."""
    key, limits = SharePartitionKey(TP, topic.topic_id, "workers"), ShareLimits()
    await storage.open_share(key, 0)
    acquired = await storage.acquire_share(key, Acquisition("member", limits, 3, 1_000_000))
    assert acquired is not None
    first = acquired.runs[0].first
    for kind in (AckType.RENEW, AckType.ACCEPT):
        await storage.acknowledge_share(key, "member", [Acknowledged(first, first, kind)], limits)
    await storage.release_share(key, "member", limits)
    assert 1 == len(await storage.share_offsets("workers", [topic]))
    await storage.reset_share(key, 0, limits)
    await storage.forget_shares("workers", [topic])


async def commit_transaction(storage: Storage) -> None:
    sent = batch(numbered(1), producer=Producer(9), is_transactional=True)
    raise_error(await storage.append({TP: sent}, transactions={TP: TransactionNumber(1, 1)}))
    raise_error(await storage.write_markers({TP: Marker(9, 0, 0, TransactionResult.COMMIT, 1)}))
    await storage.active_producers(TP)


async def compact(storage: Storage, layout: str) -> None:
    """Compact a topic with a group that has committed an offset, and delete the topic."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "storage.layout": layout}
    topic = await storage.create_topic("compacted", 1, settings)
    tp = TopicPartition("compacted", 0)
    for _ in range(2):
        await append(storage, tp, [Record(b"x" * 70_000, b"a"), Record(b"1", b"b")])
    await storage.ack("billing", {tp: OffsetAndMetadata((await storage.latest(tp)).high_watermark - 1)})
    await storage.compact(tp)
    await storage.delete_topic(topic)


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_documented_rights_are_sufficient(
    redis_server: RedisServer, client: redis.Redis, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    allow(client, documented_rights())
    url = url_of(redis_server)
    with caplog.at_level(logging.WARNING):
        async with open_redis_storage(url) as storage, open_redis_storage(url) as other:
            await do_everything(storage, other, layout)

    # Optional commands: the connection's name, whether the server serves, what is on disk, whether it evicts.
    assert denied(client) <= {"client", "client|setname", "ping", "config", "config|get"}
    assert [] == [record.getMessage() for record in caplog.records]


def test_commands_of_all_scripts_are_documented_rights() -> None:
    """Some commands are sent only after a failover or a loss."""
    scripts = Path(redis_scripts.__file__).parent.glob("*.lua")
    called = {found for each in scripts for found in re.findall(r"call\('([A-Z]+)'", each.read_text())}
    rights = {right.removeprefix("+").partition("|")[0] for right in documented_rights()}

    assert set() == {command.lower() for command in called} - rights


async def test_every_documented_right_is_used(redis_server: RedisServer, client: redis.Redis) -> None:
    allow(client, documented_rights())
    client.config_resetstat()
    client.xadd("korvet:orders:0", {"value": "there before"})
    client.xgroup_create("korvet:orders:0", "billing", 0)
    client.xreadgroup("billing", "plain", {"korvet:orders:0": ">"})
    client.xadd("korvet:compacted:0", {"key": "c", "value": "there before"})
    client.xgroup_create("korvet:compacted:0", "plain", 0)
    client.xreadgroup("plain", "plain", {"korvet:compacted:0": ">"})
    url = url_of(redis_server)
    async with open_redis_storage(url) as storage, open_redis_storage(url) as other:
        await do_everything(storage, other, "record")
        client.client_kill_filter(_type="normal", skipme=True)
        await storage.load("kind", "key")  # over a new connection
        with other.watch([TP]) as watch, trio.move_on_after(0.2):
            await watch.wait()
        used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}

    rights = {right.removeprefix("+") for right in documented_rights() if right.startswith("+")}
    if redis_server.kind.id == "redis-6.2":  # which counts a command with all its subcommands
        rights = {right.partition("|")[0] for right in rights}
    assert rights <= used


async def test_keys_outside_the_namespace_are_denied(redis_server: RedisServer, client: redis.Redis) -> None:
    allow(client, documented_rights())
    with redis.Redis.from_url(url_of(redis_server)) as restricted:
        for key in ("somebody", "korvetx", "{other:a:0}:$state"):
            with pytest.raises(NoPermissionError):
                restricted.get(key)


async def create_and_append(storage: Storage) -> None:
    await storage.create_topic("orders", 1, {})
    await append(storage, TP, numbered(3))


@pytest.mark.parametrize("missing", ["+xtrim", "+hdel", "+unlink", "+hset"])
async def test_missing_right_leaves_no_partial_append(
    redis_server: RedisServer, client: redis.Redis, missing: str
) -> None:
    rights = documented_rights()
    rights.remove(missing)
    allow(client, rights)
    async with open_redis_storage(url_of(redis_server)) as storage:
        with pytest.raises(KafkaStorageError):
            await create_and_append(storage)

        assert not client.exists("korvet:orders:0")


async def test_user_without_rights_is_refused_in_one_line(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    allow(client, [])
    with pytest.raises(StorageUsageError) as refused:
        async with open_redis_storage(url_of(redis_server)):
            pass

    assert "\n" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


async def test_user_without_client_unblock_can_do_everything(
    redis_server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    allow(client, [right for right in documented_rights() if right not in ("+client|id", "+client|unblock")])
    url = url_of(redis_server)
    async with open_redis_storage(url) as storage, open_redis_storage(url) as other:
        await do_everything(storage, other, "record")

    assert "+client|id +client|unblock avoids that" in caplog.text


@pytest.mark.parametrize("right", ["+xread", "+xrevrange", "+script|load", "+set"])
async def test_user_with_a_missing_right_is_refused_at_the_start(
    redis_server: RedisServer, client: redis.Redis, right: str
) -> None:
    allow(client, [each for each in documented_rights() if each != right])
    with trio.fail_after(5), pytest.raises(StorageUsageError, match=r"NOPERM .* no permissions"):
        async with open_redis_storage(url_of(redis_server)):
            pass


async def test_acks_all_is_refused_before_writing_without_the_wait_right(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    allow(client, documented_rights())
    async with open_redis_storage(url_of(redis_server)) as storage:
        await storage.create_topic("orders", 1, {"min.insync.replicas": "2"})
        with pytest.raises(NotEnoughReplicas, match="WAIT"):
            await append(storage, TP, numbered(1))
        await append_batch(storage, TP, batch(numbered(1, first=1)), acks=1)
        found = [record.value for record in await records_from(storage, TP)]
        client.execute_command("ACL", "SETUSER", "korvet", "+wait")
        with pytest.raises(NotEnoughReplicas, match="Redis has 0 replicas"):
            raise_error(await storage.append({TP: batch(numbered(1, first=2))}, timeout_s=0.2))

    assert [b"1"] == found


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_marker_without_the_right_to_end_a_transaction_writes_nothing(
    redis_server: RedisServer, client: redis.Redis, layout: str
) -> None:
    allow(client, [right for right in documented_rights() if right != "+xdel"])
    async with open_redis_storage(url_of(redis_server)) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        with pytest.raises(KafkaStorageError):
            await commit_transaction(storage)
        assert 1 == client.xlen("korvet:orders:0")
        client.execute_command("ACL", "SETUSER", "korvet", "+xdel")
        raise_error(await storage.write_markers({TP: Marker(9, 0, 0, TransactionResult.COMMIT, 1)}))

        bounds = await storage.latest(TP)
    assert bounds.last_stable_offset == bounds.high_watermark


def raise_error(results: AppendResults) -> None:
    for result in results.values():
        if isinstance(result, KafkaError):
            raise result


@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize(
    "lost", ["hset", "hdel", "hget", "hscan", "hgetall", "xtrim", "xrange", "unlink", "time"]
)
async def test_right_that_is_lost_while_the_broker_runs_stores_nothing_or_all(
    redis_server: RedisServer, client: redis.Redis, lost: str, layout: str
) -> None:
    """A record without its state would be stored twice, since the producer sends it again."""
    allow(client, documented_rights())
    async with open_redis_storage(url_of(redis_server)) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout, "retention.bytes": "1000"})
        await append(storage, TP, numbered(1), producer=Producer(7))

        def sent() -> list[RecordBatch]:
            producers = enumerate((Producer(7, 0, 1), Producer(8)), 1)
            return [batch(numbered(1, first=number), producer=producer) for number, producer in producers]

        client.execute_command("ACL", "SETUSER", "korvet", f"-{lost}")
        results = [(await storage.append({TP: each}))[TP] for each in sent()]
        stored = sum(isinstance(result, AppendResult) for result in results)
        assert 1 + stored == client.xlen("korvet:orders:0")
        client.execute_command("ACL", "SETUSER", "korvet", f"+{lost}")
        again = [(await storage.append({TP: each}))[TP] for each in sent()]
        values = [record.value for record in await records_from(storage, TP)]

    assert [AppendResult] * 2 == [type(result) for result in again]
    assert [b"0", b"1", b"2"] == sorted(value for value in values if value is not None)
