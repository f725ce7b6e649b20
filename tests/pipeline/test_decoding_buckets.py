"""Typed tables partitioned by buckets of a column, by which Iceberg's readers skip files, and upserts read few."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)

from korvet.config import ConfigError
from korvet.lake.errors import WrongTable
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding import upserting
from korvet.pipeline.decoding.buckets import buckets_of
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.tables import DecodedTable
from tests.lake.iceberg_reading import reading
from tests.pipeline.decoding import Lake

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "kind, values, of_iceberg",
    [
        (pa.int32(), [34, 0, -1, None, 34, 2**31 - 1], IntegerType()),
        (pa.int64(), [34, -(2**63), None, 2**63 - 1], LongType()),
        (pa.string(), ["iceberg", "", None, "käse"], StringType()),
        (pa.binary(), [b"\x00\x01\x02\x03", b"", None], BinaryType()),
        (pa.date32(), [date(2017, 11, 16), date(1, 1, 1), None], DateType()),
        (pa.timestamp("us", "UTC"), [NOON, None], TimestamptzType()),
    ],
)
def test_buckets_are_those_of_iceberg(kind: pa.DataType, values: list[Any], of_iceberg: IcebergType) -> None:
    transform = BucketTransform(7).transform(of_iceberg)
    units = pa.array(values, kind)
    if not isinstance(of_iceberg, (StringType, BinaryType)):
        numbers = units.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).to_pylist()
    else:
        numbers = values

    assert [transform(each) for each in numbers] == buckets_of(units, 7).to_pylist()
    assert [transform(each) for each in numbers] == buckets_of(pa.chunked_array([units]), 7).to_pylist()


@pytest.mark.slow
def test_readers_of_both_formats_skip_files_by_bucket(lake: Lake) -> None:
    settings: dict[str, Any] = {"bucket_by": "id", "buckets": 4}
    for _ in range(2):
        lake.archive([{"id": f"customer {n}", "n": n} for n in range(40)])
        lake.decode(**settings)
    location = lake.location("typed")
    mirror = Mirror(PathCatalog(location, FOLDER), "typed")
    mirror.update(Original.open(location, lake.topic))
    DecodedJoins(DecodedTable.found(location.child(lake.topic))).run()
    mirror.update(Original.open(location, lake.topic))

    delta = DeltaTable(str(lake.folder / "typed" / lake.topic))
    (bucket,) = buckets_of(pa.array(["customer 7"]), 4).to_pylist()
    query = f"select n, _bucket from rows where _bucket = {bucket} and id = 'customer 7'"
    found = pa.table(QueryBuilder().register("rows", delta).execute(query))
    assert [(7, bucket)] * 2 == list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    assert 1 == len(delta.file_uris(file_pruning_predicate=[("_bucket", "=", str(bucket))]))
    assert 4 == len(delta.file_uris())

    iceberg = mirror.table(lake.topic)
    assert ["bucket[4]"] == [str(each.transform) for each in iceberg.spec().fields]
    assert 1 == len(list(iceberg.scan(row_filter="id == 'customer 7'").plan_files()))
    assert 80 == iceberg.scan().to_arrow().num_rows
    folder = f"{lake.folder}/typed/{lake.topic}/{FOLDER}"
    assert [(7,), (7,)] == reading(folder, "select n from {table} where id = 'customer 7'")
    assert [(80,)] == reading(folder, "select count(*) from {table}")


@pytest.mark.slow
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_upsert_reads_only_the_files_of_its_buckets(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, deletes: str
) -> None:
    settings: dict[str, Any] = {
        "upsert": True, "bucket_by": "_key", "buckets": 4, "keep_key": True, "deletes": deletes
    }  # fmt: skip
    lake.archive([{"n": n} for n in range(40)], keys=[str(n) for n in range(40)])
    lake.decode(**settings)
    read: list[str | None] = []
    changed = upserting._changed

    def seen(table: Any, newest: Any, file: Any) -> Any:
        read.append(file.partition_values["_bucket"])
        return changed(table, newest, file)

    monkeypatch.setattr(upserting, "_changed", seen)
    lake.archive([{"n": 100}, None], keys=["7", "7"])
    lake.decode(**settings)

    assert [str(each) for each in buckets_of(pa.array(["7"]), 4).to_pylist()] == read
    rows = {row["_key"]: (row["n"], row.get("_deleted")) for row in lake.rows()}
    assert len(rows) == len(lake.rows())
    assert (None if deletes == "hard" else (100, True)) == rows.pop(b"7", None)
    assert {str(n).encode() for n in range(40)} - {b"7"} == rows.keys()


def test_contradictions_are_refused(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="buckets: needs bucket_by, a column"):
        lake.decoding(buckets=8)
    with pytest.raises(ConfigError, match="buckets: must be from 1 to 10,000"):
        lake.decoding(buckets=0, bucket_by="id")
    with pytest.raises(ConfigError, match="bucket_by: accepts region, id with upsert"):
        lake.decoding(upsert=True, key=["region", "id"], bucket_by="n")


def test_columns_without_buckets_are_refused(lake: Lake) -> None:
    lake.archive([{"id": 1, "part": 1.5}])
    with pytest.raises(SchemaFault, match="bucket_by: part is double, which has no buckets; whole numbers"):
        lake.decode(bucket_by="part")
    with pytest.raises(SchemaFault, match="bucket_by: there is no column di; there are id, part"):
        lake.decode(bucket_by="di")
    with pytest.raises(SchemaFault, match="bucket_by: id is in partition_by"):
        lake.decode(bucket_by="id", partition_by=["id"])


def test_buckets_of_a_table_do_not_change(lake: Lake) -> None:
    lake.archive([{"id": 1, "other": 1}])
    lake.decode(bucket_by="id")
    lake.archive([{"id": 2, "other": 1}])

    with pytest.raises(WrongTable, match="has 16 buckets of id; tables do not change that"):
        lake.decode(bucket_by="other")
    with pytest.raises(WrongTable, match="is partitioned by _bucket; tables do not change that"):
        lake.decode()
