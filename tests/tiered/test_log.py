"""Logs whose beginning is in the lake, as handlers answer from them.

Tables are read by a task of this process; test_remote.py is about the process that does it for a broker.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from korvet.broker.broker import Broker, open_broker
from korvet.concurrency.background import background_nursery
from korvet.config import Config
from korvet.lake import remote_worker
from korvet.lake.table import LakeTable
from korvet.protocol.errors import ErrorCode, OffsetOutOfRange
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.record_batch import decode_records, parse_batches
from korvet.storage.interface import AbortedTransaction, IsolationLevel, ReadRequest, Topic, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.testing.contract.transactions import ABORT, COMMIT, Client, committed_in, read_committed
from korvet.testing.records import batches_of
from korvet.tiered.log import DELETED, Tiers
from korvet.tiered.remote import RemoteStore
from tests.handlers.share_groups import ACCEPT, ShareMember, configure, values
from tests.handlers.support import NOW_MS, append, ask
from tests.lake.support import lake, written

TP = TopicPartition("orders", 0)
LATEST, EARLIEST, MAX, EARLIEST_LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6
COUNT = 100  # records, one a millisecond


@define
class Log:
    """A topic of 100 records on a broker with a lake, and what is done to it."""

    broker: Broker
    folder: Path
    topic: Topic
    table: LakeTable = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.table = LakeTable.open_or_create(lake(self.folder), TP.topic, self.topic.topic_id)

    def archive(self, start: int, end: int) -> None:
        timestamps = [NOW_MS + offset for offset in range(start, end)]
        self.table = self.table.commit([written(self.table, start, end, timestamps=timestamps)])

    async def trim(self, offset: int) -> None:
        """Trim archived records, as the retention worker does."""
        assert offset <= (await self.broker.log.trimmable(self.topic))[TP.partition]
        await self.broker._storage.truncate_before(TP, offset)

    async def fetch(self, offset: int, *, max_bytes: int = 1_000_000) -> PartitionData:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=TP.topic, partitions=[partition])],
        )
        response = await ask(self.broker, 1, 12, request)
        data: PartitionData = response.responses[0].partitions[0]
        return data

    async def values_from(self, offset: int) -> list[tuple[int, bytes | None]]:
        """Return the records that a consumer receives up to the end."""
        found: list[tuple[int, bytes | None]] = []
        while offset < COUNT:
            data = await self.fetch(offset, max_bytes=2000)
            assert 0 == data.error_code
            assert data.records
            for buffer in data.records:
                for one in parse_batches(buffer):
                    found += [(one.base_offset + record[0], record[3]) for record in decode_records(one)]
            offset = found[-1][0] + 1
        return found

    async def offset(self, timestamp: int) -> tuple[int, int]:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=TP.topic, partitions=[partition])]
        response = await ask(self.broker, 2, 11, ListOffsetsRequest(replica_id=-1, topics=topics))
        answer = response.topics[0].partitions[0]
        assert 0 == answer.error_code
        return answer.offset, answer.timestamp

    async def listing_error(self, timestamp: int) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=TP.topic, partitions=[partition])]
        response = await ask(self.broker, 2, 11, ListOffsetsRequest(replica_id=-1, topics=topics))
        error_code: int = response.topics[0].partitions[0].error_code
        return error_code

    async def refreshed(self) -> None:
        """Run the periodic refresh for a moment."""
        with trio.move_on_after(0.2):
            await self.broker.log.run()

    async def delete_before(self, offset: int) -> Any:
        partitions = [DeleteRecordsPartition(partition_index=0, offset=offset)]
        topics = [DeleteRecordsTopic(name=TP.topic, partitions=partitions)]
        response = await ask(self.broker, 21, 2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
        return response.topics[0].partitions[0]


@define(eq=False)
class RemoteInTask(RemoteStore):
    """Sends its requests to a task that answers as the process does that a broker starts."""

    @asynccontextmanager
    async def _reading_process(self) -> AsyncIterator[trio.SocketStream]:
        ours, theirs = trio.socket.socketpair()
        async with trio.SocketStream(ours) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(remote_worker.serve, self.url, trio.SocketStream(theirs))
            yield stream
            nursery.cancel_scope.cancel()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    async with background_nursery() as nursery:
        remote = RemoteInTask(str(tmp_path / "lake"), nursery)
        storage = MemoryStorage(clock=lambda: NOW_MS)
        broker = await open_broker(storage, Config(lake_url=str(tmp_path / "lake")), remote=remote)
        topic = await storage.create_topic("orders", 1, {"remote.storage.enable": "true"})
        for first in range(0, COUNT, 10):
            values = [f"value {offset}".encode() for offset in range(first, first + 10)]
            await append(broker, TP, *values, timestamps=[NOW_MS + first + index for index in range(10)])
        yield Log(broker, tmp_path, topic)


EVERYTHING = [(offset, f"value {offset}".encode()) for offset in range(COUNT)]


async def test_consumer_reads_from_the_lake_and_continues_in_storage(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)

    assert EVERYTHING == await log.values_from(0)
    assert EVERYTHING[33:] == await log.values_from(33)


async def test_log_start_offset_is_the_start_of_the_table(log: Log) -> None:
    log.archive(20, 70)
    await log.trim(60)

    below, first, hot = await log.fetch(19), await log.fetch(20), await log.fetch(80)

    assert ErrorCode.OFFSET_OUT_OF_RANGE == below.error_code
    assert [20, 20] == [first.log_start_offset, hot.log_start_offset]
    assert [COUNT, COUNT] == [first.high_watermark, hot.high_watermark]


async def test_offsets_are_listed_from_both_tiers(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)

    assert (0, NOW_MS) == await log.offset(EARLIEST)
    assert (60, NOW_MS + 60) == await log.offset(EARLIEST_LOCAL)
    assert (69, -1) == await log.offset(TIERED)
    assert (70, -1) == await log.offset(PENDING)
    assert (COUNT, -1) == await log.offset(LATEST)
    assert (7, NOW_MS + 7) == await log.offset(NOW_MS + 7)
    assert (77, NOW_MS + 77) == await log.offset(NOW_MS + 77)
    assert (99, NOW_MS + 99) == await log.offset(MAX)


async def test_log_without_archived_records_reads_from_storage(log: Log) -> None:
    assert (0, NOW_MS) == await log.offset(EARLIEST)
    assert (-1, -1) == await log.offset(TIERED)
    assert (0, -1) == await log.offset(PENDING)
    assert EVERYTHING == await log.values_from(0)


async def test_max_timestamp_includes_archived_records(log: Log) -> None:
    timestamps = [NOW_MS + (1000 if offset == 5 else offset) for offset in range(70)]
    log.table.commit([written(log.table, 0, 70, timestamps=timestamps)])
    await log.trim(60)

    assert (5, NOW_MS + 1000) == await log.offset(MAX)


async def test_deleted_records_are_not_served_from_the_lake_again(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)

    deleted = await log.delete_before(15)

    assert (0, 15) == (deleted.error_code, deleted.low_watermark)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == (await log.fetch(14)).error_code
    assert EVERYTHING[15:] == await log.values_from(15)
    assert (15, NOW_MS + 15) == await log.offset(EARLIEST)
    assert 15 == (await log.delete_before(3)).low_watermark


async def test_deleting_beyond_the_local_log_start_deletes_in_both_tiers(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)

    deleted = await log.delete_before(80)

    assert 80 == deleted.low_watermark
    assert ErrorCode.OFFSET_OUT_OF_RANGE == (await log.fetch(70)).error_code
    assert EVERYTHING[80:] == await log.values_from(80)
    beyond = await log.delete_before(COUNT + 1)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == beyond.error_code


async def test_rows_missing_from_the_table_are_a_retriable_error(log: Log) -> None:
    log.archive(0, 30)
    log.archive(30, 70)
    await log.trim(60)
    log.table.delta.delete("offset >= 30")
    await log.refreshed()

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await log.fetch(40)).error_code
    assert 0 == (await log.fetch(5)).error_code
    assert 0 == (await log.fetch(60)).error_code


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_absent_lake_is_an_error_below_the_local_log_start(
    log: Log, is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log.archive(0, 70)
    await log.trim(60)
    (log.folder / "lake").rename(log.folder / "elsewhere")
    (log.folder / "lake").mkdir()
    if is_restarted:
        log.broker.log = Tiers(log.broker._storage, log.broker.config, log.broker.log.remote)
    with trio.move_on_after(10):
        while "the archive cannot be read" not in caplog.text:
            await log.refreshed()

    assert "orders: the archive cannot be read: orders-0: the lake does not have the archive" in caplog.text
    assert ErrorCode.KAFKA_STORAGE_ERROR == (await log.fetch(0)).error_code
    assert ErrorCode.KAFKA_STORAGE_ERROR == (await log.fetch(59)).error_code
    assert 0 == (await log.fetch(60)).error_code
    for timestamp in (EARLIEST, NOW_MS + 7, MAX, TIERED, PENDING):
        assert ErrorCode.KAFKA_STORAGE_ERROR == await log.listing_error(timestamp)
    assert (COUNT, -1) == await log.offset(LATEST)

    (log.folder / "lake").rmdir()
    (log.folder / "elsewhere").rename(log.folder / "lake")

    assert EVERYTHING == await log.values_from(0)
    assert (69, -1) == await log.offset(TIERED)


async def test_deleting_the_records_of_a_lost_lake_lets_consumers_read_on(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)
    shutil.rmtree(log.folder / "lake")
    await log.refreshed()

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await log.delete_before(10)).error_code
    deleted = await log.delete_before(60)

    assert (0, 60) == (deleted.error_code, deleted.low_watermark)
    assert (60, NOW_MS + 60) == await log.offset(EARLIEST)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == (await log.fetch(59)).error_code
    assert (-1, -1) == await log.offset(TIERED)


async def test_records_trimmed_before_the_topic_was_tiered_need_no_lake(log: Log) -> None:
    await log.broker._storage.truncate_before(TP, 60)

    assert (60, NOW_MS + 60) == await log.offset(EARLIEST)
    assert ErrorCode.OFFSET_OUT_OF_RANGE == (await log.fetch(59)).error_code


async def test_read_that_continues_in_storage_keeps_the_isolation_level(log: Log) -> None:
    log.table = log.table.commit([written(log.table, 0, 70, offsets=range(30))])
    await log.trim(60)
    seen: list[IsolationLevel] = []
    storage = log.broker._storage
    assert isinstance(storage, MemoryStorage)
    read = storage.read

    async def noting(*arguments: Any, isolation_level: IsolationLevel, **options: Any) -> Any:
        seen.append(isolation_level)
        return await read(*arguments, isolation_level=isolation_level, **options)

    storage.read = noting  # type: ignore[method-assign, assignment]
    requests = {TP: ReadRequest(40, 1000)}
    await log.broker.log.read(requests, max_bytes=1000, isolation_level=IsolationLevel.READ_COMMITTED)

    assert [IsolationLevel.READ_COMMITTED] * 2 == seen


async def test_aborted_transaction_that_was_archived_in_part_is_listed_for_the_rest(log: Log) -> None:
    """Data and list come from one tier: the lake has no record of it, and storage has the second half."""
    storage = log.broker._storage
    aborted, committed = Client(storage, TP), Client(storage, TP, producer_id=8)
    for _ in range(10):
        await aborted.send(b"aborted")
    await committed.send(b"committed")
    await aborted.end(ABORT)
    await committed.end(COMMIT)
    log.archive(0, 100)
    log.table = log.table.commit([written(log.table, 100, 105, offsets=())])
    await log.trim(105)
    results = [
        await read_committed(log.broker.log, TP, offset, max_bytes=1_000_000) for offset in (50, 102, 107)
    ]

    assert [] == list(results[0].aborted)
    assert not any(each.is_transactional for each in batches_of(results[0]))
    for result, offset in zip(results[1:], (102, 107), strict=True):
        assert [AbortedTransaction(7, 100)] == list(result.aborted)
        assert [b"committed"] == committed_in(result, offset)


async def test_records_trimmed_by_another_broker_are_read_from_the_lake(log: Log) -> None:
    log.archive(0, 20)
    await log.trim(10)
    assert EVERYTHING == await log.values_from(0)

    log.archive(20, 50)
    await log.trim(50)

    assert EVERYTHING == await log.values_from(0)


async def test_fetch_at_an_archived_offset_without_a_row_returns_the_next_record(log: Log) -> None:
    log.table = log.table.commit([written(log.table, 0, 70, offsets=range(30))])
    await log.trim(60)

    data = await log.fetch(40)

    assert 0 == data.error_code
    assert data.records
    assert 60 == parse_batches(data.records[0])[0].base_offset


async def test_recreated_topic_starts_with_an_empty_log(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)
    await log.delete_before(15)
    await log.broker.delete_topic(log.topic)

    await log.broker._storage.create_topic("orders", 1, {"remote.storage.enable": "true"})

    assert not await log.broker._storage.documents("deleted-before")
    assert (0, -1) == await log.offset(EARLIEST)
    await append(log.broker, TP, b"new", timestamps=[NOW_MS])
    assert (0, NOW_MS) == await log.offset(EARLIEST)


async def test_topic_without_remote_storage_does_not_read_the_lake(log: Log) -> None:
    await log.broker._storage.create_topic("plain", 1, {})
    plain = TopicPartition("plain", 0)
    await append(log.broker, plain, b"a", b"b")
    await log.broker.log.truncate_before(plain, 1)
    reads = await log.broker.log.read({plain: ReadRequest(0, 1000)}, max_bytes=1000)

    assert isinstance(reads[plain], OffsetOutOfRange)
    assert 1 == (await log.broker.log.latest(plain)).log_start_offset
    assert log.broker.log.remote is not None
    assert not any(log.broker.log.remote.times)


@pytest.mark.parametrize("value", [b"", b"nonsense", b"-1", b"9" * 30, b"9" * 5000])
async def test_damaged_document_does_not_restore_deleted_records(
    log: Log, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    log.archive(0, 70)
    await log.trim(60)
    await log.delete_before(15)
    (key,) = await log.broker._storage.documents(DELETED)
    document = await log.broker._storage.load(DELETED, key)
    assert document is not None
    await log.broker._storage.save(DELETED, key, value, expected_version=document.version)

    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert (60, NOW_MS + 60) == await log.offset(EARLIEST)
    assert 1 == len([each for each in caplog.records if DELETED in each.getMessage()])
    assert 2 <= log.broker.log.damage.found[TP.topic]

    await log.delete_before(20)
    assert EVERYTHING[20:] == await log.values_from(20)


async def test_share_group_acquires_archived_records_too(log: Log) -> None:
    log.archive(0, 70)
    await log.trim(60)
    await configure(log.broker)
    worker = ShareMember(log.broker, log.topic.topic_id)
    found: list[bytes] = []
    acquired = await worker.fetch(0, max_records=7)
    while acquired.responses:
        found += values(acquired)
        runs = acquired.responses[0].partitions[0].acquired_records
        acks = [(each.first_offset, each.last_offset, [ACCEPT]) for each in runs]
        assert ErrorCode.NONE == await worker.acknowledge(*acks)
        acquired = await worker.fetch(max_records=7)

    assert [value for _, value in EVERYTHING] == found
