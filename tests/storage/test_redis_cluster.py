"""Storage in a Redis Cluster: the contract, slots that move, and primaries that fail."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trio
from attrs import define, field
from redis.crc import key_slot

from korvet.config import Config
from korvet.doctor.findings import Finding, Verdict
from korvet.doctor.redis import redis_findings
from korvet.protocol.errors import (
    ErrorCode,
    IllegalGeneration,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicasAfterAppend,
)
from korvet.storage.interface import (
    AppendResult,
    OffsetAndMetadata,
    PendingAck,
    Storage,
    StorageUsageError,
    Topic,
    TopicPartition,
)
from korvet.storage.redis.client.cluster import Cluster
from korvet.storage.redis.failover import confirmations
from korvet.storage.redis.read import cluster_watch
from korvet.storage.redis_streams import open_redis_storage
from korvet.storage.shares import (
    Acknowledged,
    AckType,
    Acquisition,
    Run,
    ShareLimits,
    ShareOffsets,
    SharePartitionKey,
)
from korvet.testing.environment import Environment
from korvet.testing.records import StoredRecord, append, batch, numbered, records_from
from korvet.testing.storage_contract import StagedOffsetContract, StorageContract, TransactionContract
from tests.redis_clusters import RedisCluster
from tests.redis_environment import RedisEnvironment
from tests.servers import VALKEY, StartServer, storage_kinds
from tests.storage.test_redis_rights import do_everything, documented_cluster_rights, documented_rights

pytestmark = pytest.mark.servers

EACH_KIND = storage_kinds()
# The contract on clusters of other servers is left to `make soak`: test_redis_streams.py tests it on these servers, and
# the functions below test on each kind of cluster what only a cluster does.
VALKEY_AND_SOAK = [
    kind
    if kind.values == (VALKEY,)
    else pytest.param(*kind.values, id=kind.id, marks=[*kind.marks, pytest.mark.soak])
    for kind in EACH_KIND
]
T = TypeVar("T")


@pytest.fixture(scope="module")
def primaries(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """Three primaries without replicas, for the contract; `empty_primaries` empties them."""
    with RedisCluster(request.param, replicas_each=0) as cluster:
        yield cluster


@pytest.fixture
def empty_primaries(primaries: RedisCluster) -> RedisCluster:
    primaries.flush()
    return primaries


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("primaries", VALKEY_AND_SOAK, indirect=True)
class TestRedisCluster(StorageContract, TransactionContract, StagedOffsetContract):
    @pytest.fixture(params=["record-timestamp"])
    def environment(self, request: pytest.FixtureRequest, empty_primaries: RedisCluster) -> Environment:
        return environment_of(request.param, empty_primaries)


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("primaries", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
class TestRedisClusterInBatches(StorageContract, TransactionContract, StagedOffsetContract):
    @pytest.fixture(params=["batch-dense"])
    def environment(self, request: pytest.FixtureRequest, empty_primaries: RedisCluster) -> Environment:
        return environment_of(request.param, empty_primaries)


def environment_of(names: str, cluster: RedisCluster) -> Environment:
    layout, mapping = names.split("-")
    return RedisEnvironment(cluster, {"storage.layout": layout, "offset.mapping": mapping})


@pytest.fixture(scope="module", params=EACH_KIND)
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """Three primaries with a replica each; `cluster` empties it."""
    with RedisCluster(request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> RedisCluster:
    """An empty cluster, which is complete. A test may move slots and promote replicas."""
    shared_cluster.settle()
    shared_cluster.flush()
    return shared_cluster


RETRIABLE = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
TP = TopicPartition("orders", 0)
STREAM = b"korvet:orders:0"


def values_of(records: Sequence[StoredRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


@define
class Appending:
    """Records that count upwards, appended one after the other until `stop`, and those that were acknowledged."""

    storage: Storage
    acknowledged: list[int] = field(factory=list)
    sent: int = 0
    is_stopped: bool = False
    _progress: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        while not self.is_stopped:
            number, self.sent = self.sent, self.sent + 1
            result = (await self.storage.append({TP: batch(numbered(1, first=number))}))[TP]
            if isinstance(result, KafkaError):
                assert result.error_code in RETRIABLE, result
            else:
                self.acknowledged.append(number)
                self._progress.set()
                self._progress = trio.Event()

    async def wait_for(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        target = len(self.acknowledged) + count
        with trio.fail_after(30):
            while len(self.acknowledged) < target:
                await self._progress.wait()


@asynccontextmanager
async def appending(storage: Storage) -> AsyncIterator[Appending]:
    async with trio.open_nursery() as nursery:
        appending = Appending(storage)
        nursery.start_soon(appending.run)
        yield appending
        appending.is_stopped = True


@pytest.mark.xdist_group("redis-cluster")
async def test_broker_that_starts_while_a_slot_has_no_primary_waits(
    cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    slot, owner = key_slot(STREAM), cluster.primary_of(STREAM)
    for server in cluster.servers:
        cluster.call(server, "CLUSTER", "DELSLOTS", slot)
    created: list[Topic] = []

    async def start() -> None:
        async with open_redis_storage(cluster.url) as storage:
            created.append(await storage.create_topic("orders", 1, {}))
            await append(storage, TP, numbered(1))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            while "cannot serve; waiting: CLUSTERDOWN" not in caplog.text:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert [] == created
            cluster.call(owner, "CLUSTER", "ADDSLOTS", slot)

    assert ["orders"] == [topic.name for topic in created]
    assert 1 == caplog.text.count("cannot serve; waiting")


@pytest.mark.xdist_group("redis-cluster")
async def test_full_primary_refuses_only_appends_to_its_own_partitions(cluster: RedisCluster) -> None:
    tps = [TopicPartition("orders", number) for number in range(12)]
    full = cluster.primary_of(STREAM)
    on_it = {tp for tp in tps if cluster.primary_of(b"korvet:orders:%d" % tp.partition) is full}
    async with open_redis_storage(cluster.url) as storage:
        await storage.create_topic("orders", 12, {})
        for tp in tps:
            await append(storage, tp, numbered(1))
        with full.client() as client:
            client.config_set("maxmemory", "1")
            try:
                results = await storage.append({tp: batch(numbered(1)) for tp in tps})
            finally:
                client.config_set("maxmemory", "0")

    assert on_it == {tp for tp, result in results.items() if isinstance(result, KafkaStorageError)}
    assert len(tps) - len(on_it) == len([each for each in results.values() if isinstance(each, AppendResult)])
    assert 0 < len(on_it) < len(tps)


@pytest.mark.xdist_group("redis-cluster")
async def test_slot_moves_while_records_are_appended_and_read(cluster: RedisCluster) -> None:
    slot, source = key_slot(STREAM), cluster.primary_of(STREAM)
    target = next(each for each in cluster.primaries if each is not source)
    async with open_redis_storage(cluster.url) as storage:
        await storage.create_topic("orders", 1, {"offset.mapping": "dense"})
        async with appending(storage) as load:
            await load.wait_for(20)
            with cluster.moving(slot, source, target):
                cluster.move_keys(slot, source, target, limit=2)  # the others stay for a while: TRYAGAIN
                await trio.sleep(0.2)
                half_moved = values_of(await records_from(storage, TP, 0))
            await load.wait_for(20)
            with cluster.moving(slot, target, source):
                cluster.move_keys(slot, target, source)  # the slot's owner has none of its keys: ASK
                asked = values_of(await records_from(storage, TP, 0))
            await load.wait_for(20)
        stored = values_of(await records_from(storage, TP, 0))

    assert load.acknowledged == stored
    assert stored[: len(half_moved)] == half_moved
    assert stored[: len(asked)] == asked
    assert len(half_moved) >= 20


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_valkey_moves_slots_atomically_while_records_are_appended(cluster: RedisCluster) -> None:
    slot, source = key_slot(STREAM), cluster.primary_of(STREAM)
    target = next(each for each in cluster.primaries if each is not source)
    async with open_redis_storage(cluster.url) as storage:
        await storage.create_topic("orders", 1, {"offset.mapping": "dense"})
        async with appending(storage) as load:
            await load.wait_for(20)
            await trio.to_thread.run_sync(cluster.migrate_slot, slot, source, target)
            await load.wait_for(20)
        stored = values_of(await records_from(storage, TP, 0))

    assert load.acknowledged == stored


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("how", ["by command", "by death", "by pause"])
async def test_promoted_replica_continues_the_log(cluster: RedisCluster, how: str) -> None:
    before = cluster.primary_of(STREAM)
    async with open_redis_storage(cluster.url) as storage, open_redis_storage(cluster.url) as other:
        settings = {"offset.mapping": "dense", "min.insync.replicas": "2"}
        await storage.create_topic("orders", 1, settings)
        async with appending(storage) as load:
            await load.wait_for(20)
            match how:
                case "by command":
                    await trio.to_thread.run_sync(cluster.fail_over, before)
                case "by death":
                    before.kill()
                case "by pause":
                    before.pause()
            if how != "by command":
                await trio.to_thread.run_sync(cluster.await_other_primary, STREAM, before)
            cluster.revive(before)
            await load.wait_for(20)
        stored = values_of(await records_from(other, TP, 0))
        epoch = (await other.latest(TP)).leader_epoch

    assert set(load.acknowledged) <= set(stored)
    assert sorted(set(stored)) == stored
    assert epoch >= 1


@pytest.mark.xdist_group("redis-cluster")
async def test_watch_wakes_for_another_broker_and_for_redis_clients(cluster: RedisCluster) -> None:
    tps = [TopicPartition("orders", number) for number in range(6)]
    async with open_redis_storage(cluster.url) as storage, open_redis_storage(cluster.url) as other:
        await storage.create_topic("orders", 6, {})
        for tp in tps:
            await other.latest(tp)
        woken = []
        for index, tp in enumerate(tps):
            with storage.watch(tps) as watch:
                for each in tps:
                    await storage.latest(each)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(add_when_parked, cluster, other, tp, index % 2 == 0)
                    with trio.fail_after(5):
                        while tp not in (grown := await watch.wait()):
                            pass
                woken.append(tp in grown)

    assert [True] * 6 == woken


async def add_when_parked(cluster: RedisCluster, other: Storage, tp: TopicPartition, by_redis: bool) -> None:
    await trio.testing.wait_all_tasks_blocked(0.02)
    stream = f"korvet:{tp.topic}:{tp.partition}"
    if by_redis:
        cluster.call(cluster.primary_of(stream.encode()), "XADD", stream, "*", "value", "1")
    else:
        await append(other, tp, numbered(1))


@pytest.mark.xdist_group("redis-cluster")
async def test_slots_without_a_connection_are_looked_at(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_watch, "CONNECTIONS_AT_MOST", 1)
    await test_watch_wakes_for_another_broker_and_for_redis_clients(cluster)


@pytest.mark.xdist_group("redis-cluster")
async def test_watch_follows_a_slot_that_moves(cluster: RedisCluster) -> None:
    slot, source = key_slot(STREAM), cluster.primary_of(STREAM)
    target = next(each for each in cluster.primaries if each is not source)
    async with open_redis_storage(cluster.url) as storage, open_redis_storage(cluster.url) as other:
        await storage.create_topic("orders", 1, {})
        await append(other, TP, numbered(1))
        with storage.watch([TP]) as watch:
            for _ in range(2):
                end = (await storage.latest(TP)).high_watermark
                with trio.move_on_after(0.3):
                    await watch.wait()
                with cluster.moving(slot, source, target):
                    pass
                source, target = target, source
                added = await append(other, TP, numbered(1))
                with trio.fail_after(5):
                    while (await storage.latest(TP)).high_watermark == end:
                        await watch.wait()
                assert (await storage.latest(TP)).high_watermark > added.base_offset


@pytest.mark.xdist_group("redis-cluster")
async def test_documented_rights_are_sufficient(
    cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    rights = [*documented_rights(), *documented_cluster_rights()]
    for server in cluster.servers:
        cluster.call(server, "ACL", "SETUSER", "korvet", "on", ">secret", *rights)
    url = cluster.url.replace("//", "//korvet:secret@")
    with caplog.at_level(logging.WARNING):
        async with open_redis_storage(url) as storage, open_redis_storage(url) as other:
            await do_everything(storage, other, "record")

    assert [] == [record.getMessage() for record in caplog.records]
    for server in cluster.servers:
        cluster.call(server, "ACL", "DELUSER", "korvet")


def test_doctor_examines_every_primary(cluster: RedisCluster) -> None:
    config = Config(storage=cluster.url, min_insync_replicas=3)

    async def examine() -> list[Finding]:
        return [finding async for finding in redis_findings(config)]

    found = trio.run(examine)
    by_check = {each.check: [other for other in found if other.check == each.check] for each in found}

    assert ["3 primaries have all slots"] == [each.reason for each in by_check["cluster"]]
    assert [3, 3] == [len(by_check["clock"]), len(by_check["persistence"])]
    assert [Verdict.ERROR] * 3 == [each.verdict for each in by_check["replicas"]]
    assert [Verdict.OK] == [each.verdict for each in by_check["rights"]]
    ports = {int(each.reason.split(":")[1]) for each in by_check["clock"]}
    assert {each.port for each in cluster.primaries} == ports


async def test_wrong_password_is_refused(cluster: RedisCluster) -> None:
    with pytest.raises(StorageUsageError, match="WRONGPASS|NOAUTH|without any password") as refusal:
        async with open_redis_storage(cluster.url.replace("//", "//korvet:secret@")):
            pass

    assert "secret" not in str(refusal.value)


def test_single_server_is_refused_as_a_cluster(new_server: StartServer) -> None:
    server = new_server(tcp=True)

    async def open_it() -> None:
        async with open_redis_storage(server.tcp_url.replace("redis:", "redis+cluster:")):
            pass

    with pytest.raises(StorageUsageError, match="cluster support disabled"):
        trio.run(open_it)


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_broker_that_starts_while_a_primary_is_down_waits_for_its_successor(
    cluster: RedisCluster,
) -> None:
    before = cluster.primary_of(STREAM)
    before.kill()
    with trio.fail_after(30):
        async with open_redis_storage(cluster.url) as storage:
            await storage.create_topic("orders", 1, {})
            await append(storage, TP, numbered(1))
            values = values_of(await records_from(storage, TP))
    cluster.revive(before)

    assert [0] == values


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_redirected_script_begins_the_leader_epoch_of_the_server_that_executes_it(
    cluster: RedisCluster,
) -> None:
    before = cluster.primary_of(STREAM)
    async with open_redis_storage(cluster.url) as storage:
        await storage.create_topic("orders", 1, {})
        await append(storage, TP, numbered(1))
        promoted = await trio.to_thread.run_sync(cluster.fail_over, before)
        await storage.truncate_before(TP, 0)  # the script goes to the old primary, and then to the new one
        with promoted.client() as client:
            began_in = client.hget("{korvet:orders:0}:$state", "server")
            run_id = client.info("server")["run_id"]
        epoch = (await storage.latest(TP)).leader_epoch

    assert (run_id.encode(), 1) == (began_in, epoch)


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_pipeline_of_many_moved_keys_pauses_once(cluster: RedisCluster) -> None:
    async with open_redis_storage(cluster.url) as storage:
        redis = storage._redis
        assert isinstance(redis, Cluster)
        redis.nodes._slots = [redis.server_of(STREAM)] * 16384  # as if all other slots had just moved
        commands = [(b"EXISTS", b"korvet:%d" % number) for number in range(6000)]
        with trio.fail_after(4):
            replies = await redis.pipeline(commands, repeatable=True)

    assert [0] * 6000 == replies


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_notified_commit_is_stored_and_followed_on_each_node(cluster: RedisCluster) -> None:
    async with open_redis_storage(cluster.url) as storage:
        tps = await orders_on(storage)
        offsets = {tp: OffsetAndMetadata(2) for tp in tps}
        for number in range(3):
            assert dict.fromkeys(tps) == await committed_now(storage, offsets, generation_id=4)
            if number == 1:
                for server in cluster.primaries:  # which load the scripts again
                    with server.client() as client:
                        client.script_flush()
        assert {2} == {each.offset for each in (await storage.committed("g", tps)).values()}
        for tp in tps:
            stream = f"korvet:orders:{tp.partition}".encode()
            (group,) = cluster.call(cluster.primary_of(stream), "XINFO", "GROUPS", stream)
            assert b"g" == group[b"name"]

        refused = await committed_now(storage, offsets, generation_id=3)
        assert refused is not None
        assert all(isinstance(each, IllegalGeneration) for each in refused.values())


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
@pytest.mark.parametrize("key", [b"korvet:$group:g", b"korvet:$groups", STREAM])
async def test_notified_commit_follows_a_slot_that_has_moved(cluster: RedisCluster, key: bytes) -> None:
    async with open_redis_storage(cluster.url) as storage:
        tps = await orders_on(storage)
        source = cluster.primary_of(key)
        target = next(each for each in cluster.primaries if each is not source)
        with cluster.moving(key_slot(key), source, target):
            pass
        offsets = {tp: OffsetAndMetadata(2) for tp in tps}

        pending = storage.try_ack("g", offsets)
        assert isinstance(pending, PendingAck)
        assert dict.fromkeys(tps) == await pending.wait()
        assert dict.fromkeys(tps) == await committed_now(storage, offsets)
        assert {2} == {each.offset for each in (await storage.committed("g", tps)).values()}


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_notified_commit_survives_a_killed_primary(cluster: RedisCluster) -> None:
    key = b"korvet:$group:g"
    async with open_redis_storage(cluster.url) as storage:
        tps = await orders_on(storage)
        offsets = {tp: OffsetAndMetadata(2) for tp in tps}
        primary = cluster.primary_of(key)
        primary.pause()  # so that the commit is not answered before the kill
        pending = storage.try_ack("g", offsets)
        assert isinstance(pending, PendingAck)
        primary.kill()
        await trio.to_thread.run_sync(cluster.await_other_primary, key, primary)

        with trio.fail_after(60):
            results = await pending.wait()
            while any(results.values()):  # its patience has ended before it has found the new primary
                results = await storage.ack("g", offsets)
        assert {2} == {each.offset for each in (await storage.committed("g", tps)).values()}
    cluster.revive(primary)


async def orders_on(storage: Storage) -> list[TopicPartition]:
    """Create a topic with records in partitions that several nodes have, and return these."""
    await storage.create_topic("orders", 3, {"storage.layout": "batch"})
    tps = [TopicPartition("orders", number) for number in range(3)]
    for tp in tps:
        await append(storage, tp, numbered(3))
    return tps


async def committed_now(
    storage: Storage, offsets: dict[TopicPartition, OffsetAndMetadata], **options: int
) -> dict[TopicPartition, KafkaError | None] | None:
    """Commit, and return the results that a notification brings, or None if they have to be waited for."""
    pending = storage.try_ack("g", offsets, **options)
    assert isinstance(pending, PendingAck)
    is_done = trio.Event()
    assert pending.notify(is_done.set)
    with trio.fail_after(60):
        await is_done.wait()
    return pending.known_results()


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_absent_replica_uses_up_no_delivery_of_a_share_group(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmations, "REPLICATED_LIMIT_S", 0.3)
    replica = cluster.replica_of(cluster.primary_of(STREAM))
    accepted = [Acknowledged(0, 1, AckType.ACCEPT)]
    async with open_redis_storage(cluster.url) as storage:
        settings = {"storage.layout": "record", "offset.mapping": "dense", "min.insync.replicas": "2"}
        topic = await storage.create_topic("orders", 1, settings)
        key = SharePartitionKey(TP, topic.topic_id, "workers")
        await storage.open_share(key, 0)
        await append(storage, TP, numbered(4))

        replica.pause()
        for _ in range(6):  # more than the limit of deliveries
            with pytest.raises(NotEnoughReplicasAfterAppend):
                await storage.acquire_share(key, Acquisition("alice", ShareLimits(), 4, 1_000_000))
        cluster.revive(replica)
        found = await until_confirmed(
            lambda: storage.acquire_share(key, Acquisition("alice", ShareLimits(), 4, 1_000_000))
        )
        replica.pause()
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await storage.acknowledge_share(key, "alice", accepted, ShareLimits())
        cluster.revive(replica)
        await until_confirmed(lambda: storage.acknowledge_share(key, "alice", accepted, ShareLimits()))
        offsets = await storage.share_offsets("workers", [topic])

    assert found is not None
    assert [Run(0, 3, 1)] == found.runs
    assert {key: ShareOffsets(2, 2)} == offsets


async def until_confirmed(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while replicas do not confirm it."""
    with trio.fail_after(30):
        while True:
            try:
                return await call()
            except (KafkaStorageError, NotEnoughReplicasAfterAppend):
                await trio.sleep(0.05)


async def acquired(storage: Storage, key: SharePartitionKey, member_id: str, most: int) -> list[int]:
    """Acquire records for a member of a share group; return their offsets."""
    for _ in range(100):
        try:
            found = await storage.acquire_share(key, Acquisition(member_id, ShareLimits(), most, 1_000_000))
        except KafkaStorageError:  # a failover takes its time
            await trio.sleep(0.1)
            continue
        assert found is not None
        return [offset for run in found.runs for offset in range(run.first, run.last + 1)]
    raise AssertionError("no records can be acquired")


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("how", ["a slot moves", "a replica is promoted", "the primary dies"])
@pytest.mark.parametrize("shared_cluster", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
async def test_share_group_stays_as_it_is(cluster: RedisCluster, how: str) -> None:
    before = cluster.primary_of(STREAM)
    async with open_redis_storage(cluster.url) as storage:
        settings = {"storage.layout": "record", "offset.mapping": "dense", "min.insync.replicas": "2"}
        topic = await storage.create_topic("orders", 1, settings)
        key = SharePartitionKey(TP, topic.topic_id, "workers")
        await storage.open_share(key, 0)
        await append(storage, TP, numbered(6))
        first = await acquired(storage, key, "alice", 4)
        await storage.acknowledge_share(key, "alice", [Acknowledged(0, 1, AckType.ACCEPT)], ShareLimits())
        if how == "a slot moves":
            target = next(each for each in cluster.primaries if each is not before)
            await trio.to_thread.run_sync(cluster.migrate_slot, key_slot(STREAM), before, target)
        elif how == "a replica is promoted":
            await trio.to_thread.run_sync(cluster.fail_over, before)
        else:
            before.kill()
            await trio.to_thread.run_sync(cluster.await_other_primary, STREAM, before)
            cluster.revive(before)
        second = await acquired(storage, key, "bob", 100)
        await storage.acknowledge_share(key, "alice", [Acknowledged(2, 3, AckType.ACCEPT)], ShareLimits())
        offsets = await storage.share_offsets("workers", [topic])

    assert ([0, 1, 2, 3], [4, 5], {key: ShareOffsets(4, 2)}) == (first, second, offsets)
