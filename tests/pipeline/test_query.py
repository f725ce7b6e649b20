"""SQL over topics, archived and not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from korvet.cli.lake.rows import plain
from korvet.client import Record
from korvet.lake.errors import RecreatedTopic
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.pipeline.query import create_views, united, zoned
from korvet.pipeline.views import AmbiguousView, Lake, view_name
from tests.lake.foreign_tables import mapped_table, table_with_deletions
from tests.lake.s3 import s3_store
from tests.lake.support import written
from tests.pipeline.archiving import archived
from tests.pipeline.support import Cluster

pytestmark = pytest.mark.spark

T0 = 1_769_860_800_000


def numbered(numbers: Sequence[int]) -> list[Record]:
    return [
        Record(
            value=b'{"n": %d}' % number,
            key=b"k%d" % (number % 3),
            timestamp=T0 + number,
            headers=(("n", b"%d" % number), ("none", None)),
        )
        for number in numbers
    ]


def lake_at(folder: Path, cluster: Cluster | None = None) -> Lake:
    return Lake(Location.parse(str(folder)), cluster.bootstrap_servers if cluster else None)


def test_query_returns_archived_and_live_records_once(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, partitions=3)
    cluster.produce(topic, numbered(range(300)))
    archived(cluster.bootstrap_servers, topic, tmp_path)
    cluster.produce(topic, numbered(range(300, 500)))

    rows = united(spark, lake_at(tmp_path, cluster), topic).collect()
    cold = united(spark, lake_at(tmp_path), topic).collect()

    assert sorted(json.loads(row.value)["n"] for row in rows) == list(range(500))
    assert sorted(json.loads(row.value)["n"] for row in cold) == list(range(300))
    for row in rows:
        number = json.loads(row.value)["n"]
        assert row.timestamp_ms == T0 + number
        assert [tuple(header) for header in row.headers] == [("n", b"%d" % number), ("none", None)]
        assert (row.topic, row.timestampType, str(row.date)) == (topic, 0, "2026-01-31")


def test_timestamps_out_of_range_are_equal_for_archived_and_live_records(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    times = [-1, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1]
    records = [Record(b"%d" % time, timestamp=time) for time in times]
    memory.create(topic, message_timestamp_after_max_ms=str(2**63 - 1))
    for record in records:  # in batches of their own: two times may lie further apart than a batch can say
        memory.produce(topic, [record])
    archived(memory.bootstrap_servers, topic, tmp_path)
    for record in records:
        memory.produce(topic, [record])

    rows = (
        united(spark, lake_at(tmp_path, memory), topic)
        .orderBy("offset")
        .selectExpr(
            "cast(value as string) as value",
            "timestamp_ms",
            "cast(timestamp as string) as at",
            "date is null as no_date",
        )
        .collect()
    )

    assert [tuple(row) for row in rows[:4]] == [tuple(row) for row in rows[4:]]
    assert [int(row.value) for row in rows] == [row.timestamp_ms for row in rows]
    assert (
        [row.at is None for row in rows[:4]]
        == [row.no_date for row in rows[:4]]
        == [False, False, True, True]
    )


def test_views_have_the_names_of_their_topics(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, numbered(range(10)))
    archived(memory.bootstrap_servers, topic, tmp_path)
    sql = f"select cast(key as string) as key, count(*) as n from {view_name(topic)} group by 1 order by 1"

    created = create_views(spark, lake_at(tmp_path, memory), sql)

    assert created == [view_name(topic)]
    assert [tuple(row) for row in spark.sql(sql).collect()] == [("k0", 4), ("k1", 3), ("k2", 3)]
    assert create_views(spark, lake_at(tmp_path, memory), "select 1") == []


def test_recreated_topic_is_not_mixed_with_its_old_archive(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, numbered(range(5)))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.run(lambda client: client.delete_topic(topic))
    memory.create(topic)
    memory.produce(topic, numbered(range(5, 13)))

    with pytest.raises(RecreatedTopic, match="--archived reads the old table alone"):
        united(spark, lake_at(tmp_path, memory), topic)
    assert united(spark, lake_at(tmp_path), topic).count() == 5


def test_ambiguous_view_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path))
    for topic in ("a-b", "a_b", "c.x", "C.X", "orders", "typed_orders"):
        LakeTable.open_or_create(place, topic, uuid4())
    write_deltalake(str(tmp_path / "typed" / "orders"), pa.table({"n": [1]}))
    lake = Lake(place, typed=place.child("typed"))

    for name, sources in (
        ("a_b", "topic a-b, topic a_b"),
        ("c_x", "topic C.X, topic c.x"),
        ("typed_orders", "topic typed_orders, typed table orders"),
    ):
        with pytest.raises(AmbiguousView, match=f"{name} names several: {sources};"):
            create_views(spark, lake, f"select * from {name}")
    assert create_views(spark, lake, "select * from orders") == ["orders"]


def test_exact_name_in_backticks_is_a_view(spark: SparkSession, tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path))
    for topic in ("e-f", "e_f", "g.h", "Items", "items"):
        table = LakeTable.open_or_create(place, topic, uuid4())
        table.commit([written(table, 0, 1 + len(topic.replace("_", "")))])
    lake = Lake(place)
    counts = []
    for name in ("`e-f`", "`e_f`", "`g.h`", "g_h", "`Items`"):
        sql = f"select count(*) from {name}"
        create_views(spark, lake, sql)
        counts.append(spark.sql(sql).collect()[0][0])

    assert [4, 3, 4, 4, 6] == counts
    with pytest.raises(AmbiguousView, match="items names several: topic Items, topic items"):
        create_views(spark, lake, "select * from `Items` join `items`")


def test_times_of_results_have_their_zone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        result = spark.sql(
            "select timestamp '2026-07-01 12:00:00Z' as a, array(timestamp '2026-01-01 00:00:00Z') as b,"
            " timestamp_ntz '2026-01-01 00:00:00' as c, named_struct('at', timestamp '2026-01-01 00:00:00Z') as d"
        )
        (row,) = result.toLocalIterator()
        found = [plain(zoned(row[index], each.dataType)) for index, each in enumerate(result.schema)]
    finally:
        monkeypatch.undo()
        time.tzset()

    assert [
        "2026-07-01T12:00:00+00:00",
        ["2026-01-01T00:00:00+00:00"],
        "2026-01-01T00:00:00",
        {"at": "2026-01-01T00:00:00+00:00"},
    ] == found


def test_typed_tables_are_views_too(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "carrier": ["AA", "UA", "AA"]})
    write_deltalake(str(tmp_path / "typed" / "flights~dlq"), rows, partition_by=["carrier"])
    lake = Lake(Location.parse(str(tmp_path / "lake")), None, Location.parse(str(tmp_path / "typed")))
    sql = "select carrier, sum(id) as ids from typed_flights_dlq group by carrier order by carrier"

    created = create_views(spark, lake, sql)

    assert created == ["typed_flights_dlq"]
    assert [tuple(row) for row in spark.sql(sql).collect()] == [("AA", 4), ("UA", 2)]


def test_command_prints_rows_and_reports_errors_in_one_line(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, numbered(range(10)))
    archived(memory.bootstrap_servers, topic, tmp_path)
    memory.produce(topic, numbered(range(10, 15)))

    def query(sql: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-m", "korvet", "lake", "query", sql, "--lake", str(tmp_path)),
                *("-b", memory.bootstrap_servers, *options),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    good = query(f"select key, count(*) as n from {view_name(topic)} group by key order by key", "--json")
    bad = query("select * from nothing")

    assert [json.loads(line) for line in good.stdout.splitlines()] == [
        {"key": "k0", "n": 5},
        {"key": "k1", "n": 5},
        {"key": "k2", "n": 5},
    ]
    assert bad.returncode == 1
    # Java's own first line is about modules that Spark uses.
    (line,) = [line for line in bad.stderr.splitlines() if "incubator modules" not in line]
    assert "[TABLE_OR_VIEW_NOT_FOUND]" in line
    assert "`nothing`" in line


def test_typed_views_of_foreign_tables_have_the_rows_that_their_writers_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    mapped_table(tmp_path / "mapped", reader_version=2)
    table_with_deletions(tmp_path / "deleted")
    lake = Lake(Location.parse(str(tmp_path / "lake")), typed=Location.parse(str(tmp_path)))

    sql = "select * from typed_mapped m full outer join typed_deleted d on m.id = d.id order by m.id"
    create_views(spark, lake, sql)

    found = [tuple(row) for row in spark.sql(sql).collect()]
    assert [(1, "nut", 1, "nut"), (2, "bolt", None, None), (3, "screw", 3, "screw")] == found


def test_views_in_a_store_read_the_columns_that_the_statement_names(
    spark: SparkSession, memory: Cluster, topic: str
) -> None:
    topic = topic.replace("topic", "pages")  # no column's name
    memory.create(topic)
    memory.produce(topic, numbered(range(10)))
    with s3_store(conditional=True) as options:
        location, typed = (Location.parse(f"s3://lake/{name}", options) for name in ("raw", "typed"))
        archived(memory.bootstrap_servers, topic, location)
        memory.produce(topic, numbered(range(10, 20)))
        rows = pa.table({"Id": [1, 2], "item": ["a", "b"], "price": [1.5, 2.5]})
        write_deltalake(typed.child("orders").url, rows, storage_options=typed.storage_options())
        lake = Lake(location, memory.bootstrap_servers, typed)
        view = view_name(topic)

        for sql, columns, expected in (
            (f"select max(offset), count(*) from `{topic}`", ["offset"], [(19, 20)]),
            (f"select count(*) from `{topic}` where date = date'2026-01-31'", ["timestamp", "date"], [(20,)]),
            (f"select count(*) from `{topic}`", ["partition"], [(20,)]),
            (f"select o.* from (select min(Timestamp_MS) from {view}) o", 10, [(T0,)]),
        ):
            (name,) = create_views(spark, lake, sql)
            there = spark.table(f"`{name}`").columns
            assert columns in (there, len(there))
            assert expected == [tuple(row) for row in spark.sql(sql).collect()]
        create_views(spark, lake, "select id, price from typed_orders order by id")
        assert ["Id", "price"] == spark.table("typed_orders").columns
        assert [(1, 1.5), (2, 2.5)] == [
            tuple(row) for row in spark.table("typed_orders").sort("Id").collect()
        ]
