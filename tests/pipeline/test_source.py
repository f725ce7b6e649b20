"""The data source in Spark itself: found by its name, batch and streaming, both ways."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from korvet.client import Record
from korvet.client.partitioner import partition_of_key
from korvet.pipeline.metrics import source_metrics
from tests.pipeline.support import Cluster

pytestmark = pytest.mark.spark

NOON = 1_700_000_000_000
COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"


def load(spark: SparkSession, cluster: Cluster, **options: object) -> DataFrame:
    return spark.read.format("korvet").options(**cluster.options(**options)).load()


def copy(
    spark: SparkSession, cluster: Cluster, source: str, target: str, checkpoint: Path, **options: object
) -> StreamingQuery:
    """Stream what is in one topic into another, and end."""
    rows = spark.readStream.format("korvet").options(**cluster.options(subscribe=source, **options)).load()
    query = (
        rows.writeStream.format("korvet")
        .options(**cluster.options(topic=target))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_columns_are_those_of_sparks_kafka_source(spark: SparkSession, memory: Cluster, topic: str) -> None:
    memory.create(topic)
    plain = load(spark, memory, subscribe=topic)
    headers = load(spark, memory, subscribe=topic, includeHeaders="true")

    assert f"{COLUMNS}, timestampType int".split(", ") == [f"{name} {kind}" for name, kind in plain.dtypes]
    assert ("headers", "array<struct<key:string,value:binary>>") == headers.dtypes[-1]
    assert 0 == plain.count()


def test_rows_written_to_a_topic_are_read_back(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, partitions=3)
    rows = spark.range(3000).selectExpr(
        "if(id % 2 = 0, cast(id as string), null) as key",
        "if(id % 7 = 0, null, cast(id as string)) as value",
        "if(id % 3 = 0, array(struct('h' as key, encode(cast(id as string), 'utf-8') as value)), null) as headers",
    )
    writer = rows.write.format("korvet").options(**cluster.options(topic=topic)).mode("append")
    writer.option("kafka.compression.type", "zstd").save()
    back = load(spark, cluster, subscribe=topic, includeHeaders="true").collect()

    assert 3000 == len(back)
    expected = [
        (
            str(n).encode() if n % 2 == 0 else None,
            None if n % 7 == 0 else str(n).encode(),
            [("h", str(n).encode())] if n % 3 == 0 else None,
        )
        for n in range(3000)
    ]
    found = [
        (
            row.key and bytes(row.key),
            row.value and bytes(row.value),
            row.headers and [(header.key, bytes(header.value)) for header in row.headers],
        )
        for row in back
    ]
    assert sorted(expected, key=repr) == sorted(found, key=repr)
    assert all(row.partition == partition_of_key(bytes(row.key), 3) for row in back if row.key is not None)


def test_timestamps_and_sql_queries(spark: SparkSession, memory: Cluster, topic: str) -> None:
    memory.create(topic)
    memory.produce(topic, [Record(b"%d" % n, timestamp=NOON + n) for n in range(10)])
    load(spark, memory, subscribe=topic).createOrReplaceTempView("records")
    (row,) = spark.sql(
        "select max(timestamp) as latest, sum(cast(cast(value as string) as int)) as total from records"
    ).collect()

    assert 45 == row.total
    assert NOON + 9 == round(row.latest.replace(tzinfo=dt.UTC).timestamp() * 1000)


def test_rows_name_their_topics_and_partitions(spark: SparkSession, memory: Cluster, topic: str) -> None:
    for name in (f"{topic}-a", f"{topic}-b"):
        memory.create(name, partitions=2)
    rows = spark.range(100).selectExpr(
        f"concat('{topic}-', if(id < 50, 'a', 'b')) as topic",
        "cast(id % 2 as int) as partition",
        "cast(id as string) as value",
    )
    rows.write.format("korvet").options(**memory.options()).mode("append").save()
    back = memory.read(subscribePattern=f"{topic}-.")

    assert {(f"{topic}-{'a' if n < 50 else 'b'}", n % 2, str(n).encode()) for n in range(100)} == {
        (row["topic"], row["partition"], row["value"]) for row in back
    }


def test_stream_resumes_from_its_checkpoint(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    source, target = f"{topic}-source", f"{topic}-target"
    for name in (source, target):
        cluster.create(name, partitions=2)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    cluster.produce(source, [Record(b"%d" % n, partition=n % 2) for n in range(100)])
    first = copy(spark, cluster, source, target, tmp_path, **options)
    cluster.produce(source, [Record(b"%d" % n, partition=n % 2) for n in range(100, 130)])
    second = copy(spark, cluster, source, target, tmp_path, **options)

    assert [50, 50] == [progress.numInputRows for progress in first.recentProgress]
    assert [30] == [progress.numInputRows for progress in second.recentProgress]
    if cluster.is_dense:
        behind = [source_metrics(progress) for progress in first.recentProgress]
        names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
        expected = [
            dict(zip(names, values, strict=True)) for values in (("25", "25", "25.0"), ("0", "0", "0.0"))
        ]
        assert expected == [metrics for (metrics,) in behind]
    copied = [row["value"] for row in cluster.read(subscribe=target)]
    assert sorted(b"%d" % n for n in range(130)) == sorted(copied)


def test_invalid_options_raise_analysis_exceptions(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    with pytest.raises(AnalysisException, match=r"there is no option startingoffset \(did you mean"):
        load(spark, memory, subscribe=topic, startingOffset="latest")
    with pytest.raises(AnalysisException, match="There is no topic nobody-made-it"):
        load(spark, memory, subscribe="nobody-made-it").count()
    rows = spark.range(3).selectExpr("id as value")
    with pytest.raises(AnalysisException, match="column value is bigint; accepted is string or binary"):
        rows.write.format("korvet").options(**memory.options(topic=topic)).mode("append").save()
    text = rows.selectExpr("cast(value as string) as value", "9 as partition")
    with pytest.raises(AnalysisException, match="no topic is named; accepted is an option topic"):
        text.write.format("korvet").options(**memory.options()).mode("append").save()
    with pytest.raises(PythonException, match=f"There is no {topic}-9; the topic's partitions are 0 to 0"):
        text.write.format("korvet").options(**memory.options(topic=topic)).mode("append").save()
    with pytest.raises(StreamingQueryException, match="endingOffsets is not accepted here"):
        copy(spark, memory, topic, topic, tmp_path, endingOffsets="latest")


def test_documented_alternatives_to_refused_spark_features_work(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    options = memory.options(topic=topic)
    letters = spark.createDataFrame([("a",)], ["value"])
    with pytest.raises(AnalysisException, match='cannot be written in the "ErrorIfExists" mode.*"Append"'):
        letters.write.format("korvet").options(**options).save()

    memory.create(f"{topic}-in")
    memory.produce(f"{topic}-in", [Record(b"%d" % (n % 2)) for n in range(4)])
    source = memory.options(subscribe=f"{topic}-in", startingOffsets="earliest")
    rows = spark.readStream.format("korvet").options(**source).load()
    counts = rows.groupBy("value").count().selectExpr("value as key", "cast(count as string) as value")
    updates = counts.writeStream.outputMode("update").trigger(availableNow=True)
    updates = updates.option("checkpointLocation", str(tmp_path / "refused"))
    query = updates.format("korvet").options(**options).start()
    with pytest.raises(StreamingQueryException, match="korvet does not support Update mode"):
        query.awaitTermination()

    def append(rows: DataFrame, batch: int) -> None:
        rows.write.format("korvet").options(**options).mode("append").save()

    query = updates.option("checkpointLocation", str(tmp_path / "taken")).foreachBatch(append).start()
    query.awaitTermination()
    assert {(b"0", b"2"), (b"1", b"2")} == {
        (row["key"], row["value"]) for row in memory.read(subscribe=topic)
    }


def test_topic_can_be_a_temporary_view_but_not_a_catalog_table(
    spark: SparkSession, memory: Cluster, topic: str
) -> None:
    memory.create(topic)
    memory.produce(topic, [Record(b"1")])
    name = topic.replace("-", "_")
    options = f"options ('kafka.bootstrap.servers' '{memory.bootstrap_servers}', subscribe '{topic}')"
    remedy = "use CREATE TEMPORARY VIEW name USING korvet OPTIONS"
    with pytest.raises(AnalysisException, match=remedy):
        spark.sql(f"create table {name} using korvet {options}")
    spark.sql(f"create table {name} (value binary) using korvet {options}")  # Spark asks for no schema here
    try:
        with pytest.raises(AnalysisException, match=remedy):
            spark.sql(f"select * from {name}").count()
        with pytest.raises(AnalysisException, match=remedy):
            spark.sql(f"insert into {name} values (cast('2' as binary))")
    finally:
        spark.sql(f"drop table {name}")

    spark.sql(f"create temporary view {name} using korvet {options}")
    assert [(b"1",)] == [(bytes(row.value),) for row in spark.sql(f"select value from {name}").collect()]
