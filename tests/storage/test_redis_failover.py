"""A replica that lagged becomes the primary: the store has gone back in time, with the numbers that it counts."""

from __future__ import annotations

import time

import pytest

from korvet.broker.producer_ids import ProducerIds
from korvet.storage.interface import DocumentConflict, OffsetAndMetadata, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import append, numbered
from tests.servers import RedisServer, ServerPair

pytestmark = pytest.mark.servers


def let_catch_up(pair: ServerPair) -> None:
    """Wait until the replica has received everything, and cut it off."""
    with pair[0].client() as client:
        client.set("last", 1)  # WAIT answers for what its own connection wrote
        assert client.wait(1, 30_000) == 1
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


def a_second_later() -> int:
    return time.time_ns() // 1_000_000 + 1000


async def test_producer_ids_are_not_reused_by_a_promoted_replica(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        before = {await ProducerIds(storage).allocate() for _ in range(3)}
        let_catch_up(replica_pair)
        lost = {await ProducerIds(storage).allocate() for _ in range(3)}
    promoted = promote(replica_pair)

    # A failover takes at least a second: a broker notices it, and a replica is promoted.
    async with open_redis_storage(promoted.url) as storage:
        after = {await ProducerIds(storage, a_second_later).allocate() for _ in range(3)}

    assert len(before | lost | after) == 9
    assert max(before | lost) < min(after) < 2**53


TP = TopicPartition("orders", 0)


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
        assert again.base_offset == lost.base_offset
    # This process has not seen the lost records, so nothing raises the leader epoch.
    assert bounds.leader_epoch == 0


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
    assert created_topics(promoted) == number
    assert again.topic_id != lost.topic_id
    assert committed == {}


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

    assert before == {TP: OffsetAndMetadata(3)}
    assert results == {TP: None}


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

    assert again == lost
