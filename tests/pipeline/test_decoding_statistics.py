"""Statistics of typed tables: readers skip files by any column of values, and never one that has the value."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.tables import TYPED, DecodedTable, Span
from tests.lake.iceberg_reading import reading
from tests.pipeline.decoding import TOPIC_ID, Lake

pytestmark = pytest.mark.slow

TYPES = {
    "id": "long",
    "price": "double",
    "name": "string",
    "day": "date",
    "moment": "timestamp",
    "local": "timestamp_ntz",
    "small": "integer",
    "is_paid": "boolean",
    "amount": "decimal(10,2)",
    "lines": {"type": "array", "elementType": "integer", "containsNull": True},
    "place": {
        "type": "struct",
        "fields": [{"name": "city", "type": "string", "nullable": True, "metadata": {}}],
    },
}
FIELDS = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()]
SCHEMA = json.dumps({"type": "struct", "fields": FIELDS})
# Each file has one of these rows twice, besides a row of nulls.
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "price": number + 0.25,
        "name": f"{number:05d}-é",
        "day": f"2026-01-{number + 1:02d}",
        "moment": f"2026-01-{number + 1:02d}T12:00:00.123456Z",
        "local": f"2026-01-{number + 1:02d}T12:00:00.123456",
        "small": -number,
        "is_paid": True,
        "amount": 1,
        "lines": [number],
        "place": {"city": "Oslo"},
    }
    for number in range(8)
]
SKIPPING = {
    "id": "5",
    "price": "5.25",
    "day": "date '2026-01-06'",
    "moment": "timestamp '2026-01-06 12:00:00.123456Z'",
    "small": "-5",
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a typed table of eight files with three rows each."""
    lake = Lake(tmp_path)
    for row in ROWS:
        lake.archive([row, row, {"id": None}])
        lake.decode(schema=SCHEMA)
    assert {} == lake.bad()
    return lake


def actions(lake: Lake) -> list[dict[str, Any]]:
    delta = DeltaTable(str(lake.folder / "typed" / lake.topic))
    return sorted(
        pa.table(delta.get_add_actions(flatten=True)).to_pylist(), key=lambda row: row["min._offset"]
    )


def test_bounds_and_nulls_of_all_plain_columns_are_in_the_log(lake: Lake) -> None:
    row = actions(lake)[5]

    assert (5, 5, 1) == (row["min.id"], row["max.id"], row["null_count.id"])
    assert (5.25, 5.25) == (row["min.price"], row["max.price"])
    assert 1 == row["null_count.name"]
    assert (date(2026, 1, 6), date(2026, 1, 6)) == (row["min.day"], row["max.day"])
    at = datetime(2026, 1, 6, 12, 0, 0, 123456, tzinfo=UTC)
    assert (at, at) == (row["min.moment"], row["max.moment"])
    assert (at.replace(tzinfo=None),) * 2 == (row["min.local"], row["max.local"])
    assert 1 == row["null_count.is_paid"] == row["null_count.amount"]
    assert (15, 17, 0) == (row["min._offset"], row["max._offset"], row["null_count._offset"])
    assert not {"min.name", "min.is_paid", "min.amount", "min.lines", "min.place.city"} & bounded(row)


@pytest.mark.parametrize("column", SKIPPING)
def test_readers_of_both_formats_find_a_value_and_skip_the_other_files(lake: Lake, column: str) -> None:
    delta = DeltaTable(str(lake.folder / "typed" / lake.topic))
    place = lake.location("typed")
    mirror = Mirror(PathCatalog(place, FOLDER), "typed")
    mirror.update(Original.open(place, lake.topic))
    condition = f"{column} = {SKIPPING[column]}"
    value = actions(lake)[5][f"min.{column}"]

    found = pa.table(QueryBuilder().register("t", delta).execute(f"select _offset from t where {condition}"))
    assert [15, 16] == sorted(found["_offset"].to_pylist())
    dataset = delta.to_pyarrow_dataset()
    wanted = pc.field(column) == pa.scalar(value, dataset.schema.field(column).type)
    assert 1 == len(list(dataset.get_fragments(filter=wanted)))
    folder = f"{lake.folder}/typed/{lake.topic}/{FOLDER}"
    assert [(15,), (16,)] == reading(folder, f"select _offset from {{table}} where {condition} order by 1")
    text = value.isoformat() if isinstance(value, date) else value
    scan = mirror.table(lake.topic).scan(row_filter=f"{column} = {text!r}")
    assert 1 == len(list(scan.plan_files()))


def test_joined_files_have_statistics(lake: Lake) -> None:
    table = DecodedTable.open(lake.location("typed").child(lake.topic), TYPED, lake.topic, TOPIC_ID)

    DecodedJoins(table).run()

    (row,) = actions(lake)
    assert (0, 7, 8) == (row["min.id"], row["max.id"], row["null_count.id"])


def bounded(action: dict[str, Any]) -> set[str]:
    return {name for name, value in action.items() if name.startswith("min.") and value is not None}


def write(folder: Path, rows: pa.Table) -> dict[str, Any]:
    """Write a typed table with these rows, and return its one action."""
    schema = pa.schema([*rows.schema, ("_partition", pa.int32()), ("_offset", pa.int64())])
    location = Lake(folder).location("typed").child("orders")
    table = DecodedTable.create(location, TYPED, "orders", TOPIC_ID, schema)
    offsets = pa.array(range(rows.num_rows), pa.int64())
    with PartWriter(location) as writer:
        own = {"_partition": pa.array([0] * rows.num_rows, pa.int32()), "_offset": offsets}
        writer.write(pa.table({**{name: rows[name] for name in rows.column_names}, **own}, schema=schema))
    table.commit([Span(0, 0, rows.num_rows)], writer.parts)
    (row,) = actions(Lake(folder))
    return row


def test_texts_and_values_that_a_log_cannot_state_exactly_have_no_bounds(tmp_path: Path) -> None:
    late = 9_223_372_036_854_775_000  # microseconds, after the year 294,000
    rows = pa.table(
        {
            "nan": pa.array([1.0, math.nan]),
            "infinite": pa.array([1.0, math.inf]),
            "text": ["a", "b"],
            "late": pa.array([0, late], pa.timestamp("us", "UTC")),
            "none": pa.array([None, None], pa.int64()),
            "a.b": [1, 2],
            "bytes": pa.array([b"\xff", b"\xfe"], pa.binary()),
        }
    )

    row = write(tmp_path, rows)

    assert {"min._partition", "min._offset"} == bounded(row)
    assert 2 == row["null_count.none"]


def test_first_32_columns_of_values_have_statistics(tmp_path: Path) -> None:
    row = write(tmp_path, pa.table({f"c{number:02d}": [number] for number in range(40)}))

    assert {*(f"min.c{number:02d}" for number in range(32)), "min._partition", "min._offset"} == bounded(row)
