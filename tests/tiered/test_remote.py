"""RPC to the process that reads archived tables."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from attrs import evolve

from korvet.lake.remote_values import ArchivedLog
from korvet.lake.table import LakeTable
from korvet.protocol.errors import KafkaStorageError
from korvet.protocol.record_batch import parse_batches
from korvet.storage.interface import OffsetAndTimestamp, Topic, TopicConfig
from korvet.tiered.remote import RemoteStore, open_remote_store
from tests.lake.support import NOON, TOPIC, TOPIC_ID, lake, written

TOPIC_OF_TABLE = Topic(TOPIC, TOPIC_ID, 1, {}, TopicConfig())


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    table = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    return table.commit([written(table, 0, 100)])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RemoteStore]:
    async with open_remote_store(str(tmp_path / "lake")) as store:
        yield store


async def test_store_returns_archived_offsets_and_records(table: LakeTable, store: RemoteStore) -> None:
    archived = await store.refresh(TOPIC_OF_TABLE)
    data, next_offset = await store.read(TOPIC_OF_TABLE, 0, 10, 100, 1_000_000)

    assert {0: ArchivedLog(0, 100, 100)} == archived
    assert [(10, 90)] == [(batch.base_offset, batch.record_count) for batch in parse_batches(data)]
    assert 100 == next_offset
    assert OffsetAndTimestamp(5, NOON + 5) == await store.first(TOPIC_OF_TABLE, 0, 5, 100)
    assert OffsetAndTimestamp(7, NOON + 7) == await store.seek_ts(TOPIC_OF_TABLE, 0, NOON + 7, 0, 100)
    assert await store.seek_ts(TOPIC_OF_TABLE, 0, NOON + 100, 0, 100) is None
    assert OffsetAndTimestamp(99, NOON + 99) == await store.seek_max_ts(TOPIC_OF_TABLE, 0, 0, 100)


async def test_concurrent_requests_get_their_own_responses(table: LakeTable, store: RemoteStore) -> None:
    found = {}

    async def ask(offset: int) -> None:
        found[offset] = await store.first(TOPIC_OF_TABLE, 0, offset, 100)

    async with trio.open_nursery() as nursery:
        for offset in range(100):
            nursery.start_soon(ask, offset)

    assert {offset: OffsetAndTimestamp(offset, NOON + offset) for offset in range(100)} == found


async def test_refresh_returns_no_log_when_the_table_does_not_exist(store: RemoteStore) -> None:
    assert {} == await store.refresh(TOPIC_OF_TABLE)


async def test_table_of_another_topic_id_raises_a_storage_error(table: LakeTable, store: RemoteStore) -> None:
    other = evolve(TOPIC_OF_TABLE, topic_id=type(TOPIC_ID)(int=7))

    with pytest.raises(KafkaStorageError, match="archive of an earlier topic orders"):
        await store.refresh(other)


async def test_killed_process_is_restarted(table: LakeTable, store: RemoteStore) -> None:
    await store.refresh(TOPIC_OF_TABLE)
    assert store._process is not None
    os.kill(store._process.pid, signal.SIGSTOP)
    failed = trio.Event()

    async def ask() -> None:
        with pytest.raises(KafkaStorageError, match="starts it again"):
            await store.refresh(TOPIC_OF_TABLE)
        failed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while not store._link._requested:
            await trio.lowlevel.checkpoint()
        os.kill(store._process.pid, signal.SIGKILL)
        with trio.fail_after(10):
            await failed.wait()

    assert {0: ArchivedLog(0, 100, 100)} == await store.refresh(TOPIC_OF_TABLE)


async def test_cancelled_request_does_not_affect_other_requests(table: LakeTable, store: RemoteStore) -> None:
    await store.refresh(TOPIC_OF_TABLE)

    for _ in range(20):
        with trio.move_on_after(0.0005):
            await store.read(TOPIC_OF_TABLE, 0, 0, 100, 1_000_000)

    assert OffsetAndTimestamp(3, NOON + 3) == await store.first(TOPIC_OF_TABLE, 0, 3, 100)
    assert not store._link._requested


async def test_process_ends_with_its_store(table: LakeTable, tmp_path: Path) -> None:
    async with open_remote_store(str(tmp_path / "lake")) as store:
        await store.refresh(TOPIC_OF_TABLE)
        process = store._process

    assert process is not None
    assert process.returncode is not None


async def test_unexpected_error_in_a_request_fails_it_immediately(
    table: LakeTable, store: RemoteStore
) -> None:
    await store.refresh(TOPIC_OF_TABLE)

    with trio.fail_after(20), pytest.raises(KafkaStorageError, match="starts it again"):
        await store._ask("close", TOPIC_OF_TABLE)
    assert {0: ArchivedLog(0, 100, 100)} == await store.refresh(TOPIC_OF_TABLE)
