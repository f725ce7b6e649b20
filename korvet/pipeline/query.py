"""SQL over topics: for each a view that unites what is archived with what is not yet, every record exactly once.

The archive's part is one snapshot of the table. The broker's begins with the very offsets up to which that snapshot
says that it goes, so no row comes twice and none is missing, whatever is archived or trimmed while the query runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import trio
from attrs import frozen
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from korvet.client import PLAINTEXT, Security, Topic
from korvet.lake.errors import LakeError, NoTable
from korvet.lake.location import Location
from korvet.lake.schema import FILE_SCHEMA, FIRST_MS, LAST_MS
from korvet.lake.table import LakeTable, store_errors
from korvet.pipeline.archive_status import archives_in, tables_in
from korvet.pipeline.connecting import Connecting
from korvet.protocol.errors import UnknownTopicOrPartition

# What is in the files; the date is made of the timestamp.
STORED = """key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, \
timestampType int, headers array<struct<key:string,value:binary>>, timestamp_ms bigint"""
EARLIEST = -2


class AmbiguousView(LakeError):  # noqa: N818  it says what is wrong
    """A name in SQL that several topics or typed tables have."""


@frozen
class Lake:
    """Where tables are, and the brokers that have what is not archived yet; without brokers, tables alone."""

    location: Location
    bootstrap_servers: str | None = None
    typed: Location | None = None  # where typed tables are
    security: Security = PLAINTEXT

    def topics(self) -> list[str]:
        """The topics that have an archive here."""
        return archives_in(self.location)

    def typed_tables(self) -> list[str]:
        """The typed tables."""
        return [] if self.typed is None else tables_in(self.typed)


def view_name(topic: str) -> str:
    """What a topic is called in SQL: its name, with an underscore for every character that no plain name has."""
    return re.sub(r"\W", "_", topic, flags=re.ASCII)


def create_views(spark: SparkSession, lake: Lake, sql: str) -> list[str]:
    """Create the views whose names occur in `sql`, and return these names.

    A topic's view is named by `view_name`, a typed table's typed_<table>. Raises LakeError, AmbiguousView if `sql`
    has a name that several topics or tables have.
    """
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    views: dict[str, list[tuple[str, Callable[[], DataFrame]]]] = {}
    for topic in lake.topics():
        views.setdefault(view_name(topic).lower(), []).append(
            (f"topic {topic}", partial(united, spark, lake, topic))
        )
    for table in lake.typed_tables():
        location = cast(Location, lake.typed).child(table)
        views.setdefault(f"typed_{view_name(table)}".lower(), []).append(
            (f"typed table {table}", partial(typed_rows, spark, location))
        )
    wanted = {name: sources for name, sources in views.items() if name in words}
    for name, sources in wanted.items():
        if len(sources) > 1:
            raise AmbiguousView(
                f"{name} names several: {', '.join(what for what, _ in sources)}; in SQL a name has an underscore for "
                "each character other than letters, digits and underscores, and no difference of case."
            )
    for name, ((_, rows),) in wanted.items():
        rows().createOrReplaceTempView(name)
    return list(wanted)


def united(spark: SparkSession, lake: Lake, topic: str) -> DataFrame:
    """Return all records of a topic, with the columns of its archive.

    Raises RecreatedTopic if the brokers have another topic of that name, other LakeErrors, and KafkaError.
    """
    if lake.bootstrap_servers is None:
        return archived(spark, LakeTable.open(lake.location, topic))
    connecting = Connecting(lake.bootstrap_servers, security=lake.security)
    described = described_topic(connecting, topic)
    table = LakeTable.open(lake.location, topic, described.topic_id)
    return archived(spark, table).unionByName(not_archived(spark, table, connecting, described))


def typed_rows(spark: SparkSession, location: Location) -> DataFrame:
    """The rows of a typed table, or of any other plain Delta table. Raises LakeError."""
    with store_errors(location):
        table = DeltaTable(location.url, storage_options=location.storage_options())
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        count = len(table.file_uris())
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_read_fragments, location, table.version()), schema)


def _read_fragments(
    location: Location, version: int, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a worker runs: the rows of a table's fragments of these numbers, columns that are in paths included."""
    table = DeltaTable(location.url, version=version, storage_options=location.storage_options())
    dataset = table.to_pyarrow_dataset()
    fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from fragments[number].scanner(schema=dataset.schema, batch_size=8192).to_batches()


def archived(spark: SparkSession, table: LakeTable) -> DataFrame:
    """The rows of a snapshot."""
    paths = [table.absolute(file) for file in table.files]
    if table.location.is_local and paths:
        rows = spark.read.schema(STORED).parquet(*map(_escaped, paths))
    else:
        # Spark would want Hadoop's jars for a store, and they its options; pyarrow has both.
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
            f"{connecting.bootstrap_servers} has no topic {topic} any more; --archived reads what is archived of it."
        ) from None


def _escaped(path: str) -> str:
    """A path that Spark takes literally: it would expand what looks like a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def _read_files(
    location: Location, paths: Sequence[str], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a worker runs: the rows of these files, a row group at a time."""
    filesystem = location.filesystem()
    names = [part.split()[0] for part in STORED.split(", ")]
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            with filesystem.open_input_file(paths[number]) as source:
                for rows in pq.ParquetFile(source).iter_batches(8192, columns=names):
                    yield rows.select(names).cast(pa.schema([FILE_SCHEMA.field(name) for name in names]))
