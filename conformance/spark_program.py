"""Check Spark's Kafka connector against a broker; run by the Python with pyspark 4.0 (see spark_connector.py).

Arguments: folder of jars, folder for checkpoints, the broker's name, `=`, its bootstrap server. The output has a line
per check, with four parts separated by tabs: `ok` or `FAILED`, the broker, the check, a remark.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.functions import max as max_of
from pyspark.sql.functions import min as min_of
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery

RECORDS = 10_000
PARTITIONS = 4
STREAM_LIMIT_S = 300


class Connector:
    """The checks on one broker; the first one writes the topic that the others read."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap_servers = bootstrap_servers
        self.folder = folder
        self.topic = "spark"

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield each check with its name; the order matters. A check returns a remark."""
        yield "a written topic is read completely", self.write_and_read
        yield "keys, nulls, headers and timestamps are read back", self.columns
        yield "minPartitions splits without losing records", self.min_partitions
        yield "offsets by timestamp", self.by_timestamp
        yield "offsets by partition", self.by_offset
        yield "a stream resumes from its checkpoint", self.stream
        yield "maxOffsetsPerTrigger reads every record once", self.bounded_stream
        yield "a stream from one topic into another", self.copied

    def write_and_read(self) -> str:
        frame = self.spark.range(RECORDS).selectExpr(
            "cast(id % 100 as string) as key",
            "cast(id as string) as value",
            f"cast(id % {PARTITIONS} as int) as partition",
        )
        self.save(frame, self.topic)
        self.expect_all(self.read())
        return ""

    def columns(self) -> str:
        topic = f"{self.topic}-columns"
        rows = [(None, b"no key"), (b"no value", None), (b"", b"")]
        headers = [("a", b"1"), ("a", b""), ("none", None)]
        schema = "key binary, value binary, headers array<struct<key: string, value: binary>>"
        self.save(self.spark.createDataFrame([(*row, headers) for row in rows], schema).coalesce(1), topic)

        found = self.source(topic, includeHeaders="true").load().orderBy("offset").collect()
        expect(rows, [(as_bytes(row.key), as_bytes(row.value)) for row in found])
        expect([headers] * 3, [[(each.key, as_bytes(each.value)) for each in row.headers] for row in found])
        expect([0, 0, 0], [row.timestampType for row in found])
        return ""

    def min_partitions(self) -> str:
        frame = self.read(minPartitions="10")
        tasks = frame.rdd.getNumPartitions()
        if tasks <= PARTITIONS:  # Spark rounds ranges that are no multiple of the target size
            raise AssertionError(f"{tasks} tasks")
        self.expect_all(frame)
        sizes = frame.groupBy(frame["partition"]).count().collect()
        expect([RECORDS // PARTITIONS] * PARTITIONS, [row["count"] for row in sizes])
        filled = frame.select(spark_partition_id().alias("task")).distinct().count()
        return f"{filled} of {tasks} tasks had records"

    def by_timestamp(self) -> str:
        """Read from the first record with a later timestamp than the first record's; and everything before it."""
        columns = "offset", "unix_millis(timestamp) as ms"
        rows = self.read().where("partition = 0").selectExpr(*columns).orderBy("offset").collect()
        later = next(row for row in rows if row.ms > rows[0].ms)
        times = json.dumps({self.topic: {"0": later.ms}})
        assigned = {"assign": json.dumps({self.topic: [0]})}
        before = self.source(**assigned, endingOffsetsByTimestamp=times).load().count()
        after = self.source(**assigned, startingOffsetsByTimestamp=times).load().count()
        expect((rows.index(later), len(rows) - rows.index(later)), (before, after))
        return ""

    def by_offset(self) -> str:
        offsets = sorted(row.offset for row in self.read().where("partition = 1").select("offset").collect())
        start, end = offsets[10], offsets[100]
        frame = self.source(
            assign=json.dumps({self.topic: [1]}),
            startingOffsets=json.dumps({self.topic: {"1": start}}),
            endingOffsets=json.dumps({self.topic: {"1": end}}),
        ).load()
        expect(offsets[10:100], sorted(row.offset for row in frame.select("offset").collect()))
        return ""

    def stream(self) -> str:
        """Run a stream, then again after more records: the second run reads only those."""
        topic, target = f"{self.topic}-stream", self.folder / "stream"
        self.numbers(topic, 0, 500)
        self.drain(topic, target)
        expect(500, self.spark.read.parquet(str(target / "rows")).count())
        self.numbers(topic, 500, 700)
        progress = self.drain(topic, target)
        expect(200, sum(each["numInputRows"] for each in progress))
        expect_numbers(700, self.spark.read.parquet(str(target / "rows")))
        return ""

    def bounded_stream(self) -> str:
        """Limit batches to a third of the topic's offsets; only dense offsets are as many as the records."""
        target = self.folder / "bounded"
        ends = (
            self.read()
            .groupBy("partition")
            .agg(min_of("offset").alias("first"), max_of("offset").alias("last"))
        )
        offsets = sum(row["last"] - row["first"] + 1 for row in ends.collect()) // 3
        progress = self.drain(self.topic, target, maxOffsetsPerTrigger=str(offsets))
        sizes = [each["numInputRows"] for each in progress if each["numInputRows"]]
        expect_numbers(RECORDS, self.spark.read.parquet(str(target / "rows")))
        if len(sizes) < 2:
            raise AssertionError(f"batches of {sizes}")
        return f"batches of {sizes} records by {offsets} offsets"

    def copied(self) -> str:
        target = f"{self.topic}-copied"
        query = (
            self.stream_source(self.topic)
            .select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("topic", target)
            .option("checkpointLocation", str(self.folder / "copied"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        expect_numbers(RECORDS, self.source(target).load().selectExpr("cast(value as string) as value"))
        return ""

    def read(self, **options: str) -> DataFrame:
        return self.source(self.topic, **options).load()

    def source(self, topic: str | None = None, **options: str) -> DataFrameReader:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap_servers)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        return reader.options(**options)

    def stream_source(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option(
            "kafka.bootstrap.servers", self.bootstrap_servers
        )
        return (
            reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
        )

    def drain(self, topic: str, target: Path, **options: str) -> list[dict[str, Any]]:
        """Write everything to files. Return the progress of each batch."""
        query = (
            self.stream_source(topic, **options)
            .selectExpr("cast(value as string) as value")
            .writeStream.format("parquet")
            .option("path", str(target / "rows"))
            .option("checkpointLocation", str(target / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        return [json.loads(each.json) if hasattr(each, "json") else each for each in query.recentProgress]

    def numbers(self, topic: str, start: int, end: int) -> None:
        self.save(self.spark.range(start, end).selectExpr("cast(id as string) as value"), topic)

    def save(self, frame: DataFrame, topic: str) -> None:
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.bootstrap_servers)
        writer.option("topic", topic).option("includeHeaders", "true").save()

    def expect_all(self, frame: DataFrame) -> None:
        expect_numbers(RECORDS, frame.selectExpr("cast(value as string) as value"))


def finish(query: StreamingQuery) -> None:
    """Wait until a stream has processed all available records. If it does not end in time, stop it and fail."""
    ended = query.awaitTermination(STREAM_LIMIT_S)
    if not ended:
        query.stop()
        raise AssertionError(f"the stream did not end within {STREAM_LIMIT_S} s")


def expect_numbers(count: int, frame: DataFrame) -> None:
    """Fail unless the values are all numbers below `count`, once each."""
    found = Counter(row.value for row in frame.collect())
    if found != Counter(str(number) for number in range(count)):
        missing = sum(str(number) not in found for number in range(count))
        raise AssertionError(
            f"{missing} of {count} records are missing, {found.total() - len(found)} came twice"
        )


def expect(wanted: object, found: object) -> None:
    if wanted != found:
        raise AssertionError(f"expected {wanted}, got {found}")


def as_bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def main(arguments: list[str]) -> None:
    jars, folder, broker = arguments
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(path) for path in sorted(Path(jars).glob("*.jar"))))
        .config("spark.ui.enabled", "false")
        .config("spark.network.timeout", "600s")  # a busy machine must not cause a failure
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    name, _, bootstrap_servers = broker.rpartition("=")
    connector = Connector(spark, bootstrap_servers, Path(folder))
    for check, run in connector.checks():
        try:
            answer = ("ok", name, check, run())
        except Exception as error:  # noqa: BLE001  whatever Spark throws is the check's answer
            traceback.print_exc()
            answer = ("FAILED", name, check, " ".join(str(error).split()) or repr(error))
        print("\t".join(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
