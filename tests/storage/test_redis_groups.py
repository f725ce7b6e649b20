"""Committed offsets of groups, and the corresponding Redis consumer groups, on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
import trio
from attrs import define

from korvet.concurrency.background import background_nursery
from korvet.protocol.errors import IllegalGeneration, KafkaStorageError, UnknownTopicOrPartition
from korvet.protocol.record_batch import build_batch
from korvet.storage.interface import OffsetAndMetadata, StorageDefaults, Topic, TopicPartition
from korvet.storage.redis.catalogue import Catalogue
from korvet.storage.redis.client.caller import SingleServer
from korvet.storage.redis.client.connection import RedisConnection, open_connection
from korvet.storage.redis.client.replies import Command, Reply, as_map
from korvet.storage.redis.client.server import connections_beside
from korvet.storage.redis.groups import Groups
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.leader_epochs import LeaderEpochs
from korvet.storage.redis.partitions import Partitions
from korvet.storage.redis.staged_offsets import StagedOffsets
from tests.servers import RedisServer

TP = TopicPartition("orders", 0)
STREAM = b"korvet:orders:0"
GROUP = b"korvet:$group:billing"

# By layout and mapping: how an entry's ID follows from its number, and the offset after it.
KINDS = {
    "record-dense": {"storage.layout": "record", "offset.mapping": "dense"},
    "record-timestamp": {"storage.layout": "record", "offset.mapping": "timestamp"},
    "batch-dense": {"storage.layout": "batch", "offset.mapping": "dense"},
    "batch-timestamp": {"storage.layout": "batch", "offset.mapping": "timestamp"},
}


@define
class Store:
    """The parts of a storage that positions need, and the server itself."""

    redis: RedisConnection
    catalogue: Catalogue
    groups: Groups
    major: int  # version of Redis that the server is compatible with
    settings: dict[str, str]

    async def create(self, name: str = "orders", partitions: int = 1) -> Topic:
        return (await self.catalogue.create(name, partitions, self.settings)).topic

    async def delete(self, topic: Topic) -> None:
        deleted = await self.catalogue.delete(topic)
        for number in range(deleted.topic.partitions):
            tp = TopicPartition(topic.name, number)
            await self.redis.execute(b"DEL", *self.groups.keyspace.partition(tp).all)

    def entry_id(self, number: int) -> bytes:
        """Return the ID of entry `number`, counted from 0."""
        return b"%d-0" % (number + 1) if self.is_dense else b"1000-%d" % number

    def offset(self, number: int) -> int:
        """Its offset."""
        return number if self.is_dense else (1000 << 10) + number

    @property
    def is_dense(self) -> bool:
        return self.settings["offset.mapping"] == "dense"

    @property
    def is_batch(self) -> bool:
        return self.settings["storage.layout"] == "batch"

    async def add(self, *numbers: int) -> None:
        """Add entries by hand."""
        for number in numbers:
            await self.redis.execute(b"XADD", STREAM, self.entry_id(number), b"value", b"%d" % number)

    async def commit(self, offset: int, metadata: str = "", generation_id: int = -1) -> None:
        position = OffsetAndMetadata(offset, 0, metadata)
        results = await self.groups.ack("billing", {TP: position}, generation_id=generation_id)
        for error in results.values():
            if error is not None:
                raise error

    async def info(self) -> dict[bytes, Reply]:
        """Return the group's entry of XINFO GROUPS."""
        (info,) = cast(list[Reply], await self.redis.execute(b"XINFO", b"GROUPS", STREAM))
        return as_map(info)

    async def received_bytes(self) -> int:
        """Return how many bytes the server has received from clients."""
        stats = cast(bytes, await self.redis.execute(b"INFO", b"stats"))
        (line,) = (each for each in stats.split(b"\r\n") if each.startswith(b"total_net_input_bytes"))
        return int(line.partition(b":")[2])

    async def deliver(self, count: int) -> None:
        """Let a plain Redis consumer of the group read, acknowledging nothing."""
        await self.redis.execute(
            *(b"XREADGROUP", b"GROUP", b"billing", b"worker", b"COUNT", count, b"STREAMS", STREAM, b">")
        )


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
async def store(redis_server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with open_connection(redis_server.url) as redis, background_nursery() as nursery:
        keyspace, defaults = Keyspace(), StorageDefaults()
        caller = SingleServer(connections_beside(redis, nursery))
        catalogue = Catalogue(caller, keyspace, defaults)
        epochs = LeaderEpochs(caller, keyspace, nursery)
        partitions = Partitions(caller, catalogue, keyspace, defaults, epochs)
        hello = as_map(await redis.execute(b"HELLO"))
        major = int(cast(bytes, hello[b"version"]).partition(b".")[0])
        yield Store(redis, catalogue, Groups(caller, keyspace, partitions), major, request.param)


async def test_committed_offset_is_read_back(store: Store) -> None:
    await store.create()
    await store.commit(44, "processed batch 123, \n äöü")

    assert {TP: OffsetAndMetadata(44, 0, "processed batch 123, \n äöü")} == await store.groups.committed(
        "billing", [TP]
    )
    assert {} == await store.groups.committed("other", [TP])


async def test_stored_offset_is_human_readable(store: Store) -> None:
    topic = await store.create()
    await store.commit(44, "note")
    value = cast(bytes, await store.redis.execute(b"HGET", GROUP, b"offset:orders:0"))
    offset, epoch, committed_ms, topic_id, metadata = value.split(b" ")

    assert (offset, epoch, topic_id, metadata) == (b"44", b"0", str(topic.topic_id).encode(), b"note")
    assert int(committed_ms) > 1_600_000_000_000
    assert [b"billing"] == await store.redis.execute(b"SMEMBERS", b"korvet:$groups")


@pytest.mark.parametrize("damaged", [b"junk", b"[]", b'{"offsets": 7}', b'{"offsets": {"orders": ""}}', None])
async def test_damaged_staged_offsets_do_not_prevent_commits(store: Store, damaged: bytes | None) -> None:
    await store.create()
    await store.redis.execute(b"HSET", GROUP, b"open", b"7")
    if damaged is not None:
        await store.redis.execute(b"HSET", GROUP, b"staged:7", damaged)
    await store.commit(44)
    await store.groups.forget("billing", [TopicPartition("orders", 1)])

    assert 44 == (await store.groups.committed("billing", [TP]))[TP].offset
    staged = StagedOffsets(store.groups)
    if damaged is None:
        assert not await staged.unstable("billing")
    else:
        with pytest.raises(KafkaStorageError, match=r"^staged offsets of group 'billing' are damaged"):
            await staged.unstable("billing")


async def test_all_committed_offsets_include_all_topics(store: Store) -> None:
    await store.create("orders", 2)
    await store.create("payments", 1)
    tps = [TopicPartition("orders", 1), TopicPartition("payments", 0)]
    await store.groups.ack("billing", {tp: OffsetAndMetadata(7) for tp in tps})

    assert {tp: OffsetAndMetadata(7) for tp in tps} == await store.groups.committed("billing")


async def test_unknown_partition_does_not_fail_other_partitions(store: Store) -> None:
    await store.create()
    unknown = [TopicPartition("orders", 1), TopicPartition("nowhere", 0)]
    results = await store.groups.ack("billing", dict.fromkeys([*unknown, TP], OffsetAndMetadata(1)))

    assert [
        UnknownTopicOrPartition,
        UnknownTopicOrPartition,
        type(None),
    ] == [type(results[tp]) for tp in (*unknown, TP)]
    assert {TP: OffsetAndMetadata(1)} == await store.groups.committed("billing", [*unknown, TP])


async def test_old_generation_is_refused_without_a_change(store: Store) -> None:
    await store.create()
    await store.add(0, 1, 2)
    await store.commit(store.offset(2), generation_id=5)
    before = await store.info()
    with pytest.raises(IllegalGeneration, match="generation 5"):
        await store.commit(store.offset(1), generation_id=4)

    assert {TP: OffsetAndMetadata(store.offset(2), 0)} == await store.groups.committed("billing", [TP])
    assert before == await store.info()


async def test_same_later_and_missing_generations_are_accepted(store: Store) -> None:
    await store.create()
    for offset, generation_id in enumerate([5, 5, 6, -1]):
        await store.commit(offset, generation_id=generation_id)

    assert {TP: OffsetAndMetadata(3, 0)} == await store.groups.committed("billing", [TP])


async def test_redis_group_is_before_the_committed_offset(store: Store) -> None:
    await store.create()
    await store.add(*range(5))
    await store.commit(store.offset(3))
    info = await store.info()

    assert (info[b"name"], info[b"last-delivered-id"]) == (b"billing", store.entry_id(2))


async def test_committed_offset_0_sets_the_redis_group_to_the_start(store: Store) -> None:
    await store.create()
    await store.commit(0)

    assert b"0-0" == (await store.info())[b"last-delivered-id"]


async def test_redis_group_moves_back_with_the_committed_offset(store: Store) -> None:
    await store.create()
    await store.add(*range(5))
    await store.commit(store.offset(4))
    await store.commit(store.offset(2))

    assert (await store.info())[b"last-delivered-id"] == store.entry_id(1)


@pytest.mark.parametrize("committed", [2, 3, 6, 7])
async def test_redis_group_has_the_last_entry_before_the_committed_offset(
    store: Store, committed: int
) -> None:
    await store.create()
    await store.add(0, 1, 6)
    await store.commit(store.offset(committed))

    assert store.entry_id(1 if committed <= 6 else 6) == (await store.info())[b"last-delivered-id"]


async def test_redis_group_has_the_entry_before_the_next_millisecond(store: Store) -> None:
    await store.create()
    await store.add(0, 1)
    await store.commit(7 if store.is_dense else 1001 << 10)

    assert store.entry_id(1) == (await store.info())[b"last-delivered-id"]


async def test_redis_group_may_have_an_entry_without_offset(store: Store) -> None:
    await store.create()
    await store.add(0)
    without = b"7-3" if store.is_dense else b"1000-5000"
    await store.redis.execute(b"XADD", STREAM, without, b"value", b"v")
    await store.commit(7 if store.is_dense else 1001 << 10)

    assert without == (await store.info())[b"last-delivered-id"]


async def test_redis_group_has_no_entry_when_all_before_the_offset_are_trimmed(
    store: Store,
) -> None:
    await store.create()
    await store.add(*range(5))
    await store.redis.execute(b"XTRIM", STREAM, b"MAXLEN", b"=", 1)
    await store.commit(store.offset(3))

    assert store.entry_id(2) == (await store.info())[b"last-delivered-id"]


async def test_commit_inside_a_batch_sets_the_redis_group_to_the_batch_before(store: Store) -> None:
    await store.create()
    await store.add(0)
    batch = build_batch([(delta, 1, None, b"v", ()) for delta in range(3)])
    await store.redis.execute(b"XADD", STREAM, store.entry_id(3), b"$batch", bytes(batch))
    await store.commit(store.offset(2))

    assert store.entry_id(0) == (await store.info())[b"last-delivered-id"]


@pytest.mark.parametrize("consumed", [0, 1, 250, 499, 500])
async def test_lag_of_the_redis_group_is_exact_at_any_committed_offset(store: Store, consumed: int) -> None:
    await store.create()
    await store.redis.pipeline(
        [(b"XADD", STREAM, store.entry_id(number), b"value", b"v" * 1000) for number in range(500)]
    )
    await store.commit(store.offset(consumed) if consumed else 0)
    lag = (await store.info()).get(b"lag")

    assert lag == (500 - consumed if store.major >= 7 else None)


async def test_lag_of_the_redis_group_is_exact_after_trimming_and_appends(store: Store) -> None:
    await store.create()
    await store.add(*range(6))
    await store.commit(store.offset(4))
    await store.redis.execute(b"XTRIM", STREAM, b"MAXLEN", b"=", 3)
    await store.commit(store.offset(4))
    await store.add(6, 7)
    lag = (await store.info()).get(b"lag")

    assert lag == (4 if store.major >= 7 else None)


async def test_pending_entries_are_acknowledged_up_to_the_committed_offset(store: Store) -> None:
    await store.create()
    total = 2500
    await store.redis.pipeline(
        [(b"XADD", STREAM, b"%d-0" % (1000 + number), b"value", b"v") for number in range(total)]
    )
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", b"0-0")
    await store.deliver(total)
    last = 1000 + total - 2
    await store.commit(last if store.is_dense else (last << 10) + 1)
    pending = cast(list[object], await store.redis.execute(b"XPENDING", STREAM, b"billing"))

    assert [1, b"%d-0" % (last + 1), b"%d-0" % (last + 1)] == pending[:3]


async def test_pending_entries_that_were_deleted_are_acknowledged_up_to_the_committed_offset(
    store: Store,
) -> None:
    await store.create()
    await store.add(0, 1, 2)
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", b"0-0")
    await store.deliver(3)
    await store.redis.execute(b"XDEL", STREAM, store.entry_id(1))
    await store.commit(store.offset(2))
    pending = cast(list[object], await store.redis.execute(b"XPENDING", STREAM, b"billing"))

    assert [1, store.entry_id(2), store.entry_id(2)] == pending[:3]


async def test_committed_offset_of_a_redis_group_follows_its_delivered_entries(store: Store) -> None:
    await store.create()
    await store.add(*range(5))
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", b"0-0")
    await store.deliver(3)
    await store.redis.execute(b"XACK", STREAM, b"billing", *(store.entry_id(number) for number in range(3)))

    expected = {TP: OffsetAndMetadata(store.offset(3))}
    assert expected == await store.groups.committed("billing", [TP])
    assert expected == await store.groups.committed("billing")


async def test_pending_batch_is_read_again_from_its_first_record(store: Store) -> None:
    await store.create()
    batch = build_batch([(0, 1, None, b"a", ()), (1, 1, None, b"b", ()), (2, 1, None, b"c", ())])
    await store.redis.execute(b"XADD", STREAM, store.entry_id(4), b"$batch", bytes(batch))
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", b"0-0")
    await store.deliver(1)
    first = store.offset(2) if store.is_batch else store.offset(4)

    assert {TP: OffsetAndMetadata(first)} == await store.groups.committed("billing", [TP])


async def test_redis_group_without_deliveries_starts_at_the_log_start(store: Store) -> None:
    await store.create()
    await store.add(*range(3))
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", b"0-0")

    assert {TP: OffsetAndMetadata(store.offset(0))} == await store.groups.committed("billing", [TP])


async def test_redis_group_at_an_id_without_offset_gets_the_next_offset(store: Store) -> None:
    await store.create()
    without = b"7-3" if store.is_dense else b"7-5000"
    await store.redis.execute(b"XADD", STREAM, without, b"value", b"v")
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", b"$")
    expected = 7 if store.is_dense else 8 << 10

    assert {TP: OffsetAndMetadata(expected)} == await store.groups.committed("billing", [TP])


async def test_forgotten_offset_is_not_derived_from_the_redis_group(store: Store) -> None:
    await store.create("orders", 2)
    other = TopicPartition("orders", 1)
    await store.groups.ack("billing", dict.fromkeys([TP, other], OffsetAndMetadata(3)))
    await store.groups.forget("billing", [TP])

    assert {other: OffsetAndMetadata(3)} == await store.groups.committed("billing")


async def test_forgotten_group_leaves_no_keys(store: Store) -> None:
    await store.create("orders", 2)
    await store.commit(3, generation_id=9)
    await store.groups.forget("billing")
    await store.groups.forget("billing", [])
    await store.groups.forget("never there")

    assert {} == await store.groups.committed("billing")
    assert 0 == await store.redis.execute(b"EXISTS", GROUP, b"korvet:$groups")
    assert [] == await store.redis.execute(b"XINFO", b"GROUPS", STREAM)


async def test_recreated_topic_has_no_committed_offsets(store: Store) -> None:
    topic = await store.create()
    await store.commit(3, "old")
    await store.delete(topic)
    await store.create()

    assert {} == await store.groups.committed("billing", [TP])


async def test_offsets_of_a_deleted_topic_are_removed_but_not_of_the_recreated_one(store: Store) -> None:
    topic = await store.create("orders", 2)
    await store.groups.ack("billing", {TopicPartition("orders", 1): OffsetAndMetadata(3)})
    await store.commit(3)
    await store.delete(topic)
    await store.create()
    await store.commit(1)
    await store.groups.forget_topic(topic)

    fields = cast(list[bytes], await store.redis.execute(b"HKEYS", GROUP))
    assert [b"offset:orders:0"] == sorted(fields)
    assert {TP: OffsetAndMetadata(1, 0)} == await store.groups.committed("billing")


async def test_forget_of_a_large_topic_sends_few_bytes_for_each_group(store: Store) -> None:
    topic = await store.create("orders", 2_000)
    other = TopicPartition("orders", 1_999)
    for number in range(20):
        await store.groups.ack(f"group {number}", {other: OffsetAndMetadata(3)})
    await store.delete(topic)
    before = await store.received_bytes()
    await store.groups.forget_topic(topic)

    assert await store.received_bytes() - before < 20_000
    assert 0 == await store.redis.execute(b"HLEN", b"korvet:$group:group 7")


async def test_lookup_of_a_group_without_offsets_does_not_list_other_groups(store: Store) -> None:
    await store.create()
    await store.add(0, 1)
    await store.commit(store.offset(1))
    await store.redis.execute(b"CONFIG", b"RESETSTAT")

    assert {} == await store.groups.committed("other", [TP])
    stats = cast(bytes, await store.redis.execute(b"INFO", b"commandstats"))
    assert b"xinfo" not in stats


async def test_malformed_committed_offset_is_ignored(store: Store) -> None:
    await store.create()
    await store.redis.execute(b"HSET", GROUP, b"offset:orders:0", b"nonsense")

    assert {} == await store.groups.committed("billing", [TP])


async def test_commits_survive_a_script_flush_and_many_tasks(store: Store) -> None:
    await store.create("orders", 20)
    tps = [TopicPartition("orders", number) for number in range(20)]

    async def commit(group_id: str) -> None:
        for offset in range(5):
            results = await store.groups.ack(group_id, dict.fromkeys(tps, OffsetAndMetadata(offset)))
            assert {None} == set(results.values())

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(commit, f"group {number}")
            await store.redis.execute(b"SCRIPT", b"FLUSH")

    for number in range(5):
        positions = await store.groups.committed(f"group {number}", tps)
        assert dict.fromkeys(tps, OffsetAndMetadata(4)) == positions


async def test_groups_of_many_partitions_are_read_some_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group without a committed offset asks for every partition of the broker; other requests come in between."""
    await store.create(partitions=1_000)
    await store.add(0, 1)
    await store.redis.execute(b"XGROUP", b"CREATE", STREAM, b"billing", store.entry_id(0))
    together: list[int] = []
    pipeline = SingleServer.pipeline

    async def counted(self: SingleServer, commands: Sequence[Command], **options: bool) -> list[Reply]:
        together.append(len(commands))
        return await pipeline(self, commands, **options)

    monkeypatch.setattr(SingleServer, "pipeline", counted)
    found = await store.groups.committed("billing")

    assert {TP: store.offset(1)} == {tp: each.offset for tp, each in found.items()}
    assert 2_000 <= sum(together)
    assert 400 == max(together)
