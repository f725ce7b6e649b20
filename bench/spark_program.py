"""A Spark session that runs cases from standard input. It needs only pyspark, and for archives korvet.

Arguments: the data source (korvet or kafka), the session's settings as JSON, and a folder. Each line of standard input
has a case, a broker's address and a topic. The response is a line with the seconds that the case took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


class Program:
    """The cases with one data source."""

    def __init__(self, spark: SparkSession, source: str, folder: Path) -> None:
        self.spark = spark
        self.source = source
        self.folder = folder
        self.table = str(folder / "table.parquet")

    def columns(self, rows: DataFrame) -> int:
        """Read all columns of all rows and discard them. Return -1: counting them would be another Spark job."""
        rows.write.format("noop").mode("overwrite").save()
        return -1

    def lengths(self, rows: DataFrame) -> int:
        """Sum the lengths of the values."""
        return int(rows.selectExpr("sum(length(value)) as total").collect()[0]["total"])

    def parquet(self, rows: DataFrame) -> int:
        """Write all columns to Parquet files."""
        rows.write.mode("overwrite").parquet(self.table)
        return -1

    def delta(self, address: str, topic: str) -> int:
        """Archive all records to a new table."""
        # Imported here because the other session does not have it.
        from korvet.lake.location import Location  # noqa: PLC0415
        from korvet.pipeline.archive import Archive, ArchiveOptions  # noqa: PLC0415
        from korvet.pipeline.archive_plan import Wanted  # noqa: PLC0415
        from korvet.pipeline.archive_workers import SparkWorkers  # noqa: PLC0415
        from korvet.pipeline.cluster import Connecting  # noqa: PLC0415

        connecting = Connecting(address)
        lake = Location.parse(str(self.folder / f"lake-{time.time_ns()}"))
        workers = SparkWorkers(connecting, lambda: self.spark)
        archive = Archive(ArchiveOptions(connecting, Wanted.parse(topic), lake), workers)
        archive.run()
        return archive.progress[topic].records

    def topic(self, address: str, topic: str) -> int:
        """Write keys and values of the Parquet files to a topic."""
        rows = self.spark.read.parquet(self.table).select("key", "value")
        writer = rows.write.format(self.source).option("kafka.bootstrap.servers", address)
        writer.option("topic", topic).mode("append").save()
        return -1

    def run(self, case: str, address: str, topic: str) -> tuple[float, int]:
        """Run a case. Return its duration in seconds, and its count of records."""
        started = time.perf_counter()
        if case == "topic":
            counted = self.topic(address, topic)
        elif case == "delta" and self.source == "korvet":
            counted = self.delta(address, topic)
        else:
            reader = self.spark.read.format(self.source).option("kafka.bootstrap.servers", address)
            cases: dict[str, Callable[[DataFrame], int]] = {
                "columns": self.columns,
                "lengths": self.lengths,
                "parquet": self.parquet,
                "delta": self.parquet,
            }
            counted = cases[case](reader.option("subscribe", topic).load())
        return time.perf_counter() - started, counted


def main(source: str, settings: str, folder: str) -> None:
    """Run the cases until standard input ends."""
    builder = SparkSession.builder.master("local[2]").appName(f"bench {source}")
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    program = Program(spark, source, Path(folder))
    for line in sys.stdin:
        took_s, counted = program.run(*line.split())
        print(f"took {took_s} {counted}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
