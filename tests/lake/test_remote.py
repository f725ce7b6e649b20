from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from korvet.lake.errors import DamagedFile, RowsMissing
from korvet.lake.file_writing import RangeWriter
from korvet.lake.remote import RemoteReader, RemoteRecord
from korvet.lake.remote_values import ArchivedLog
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.table import LakeTable
from korvet.protocol.record_batch import decode_records, parse_batches, validate
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake, written

MB = 1_000_000


def new_table(folder: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(folder), TOPIC, TOPIC_ID)


def committed(table: LakeTable, start: int, end: int, **rows: Sequence[int]) -> LakeTable:
    return table.commit([written(table, start, end, **rows)])


def records_in(data: bytes) -> list[tuple[int, int, bytes | None]]:
    """Return (offset, timestamp, value) of all records, after checking CRCs."""
    found = []
    for batch in parse_batches(data):
        validate(batch)
        for delta, timestamp, _, value, _ in decode_records(batch):
            found.append((batch.base_offset + delta, timestamp, value))
    return found


def offsets_from(reader: RemoteReader, offset: int, end: int, *, max_bytes: int = MB) -> list[int]:
    """Return the offsets that a consumer gets with repeated reads."""
    found: list[int] = []
    while offset < end:
        data, next_offset = reader.read(TOPIC, TOPIC_ID, 0, offset, end, max_bytes)
        assert next_offset > offset
        found += [each for each, _, _ in records_in(data)]
        offset = next_offset
    return found


def test_read_returns_archived_records_unchanged(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None], HEADERS)
    rows = archive_table(
        TOPIC,
        0,
        np.array([7, 9], np.int64),
        np.array([NOON, -5], np.int64),
        np.zeros(2, np.int32),
        pa.array([None, b""], pa.binary()),
        pa.array([b"x", None], pa.binary()),
        headers,
    )
    table.commit([RangeWriter(table.location, 0, 7).write(rows, 7, 10)])

    data, next_offset = RemoteReader(lake(tmp_path)).read(TOPIC, TOPIC_ID, 0, 0, 10, MB)

    (batch,) = parse_batches(data)
    validate(batch)
    assert [
        (0, NOON, None, b"x", (("a", b"1"), ("a", None))),
        (2, -5, b"", None, ()),
    ] == decode_records(batch)
    assert (7, 10) == (batch.base_offset, next_offset)


def test_read_covers_the_requested_offsets_only(tmp_path: Path) -> None:
    committed(new_table(tmp_path), 0, 100)

    data, next_offset = RemoteReader(lake(tmp_path)).read(TOPIC, TOPIC_ID, 0, 10, 20, MB)

    assert list(range(10, 20)) == [offset for offset, _, _ in records_in(data)]
    assert 20 == next_offset


def test_read_respects_max_bytes_except_for_the_first_record(tmp_path: Path) -> None:
    committed(new_table(tmp_path), 0, 1000)
    reader = RemoteReader(lake(tmp_path))

    some, next_offset = reader.read(TOPIC, TOPIC_ID, 0, 0, 1000, 5_000)
    one, after_one = reader.read(TOPIC, TOPIC_ID, 0, 0, 1000, 1)

    assert 2_000 < len(some) <= 5_000
    assert next_offset == len(records_in(some))
    assert [0] == [offset for offset, _, _ in records_in(one)]
    assert 1 == after_one
    assert list(range(1000)) == offsets_from(reader, 0, 1000, max_bytes=3_000)


def test_read_skips_offsets_without_records(tmp_path: Path) -> None:
    committed(new_table(tmp_path), 0, 100, offsets=[3, 50, 51])
    reader = RemoteReader(lake(tmp_path))

    assert [3, 50, 51] == offsets_from(reader, 0, 100)
    assert (b"", 100) == reader.read(TOPIC, TOPIC_ID, 0, 60, 100, MB)


def test_records_of_alternating_dates_are_read_in_offset_order(tmp_path: Path) -> None:
    timestamps = [NOON + DAY_MS * (offset % 3) for offset in range(30_000)]
    committed(new_table(tmp_path), 0, 30_000, timestamps=timestamps)
    reader = RemoteReader(lake(tmp_path))

    assert list(range(30_000)) == offsets_from(reader, 0, 30_000)
    assert list(range(12_345, 30_000)) == offsets_from(reader, 12_345, 30_000)


def test_range_with_hundreds_of_dates_is_read_in_offset_order(tmp_path: Path) -> None:
    dates = list(range(300))
    random.Random(1).shuffle(dates)
    committed(new_table(tmp_path), 0, 300, timestamps=[NOON + DAY_MS * day for day in dates])

    assert list(range(5, 300)) == offsets_from(RemoteReader(lake(tmp_path)), 5, 300)


def test_foreign_optimized_files_are_read_in_offset_order(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for start in range(0, 5_000, 1000):
        table = committed(table, start, start + 1000)
        table = table.commit([written(table, start, start + 1000, partition=1)])
    table.delta.optimize.z_order(["timestamp_ms"])
    reader = RemoteReader(lake(tmp_path))

    assert list(range(10, 5_000)) == offsets_from(reader, 10, 5_000)


def test_log_append_times_are_preserved(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    rows = archive_table(
        TOPIC,
        0,
        np.arange(6, dtype=np.int64),
        np.array([NOON, NOON, NOON + 5, NOON + 5, NOON + 1, NOON + 2], np.int64),
        np.array([1, 1, 1, 1, 0, 0], np.int32),
        pa.nulls(6, pa.binary()),
        pa.nulls(6, pa.binary()),
        pa.nulls(6, HEADERS),
    )
    table.commit([RangeWriter(table.location, 0, 0).write(rows, 0, 6)])

    data, _ = RemoteReader(lake(tmp_path)).read(TOPIC, TOPIC_ID, 0, 0, 6, MB)

    times = [timestamp - NOON for _, timestamp, _ in records_in(data)]
    assert [0, 0, 5, 5, 1, 2] == times
    assert [1, 1, 0] == [int(batch.timestamp_type) for batch in parse_batches(data)]


@pytest.mark.parametrize("seed", range(5))
def test_seek_ts_finds_the_same_record_as_a_full_scan(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    timestamps = [NOON + chance.randrange(3 * DAY_MS) for _ in range(3000)]
    committed(new_table(tmp_path), 0, 3000, timestamps=timestamps)
    reader = RemoteReader(lake(tmp_path))

    for _ in range(20):
        wanted = NOON + chance.randrange(-1000, 3 * DAY_MS + 1000)
        start = chance.randrange(3000)
        expected = next((o for o in range(start, 3000) if timestamps[o] >= wanted), None)
        found = reader.seek_ts(TOPIC, TOPIC_ID, 0, wanted, start, 3000)
        assert (None if expected is None else RemoteRecord(expected, timestamps[expected])) == found
    largest = max(timestamps)
    assert (timestamps.index(largest), largest) == reader.seek_max_ts(TOPIC, TOPIC_ID, 0, 0, 3000)


def test_first_returns_the_first_record_from_an_offset(tmp_path: Path) -> None:
    committed(new_table(tmp_path), 0, 100, offsets=[3, 50])
    reader = RemoteReader(lake(tmp_path))

    assert (3, NOON + 3) == reader.first(TOPIC, TOPIC_ID, 0, 0, 100)
    assert (50, NOON + 50) == reader.first(TOPIC, TOPIC_ID, 0, 4, 100)
    assert reader.first(TOPIC, TOPIC_ID, 0, 51, 100) is None


def test_stale_snapshot_is_refreshed_when_more_was_trimmed(tmp_path: Path) -> None:
    table = committed(new_table(tmp_path), 0, 10)
    reader = RemoteReader(lake(tmp_path))
    assert {0: ArchivedLog(0, 10, 10)} == reader.refresh(TOPIC, TOPIC_ID)

    committed(table, 10, 20)

    assert list(range(20)) == offsets_from(reader, 0, 20)


def test_trimmed_offsets_that_were_never_archived_raise_an_error(tmp_path: Path) -> None:
    committed(new_table(tmp_path), 0, 10)

    with pytest.raises(RowsMissing, match="below 20 were trimmed, but are not archived"):
        RemoteReader(lake(tmp_path)).read(TOPIC, TOPIC_ID, 0, 0, 20, MB)


def test_rows_removed_from_the_table_raise_an_error(tmp_path: Path) -> None:
    table = committed(new_table(tmp_path), 0, 10)
    table = committed(table, 10, 20)
    committed(table, 20, 30)
    table.delta.delete("offset >= 10 and offset < 20")
    reader = RemoteReader(lake(tmp_path))

    archived = reader.refresh(TOPIC, TOPIC_ID)

    assert archived == {0: ArchivedLog(0, 30, 10)} or archived[0].chained == 10
    assert list(range(10)) == offsets_from(reader, 0, 10)
    with pytest.raises(RowsMissing, match="offsets 10 to 19 of partition 0"):
        reader.read(TOPIC, TOPIC_ID, 0, 10, 30, MB)
    assert list(range(20, 30)) == offsets_from(reader, 20, 30)


def test_flipped_bit_of_archived_pages_is_never_served(tmp_path: Path) -> None:
    """A damaged footer may crash pyarrow; the broker reads in a worker process for that reason."""
    table = committed(new_table(tmp_path), 0, 200)
    (file,) = table.files
    path = Path(table.absolute(file))
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little")
    end = 200
    whole = RemoteReader(lake(tmp_path)).read(TOPIC, TOPIC_ID, 0, 0, end, MB)
    refused = 0

    for position in random.Random(20261127).sample(range(len(content) - 8 - footer), 300):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            found = RemoteReader(lake(tmp_path)).read(TOPIC, TOPIC_ID, 0, 0, end, MB)
        except DamagedFile:
            refused += 1
        else:
            assert whole == found, position

    assert refused > 100


def test_snapshot_is_refreshed_when_its_files_were_vacuumed(tmp_path: Path) -> None:
    table = committed(new_table(tmp_path), 0, 10)
    committed(table, 10, 20)
    reader = RemoteReader(lake(tmp_path), cache_bytes=1)
    assert list(range(20)) == offsets_from(reader, 0, 20)

    delta = LakeTable.open(lake(tmp_path), TOPIC).delta
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    assert offsets_from(reader, 0, 20) == list(range(20))


def test_topic_without_a_table_has_no_archived_log(tmp_path: Path) -> None:
    reader = RemoteReader(lake(tmp_path))

    assert {} == reader.refresh(TOPIC, TOPIC_ID)
    assert reader.archived(TOPIC, TOPIC_ID, 0) is None


def test_cache_is_bounded(tmp_path: Path) -> None:
    committed(new_table(tmp_path), 0, 100_000)
    reader = RemoteReader(lake(tmp_path), cache_bytes=2 * MB)

    assert list(range(100_000)) == offsets_from(reader, 0, 100_000)
    assert reader._cached <= 2 * MB
    assert reader._cached == sum(rows.nbytes for rows in reader._groups.values())


def test_seek_max_ts_uses_file_statistics(tmp_path: Path) -> None:
    table = committed(new_table(tmp_path), 0, 30_000)
    table = committed(table, 30_000, 60_000, timestamps=[NOON + 29_999] * 30_000)
    committed(table, 60_000, 60_010, timestamps=[NOON] * 10)
    reader = RemoteReader(lake(tmp_path))

    assert RemoteRecord(29_999, NOON + 29_999) == reader.seek_max_ts(TOPIC, TOPIC_ID, 0, 0, 60_010)
    assert 1 == len(reader._groups)
    assert RemoteRecord(28_999, NOON + 28_999) == reader.seek_max_ts(TOPIC, TOPIC_ID, 0, 0, 29_000)
    assert RemoteRecord(40_000, NOON + 29_999) == reader.seek_max_ts(TOPIC, TOPIC_ID, 0, 40_000, 60_000)
    assert reader.seek_max_ts(TOPIC, TOPIC_ID, 0, 60_010, 60_010) is None
