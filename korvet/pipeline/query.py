"""SQL over topics: a view per topic unites archived records with later ones, every record exactly once.

The archived part is one snapshot of the table. The broker's part begins at the archived offsets of this snapshot, so no
row is duplicated or missing, whatever is archived or trimmed while the query runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import trio
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from korvet.client import PLAINTEXT, Topic
from korvet.lake.errors import NoTable
from korvet.lake.file_reading import checked
from korvet.lake.location import Location
from korvet.lake.schema import FILE_SCHEMA, FIRST_MS, LAST_MS
from korvet.lake.store_errors import store_errors
from korvet.lake.table import LakeTable
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.views import Lake, named_sources
from korvet.protocol.errors import UnknownTopicOrPartition

# The columns inside the files. The date is computed from the timestamp.
STORED = """key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, \
timestampType int, headers array<struct<key:string,value:binary>>, timestamp_ms bigint"""
EARLIEST = -2


def create_views(spark: SparkSession, lake: Lake, sql: str) -> list[str]:
    """Create the views whose names occur in `sql`, and return these names. Raises the errors of `named_sources`."""
    chosen = named_sources(lake, sql)
    for name, source in chosen.items():
        rows = united(spark, lake, source.name) if source.typed is None else typed_rows(spark, source.typed)
        rows.createOrReplaceTempView(f"`{name}`")
    return list(chosen)


def united(spark: SparkSession, lake: Lake, topic: str) -> DataFrame:
    """Return all records of a topic, with the columns of its archive.

    Raises RecreatedTopic if the brokers have another topic of that name, other LakeErrors, and KafkaError.
    """
    if lake.bootstrap_servers is None:
        return archived(spark, LakeTable.open(lake.location, topic))
    connecting = Connecting(
        lake.bootstrap_servers, request_timeout_s=lake.request_timeout_s, security=lake.security or PLAINTEXT
    )
    described = described_topic(connecting, topic)
    table = LakeTable.open(lake.location, topic, described.topic_id)
    return archived(spark, table).unionByName(not_archived(spark, table, connecting, described))


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


def typed_rows(spark: SparkSession, location: Location) -> DataFrame:
    """Return the rows of a typed table, or of any other plain Delta table. Raises LakeError."""
    with store_errors(location):
        table = DeltaTable(location.url, storage_options=location.storage_options())
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        paths = pa.table(table.get_add_actions())["path"].to_pylist()
    if location.is_local and paths and _is_in_files(table):
        # Spark's reader reads only the columns and row groups that the statement needs.
        return spark.read.schema(schema).parquet(
            *(_escaped(f"{location.path}/{unquote(path)}") for path in paths)
        )
    count = len(paths)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_read_fragments, location, table.version()), schema)


def _is_in_files(table: DeltaTable) -> bool:
    """Return True if the files of a table hold all of its columns, and no rows that were deleted."""
    features = table.protocol().reader_features or ()
    return not table.metadata().partition_columns and set(features) <= {"timestampNtz"}


def _read_fragments(
    location: Location, version: int, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table's fragments of these numbers on a worker, with the columns that are in paths."""
    table = DeltaTable(location.url, version=version, storage_options=location.storage_options())
    dataset = table.to_pyarrow_dataset()
    fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from fragments[number].scanner(schema=dataset.schema, batch_size=8192).to_batches()


def archived(spark: SparkSession, table: LakeTable) -> DataFrame:
    """Return the rows of a snapshot."""
    paths = [table.absolute(file) for file in table.files]
    if table.location.is_local and paths:
        rows = spark.read.schema(STORED).parquet(*map(_escaped, paths))
    else:
        # Spark requires Hadoop's jars and settings to read a store; pyarrow does not.
        numbers = spark.range(0, len(paths), 1, max(1, len(paths)))
        rows = numbers.mapInArrow(partial(_read_files, table.location, tuple(paths)), STORED)
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
    location: Location, paths: Sequence[str], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these files on a worker, in batches."""
    filesystem = location.filesystem()
    names = [part.split()[0] for part in STORED.split(", ")]
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            with filesystem.open_input_file(paths[number]) as source:
                for rows in checked(source).iter_batches(8192, columns=names):
                    yield rows.select(names).cast(pa.schema([FILE_SCHEMA.field(name) for name in names]))
