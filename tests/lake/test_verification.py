from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from korvet.lake.compacting import Compaction
from korvet.lake.file_writing import RangeWriter
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.table import LakeTable
from korvet.lake.verification import absent, wrongs
from tests.lake.support import DAY_MS, NOON, TOPIC, TOPIC_ID, lake, written


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)


def faults_of(table: LakeTable) -> list[tuple[int, int, int, str]]:
    """Return the faults, without the table's location."""
    found = [*absent(table), *wrongs(table)]
    return [
        (each.partition, each.start, each.end, each.what.replace(str(table.location), "")) for each in found
    ]


def three_ranges(table: LakeTable) -> LakeTable:
    for start in (0, 10, 20):
        days = [NOON + DAY_MS * (offset % 2) for offset in range(10)]
        table = table.commit([written(table, start, start + 10, timestamps=days)])
    return table


def test_table_has_no_faults_after_compaction_and_foreign_optimize(
    table: LakeTable,
) -> None:
    table = three_ranges(table)
    assert [] == faults_of(table)
    Compaction(table).run()
    assert [] == faults_of(table.reopened())
    table.reopened().delta.optimize.compact()
    assert [] == faults_of(table.reopened())


def test_flipped_bit_is_reported_with_its_file_unless_rows_are_unchanged(table: LakeTable) -> None:
    count = 30
    headers = [[{"key": "trace", "value": b"1"}] if offset % 3 else None for offset in range(count)]
    rows = archive_table(
        TOPIC,
        0,
        np.arange(count),
        np.arange(count) + NOON,
        np.zeros(count, np.int32),
        pa.array([b"key %d" % (offset % 4) for offset in range(count)], pa.binary()),
        pa.array([b"value %d" % offset for offset in range(count)], pa.binary()),
        pa.array(headers, HEADERS),
    )
    table = table.commit([RangeWriter(table.location, 0, 0).write(rows, 0, count)])
    (file,) = table.files
    path = Path(table.absolute(file))
    content = path.read_bytes()
    whole = pq.ParquetFile(path).read()
    chosen = random.Random(20261122).sample(range(len(content)), 300)
    named = 0

    for position in chosen:
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        found = faults_of(table)
        if found:
            assert all(file.path in what for *_, what in found)
            named += 1
        else:
            assert pq.ParquetFile(path).read().equals(whole)

    assert named > len(chosen) / 2


def test_missing_or_truncated_file_is_named(table: LakeTable) -> None:
    table = three_ranges(table)
    first, second = (
        file for file in table.files if file.held and file.held.start in (0, 10) and file.held.piece == 1
    )
    Path(table.absolute(first)).unlink()
    cut = Path(table.absolute(second))
    cut.write_bytes(cut.read_bytes()[:100])

    assert [
        (0, f"/{first.path} is not there"),
        (10, f"/{second.path} has 100 bytes, where {second.size} were written"),
    ] == [(start, what) for _, start, _, what in faults_of(table)][:2]
    assert all(start in {0, 10} for _, start, _, _ in faults_of(table))


def test_replaced_records_are_found_by_their_checksum(table: LakeTable) -> None:
    table = three_ranges(table)
    chosen = next(file for file in table.files if file.held and file.held.start == 10)
    path = Path(table.absolute(chosen))
    rows = pq.ParquetFile(path).read()
    longer = pa.array([value.as_py() + b"!" for value in rows["value"]], pa.binary())
    pq.write_table(rows.set_column(7, "value", longer), path, store_schema=False, column_encoding=None)

    assert (
        0,
        10,
        20,
        "10 records were committed, and in the files are others, by their checksum",
    ) in faults_of(table)


def test_rows_of_another_date_are_reported(table: LakeTable, tmp_path: Path) -> None:
    table = three_ranges(table)
    dates = sorted({file.date for file in table.files if file.date})
    one, other = (
        next(file for file in table.files if file.held and file.held.start == 20 and file.date == date)
        for date in dates
    )
    Path(table.absolute(one)).write_bytes(Path(table.absolute(other)).read_bytes())

    assert any(
        what.endswith(f"it has rows of other dates than {one.date}, in row group 0.")
        for *_, what in faults_of(table)
    )
