"""The values that a scrape reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from korvet.broker.broker import Broker, open_broker
from korvet.broker.topics import NewTopic
from korvet.groups.share import ShareHeartbeat
from korvet.metrics import lag
from korvet.metrics.gather import Gatherer
from korvet.metrics.recorder import Recorder
from korvet.metrics.samples import Samples
from korvet.protocol.errors import KafkaStorageError
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.record_batch import RecordBatch, build_batch
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.storage.offsets import TimestampOffsets, offset_mapper
from tests.handlers.transactional import TransactionalProducer, coordinating
from tests.talk import serving

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MAPPINGS = ("dense", "timestamp")


@asynccontextmanager
async def gathered(
    storage: MemoryStorage | None = None, *, mapping: str = "dense", **settings: Any
) -> AsyncIterator[tuple[Gatherer, Broker]]:
    """Serve a topic t of two partitions."""
    gatherer = Gatherer(Recorder(10))
    async with serving(storage=storage, counters=gatherer.recorder, **settings) as server:
        gatherer.server = server
        new = NewTopic("t", 2, settings=[("offset.mapping", mapping)])
        await server.broker.create_topic(await server.broker.plan_topic(new))
        yield gatherer, server.broker


async def append(broker: Broker, tp: TopicPartition, records: int) -> int:
    """Append a batch, and return its base offset."""
    batch = build_batch([(index, 0, None, b"value", ()) for index in range(records)])
    done = await broker.log.begin_append({tp: RecordBatch(batch)}, acks=-1, timeout_s=10)
    assert isinstance(done, dict)
    return done[tp].base_offset


async def commit(broker: Broker, group_id: str, **offsets: int) -> None:
    """Commit offsets, by the partition as p0, p1."""
    committed = {TopicPartition("t", int(name[1:])): OffsetAndMetadata(at) for name, at in offsets.items()}
    assert not any((await broker.groups.commit(group_id, committed)).values())


def lags(samples: Samples) -> dict[str, Any]:
    return {group: value for (group, _), value in samples.get("korvet_group_lag_records", {}).items()}


async def test_share_groups_are_counted_and_have_no_committed_offsets() -> None:
    async with gathered() as (gatherer, broker):
        await append(broker, T0, 10)
        await commit(broker, "consumers", p0=4)
        joining = ShareHeartbeat(member_id="a", member_epoch=0, names=frozenset(("t",)))
        await broker.groups.share_heartbeat("workers", joining)
        samples = await gatherer.samples()

    assert {"consumers": 6} == lags(samples)
    assert {("consumers",): 0, ("workers",): 1} == samples["korvet_group_members"]


@pytest.mark.parametrize("mapping", MAPPINGS)
async def test_lag_is_the_number_of_records_behind_in_all_partitions(mapping: str) -> None:
    async with gathered(mapping=mapping) as (gatherer, broker):
        first, other = await append(broker, T0, 10), await append(broker, T1, 5)
        await append(broker, T0, 7)
        await commit(broker, "behind", p0=first + 4, p1=other)
        await commit(broker, "done", p1=other + 5)
        before = lags(await gatherer.samples())
        await append(broker, T0, 3)
        await commit(broker, "behind", p1=other + 5)
        after = lags(await gatherer.samples())

    assert {"behind": 6 + 7 + 5, "done": 0} == before
    assert {"behind": 6 + 7 + 3, "done": 0} == after


@pytest.mark.parametrize("mapping", MAPPINGS)
async def test_lag_begins_at_the_log_start(mapping: str) -> None:
    async with gathered(mapping=mapping) as (gatherer, broker):
        first = await append(broker, T0, 10)
        await commit(broker, "g", p0=first)
        await broker.log.truncate_before(T0, first + 8)
        samples = await gatherer.samples()

    assert {"g": 2} == lags(samples)


async def test_lag_in_time_is_that_of_the_partition_furthest_behind() -> None:
    async with gathered(mapping="timestamp") as (gatherer, broker):
        first, other = await append(broker, T0, 1), await append(broker, T1, 1)
        mapper = offset_mapper((await broker.find_topic("t")).config)
        assert isinstance(mapper, TimestampOffsets)
        await trio.sleep(0.05)  # the measured time
        await append(broker, T0, 1)
        await commit(broker, "g", p0=first + 1, p1=other + 1)
        samples = await gatherer.samples()

    (seconds,) = samples["korvet_group_lag_seconds"].values()
    assert isinstance(seconds, float)
    assert seconds >= 0.05


async def test_counting_of_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "COUNTED_RECORDS", 15)
    async with gathered(mapping="timestamp") as (gatherer, broker):
        first = await append(broker, T0, 10)
        await append(broker, T0, 10)
        await commit(broker, "g", p0=first)
        samples = await gatherer.samples()

    assert {"g": 15} == lags(samples)


async def test_groups_are_counted_by_state_and_named_up_to_the_limit() -> None:
    async with gathered(metrics_max_groups=2) as (gatherer, broker):
        await append(broker, T0, 1)
        for group_id in ("a", "b", "c"):
            await commit(broker, group_id, p0=0)
        samples = await gatherer.samples()

    assert 3 == samples["korvet_groups"]["Empty",]
    assert {("a",): 0, ("b",): 0} == samples["korvet_group_members"]
    assert {"a": 1, "b": 1} == lags(samples)


async def test_lag_is_not_read_if_it_is_switched_off() -> None:
    async with gathered(metrics_group_lag=False) as (gatherer, broker):
        await commit(broker, "g", p0=0)
        samples = await gatherer.samples()

    assert "korvet_group_lag_records" not in samples
    assert {("g",): 0} == samples["korvet_group_members"]


async def test_offsets_in_a_deleted_topic_have_no_lag() -> None:
    async with gathered() as (gatherer, broker):
        await append(broker, T0, 1)
        await commit(broker, "g", p0=0)
        await broker.delete_topic(await broker.find_topic("t"))
        samples = await gatherer.samples()

    assert {} == lags(samples)
    assert {(): 0} == samples["korvet_topics"]


async def test_store_that_does_not_answer_delays_no_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.metrics.gather.PART_LIMIT_S", 0.02)
    storage = MemoryStorage()

    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    async with gathered(storage) as (gatherer, broker):
        await append(broker, T0, 1)
        await commit(broker, "g", p0=0)
        monkeypatch.setattr(storage, "committed", hang)
        monkeypatch.setattr(storage, "read_measurements", hang)
        samples = await gatherer.samples()

    assert {("groups",), ("store",)} <= samples["korvet_scrape_errors_total"].keys()
    assert {(): 1} == samples["korvet_ready"]
    assert {(): 1} == samples["korvet_topics"]


async def test_error_of_the_store_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()

    async def fail(*_: object) -> None:
        raise KafkaStorageError("gone")

    async with gathered(storage) as (gatherer, broker):
        await commit(broker, "g", p0=0)
        monkeypatch.setattr(storage, "committed", fail)
        monkeypatch.setattr(storage, "read_measurements", fail)
        samples = await gatherer.samples()

    assert {("groups",): 1, ("store",): 1} == samples["korvet_scrape_errors_total"]


async def test_process_that_is_not_the_first_reads_nothing_of_the_store() -> None:
    async with gathered() as (gatherer, _):
        samples = await gatherer.samples(reads_store=False)

    assert "korvet_topics" not in samples


async def test_counts_of_deleted_topics_are_removed() -> None:
    recorder = Recorder(1)
    recorder.stored("old", 1, 1)
    recorder.forget_topics({"new"})
    recorder.stored("new", 2, 1)

    assert {("new",): 2} == recorder.samples()["korvet_topic_received_records_total"]


async def test_retention_and_compaction_are_counted() -> None:
    async with gathered() as (gatherer, broker):
        await broker.retention.trim_all()
        samples = await gatherer.samples()

    assert {(): 0} == samples["korvet_retention_trims_total"]
    assert {(): broker.retention.last_run_s} == samples["korvet_retention_last_run_timestamp_seconds"]
    assert broker.retention.last_run_s > 1e9


async def test_fetch_sessions_are_counted() -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[FetchTopic(topic="t", partitions=[partition])]
    )
    async with gathered(max_incremental_fetch_session_cache_slots=2) as (gatherer, broker):
        began = [broker.fetch_sessions.create(request, 12, at, is_privileged=False) for at in (0, 1, 200)]
        samples = await gatherer.samples()

    assert all(began)
    assert {(): 2} == samples["korvet_fetch_sessions"] == samples["korvet_fetch_session_partitions"]
    assert {(): 1} == samples["korvet_fetch_session_evictions_total"]


async def test_transactions_are_counted_from_their_begin_to_their_markers() -> None:
    async with gathered() as (gatherer, broker):
        producers = [TransactionalProducer(broker, name) for name in ("a", "b", "c")]
        for producer in producers:
            assert not (await producer.init()).error_code
            await producer.send(b"value")
        await producers[0].finish()
        await producers[1].finish(commit=False)
        samples = await gatherer.samples()

    assert {(): 1} == samples["korvet_transactions_open"]
    assert {("commit",): 1, ("abort",): 1} == samples["korvet_transactions_ended_total"]
    assert {(): 0} == samples["korvet_transactions_ending"] == samples["korvet_transaction_markers_waiting"]
    assert {(): 0} == samples["korvet_transactions_timed_out_total"]
    ((*counts, _),) = samples["korvet_transaction_end_seconds"].values()  # type: ignore[misc]
    assert 2 == sum(counts)
    (oldest_s,) = samples["korvet_transactions_oldest_seconds"].values()
    assert isinstance(oldest_s, float)


async def test_transactions_that_hang_are_counted() -> None:
    async with gathered() as (gatherer, broker):
        producer = TransactionalProducer(broker)
        await producer.init()
        await producer.send(b"value")
        await broker.hanging.search()
        before = await gatherer.samples()
        broker.hanging.clock = lambda: broker.clock() + 2 * broker.config.transaction_max_timeout_ms
        await broker.hanging.search()
        after = await gatherer.samples()

    assert [{(): 0}, {(): 1}] == [each["korvet_transactions_hanging"] for each in (before, after)]


async def test_open_transaction_that_another_process_has_ended_is_not_counted() -> None:
    async with gathered() as (gatherer, broker):
        producer = TransactionalProducer(broker)
        await producer.init()
        await producer.send(b"value")
        other = await open_broker(broker._storage, broker.config)
        async with coordinating(other):
            producer.broker = other
            await producer.finish()
        samples = await gatherer.samples()

    assert {(): 0} == samples["korvet_transactions_open"] == samples["korvet_transactions_oldest_seconds"]
