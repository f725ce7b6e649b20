"""Iceberg tables of typed tables: columns that are added, merged rows, partition columns that files lack."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import IsNull

from korvet.lake.iceberg.mirror import Change, Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.iceberg.rounds import Rounds
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.tables import TYPED, DecodedTable, Span
from tests.lake.iceberg_reading import reading
from tests.lake.support import TOPIC, TOPIC_ID, lake

COLUMNS = pa.schema(
    [
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("item", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("parts", pa.list_(pa.struct([pa.field("n", pa.int64())]))),
    ]
)


def typed(folder: Path, schema: pa.Schema = COLUMNS, partition_by: tuple[str, ...] = ()) -> DecodedTable:
    return DecodedTable.create(lake(folder).child(TOPIC), TYPED, TOPIC, TOPIC_ID, schema, partition_by)


def grown(table: DecodedTable, **values: object) -> DecodedTable:
    """Commit one row at the next offset."""
    offset = table.decoded_up_to.get(0, 0)
    row = {"_partition": 0, "_offset": offset, **values}
    rows = pa.Table.from_pylist([row], schema=table.schema)
    partition_by = tuple(table.delta.metadata().partition_columns)
    with PartWriter(table.location, partition_by) as writer:
        writer.write(rows)
    return table.commit([Span(0, offset, offset + 1)], writer.parts)


def mirror(folder: Path) -> Mirror:
    return Mirror(PathCatalog(lake(folder), FOLDER), "korvet")


def rows(folder: Path, columns: str) -> list[tuple[object, ...]]:
    return reading(
        f"{lake(folder).path}/{TOPIC}/{FOLDER}", f"select {columns} from {{table}} order by _offset"
    )


def test_typed_table_is_mirrored_and_follows_new_columns(tmp_path: Path) -> None:
    table = grown(typed(tmp_path), item="nut", price=1, parts=[{"n": 7}])
    assert mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC)).change is Change.CREATED
    table = table.with_columns(
        [pa.field("color", pa.string()), pa.field("size", pa.struct([("cm", pa.float64())]))]
    )
    grown(table, item="bolt", color="red", size={"cm": 1.5})

    done = mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))

    assert (1, 0) == (done.added, done.removed)
    expected = [("nut", "1.00", 7, None, None), ("bolt", None, None, "red", 1.5)]
    assert expected == rows(tmp_path, "item, price::varchar, parts[1].n, color, size.cm")


def test_column_with_a_name_of_iceberg_s_own_has_another_name_there(tmp_path: Path) -> None:
    """Spark opens no table with a column `_partition`."""
    schema = pa.schema([*COLUMNS, pa.field("_file", pa.int64())])
    table = grown(typed(tmp_path, schema), item="nut", _file=1)
    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))
    grown(table, item="bolt", _file=2)
    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))

    iceberg = mirror(tmp_path).table(TOPIC)

    assert ["_partition_", "_offset", "item"] == iceberg.schema().column_names[:3]
    expected = [(0, 0, "nut", 1), (0, 1, "bolt", 2)]
    assert expected == rows(tmp_path, "_partition_, _offset, item, _file_")
    found = sorted(iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["_offset"])
    assert expected == [(row["_partition_"], row["_offset"], row["item"], row["_file_"]) for row in found]
    assert [] == list(iceberg.scan(row_filter="_partition_ = 1").plan_files())
    assert 1 == len(list(iceberg.scan(row_filter="_file_ = 2").plan_files()))


def test_mirror_that_an_earlier_korvet_made_gets_the_other_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = grown(typed(tmp_path), item="nut")
    with monkeypatch.context() as earlier:
        for module in ("original", "mirror"):
            earlier.setattr(f"korvet.lake.iceberg.{module}.RESERVED", frozenset())
        mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))
    assert "_partition" in mirror(tmp_path).table(TOPIC).schema().column_names
    grown(table.with_columns([pa.field("color", pa.string())]), item="bolt", color="red")

    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))

    assert "_partition" not in mirror(tmp_path).table(TOPIC).schema().column_names
    expected = [(0, 0, "nut", None), (0, 1, "bolt", "red")]
    assert expected == rows(tmp_path, "_partition_, _offset, item, color")
    found = mirror(tmp_path).table(TOPIC).scan().to_arrow()
    assert [0, 0] == found["_partition_"].to_pylist()


def test_readers_skip_files_of_typed_tables_by_offset(tmp_path: Path) -> None:
    table = typed(tmp_path)
    for _ in range(4):
        table = grown(table, item="nut")
    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))

    iceberg = mirror(tmp_path).table(TOPIC)

    assert 1 == len(list(iceberg.scan(row_filter="_offset >= 3").plan_files()))


def test_merged_rows_are_an_overwrite(tmp_path: Path) -> None:
    """An upsert replaces a file by one with as many rows, which are not the same rows."""
    table = grown(typed(tmp_path), item="nut")
    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))
    changed = pa.Table.from_pylist([{"_partition": 0, "_offset": 0, "item": "bolt"}], schema=COLUMNS)
    write_deltalake(table.location.url, changed, mode="overwrite")

    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))

    assert [("bolt",)] == rows(tmp_path, "item")
    snapshot = mirror(tmp_path).table(TOPIC).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert "overwrite" == snapshot.summary.operation.value


VALUES: dict[str, list[Any]] = {
    "item": ["a b/c=%", "nut", None],
    "day": [date(2026, 1, 31), date(1969, 12, 31), None],
    "price": [Decimal("1.50"), Decimal("-2.00"), None],
    "at": [datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC), None],
    "is_paid": [True, False, None],
    "count": [7, -7, None],
}


@pytest.mark.parametrize("columns", [*((name,) for name in VALUES), ("day", "item")], ids="-".join)
def test_readers_have_partition_columns_that_files_lack_and_skip_files_by_them(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    more = {"day": pa.date32(), "is_paid": pa.bool_(), "count": pa.int64()}
    schema = pa.schema([*COLUMNS, *(pa.field(name, kind) for name, kind in more.items())])
    table = typed(tmp_path, schema, columns)
    for values in zip(*(VALUES[name] for name in columns), strict=True):
        table = grown(table, **dict(zip(columns, values, strict=True)))
    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))
    grown(table.with_columns([pa.field("color", pa.string())]), color="red")
    mirror(tmp_path).update(Original.open(lake(tmp_path), TOPIC))

    iceberg = mirror(tmp_path).table(TOPIC)

    expected = [*zip(*(VALUES[name] for name in columns), strict=True), (None,) * len(columns)]
    found = sorted(iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["_offset"])
    assert expected == [tuple(row[name] for name in columns) for row in found]
    names = [f'"{name}"::timestamptz' if name == "at" else f'"{name}"' for name in columns]
    assert expected == rows(tmp_path, ", ".join(names))
    assert 2 == len(list(iceberg.scan(row_filter=IsNull(columns[0])).plan_files()))


def test_delta_tables_of_others_are_reported_only_by_name(tmp_path: Path) -> None:
    typed(tmp_path)
    write_deltalake(lake(tmp_path).child("foreign").url, pa.table({"a": [1]}))
    place = Location.parse(lake(tmp_path).path)

    def rounds(*, skips_others: bool) -> Rounds:
        names = ["foreign", TOPIC]
        return Rounds(
            mirror(tmp_path), place, timedelta(days=1), tables=lambda: names, skips_others=skips_others
        )

    assert [TOPIC] == list(rounds(skips_others=True).round())
    outcome = rounds(skips_others=False).round()["foreign"]
    assert "is a Delta table, but none of korvet's" in (outcome.error or "")


def test_catalogue_assigns_the_ids_of_columns(tmp_path: Path) -> None:
    grown(typed(tmp_path), item="nut")
    sql = SqlCatalog("korvet", uri=f"sqlite:///{tmp_path}/catalogue.db", warehouse=str(tmp_path))

    Mirror(sql, "korvet").update(Original.open(lake(tmp_path), TOPIC))

    found = sql.load_table(("korvet", TOPIC)).scan().to_arrow().to_pylist()
    assert [("nut", 0)] == [(row["item"], row["_offset"]) for row in found]
