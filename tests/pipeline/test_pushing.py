"""Conditions that restrict a batch read: fewer offsets are read, and no wanted record is missing."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from korvet.client import Record
from korvet.pipeline.pushing import EPOCH, Conditions
from korvet.pipeline.topic_reading import RangePartition
from tests.pipeline.support import Cluster, Row, batch_reader, rows_in, rows_of

NOON_MS = 1_700_000_000_000
TESTS = {
    EqualTo: lambda left, right: left == right,
    EqualNullSafe: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
    In: lambda left, right: left in right,
}


def filled(cluster: Cluster, topic: str) -> None:
    """Fill two partitions with records whose timestamps are in no order."""
    cluster.create(topic, partitions=2)
    records = [
        Record(b"%d" % n, partition=partition, timestamp=NOON_MS + (n * 7 + partition) % 20)
        for partition in range(2)
        for n in range(20)
    ]
    cluster.produce(topic, records)


def moment(after_ms: float) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=NOON_MS) + dt.timedelta(milliseconds=after_ms)


def restricted(cluster: Cluster, topic: str, filters: list[Filter]) -> tuple[list[Row], int]:
    """Return the rows of a read with these filters, and how many offsets it reads."""
    reader = batch_reader(cluster.source(subscribe=topic))
    assert filters == list(reader.pushFilters(filters))
    partitions = reader.partitions()
    ranges = [
        each.range for each in partitions if isinstance(each, RangePartition) and each.range is not None
    ]
    return list(rows_in(reader, partitions)), sum(each.end - each.start for each in ranges)


@pytest.mark.parametrize(
    "filters, offsets",
    [
        ([EqualTo(("partition",), 1)], 20),
        ([EqualTo(("partition",), 7)], 0),
        ([In(("partition",), (0, 5, None))], 20),
        ([GreaterThan(("partition",), 0), IsNotNull(("partition",))], 20),
        ([EqualNullSafe(("offset",), 3)], 2),
        ([GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 8)], 6),
        ([GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 8), EqualTo(("partition",), 0)], 3),
        ([In(("offset",), (2, 4))], 6),
        ([LessThan(("offset",), 0)], 0),
        ([GreaterThan(("offset",), 99)], 0),
        ([EqualTo(("topic",), "other")], 0),
        ([In(("topic",), ("other", None))], 0),
        ([GreaterThan(("timestamp",), moment(20))], 0),
        ([GreaterThanOrEqual(("timestamp",), moment(19))], 20 - 17 + 20 - 14),
        # These restrict nothing.
        ([LessThan(("timestamp",), moment(0))], 40),
        ([GreaterThan(("timestamp",), moment(0).replace(tzinfo=None))], 40),
        ([GreaterThan(("timestamp",), EPOCH - dt.timedelta(days=1))], 40),
        ([Not(EqualTo(("partition",), 1))], 40),
        ([EqualTo(("partition",), None)], 40),
        ([EqualTo(("offset",), "3")], 40),
        ([EqualTo(("headers", "key"), "x")], 40),
        ([EqualTo(("timestampType",), 1)], 40),
    ],
    ids=str,
)
def test_fewer_offsets_are_read(memory: Cluster, topic: str, filters: list[Filter], offsets: int) -> None:
    filled(memory, topic)

    assert offsets == restricted(memory, topic, filters)[1]


FILTERS = st.one_of(
    st.builds(
        lambda kind, value: kind(("partition",), value), st.sampled_from([*TESTS][:-1]), st.integers(-1, 2)
    ),
    st.builds(lambda values: In(("partition",), tuple(values)), st.lists(st.integers(-1, 3), min_size=1)),
    st.builds(
        lambda kind, value: kind(("timestamp",), moment(value)),
        st.sampled_from([*TESTS][:-1]),
        st.one_of(st.integers(-2, 22), st.floats(-2, 22)),
    ),
)


@given(st.lists(FILTERS, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_no_wanted_record_is_missing(cluster: Cluster, filters: list[Any]) -> None:
    topic = "pushed"
    if topic not in cluster.run(lambda client: client.topics()):
        filled(cluster, topic)

    def is_wanted(row: Row) -> bool:
        return all(TESTS[type(each)](row[each.attribute[0]], each.value) for each in filters)

    rows, _ = restricted(cluster, topic, filters)
    every = list(rows_of(batch_reader(cluster.source(subscribe=topic))))
    assert 40 == len(every)
    assert [row for row in every if is_wanted(row)] == [row for row in rows if is_wanted(row)]


def test_offsets_of_sparse_topics_restrict_as_well(cluster: Cluster, topic: str) -> None:
    filled(cluster, topic)
    every = list(rows_of(batch_reader(cluster.source(assign=f'{{"{topic}":[1]}}'))))
    first, last = every[4]["offset"], every[9]["offset"]

    bounds = [GreaterThanOrEqual(("offset",), first), LessThanOrEqual(("offset",), last)]
    rows, _ = restricted(cluster, topic, [EqualTo(("partition",), 1), *bounds])

    assert every[4:10] == rows


def test_several_conditions_are_one() -> None:
    found = Conditions.of([EqualTo(("topic",), "a"), In(("topic",), ("a", "b")), LessThan(("partition",), 3)])

    assert frozenset("a") == found.topics
    assert [0, 1, 2] == [number for number in range(5) if number in found.partitions]


@pytest.mark.spark
@pytest.mark.parametrize("is_enabled", [True, False])
def test_spark_restricts_a_read_by_its_conditions(
    spark: SparkSession, memory: Cluster, topic: str, *, is_enabled: bool
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    filled(memory, topic)
    before = spark.conf.get(setting)
    spark.conf.set(setting, is_enabled)
    try:
        rows = spark.read.format("korvet").options(**memory.options(subscribe=topic)).load()
        chosen = rows.where(
            f"partition = 1 and offset >= 3 and timestamp >= timestamp '{moment(5).isoformat()}'"
        )
        found = chosen.selectExpr("cast(cast(value as string) as int) as n").collect()
        tasks = chosen.rdd.getNumPartitions()
    finally:
        spark.conf.set(setting, before)

    assert [n for n in range(3, 20) if (n * 7 + 1) % 20 >= 5] == [row.n for row in found]
    assert (1 if is_enabled else 2) == tasks


def test_reader_is_accepted_without_the_setting(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    reader = batch_reader(memory.source(subscribe=topic))

    assert DataSourceReader.pushFilters is reader.pushFilters.__func__
