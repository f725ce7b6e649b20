"""`korvet lake run` with a real broker, and workers in this process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random

import duckdb
import pyarrow.parquet as pq
import pytest
from attrs import field, frozen

from korvet.client import LATEST, Client, Record, TopicPartition
from korvet.client.administration import SET, TOPIC, Resource, add_partitions, alter_settings
from korvet.client.lake_tables import ShownTable, lake_tables, reporting_groups, reports_in
from korvet.lake.compacting import Compaction
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_status import audit_table
from korvet.pipeline.archive_task import Outcome, Piece
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.run.runner import Run
from korvet.pipeline.run.schedule import State
from tests.lake.iceberg_reading import newest_metadata, reading, rows_of_iceberg
from tests.lake.replay import live_files, rows_of
from tests.pipeline.archiving import WorkersHere, archived, growing, log_of, values, without_times
from tests.pipeline.lake_runs import killed_after, run_of, run_once, running, seed, written
from tests.pipeline.support import Cluster
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server


def wait_until(condition: Callable[[], bool], limit_s: float = 120) -> None:
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def states(run: Run) -> dict[str, State]:
    return {status.topic: status.state for status in run.statuses}


def errors(run: Run) -> dict[str, str]:
    return {status.topic: status.error for status in run.statuses if status.error}


def objects(count: int) -> list[Record]:
    return [Record(b'{"id": %d}' % number) for number in range(count)]


def typed_ids(table: Path) -> list[int]:
    with duckdb.connect() as connection:
        query = "select id from read_parquet(?, hive_partitioning = false) order by id"
        return [row[0] for row in connection.execute(query, [live_files(table)]).fetchall()]


def ids_in(file: str) -> list[int]:
    """Return the ids of a file in the order of its rows."""
    found: list[int] = pq.read_table(file, columns=["id"], partitioning=None)["id"].to_pylist()
    return found


def test_all_tables_are_archived_decoded_and_mirrored(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic, partitions=2)
    memory.create(f"{topic}-by-setting", **{"korvet.lake.enable": "true", "korvet.lake.decode": "json"})
    memory.create(f"{topic}-not")
    memory.produce(topic, values(100))
    memory.produce(f"{topic}-by-setting", objects(50))
    file = written(tmp_path, f"defaults.iceberg = true\n[topics.{topic}]\n")

    run = run_once(memory, file)

    mine = {name: state for name, state in states(run).items() if name.startswith(topic)}
    assert {topic: State.CURRENT, f"{topic}-by-setting": State.CURRENT} == mine
    assert without_times(rows_of(tmp_path / "lake" / topic)) == log_of(memory, topic)
    metadata = newest_metadata(tmp_path / "lake" / topic)
    assert rows_of(tmp_path / "lake" / topic) == rows_of_iceberg(metadata)
    assert [*range(50)] == typed_ids(tmp_path / "lake-typed" / f"{topic}-by-setting")


@pytest.fixture
def no_other_topics(memory: Cluster, topic: str) -> None:
    """Disable the topics that earlier tests have enabled by settings."""
    change = {"korvet.lake.enable": (SET, "false")}
    for name in memory.run(lambda client: client.topics()):
        memory.run(lambda client, name=name: alter_settings(client, Resource(TOPIC, name), change))


@pytest.mark.usefixtures("no_other_topics")
def test_failures_stay_with_their_table(memory: Cluster, topic: str, tmp_path: Path) -> None:
    names = [f"{topic}-{what}" for what in ("good", "poison", "wrong", "avro")]
    good, poison, wrong, avro = names
    for name in names:
        memory.create(name)
        memory.produce(name, objects(10))
    memory.produce(poison, [Record(b"{")])
    memory.run(
        lambda client: alter_settings(
            client,
            Resource(TOPIC, avro),
            {"korvet.lake.enable": (SET, "true"), "korvet.lake.decode": (SET, "avro")},
        )
    )
    (tmp_path / "lake" / wrong).mkdir(parents=True)
    (tmp_path / "lake" / wrong / "file").touch()
    file = written(
        tmp_path,
        f"""
        defaults.decode = "json"
        [topics.{good}]
        [topics.{wrong}]
        [topics.{poison}]
        on_error = "stop"
        [topics.{topic}-missing]
        """,
    )

    run = run_once(memory, file)

    assert {good} == {name for name, state in states(run).items() if state is State.CURRENT}
    found = errors(run)
    assert f"{poison}-0 offset 10: " in found[poison]
    assert f"{wrong} is not a Delta table, and not empty" in found[wrong]
    assert "decode.schema_file: avro needs schema_file, or registry" in found[avro]
    assert f"There is no topic {topic}-missing." == found[f"{topic}-missing"]
    assert not run.is_ready or states(run)[good] is State.CURRENT
    assert [*range(10)] == typed_ids(tmp_path / "lake-typed" / good)
    assert 11 == len(rows_of(tmp_path / "lake" / poison))  # its archive goes on


@pytest.mark.usefixtures("no_other_topics")
def test_rows_above_a_threshold_are_reported(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, [*objects(3), Record(b"{")])
    file = written(tmp_path, f"[topics.{topic}]\ndecode = 'json'\nmax_bad_ratio = 0.2\n")

    run = run_once(memory, file)

    assert ([], {topic: "1 of 4 rows are bad, more than max_bad_ratio = 0.2"}) == (run.failed, run.exceeded)


@pytest.mark.usefixtures("no_other_topics")
def test_topics_partitions_and_policies_join_while_it_runs(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.run.runner.SETTINGS_EVERY_S", 0.0)
    memory.create(topic)
    memory.produce(topic, values(10))
    lake = tmp_path / "lake"
    file = written(tmp_path, f"defaults.lag = '100ms'\n[topics.'{topic}.*']\n")

    def rows(name: str) -> int:
        return len(rows_of(lake / name)) if (lake / name / "_delta_log").exists() else 0

    with running(run_of(memory.bootstrap_servers, file)) as run:
        wait_until(lambda: rows(topic) == 10)
        memory.create(f"{topic}-new")
        memory.produce(f"{topic}-new", values(5))
        wait_until(lambda: rows(f"{topic}-new") == 5)
        memory.run(lambda client: add_partitions(client, topic, 3))
        memory.produce(topic, values(90))
        wait_until(lambda: rows(topic) == 100)
        other = f"other-{topic}"
        memory.create(other)
        memory.produce(other, values(7))
        change = {"korvet.lake.enable": (SET, "true")}
        memory.run(lambda client: alter_settings(client, Resource(TOPIC, other), change))
        wait_until(lambda: rows(other) == 7)
        wait_until(lambda: set(states(run).values()) == {State.CURRENT})
        assert run.is_ready

    assert without_times(rows_of(lake / topic)) == log_of(memory, topic)


@pytest.mark.usefixtures("no_other_topics")
def test_one_round_archives_all_tables_that_are_due(memory: Cluster, topic: str, tmp_path: Path) -> None:
    names = [f"{topic}-{number}" for number in range(20)]
    for name in names:
        memory.create(name, partitions=2)
        memory.produce(name, values(20))
    run = run_of(memory.bootstrap_servers, written(tmp_path, f"[topics.'{topic}-.*']\n"))

    run.round()

    assert dict.fromkeys(names, 20) == {status.topic: status.records for status in run.statuses}
    assert 20 * 20 == sum(len(rows_of(tmp_path / "lake" / name)) for name in names)


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_topics")
def test_small_files_are_joined_while_it_runs(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    file = written(tmp_path, f"[topics.{topic}]\ndecode = {{cluster_by = ['id']}}\niceberg = true\n")
    for _ in range(17):
        memory.produce(topic, [*objects(5), Record(b"{")])
        run = run_once(memory, file)

    typed = tmp_path / "lake-typed" / topic
    sizes = {"below_1MB": 2, "below_8MB": 0, "below_64MB": 0, "larger": 0}
    status = run.statuses[0]
    assert status.typed is not None
    assert (sizes, sizes) == (status.files, status.typed[0].files)
    for table in (tmp_path / "lake" / topic, typed, typed.with_name(f"{topic}~dlq")):
        assert 2 == len(live_files(table))
    assert without_times(rows_of(tmp_path / "lake" / topic)) == log_of(memory, topic)
    assert sorted([*range(5)] * 17) == typed_ids(typed)
    (ids,) = (each for path in live_files(typed) if len(each := ids_in(path)) > 5)
    assert sorted([*range(5)] * 16) == ids
    assert [(85,)] == reading(str(typed / "_iceberg"), "select count(*) from {table}")


@pytest.mark.usefixtures("no_other_topics")
def test_expired_rows_of_typed_tables_are_dropped_by_their_own_policy(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    day_ms = 24 * 3600 * 1000
    now_ms = time.time_ns() // 1_000_000
    days = [Record(b'{"id": %d}' % age, timestamp=now_ms - age * day_ms) for age in (9, 5, 1)]
    memory.produce(topic, [*days, Record(b"{", timestamp=now_ms - 9 * day_ms)])
    run_once(memory, written(tmp_path, f"[topics.{topic}]\ndecode = 'json'\n"))

    run_once(memory, written(tmp_path, f"[topics.{topic}]\ndecode = 'json'\nretain_typed = '3d'\n"))

    assert [1] == typed_ids(tmp_path / "lake-typed" / topic)
    assert [] == live_files(tmp_path / "lake-typed" / f"{topic}~dlq")
    assert 4 == len(rows_of(tmp_path / "lake" / topic))


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_topics")
def test_runs_that_are_killed_commit_every_offset_once(
    memory: Cluster, topic: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    number = seed("RUN_SEED")
    random = Random(number)
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        memory.create(name, partitions=2)
    file = written(
        tmp_path,
        f"""
        [defaults]
        lag = "100ms"
        iceberg = true
        [topics.{names[0]}]
        [topics.{names[1]}]
        """,
    )
    kills = 8
    with growing(memory, names[0]), growing(memory, names[1]):
        for _ in range(kills):
            killed_after(memory.bootstrap_servers, file, random.uniform(0.05, 1.5))
    run = run_once(memory, file)

    assert {} == errors(run)
    for name in names:
        rows = rows_of(tmp_path / "lake" / name)
        assert without_times(rows) == log_of(memory, name)
        assert [] == audit_table(LakeTable.open(Location.parse(str(tmp_path / "lake")), name), checksums=True)
        metadata = newest_metadata(tmp_path / "lake" / name)
        assert rows == rows_of_iceberg(metadata)
    counts = [len(rows_of(tmp_path / "lake" / name)) for name in names]
    report(
        f"RUN_SEED={number}: {kills} kills -9 of the run, {sum(counts):,} records, each once in each table"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_topics")
def test_of_two_runs_on_one_lake_one_becomes_the_standby(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    file = written(tmp_path, f"[defaults]\nlag = '100ms'\n[topics.{topic}]\ndecode = 'json'\n")
    together = threading.Barrier(2)
    first, second = (run_of(memory.bootstrap_servers, file, together=together) for _ in range(2))

    ended = threading.Event()

    def produce() -> None:
        while not ended.is_set():
            memory.produce(topic, objects(10))

    producer = threading.Thread(target=produce)
    with running(first), running(second):
        producer.start()
        try:
            wait_until(lambda: State.STANDBY in (*states(first).values(), *states(second).values()))
        finally:
            together.abort()
            ended.set()
            producer.join()
    run_once(memory, file)

    rows = rows_of(tmp_path / "lake" / topic)
    assert without_times(rows) == log_of(memory, topic)
    assert len(rows) == len(typed_ids(tmp_path / "lake-typed" / topic))


@pytest.mark.usefixtures("no_other_topics")
def test_table_follows_an_earlier_archiver(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    archived(memory.bootstrap_servers, topic, tmp_path / "lake")
    memory.produce(topic, values(10))

    run = run_once(memory, written(tmp_path, f"[topics.{topic}]\n"))

    assert 10 == run.statuses[0].records
    assert without_times(rows_of(tmp_path / "lake" / topic)) == log_of(memory, topic)


@pytest.mark.servers
def test_run_continues_when_the_broker_was_killed_and_started_again(topic: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"[defaults]\nlag = '100ms'\niceberg = true\n[topics.{topic}]\n")
    table = tmp_path / "lake" / topic
    server = start_server(VALKEY)
    try:
        with KorvetProcess(storage=server.url) as broker:
            cluster = Cluster(broker.bootstrap_servers, is_dense=False)
            cluster.create(topic, partitions=2)
            cluster.produce(topic, values(100))
            with running(run_of(cluster.bootstrap_servers, file)) as run:
                wait_until(lambda: states(run) == {topic: State.CURRENT} and len(rows_of(table)) == 100)
                broker.kill()
                wait_until(lambda: bool(run.error))
                assert not run.is_ready
                broker.start()
                cluster.produce(topic, values(100))
                wait_until(lambda: len(rows_of(table)) == 200 and run.is_ready)

            assert without_times(rows_of(table)) == log_of(cluster, topic)
    finally:
        server.remove()


@pytest.mark.usefixtures("no_other_topics")
def test_tables_advance_without_the_catalogue_and_are_mirrored_when_it_is_there(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(10))
    away = tmp_path / "away"
    file = written(
        tmp_path,
        f"""
        [defaults]
        lag = "100ms"
        iceberg = true
        [topics.{topic}]
        [catalog]
        type = "sql"
        uri = "sqlite:///{away}/catalogue.db"
        """,
    )

    with running(run_of(memory.bootstrap_servers, file)) as run:
        wait_until(lambda: states(run) == {topic: State.RETRYING})
        assert "mirror: the catalogue " in errors(run)[topic]
        memory.produce(topic, values(10))
        wait_until(lambda: len(rows_of(tmp_path / "lake" / topic)) == 20)
        away.mkdir()
        wait_until(lambda: states(run) == {topic: State.CURRENT})

    metadata = newest_metadata(tmp_path / "lake" / topic)
    assert rows_of(tmp_path / "lake" / topic) == rows_of_iceberg(metadata)


def reported(cluster: Cluster, topic: str) -> dict[str, ShownTable]:
    """Return the tables of a topic that the reports in committed offsets have, by kind."""

    async def read(client: Client) -> list[ShownTable]:
        tp = TopicPartition(topic, 0)
        bounds = {topic: {0: (0, (await client.list_offsets({tp: LATEST}))[tp].offset)}}
        groups = await reporting_groups(client)
        return [table for each in groups for table in lake_tables(each, bounds, (), time.time() * 1000)]

    return {table.kind: table for table in cluster.run(read)}


@pytest.mark.usefixtures("no_other_topics")
def test_clients_see_the_tables_and_how_far_they_are_behind(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, objects(10))
    began_ms = time.time() * 1000
    file = written(tmp_path, f"[topics.{topic}]\ndecode = 'json'\nlag = '100ms'\n")

    with running(run_of(memory.bootstrap_servers, file)) as run:
        wait_until(lambda: reported(memory, topic).get("typed", None) is not None)
        wait_until(lambda: reported(memory, topic)["typed"].lag_records == 0)
        tables = reported(memory, topic)
        run.stop()
    memory.produce(topic, objects(3))
    ended = reported(memory, topic)

    for kind, path in (("archive", tmp_path / "lake" / topic), ("typed", tmp_path / "lake-typed" / topic)):
        table = tables[kind]
        assert (str(path), "current", 0, 0.0, None) == (
            table.path, table.state, table.lag_records, table.lag_s, table.error,
        )  # fmt: skip
        assert table.fresh_until_ms is not None
        assert began_ms - 1 <= table.fresh_until_ms <= time.time() * 1000
        assert len(live_files(path)) == table.files
        assert ("ended", 3) == (ended[kind].state, ended[kind].lag_records)
    assert (ended["archive"].lag_s or 0) > 0


@pytest.mark.usefixtures("no_other_topics")
def test_table_that_was_never_read_is_reported_with_its_error(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, objects(4))
    (tmp_path / "lake" / topic).mkdir(parents=True)
    (tmp_path / "lake" / topic / "file").touch()

    run_once(memory, written(tmp_path, f"[topics.{topic}]\n"))

    table = reported(memory, topic)["archive"]
    assert (4, None, None) == (table.lag_records, table.lag_s, table.files)
    assert "is not a Delta table, and not empty" in (table.error or "")


@pytest.mark.usefixtures("no_other_topics")
def test_report_of_a_killed_run_becomes_old(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, objects(4))
    run = run_of(memory.bootstrap_servers, written(tmp_path, f"[topics.{topic}]\n"))
    run.round()  # and nothing after it

    tp = TopicPartition(topic, 0)
    (committed,) = memory.run(reporting_groups)
    reports = reports_in(committed)

    (later,) = lake_tables(committed, {topic: {0: (0, 9)}}, (), reports[topic].at_ms + 61_000)
    assert ("no report", 5, 4) == (later.state, later.lag_records, committed[tp].offset)


@pytest.mark.usefixtures("no_other_topics")
def test_unchanged_tables_are_reported_in_an_interval(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, objects(4))
    run = run_of(memory.bootstrap_servers, written(tmp_path, f"[topics.{topic}]\n"))
    now = time.monotonic()
    run.clock = lambda: now

    def reported_ms() -> int:
        (committed,) = memory.run(reporting_groups)
        return reports_in(committed)[topic].at_ms

    run.round()
    run.round()  # the state is known since
    first = reported_ms()
    run.round()
    assert first == reported_ms()
    now += 10
    run.round()
    assert first < reported_ms()


@frozen
class WorkersThatWait(WorkersHere):
    """Workers that begin their tasks when they may."""

    may_begin: threading.Event = field(kw_only=True)

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        assert self.may_begin.wait(60)
        return super().run(tasks)


@pytest.mark.usefixtures("no_other_topics")
def test_run_reports_during_a_long_round(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("runner", "reporting"):
        monkeypatch.setattr(f"korvet.pipeline.run.{module}.REPORT_EVERY_S", 0.01)
    memory.create(topic)
    memory.produce(topic, objects(4))
    file = written(tmp_path, f"[topics.{topic}]\nlag = '100ms'\n")
    run_of(memory.bootstrap_servers, file).round()
    memory.produce(topic, objects(4))
    may_begin = threading.Event()
    made = run_of(memory.bootstrap_servers, file)
    workers = WorkersThatWait(made.connecting, may_begin=may_begin)

    def reported_ms() -> int:
        (committed,) = memory.run(reporting_groups)
        return reports_in(committed)[topic].at_ms

    before_ms = reported_ms()
    run = Run(made.file, made.connecting, made.places, workers)
    with running(run):
        try:
            wait_until(lambda: reported_ms() > before_ms)
            assert 0 == run.rounds
        finally:
            may_begin.set()
        wait_until(lambda: sum(status.records for status in run.statuses) == 4)


@pytest.mark.usefixtures("no_other_topics")
def test_files_stay_while_the_iceberg_table_has_them(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, objects(4))
    file = written(
        tmp_path,
        f"""
        [defaults]
        iceberg = true
        decode = "json"
        keep_files = "24h"
        [topics.{topic}]
        [catalog]
        type = "sql"
        uri = "sqlite:///{tmp_path}/away/catalogue.db"
        """,
    )
    run = run_of(memory.bootstrap_servers, file)
    now = time.monotonic()
    run.clock = lambda: now
    tables = [tmp_path / "lake" / topic, tmp_path / "lake-typed" / topic]

    def left_behind() -> list[Path]:
        return [path for table in tables for path in table.glob("killed.parquet")]

    run.round()
    for table in tables:
        (table / "killed.parquet").touch()
        os.utime(table / "killed.parquet", (0, 0))
    now += 2 * 24 * 3600
    run.round()
    assert "mirror: " in errors(run)[topic]
    assert 2 == len(left_behind())

    (tmp_path / "away").mkdir()
    now += 600
    run.round()
    assert {} == errors(run)
    assert 2 == len(left_behind())  # readers of older snapshots
    now += 24 * 3600
    memory.produce(topic, objects(1))
    run.round()
    assert [] == left_behind()


def left_after_outage(cluster: Cluster, topic: str, folder: Path, *, away: bool) -> bool:
    """Return True if a run keeps an old file that no table references, while its catalogue is away or not."""
    file = written(
        folder,
        f"""
        [topics.{topic}]
        iceberg = true
        [catalog]
        type = "sql"
        uri = "sqlite:///{folder}/{"away/" if away else ""}catalogue.db"
        """,
    )
    left = folder / "lake" / topic / "killed.parquet"
    left.touch()
    os.utime(left, (0, 0))
    run_of(cluster.bootstrap_servers, file).round()
    return left.exists()


@pytest.mark.usefixtures("no_other_topics")
def test_run_removes_no_file_before_its_first_mirror(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    memory.produce(topic, objects(4))
    archived(memory.bootstrap_servers, topic, tmp_path / "lake")

    assert left_after_outage(memory, topic, tmp_path, away=True)
    assert not left_after_outage(memory, topic, tmp_path, away=False)


@pytest.mark.usefixtures("no_other_topics")
@pytest.mark.parametrize("iceberg", ["false", "true"])
def test_files_of_commits_that_the_run_has_not_seen_stay(
    memory: Cluster, topic: str, tmp_path: Path, iceberg: str
) -> None:
    memory.create(topic)
    file = written(
        tmp_path, f"defaults.iceberg = {iceberg}\n[topics.{topic}]\nkeep_files = '24h'\ndecode = 'json'\n"
    )
    for _ in range(3):
        memory.produce(topic, objects(5))
        run_once(memory, file)
    run = run_of(memory.bootstrap_servers, file)
    now = time.monotonic()
    run.clock = lambda: now
    run.round()
    run.round()
    typed = Location.parse(str(tmp_path / "lake-typed")).child(topic)
    DecodedJoins(DecodedTable.found(typed)).run()
    Compaction(LakeTable.open(Location.parse(str(tmp_path / "lake")), topic)).run()
    tables = [tmp_path / "lake" / topic, tmp_path / "lake-typed" / topic]
    joined = [Path(path) for table in tables for path in live_files(table)]
    for path in joined:
        os.utime(path, (0, 0))

    for _ in range(3):
        now += 24 * 3600
        run.round()

    assert {} == errors(run)
    assert [True, True] == [path.exists() for path in joined]
    assert sorted([*range(5)] * 3) == typed_ids(tables[1])
    if iceberg == "true":
        assert [(15,)] == reading(str(tables[1] / "_iceberg"), "select count(*) from {table}")


@pytest.mark.usefixtures("no_other_topics")
def test_round_with_records_connects_twice(memory: Cluster, topic: str, tmp_path: Path) -> None:
    """It asks for what is there, and reports what it did. Workers have connections of their own."""
    opened: list[str] = []

    class Counted(Connecting):
        def open(self) -> AbstractAsyncContextManager[Client]:
            opened.append(self.client_id)
            return super().open()

    memory.create(topic)
    made = run_of(memory.bootstrap_servers, written(tmp_path, f"[topics.{topic}]\nlag = '100ms'\n"))
    run = Run(made.file, Counted(memory.bootstrap_servers), made.places, made.workers)
    run.round()
    memory.produce(topic, objects(4))

    while not any(status.records for status in run.statuses):
        opened.clear()
        run.round()

    assert 2 == len(opened)
