"""The numbers of a store that went back in time, with a promoted replica that lagged or an older append-only file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from korvet.broker.producer_ids import ProducerIds
from korvet.protocol.errors import KafkaStorageError, NotEnoughReplicas, OutOfOrderSequenceNumber
from korvet.storage.interface import DocumentConflict, EpochEnd, OffsetAndMetadata, Storage, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.base import eventually as noticed
from korvet.testing.records import Producer, append, append_batch, batch, numbered, read, records_from
from tests.sentinels import Report, eventually, scripted_sentinel, sentinel_url
from tests.servers import VALKEY, RedisServer, ServerPair, on

pytestmark = pytest.mark.servers


def let_catch_up(pair: ServerPair) -> None:
    """Wait until the replica has received everything, and cut it off."""
    with pair[0].client() as client:
        client.set("last", 1)  # WAIT answers for what its own connection wrote
        assert 1 == client.wait(1, 30_000)
    cut_off(pair[1])


def cut_off(replica: RedisServer) -> None:
    """Let the replica receive nothing more: from here on it lags."""
    with replica.client() as client:
        client.replicaof("127.0.0.1", 1)


def promote(pair: ServerPair) -> RedisServer:
    """Return the replica, as the primary."""
    primary, replica = pair
    primary.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    return replica


def one_second_later() -> int:
    return time.time_ns() // 1_000_000 + 1000


async def test_producer_ids_are_not_reused_by_a_promoted_replica(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        before = {await ProducerIds(storage).allocate() for _ in range(3)}
        let_catch_up(replica_pair)
        lost = {await ProducerIds(storage).allocate() for _ in range(3)}
    promoted = promote(replica_pair)

    # A failover takes at least a second: a broker notices it, and a replica is promoted.
    async with open_redis_storage(promoted.url) as storage:
        after = {await ProducerIds(storage, one_second_later).allocate() for _ in range(3)}

    assert 9 == len(before | lost | after)
    assert max(before | lost) < min(after) < 2**53


TP = TopicPartition("orders", 0)
DENSE = {"offset.mapping": "dense"}


@pytest.mark.parametrize("mapping", ["timestamp", "dense"])
async def test_broker_that_saw_lost_records_continues_behind_them(
    replica_pair: ServerPair, mapping: str
) -> None:
    named = replica_pair[0].port
    async with (
        scripted_sentinel(lambda: named) as port,
        open_redis_storage(sentinel_url(port)) as storage,
    ):
        await storage.create_topic("orders", 1, {"offset.mapping": mapping})
        kept = await append(storage, TP, numbered(3), producer=Producer(7))
        let_catch_up(replica_pair)
        lost = await append(storage, TP, numbered(2, first=3), producer=Producer(7, 0, 3))
        named = promote(replica_pair).port
        with trio.fail_after(20):
            end = (await storage.latest(TP)).high_watermark
            cut = await storage.epoch_end(TP, 0)
            again = await append(storage, TP, numbered(1, first=5), producer=Producer(7, 0, 5))
            with pytest.raises(OutOfOrderSequenceNumber):
                await append(storage, TP, numbered(1, first=9), producer=Producer(7, 0, 9))
        values = [record.value for record in await records_from(storage, TP, kept.base_offset)]
        epoch = await bounds_of(storage)

    assert EpochEnd(0, kept.base_offset + 3) == cut
    assert end == lost.base_offset + 2 <= again.base_offset
    assert [b"0", b"1", b"2", b"5"] == values
    assert 1 == epoch


@on(VALKEY)
@pytest.mark.parametrize("mapping", ["timestamp", "dense"])
async def test_committed_offset_is_never_beyond_the_end_of_a_promoted_replica(
    replica_pair: ServerPair, mapping: str
) -> None:
    """A replica has a prefix of what the primary executed: with a commit also the records before it."""
    primary, replica = replica_pair
    ends: list[int] = []
    async with open_redis_storage(primary.url) as storage, trio.open_nursery() as nursery:
        await storage.create_topic("orders", 1, {"offset.mapping": mapping})

        async def commit_each() -> None:
            while True:
                appended = await append(storage, TP, numbered(1))
                ends.append(appended.base_offset + 1)
                await storage.ack("readers", {TP: OffsetAndMetadata(ends[-1])})

        nursery.start_soon(commit_each)
        with trio.fail_after(20):
            await trio.to_thread.run_sync(wait_for_length, replica, 50)
            await trio.to_thread.run_sync(cut_off, replica)
            kept = await trio.to_thread.run_sync(length_of, replica)
            await trio.to_thread.run_sync(wait_for_length, primary, kept + 50)
        nursery.cancel_scope.cancel()
    async with open_redis_storage(promote(replica_pair).url) as storage:
        committed = (await storage.committed("readers"))[TP].offset
        end = (await storage.latest(TP)).high_watermark
        next_offset = (await append(storage, TP, numbered(1))).base_offset

    assert len(ends) >= kept + 50
    assert committed in (ends[kept - 1], ends[kept - 2])
    assert ends[kept - 1] == end
    assert committed <= end <= next_offset


def length_of(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.xlen("korvet:orders:0"))


def wait_for_length(server: RedisServer, length: int) -> None:
    eventually(lambda: length_of(server) >= length, f"{length} entries")


@on(VALKEY)
async def test_replicated_producer_has_to_send_lost_batches_again_in_order(replica_pair: ServerPair) -> None:
    former, promoted = replica_pair
    named, report = former.port, Report(replicas={promoted.port: "slave"})
    async with (
        scripted_sentinel(lambda: named, report) as port,
        open_redis_storage(sentinel_url(port)) as storage,
    ):
        await storage.create_topic("orders", 1, {**DENSE, "min.insync.replicas": "2"})
        ids = ProducerIds(storage)
        known, new = [await ids.allocate() for _ in range(2)]
        await append(storage, TP, numbered(3), producer=Producer(known))
        let_catch_up(replica_pair)
        # No producer gets an acknowledgement for these: acks=1 stands for a WAIT that is not answered.
        lost = [
            await append_batch(
                storage, TP, batch(numbered(2, first=3), producer=Producer(known, 0, 3)), acks=1
            ),
            await append_batch(storage, TP, batch(numbered(2, first=9), producer=Producer(new)), acks=1),
        ]
        with promoted.client() as client:
            client.replicaof("NO", "ONE")
        with former.client() as client:
            client.replicaof("127.0.0.1", promoted.port)
        named, report.replicas = promoted.port, {former.port: "slave"}
        await storage.monitor.check()
        with promoted.client() as client:
            client.set("last", 1)
            assert 1 == client.wait(1, 30_000)
        # A retriable error: after OutOfOrderSequenceNumber, librdkafka would send all with a new producer id.
        with pytest.raises(NotEnoughReplicas, match="sequence 3 comes next"):
            await append(storage, TP, numbered(1), producer=Producer(known, 0, 5))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, TP, numbered(1), producer=Producer(new, 0, 2))
        again = [
            await append(storage, TP, numbered(2, first=3), producer=Producer(known, 0, 3)),
            await append(storage, TP, numbered(2, first=9), producer=Producer(new)),
        ]
        values = [record.value for record in await records_from(storage, TP, 0)]

    assert max(each.base_offset for each in lost) < min(each.base_offset for each in again)
    assert [b"0", b"1", b"2", b"3", b"4", b"9", b"10"] == values


@on(VALKEY)
async def test_leader_epoch_rises_on_a_server_that_was_the_primary_before(
    replica_pair: ServerPair,
) -> None:
    former, promoted = replica_pair
    named = former.port

    async with (
        scripted_sentinel(lambda: named) as port,
        open_redis_storage(sentinel_url(port)) as storage,
    ):
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(3))
        let_catch_up(replica_pair)
        with promoted.client() as client:
            client.replicaof("NO", "ONE")
        named = promoted.port
        await storage.monitor.check()
        epochs = [await bounds_of(storage)]
        await append(storage, TP, numbered(2, first=3))
        # The former primary is named again, which has stayed in the process and the leader epoch in which it was.
        named = former.port
        await storage.monitor.check()
        epochs.append(await bounds_of(storage))
        again = await append(storage, TP, numbered(1, first=5))
        end = await storage.epoch_end(TP, 1)
        values = [record.value for record in await records_from(storage, TP, 0)]

    assert [1, 2] == epochs
    assert EpochEnd(0, 3) == end
    assert 5 == again.base_offset
    assert [b"0", b"1", b"2", b"5"] == values


def created_topics(server: RedisServer) -> object:
    """Return the number of topics that were ever created, as the server has it."""
    with server.client() as client:
        return client.hget("korvet:$topics", "$created")


@pytest.mark.parametrize("mapping", ["timestamp", "dense"])
async def test_offsets_are_reused_after_a_failover_only_under_dense_mapping(
    replica_pair: ServerPair, mapping: str
) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        await storage.create_topic("orders", 1, {"offset.mapping": mapping})
        kept = await append(storage, TP, numbered(3))
        let_catch_up(replica_pair)
        lost = await append(storage, TP, numbered(3))
    promoted = promote(replica_pair)
    async with open_redis_storage(promoted.url) as storage:
        bounds = await storage.latest(TP)
        again = await append(storage, TP, numbered(3))

    assert bounds.high_watermark == kept.base_offset + 3
    if mapping == "timestamp":
        assert again.base_offset > lost.base_offset + 2
    else:
        assert lost.base_offset == again.base_offset
    # The process that reads the bounds has not seen the lost records.
    assert 1 == bounds.leader_epoch


async def epochs_of(server: RedisServer) -> list[int]:
    """Return the leader epochs of a consumer's read, an append, and the log's bounds, each asked of a new broker."""
    epochs = []
    for ask in (read_at_the_end, append_one, bounds_of):
        async with open_redis_storage(server.url) as storage:
            epochs.append(await ask(storage))
    return epochs


async def read_at_the_end(storage: Storage) -> int:
    end = (await storage.latest(TP)).high_watermark
    return (await read(storage, TP, end)).offsets.leader_epoch


async def append_one(storage: Storage) -> int:
    await append(storage, TP, numbered(1))
    return await bounds_of(storage)


async def bounds_of(storage: Storage) -> int:
    return (await storage.latest(TP)).leader_epoch


@pytest.mark.parametrize("first", [bounds_of, append_one], ids=["read", "append"])
async def test_older_append_only_file_raises_the_leader_epoch(
    durable_server: RedisServer, tmp_path: Path, first: Callable[[Storage], Awaitable[int]]
) -> None:
    async with open_redis_storage(durable_server.url) as storage:
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(3))
        shutil.copytree(durable_server.folder, tmp_path / "older", ignore=shutil.ignore_patterns("s"))
        await append(storage, TP, numbered(3))
    durable_server.kill()
    shutil.copytree(tmp_path / "older", durable_server.folder, dirs_exist_ok=True)
    durable_server.start()
    async with open_redis_storage(durable_server.url) as storage:
        epoch = await first(storage)
        end = await storage.epoch_end(TP, 0)

    assert 1 == epoch
    assert EpochEnd(0, 3) == end


@pytest.mark.parametrize("mapping", ["timestamp", "dense"])
async def test_restarted_server_raises_the_leader_epoch_once(
    durable_server: RedisServer, mapping: str
) -> None:
    async with open_redis_storage(durable_server.url) as storage:
        await storage.create_topic("orders", 1, {"offset.mapping": mapping})
        appended = await append(storage, TP, numbered(3))
        before = await bounds_of(storage)
    durable_server.kill()
    durable_server.start()
    after = await epochs_of(durable_server)
    async with open_redis_storage(durable_server.url) as storage:
        end = await storage.epoch_end(TP, 0)

    assert 0 == before
    assert [1, 1, 1] == after
    assert EpochEnd(0, appended.base_offset + 3) == end


async def test_leader_epochs_without_records_are_not_stored(durable_server: RedisServer) -> None:
    async with open_redis_storage(durable_server.url) as storage:
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(3))
    ends = []
    for _ in range(3):
        durable_server.kill()
        durable_server.start()
        async with open_redis_storage(durable_server.url) as storage:
            await bounds_of(storage)
            ends.append(await storage.epoch_end(TP, 1))
    with durable_server.client() as client:
        stored = client.hget("{korvet:orders:0}:$state", "epochs")
    async with open_redis_storage(durable_server.url) as storage:
        await storage.truncate_before(TP, 3)
    durable_server.kill()
    durable_server.start()
    async with open_redis_storage(durable_server.url) as storage:
        only = await bounds_of(storage)
        unstored = await storage.epoch_end(TP, 0)

    assert b"0:1-0 3:4-0" == stored
    assert [EpochEnd(1, 3), EpochEnd(0, 3), EpochEnd(0, 3)] == ends
    assert (4, EpochEnd(0, 3)) == (only, unstored)


async def test_full_server_that_was_restarted_is_read_and_its_leader_epoch_raised_later(
    durable_server: RedisServer,
) -> None:
    async with open_redis_storage(durable_server.url) as storage:
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(3))
    durable_server.kill()
    durable_server.start()
    async with open_redis_storage(durable_server.url) as storage:
        with durable_server.client() as client:
            client.config_set("maxmemory", "1")
            records = await records_from(storage, TP, 0)
            full = await bounds_of(storage)
            refused = (await storage.append({TP: batch(numbered(1))}))[TP]
            client.config_set("maxmemory", "0")
        await noticed(lambda: bounds_of(storage), 1)

    assert [b"0", b"1", b"2"] == [record.value for record in records]
    assert isinstance(refused, KafkaStorageError)
    assert 0 == full


async def test_topic_numbers_repeat_after_a_failover_and_topic_ids_do_not(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        await storage.create_topic("orders", 1, {})
        let_catch_up(replica_pair)
        lost = await storage.create_topic("payments", 1, {})
        await storage.ack("billing", {TopicPartition("payments", 0): OffsetAndMetadata(7)})
        number = created_topics(replica_pair[0])
    promoted = promote(replica_pair)
    async with open_redis_storage(promoted.url) as storage:
        gone = await storage.topic("payments")
        again = await storage.create_topic("payments", 1, {})
        committed = await storage.committed("billing")

    assert gone is None
    assert number == created_topics(promoted)
    assert again.topic_id != lost.topic_id
    assert {} == committed


async def test_generation_fence_is_lost_in_a_failover(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        await storage.create_topic("orders", 1, {})
        await storage.ack("billing", {TP: OffsetAndMetadata(3)}, generation_id=1)
        let_catch_up(replica_pair)
        await storage.ack("billing", {TP: OffsetAndMetadata(9)}, generation_id=2)
    promoted = promote(replica_pair)
    async with open_redis_storage(promoted.url) as storage:
        before = await storage.committed("billing")
        results = await storage.ack("billing", {TP: OffsetAndMetadata(4)}, generation_id=1)

    assert {TP: OffsetAndMetadata(3)} == before
    assert {TP: None} == results


async def test_document_versions_repeat_after_a_failover(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        version = await storage.save("lease", "retention", b"first", expected_version=0)
        let_catch_up(replica_pair)
        lost = await storage.save("lease", "retention", b"lost", expected_version=version)
    promoted = promote(replica_pair)
    async with open_redis_storage(promoted.url) as storage:
        with pytest.raises(DocumentConflict):
            await storage.save("lease", "retention", b"behind", expected_version=lost)
        again = await storage.save("lease", "retention", b"again", expected_version=version)

    assert lost == again
