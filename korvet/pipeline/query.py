"""SQL over topics: a view per topic unites archived records with later ones, every record exactly once.

The archived part is one snapshot of the table. The broker's part begins at the archived offsets of this snapshot, so no
row is duplicated or missing, whatever is archived or trimmed while the query runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import trio
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from korvet.client import PLAINTEXT, Topic
from korvet.lake.errors import NewerFormat, NoTable
from korvet.lake.file_reading import checked
from korvet.lake.location import Location
from korvet.lake.schema import FILE_SCHEMA, FIRST_MS, LAST_MS
from korvet.lake.store_errors import first_line, store_errors
from korvet.lake.table import LakeTable
from korvet.lake.table_features import has_column_mapping
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.decoding.tables import arrow_columns
from korvet.pipeline.views import Lake, named_columns, named_sources
from korvet.protocol.errors import UnknownTopicOrPartition

# The columns inside the files, and their types. The date is computed from the timestamp.
STORED = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp_ms": "bigint",
}
EARLIEST = -2


def answered(spark: SparkSession, lake: Lake, sql: str) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Run a statement over the views that it names. Return the columns of its result, and its rows.

    Raises the errors of `named_sources`, and those of Spark.
    """
    create_views(spark, lake, sql)
    result = spark.sql(sql)
    schema = result.schema
    rows = (
        {each.name: zoned(row[index], each.dataType) for index, each in enumerate(schema)}
        for row in result.toLocalIterator()
    )
    return result.columns, rows


def create_views(spark: SparkSession, lake: Lake, sql: str) -> list[str]:
    """Create the views whose names occur in `sql`, and return these names. Raises the errors of `named_sources`."""
    chosen = named_sources(lake, sql)
    columns = named_columns(sql)
    for name, source in chosen.items():
        if source.typed is None:
            rows = united(spark, lake, source.name, columns)
        else:
            rows = typed_rows(spark, source.typed, columns)
        rows.createOrReplaceTempView(f"`{name}`")
    return list(chosen)


def united(spark: SparkSession, lake: Lake, topic: str, columns: Collection[str] | None = None) -> DataFrame:
    """Return all records of a topic, with the columns of its archive; those of `columns` if the others cost reads.

    Raises RecreatedTopic if the brokers have another topic of that name, other LakeErrors, and KafkaError.
    """
    if lake.bootstrap_servers is None:
        return archived(spark, LakeTable.open(lake.location, topic), columns)
    connecting = Connecting(
        lake.bootstrap_servers, request_timeout_s=lake.request_timeout_s, security=lake.security or PLAINTEXT
    )
    described = described_topic(connecting, topic)
    table = LakeTable.open(lake.location, topic, described.topic_id)
    rows = archived(spark, table, columns)
    return rows.unionByName(not_archived(spark, table, connecting, described).select(rows.columns))


def zoned(value: Any, kind: DataType) -> Any:
    """Return a value of a result with times in UTC, and rows as dicts. A timestamp_ntz stays without a zone."""
    # pyspark returns timestamps in this process's time zone, without saying so.
    if value is None:
        return None
    if isinstance(kind, TimestampType):
        return value.astimezone(UTC)
    if isinstance(kind, StructType):
        return {each.name: zoned(value[index], each.dataType) for index, each in enumerate(kind)}
    if isinstance(kind, ArrayType):
        return [zoned(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return {zoned(name, kind.keyType): zoned(each, kind.valueType) for name, each in value.items()}
    return value


def typed_rows(spark: SparkSession, location: Location, columns: Collection[str] | None = None) -> DataFrame:
    """Return the rows of a typed table, or of any other Delta table, with those of `columns` if others cost reads.

    Raises LakeError.
    """
    with store_errors(location):
        table = DeltaTable(location.url, storage_options=location.storage_options())
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        paths = pa.table(table.get_add_actions())["path"].to_pylist()
    if _needs_engine(table):
        try:
            _selected(table, 'select * from "rows" limit 0')  # fails here, if deltalake cannot read it either
        except Exception as error:  # the engine raises a plain Exception
            raise NewerFormat(f"{location}: {first_line(error)}") from error
        return spark.range(0, 1, 1, 1).mapInArrow(partial(_read_whole, location, table.version()), schema)
    if location.is_local and paths and not table.metadata().partition_columns:
        # Spark's reader reads only the columns and row groups that the statement needs.
        return spark.read.schema(schema).parquet(
            *(_escaped(f"{location.path}/{unquote(path)}") for path in paths)
        )
    count = len(paths)
    numbers = spark.range(0, count, 1, max(1, count))
    read = StructType([each for each in schema if columns is None or each.name.lower() in columns])
    read = read or StructType(schema.fields[:1])
    return numbers.mapInArrow(partial(_read_fragments, location, table.version(), read.names), read)


def _needs_engine(table: DeltaTable) -> bool:
    """Return True if rows of files were deleted, or columns have other names there."""
    return has_column_mapping(table) or not set(table.protocol().reader_features or ()) <= {"timestampNtz"}


def _selected(table: DeltaTable, statement: str = 'select * from "rows"') -> pa.RecordBatchReader:
    """Return the rows of any table that deltalake's engine can read. Raises Exception."""
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("rows", table).execute(statement))


def _read_whole(
    location: Location, version: int, _numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table on a worker."""
    table = DeltaTable(location.url, version=version, storage_options=location.storage_options())
    schema = arrow_columns(table.schema())
    for batch in _selected(table):
        yield batch.cast(schema)


def _read_fragments(
    location: Location, version: int, names: Sequence[str], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table's fragments of these numbers on a worker, with columns that are in paths."""
    table = DeltaTable(location.url, version=version, storage_options=location.storage_options())
    dataset = table.to_pyarrow_dataset()
    fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            scanner = fragments[number].scanner(schema=dataset.schema, columns=list(names), batch_size=8192)
            yield from scanner.to_batches()


def archived(spark: SparkSession, table: LakeTable, columns: Collection[str] | None = None) -> DataFrame:
    """Return the rows of a snapshot; of one in an object store, those of `columns` alone."""
    paths = [table.absolute(file) for file in table.files]
    if table.location.is_local and paths:
        schema = ", ".join(f"{name} {text}" for name, text in STORED.items())
        rows = spark.read.schema(schema).parquet(*map(_escaped, paths))
    else:
        # Spark requires Hadoop's jars and settings to read a store; pyarrow does not.
        numbers = spark.range(0, len(paths), 1, max(1, len(paths)))
        read = {name: text for name, text in STORED.items() if columns is None or name.lower() in columns}
        if columns is not None and "date" in columns:
            read["timestamp"] = STORED["timestamp"]
        read = read or {"partition": STORED["partition"]}
        schema = ", ".join(f"{name} {text}" for name, text in read.items())
        rows = numbers.mapInArrow(partial(_read_files, table.location, tuple(paths), tuple(read)), schema)
        if "timestamp" not in read:
            return rows
    return rows.withColumn("date", sf.to_date("timestamp"))


def not_archived(
    spark: SparkSession, table: LakeTable, connecting: Connecting, described: Topic
) -> DataFrame:
    """Return the rows that the brokers have from the archived offsets of a snapshot on."""
    starts = {
        str(number): table.archived_up_to.get(number, EARLIEST) for number in range(len(described.partitions))
    }
    rows = (
        spark.read.format("korvet")
        .option("kafka.bootstrap.servers", connecting.bootstrap_servers)
        .options(**{f"kafka.{name}": text for name, text in connecting.security.settings().items()})
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", table.topic)
        .option("startingOffsets", json.dumps({table.topic: starts}))
        .option("includeHeaders", "true")
        .option("includeTimestampMs", "true")
        .load()
    )
    representable = sf.col("timestamp_ms").between(FIRST_MS, LAST_MS)
    return rows.withColumn("timestamp", sf.when(representable, sf.col("timestamp"))).withColumn(
        "date", sf.to_date("timestamp")
    )


def described_topic(connecting: Connecting, topic: str) -> Topic:
    """Return a topic as the brokers describe it. Raises NoTable if they have no such topic, and KafkaError."""

    async def ask() -> Topic:
        async with connecting.open() as client:
            return await client.topic(topic)

    try:
        return trio.run(ask)
    except UnknownTopicOrPartition:
        raise NoTable(
            f"{connecting.bootstrap_servers} has no topic {topic} any more; --archived reads only its archive."
        ) from None


def _escaped(path: str) -> str:
    """Escape a path so that Spark does not expand it as a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def _read_files(
    location: Location, paths: Sequence[str], names: Sequence[str], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows of these files on a worker, in batches."""
    filesystem = location.filesystem()
    names = list(names)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            with filesystem.open_input_file(paths[number]) as source:
                for rows in checked(source).iter_batches(8192, columns=names):
                    yield rows.select(names).cast(pa.schema([FILE_SCHEMA.field(name) for name in names]))
