"""Typed tables partitioned by hours or months of the record's timestamp, which Iceberg's readers skip by."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from korvet.config import ConfigError
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.tables import DecodedTable
from tests.lake.iceberg_reading import reading
from tests.pipeline.decoding import Lake

pytestmark = pytest.mark.slow

TIMES = [
    datetime(2026, 1, 31, 12, 59, 59, 999000, UTC),
    datetime(2026, 1, 31, 13, tzinfo=UTC),
    datetime(2026, 2, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    None,
]
HOURS = [
    "2026-01-31-12", "2026-01-31-13", "2026-02-01-00", "1969-12-31-23", "1970-01-01-00", "9999-12-31-23",
    "0001-01-01-00", None,
]  # fmt: skip


def milliseconds(moment: datetime | None) -> int:
    """Return the milliseconds in a record; without a moment, those that no timestamp column can hold."""
    if moment is None:
        return 2**60
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


@pytest.mark.parametrize("period, column, length", [("hours", "_hour", 13), ("months", "_month", 7)])
def test_readers_of_both_formats_have_all_rows_and_skip_files_by_time(
    tmp_path: Path, period: str, column: str, length: int
) -> None:
    lake = Lake(tmp_path)
    for _ in range(2):
        lake.archive([{"id": n} for n in range(8)], timestamps_ms=[milliseconds(each) for each in TIMES])
        lake.decode(partition_by=[period])
    mirror = Mirror(PathCatalog(lake.location("typed"), FOLDER), "typed")
    mirror.update(Original.open(lake.location("typed"), lake.topic))
    DecodedJoins(DecodedTable.found(lake.location("typed").child(lake.topic))).run()
    mirror.update(Original.open(lake.location("typed"), lake.topic))

    periods = [each and each[:length] for each in HOURS]
    assert [(each, time) for each, time in zip(periods, TIMES, strict=True)] * 2 == lake.values(
        column, "_timestamp"
    )
    expected = [(n % 8, n, None if TIMES[n % 8] is None else milliseconds(TIMES[n % 8])) for n in range(16)]
    query = "select id, _offset, epoch_ms(_timestamp) from {table} order by _offset"
    folder = f"{lake.folder}/typed/{lake.topic}/{FOLDER}"
    assert expected == reading(folder, query)
    hour = (
        "_timestamp >= timestamptz '2026-01-31 12:00:00Z' and _timestamp < timestamptz '2026-01-31 13:00:00Z'"
    )
    assert [(0,), (8,)] == reading(folder, f"select _offset from {{table}} where {hour} order by 1")

    iceberg = mirror.table(lake.topic)
    assert column not in iceberg.schema().column_names
    assert period.removesuffix("s") == str(iceberg.spec().fields[0].transform)
    found = sorted(iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["_offset"])
    assert [*range(8)] * 2 == [row["id"] for row in found]
    scan = iceberg.scan(
        row_filter="_timestamp >= '2026-01-01T00:00:00+00:00' and _timestamp < '2026-01-31T13:00:00+00:00'"
    )
    assert 1 == len(list(scan.plan_files()))
    late = iceberg.scan(
        row_filter="_timestamp >= '2026-01-31T13:00:00+00:00' and _timestamp < '2026-02-02T00:00:00+00:00'"
    )
    assert 2 == len(list(late.plan_files()))
    delta = DeltaTable(str(lake.folder / "typed" / lake.topic))
    assert 1 == len(delta.file_uris(file_pruning_predicate=[(column, "=", "2026-01-31-12"[:length])]))


def test_one_period_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partition_by: accepts one of days, hours, months"):
        Lake(tmp_path).decoding(partition_by=["days", "hours"])
