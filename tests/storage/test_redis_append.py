"""Appending while things go wrong: order, tokens, a full or read-only server, replicas that are silent."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, field

from korvet.protocol.errors import (
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import AppendResult, PendingAppend, Storage, StorageDefaults, TopicPartition
from korvet.storage.redis.append import appender as redis_append
from korvet.storage.redis.append import layouts as redis_layouts
from korvet.storage.redis.client.wait_connections import MAX_CONNECTIONS
from korvet.storage.redis.partition import Known
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.records import (
    Producer,
    Record,
    append,
    append_batch,
    batch,
    numbered,
    records_from,
    results_of,
)
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
RESTARTS = 4

each_layout = pytest.mark.parametrize("layout", ["record", "batch"])

# Longer than a loaded machine pauses, and shorter than the limits whose effect is excluded: 25 s and more.
PATIENCE_S = 15.0
PARTITIONS_THAT_WAIT = MAX_CONNECTIONS + 4


@asynccontextmanager
async def broker_on(server: RedisServer, layout: str = "record", **settings: str) -> AsyncIterator[Storage]:
    """Yield a broker's storage on the server, with the topic "orders", which is created if it does not exist."""
    defaults = StorageDefaults(retention_check_interval_ms=0)
    settings = {"storage.layout": layout, "retention.ms": "-1", **settings}
    async with open_redis_storage(server.url, defaults=defaults) as storage:
        if await storage.topic("orders") is None:
            await storage.create_topic("orders", 3, settings)
        yield storage


@define
class Stored:
    """The results of appends, in the order of their arrival."""

    results: list[AppendResult] = field(factory=list)
    _changed: trio.Event = field(factory=trio.Event)

    def add(self, result: AppendResult) -> None:
        self.results.append(result)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for_more(self, count: int) -> None:
        """Wait until `count` more results have arrived."""
        target = len(self.results) + count
        while len(self.results) < target:
            await self._changed.wait()


async def append_until_stored(storage: Storage, values: Sequence[bytes], stored: Stored) -> None:
    """Append records one after the other like a producer without idempotence: retry only after retriable errors."""
    for value in values:
        result: AppendResult | KafkaError | None = None
        while not isinstance(result, AppendResult):
            (result,) = (await storage.append({TP: batch([Record(value)])}, timeout_s=60)).values()
            assert isinstance(result, AppendResult) or result.retriable
        stored.add(result)


async def values_of(storage: Storage) -> list[bytes | None]:
    return [record.value for record in await records_from(storage, TP)]


# --- Order ------------------------------------------------------------------------------------------------


async def append_in_order(storage: Storage, count: int, disturb: Callable[[int], Any]) -> list[Any]:
    """Append `count` batches, each begun as soon as the order of the one before is fixed."""
    begun = []
    for number in range(count):
        disturb(number)
        begun.append(await storage.begin_append({TP: batch([Record(b"%d" % number)])}))
    return [(await results_of(each))[TP] for each in begun]


@each_layout
async def test_flushed_scripts_do_not_change_the_order(redis_server: RedisServer, layout: str) -> None:
    async with broker_on(redis_server, layout) as storage:
        with redis_server.client() as client:
            results = await append_in_order(
                storage, 200, lambda number: client.script_flush() if number % 20 == 10 else None
            )

        assert all(isinstance(result, AppendResult) for result in results)
        assert [b"%d" % number for number in range(200)] == await values_of(storage)


@each_layout
async def test_lost_connections_keep_records_unique_and_ordered(
    redis_server: RedisServer, layout: str
) -> None:
    async with broker_on(redis_server, layout) as storage:
        with redis_server.client() as client:

            def disturb(number: int) -> None:
                if number % 20 == 10:
                    client.client_kill_filter(_type="normal", skipme=True)

            results = await append_in_order(storage, 200, disturb)
        stored = [b"%d" % number for number, each in enumerate(results) if isinstance(each, AppendResult)]

        assert all(isinstance(result, AppendResult) or result.retriable for result in results)
        assert len(stored) >= 100
        assert stored == await values_of(storage)


async def test_waiting_batches_are_sent_in_one_call(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, [Record(b"-")])
        with redis_server.client() as client:
            client.config_resetstat()
            # While the server is stopped, all batches but the first few wait.
            steps = {0: redis_server.pause, 499: redis_server.resume}
            await append_in_order(storage, 500, lambda number: steps.get(number, lambda: None)())
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]

        assert 501 == len(await values_of(storage))
        assert calls < 100


# --- Tokens: the server dies ---------------------------------------------------------------------------------


@each_layout
async def test_killed_server_loses_and_duplicates_no_plain_record(
    durable_server: RedisServer, layout: str
) -> None:
    chance = random.Random(layout)
    stored = Stored()
    values = [b"%d" % number for number in range(1500)]
    async with broker_on(durable_server, layout) as storage, trio.open_nursery() as nursery:
        nursery.start_soon(append_until_stored, storage, values, stored)
        for _ in range(RESTARTS):
            await stored.wait_for_more(50)
            await trio.sleep(chance.uniform(0, 0.005))
            durable_server.kill()
            durable_server.start()

    async with broker_on(durable_server, layout) as storage:
        assert values == await values_of(storage)
    offsets = [result.base_offset for result in stored.results]
    assert sorted(set(offsets)) == offsets


async def test_two_brokers_lose_and_duplicate_no_record_when_the_server_is_killed(
    durable_server: RedisServer,
) -> None:
    stored = Stored()
    values = [[b"%d %d" % (broker, number) for number in range(600)] for broker in range(2)]
    async with broker_on(durable_server) as first, broker_on(durable_server) as second:
        async with trio.open_nursery() as nursery:
            for storage, own_values in zip((first, second), values, strict=True):
                nursery.start_soon(append_until_stored, storage, own_values, stored)
            for _ in range(RESTARTS):
                await stored.wait_for_more(50)
                durable_server.kill()
                durable_server.start()
        found = await values_of(first)

    for own_values in values:
        assert own_values == [value for value in found if value in set(own_values)]
    assert 1200 == len(found)


async def test_timed_out_append_is_not_repeated(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may already have sent the batch again. Later appends continue."""
    monkeypatch.setattr(redis_append, "APPEND_LIMIT_S", 0.2)
    async with broker_on(redis_server) as storage:
        await append(storage, TP, [Record(b"before")])
        redis_server.pause()
        try:
            (result,) = (await storage.append({TP: batch([Record(b"late")])}, timeout_s=0)).values()
        finally:
            redis_server.resume()
        await append(storage, TP, [Record(b"after")])

        assert isinstance(result, RequestTimedOut)
        assert await values_of(storage) in ([b"before", b"late", b"after"], [b"before", b"after"])


# --- A server that refuses ----------------------------------------------------------------------------------


async def fill(server: RedisServer, *, spare: int = 0) -> None:
    """Limit the server's memory to what it uses now, plus `spare` bytes."""
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + spare)


@each_layout
async def test_full_server_stores_no_part_of_a_batch(redis_server: RedisServer, layout: str) -> None:
    async with broker_on(redis_server, layout) as storage:
        await append(storage, TP, numbered(10))
        await fill(redis_server)
        try:
            with pytest.raises(KafkaStorageError):
                await append(storage, TP, [Record(b"x" * 10_000) for _ in range(50)])
            assert [b"%d" % number for number in range(10)] == await values_of(storage)
        finally:
            with redis_server.client() as client:
                client.config_set("maxmemory", 0)

        await append(storage, TP, numbered(1, first=10))
        assert [b"%d" % number for number in range(11)] == await values_of(storage)


@each_layout
async def test_full_server_enforces_retention_and_accepts_appends(
    redis_server: RedisServer, layout: str
) -> None:
    async with broker_on(redis_server, layout) as storage:
        for _ in range(100):
            await append(storage, TP, [Record(b"x" * 10_000) for _ in range(10)])
        topic = await storage.topic("orders")
        assert topic is not None
        await storage.alter_topic(topic, settings={**topic.settings, "retention.bytes": "1000000"})
        await fill(redis_server)
        try:
            await append(storage, TP, [Record(b"last")])
        finally:
            with redis_server.client() as client:
                client.config_set("maxmemory", 0)
                entries = client.xlen("korvet:orders:0")

        assert entries <= (101 if layout == "batch" else 1001) // 2
        assert (await storage.latest(TP)).log_start_offset > 0


async def test_read_only_server_is_a_retriable_error(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(1))
        with redis_server.client() as client:
            client.config_set("replica-read-only", "yes")
            client.replicaof("127.0.0.1", "1")
            try:
                with pytest.raises(KafkaStorageError) as refused:
                    await append(storage, TP, numbered(1, first=1))
                found = await values_of(storage)
            finally:
                client.replicaof("NO", "ONE")
        await append(storage, TP, numbered(1, first=2))

        assert refused.value.retriable
        assert [b"0"] == found
        assert [b"0", b"2"] == await values_of(storage)


@pytest.mark.parametrize("sequences", [(0, 1, 2), (3, 4, 5)], ids=["new producer", "known producer"])
async def test_batches_do_not_overtake_a_timed_out_one_of_their_producer(
    redis_server: RedisServer, sequences: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(sequence: int) -> dict[TopicPartition, RecordBatch]:
        return {TP: batch(numbered(1, first=sequence), producer=Producer(7, sequence=sequence))}

    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(1), producer=Producer(8))
        for sequence in range(sequences[0]):
            await append(storage, TP, numbered(1, first=sequence), producer=Producer(7, sequence=sequence))
        redis_server.pause()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(redis_append, "APPEND_LIMIT_S", 0.2)
                (first,) = (await storage.append(sent(sequences[0]), timeout_s=0)).values()
        finally:
            redis_server.resume()
        # Those that were sent after it, when Redis is back, and before it comes again.
        late = [
            (await storage.append({TP: batch(numbered(1), producer=Producer(7, sequence=sequence))}))[TP]
            for sequence in sequences[1:]
        ]
        begun = [await storage.begin_append(sent(sequence)) for sequence in sequences]
        results = [(await results_of(each))[TP] for each in begun]

        assert isinstance(first, RequestTimedOut)
        assert [RequestTimedOut] * 2 == [type(each) for each in late]
        assert all(isinstance(each, AppendResult) for each in results)
        values = [b"0", *(b"%d" % sequence for sequence in range(sequences[-1] + 1))]
        assert values == await values_of(storage)


async def test_queued_batches_do_not_overtake_a_failed_one(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(1), producer=Producer(8))
        redis_server.pause()
        try:
            begun = []
            for sequence in range(3):
                # The first batch is given up early, the others wait until Redis is back.
                monkeypatch.setattr(redis_append, "APPEND_LIMIT_S", 0.2 if sequence == 0 else 60.0)
                sent = batch(numbered(1, first=sequence), producer=Producer(7, sequence=sequence))
                begun.append(await storage.begin_append({TP: sent}, timeout_s=0))
            results = [(await results_of(begun[0]))[TP]]
            redis_server.resume()
            results += [(await results_of(each))[TP] for each in begun[1:]]
        finally:
            redis_server.resume()
        for sequence in range(3):
            await append(storage, TP, numbered(1, first=sequence), producer=Producer(7, sequence=sequence))

        assert [RequestTimedOut] * 3 == [type(result) for result in results]
        assert [b"0", b"0", b"1", b"2"] == await values_of(storage)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("timeout_s", [0, 0.001])
async def test_timeout_of_the_client_does_not_limit_the_append(
    redis_server: RedisServer, acks: int, timeout_s: float
) -> None:
    async with broker_on(redis_server) as storage:
        results = [
            (await storage.append({TP: batch(numbered(1, first=n))}, acks=acks, timeout_s=timeout_s))[TP]
            for n in range(50)
        ]

        assert [AppendResult] * 50 == [type(result) for result in results]
        assert [b"%d" % n for n in range(50)] == await values_of(storage)


async def test_killed_server_is_a_retriable_error(
    durable_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_append, "APPEND_LIMIT_S", 0.5)
    async with broker_on(durable_server) as storage:
        await append(storage, TP, numbered(1))
        durable_server.kill()
        began = time.monotonic()
        (result,) = (await storage.append({TP: batch(numbered(1))}, timeout_s=0)).values()
        took_s = time.monotonic() - began
        durable_server.start()
        await append(storage, TP, numbered(1, first=1))

        assert isinstance(result, KafkaError)
        assert result.retriable
        assert took_s < PATIENCE_S
        assert [b"0", b"1"] == await values_of(storage)


async def test_key_that_is_not_a_stream_fails_only_its_partition(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        with redis_server.client() as client:
            client.set("korvet:orders:1", "somebody else's")
            other = TopicPartition("orders", 1)
            results = await storage.append({TP: batch(numbered(1)), other: batch(numbered(1))})
            assert b"somebody else's" == client.get("korvet:orders:1")

        assert isinstance(results[TP], AppendResult)
        assert isinstance(results[other], KafkaStorageError)


# --- What cannot be stored ----------------------------------------------------------------------------------


async def test_batch_with_too_many_headers_is_refused_completely(redis_server: RedisServer) -> None:
    headers = tuple((f"h{number}", b"") for number in range(StorageDefaults().record_max_headers + 1))
    async with broker_on(redis_server) as storage:
        fits = await append(storage, TP, [Record(headers=headers[1:])])
        with pytest.raises(InvalidRecord):
            await append(storage, TP, [Record(b"fine"), Record(headers=headers)])

        assert [fits.base_offset] == [record.offset for record in await records_from(storage, TP)]


async def test_batch_of_too_many_records_for_one_call_is_refused_completely(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_layouts, "MAX_ARGUMENTS", 1000)
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(900))
        with pytest.raises(MessageTooLarge):
            await append(storage, TP, numbered(1001))

        assert 900 == len(await values_of(storage))


@each_layout
async def test_batch_of_too_many_records_is_stored_completely_or_refused(
    redis_server: RedisServer, layout: str
) -> None:
    """In the record layout its script would delay all other clients."""
    limit = 1000
    defaults = StorageDefaults(record_max_batch_records=limit)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        await append(storage, TP, [Record(None, timestamp=n % 7) for n in range(limit)])
        (result,) = (await storage.append({TP: batch([Record(None)] * (limit + 1))})).values()

        assert (layout == "record") == isinstance(result, MessageTooLarge)
        assert (limit if layout == "record" else 2 * limit + 1) == len(await records_from(storage, TP))


async def test_batch_of_as_many_records_as_fit_in_a_megabyte_is_stored(redis_server: RedisServer) -> None:
    defaults = StorageDefaults(record_max_batch_records=150_000)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        await storage.create_topic("orders", 1, {})
        await append(storage, TP, [Record(None, timestamp=n % 7) for n in range(140_000)])

        assert 140_000 == len(await records_from(storage, TP))


# --- Replicas -----------------------------------------------------------------------------------------------


@each_layout
async def test_acks_all_and_its_retry_fail_in_time_with_silent_replicas(
    replica_pair: tuple[RedisServer, RedisServer], layout: str
) -> None:
    primary, replica = replica_pair
    settings = {"min.insync.replicas": "2"}
    sent = batch(numbered(3), producer=Producer(7))
    async with broker_on(primary, layout, **settings) as storage:
        confirmed = await append(storage, TP, numbered(1))
        replica.pause()
        began = time.monotonic()
        errors = [(await storage.append({TP: sent}, timeout_s=0.5))[TP] for _ in range(2)]
        took_s = time.monotonic() - began
        unconfirmed = await append_batch(storage, TP, batch(numbered(1)), acks=1)
        replica.resume()
        again = await append_batch(storage, TP, sent)
        last = await append(storage, TP, numbered(1))
        found = len(await records_from(storage, TP))

    assert [NotEnoughReplicasAfterAppend] * 2 == [type(error) for error in errors]
    assert took_s < PATIENCE_S
    assert again.duplicate
    assert confirmed.base_offset < again.base_offset < unconfirmed.base_offset < last.base_offset
    assert 6 == found


async def test_waiting_for_replicas_does_not_delay_other_appends(
    replica_pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = replica_pair
    async with broker_on(primary, **{"min.insync.replicas": "2"}) as storage:
        await storage.create_topic("easy", 1, {})
        settings = {"min.insync.replicas": "2", "retention.ms": "-1"}
        await storage.create_topic("many", PARTITIONS_THAT_WAIT, settings)
        waiting = [TopicPartition("many", partition) for partition in range(PARTITIONS_THAT_WAIT)]
        for tp in (*waiting, TopicPartition("easy", 0)):
            await append(storage, tp, numbered(1))
        replica.pause()
        confirmed: list[AppendResult | KafkaError] = []

        async def append_for_replicas(tp: TopicPartition) -> None:
            confirmed.extend((await storage.append({tp: batch(numbered(1))}, timeout_s=60)).values())

        async with trio.open_nursery() as nursery:
            with primary.client() as client, trio.fail_after(PATIENCE_S):
                for tp in waiting:
                    nursery.start_soon(append_for_replicas, tp)
                    while client.xlen(f"korvet:many:{tp.partition}") < 2:  # noqa: ASYNC110
                        await trio.sleep(0.01)
            with trio.fail_after(PATIENCE_S):
                await append(storage, TopicPartition("easy", 0), numbered(1))
                for tp in waiting:
                    await append_batch(storage, tp, batch(numbered(1)), acks=1)
            assert [] == confirmed
            replica.resume()

    assert [AppendResult] * len(waiting) == [type(result) for result in confirmed]


async def test_storage_closes_while_a_confirmed_end_waits_for_its_answer(
    replica_pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, _ = replica_pair
    try:
        async with broker_on(primary, **{"min.insync.replicas": "2"}) as storage:
            assert isinstance(storage, RedisStreamsStorage)
            await append(storage, TP, numbered(1))
            partition = await storage._partitions.find(TP)
            primary.pause()
            storage._reader.confirmations.note(partition, Known(1, 1, b"1-0"))
    finally:
        primary.resume()


# --- Without waiting --------------------------------------------------------------------------------------


@each_layout
async def test_small_append_notifies_and_leaves_no_reference_cycle(
    redis_server: RedisServer, layout: str
) -> None:
    async with broker_on(redis_server, layout) as storage:
        await storage.append({TP: batch([Record(b"0")])})
        gc.collect()
        gc.disable()
        try:
            for number in range(1, 20):
                await notified(storage, number)
            unreachable = gc.collect()
        finally:
            gc.enable()

        assert [b"%d" % number for number in range(20)] == await values_of(storage)
        assert unreachable < 19


async def notified(storage: Storage, number: int) -> None:
    """Append a record without waiting for anything but the notification."""
    appending = storage.try_append({TP: batch([Record(b"%d" % number)])})
    assert isinstance(appending, PendingAppend)
    is_done = trio.Event()
    assert appending.notify(is_done.set)
    await is_done.wait()
    assert isinstance(appending.known_results()[TP], AppendResult)


@each_layout
async def test_append_that_has_to_wait_is_not_begun(redis_server: RedisServer, layout: str) -> None:
    async with broker_on(redis_server, layout) as storage:
        one = batch([Record(b"x")])
        assert storage.try_append({}) is None
        assert storage.try_append({TP: one, TopicPartition("nowhere", 0): one}) is None
        assert storage.try_append({TopicPartition("nowhere", 0): one}) is None
        for server in storage._redis.servers():  # type: ignore[attr-defined]
            server.connection.end("a test")
        assert storage.try_append({TP: one}) is None

        assert [] == await values_of(storage)
