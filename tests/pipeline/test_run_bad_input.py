"""A fault of one table of a run is one line, the other tables go on, and nothing is half written."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from korvet.client import Record
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.run.schedule import State
from tests.lake.iceberg_reading import newest_metadata, rows_of_iceberg
from tests.lake.replay import rows_of
from tests.pipeline.archiving import log_of, without_times
from tests.pipeline.lake_runs import run_of, run_once, running, written
from tests.pipeline.support import Cluster
from tests.pipeline.test_run import (
    errors,
    no_other_topics,  # noqa: F401  a fixture
    objects,
    states,
    typed_ids,
    wait_until,
)

DAY_S = 86_400
# Spark's DDL would start Spark.
SCHEMA = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
Spoil = Callable[[Path, str], None]


def write_foreign_snapshot(folder: Path, topic: str) -> None:
    table = Mirror(PathCatalog(Location.parse(str(folder / "lake")), FOLDER), "korvet").table(topic)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass  # a snapshot without a file


def put_another_table_in_its_place(folder: Path, topic: str) -> None:
    rmtree(folder / "lake-typed" / topic)
    write_deltalake(str(folder / "lake-typed" / topic), pa.table({"id": [1]}))


def change_the_type_of_a_column(folder: Path, _topic: str) -> None:
    file = folder / "lake.toml"
    file.write_text(file.read_text().replace('"long"', '"string"'))


@pytest.mark.usefixtures("no_other_topics")
@pytest.mark.parametrize(
    "spoil, reason",
    [
        (write_foreign_snapshot, "mirror: another program has written snapshot"),
        (put_another_table_in_its_place, "is a Delta table not made by korvet; choose another place"),
        (change_the_type_of_a_column, "$.id is bigint in the table and string in the schema"),
    ],
)
def test_fault_of_one_table_is_one_line_and_the_others_go_on(
    memory: Cluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    reason: str,
) -> None:
    monkeypatch.setattr("korvet.pipeline.run.runner.ATTEMPTS", 1)
    good, bad = f"{topic}-good", f"{topic}-bad"
    for name in (good, bad):
        memory.create(name)
        memory.produce(name, objects(10))
    file = written(
        tmp_path,
        f"""
        defaults.iceberg = true
        [topics.{good}]
        decode = "json"
        [topics.{bad}]
        decode = {{schema = '{SCHEMA}'}}
        """,
    )
    assert [] == run_once(memory, file).failed
    spoil(tmp_path, bad)
    for name in (good, bad):
        memory.produce(name, objects(10))

    run = run_once(memory, file)

    assert [bad] == [status.topic for status in run.failed]
    assert State.CURRENT is states(run)[good]
    assert {bad} == errors(run).keys()
    assert reason in errors(run)[bad]
    assert "\n" not in errors(run)[bad]
    assert sorted([*range(10)] * 2) == typed_ids(tmp_path / "lake-typed" / good)
    assert rows_of(tmp_path / "lake" / good) == rows_of_iceberg(newest_metadata(tmp_path / "lake" / good))
    for name in (good, bad):
        assert without_times(rows_of(tmp_path / "lake" / name)) == log_of(memory, name)


@pytest.mark.usefixtures("no_other_topics")
def test_tables_that_other_jobs_compact_go_on(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    file = written(tmp_path, f"defaults.iceberg = true\n[topics.{topic}]\ndecode = 'json'\njoin = false\n")
    for _ in range(3):
        memory.produce(topic, objects(10))
        run_once(memory, file)
    for lake in ("lake", "lake-typed"):
        assert 1 == DeltaTable(str(tmp_path / lake / topic)).optimize.compact()["numFilesAdded"]
    memory.produce(topic, objects(10))

    run = run_once(memory, file)

    assert ([], {}) == (run.failed, errors(run))
    assert without_times(rows_of(tmp_path / "lake" / topic)) == log_of(memory, topic)
    assert sorted([*range(10)] * 4) == typed_ids(tmp_path / "lake-typed" / topic)
    assert rows_of(tmp_path / "lake" / topic) == rows_of_iceberg(newest_metadata(tmp_path / "lake" / topic))


@pytest.mark.usefixtures("no_other_topics")
def test_bad_records_at_full_rate_are_in_the_dlq_and_other_tables_stay_current(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    good, poison, stopped = (f"{topic}-{what}" for what in ("good", "poison", "stopped"))
    for name in (good, poison, stopped):
        memory.create(name)
    file = written(
        tmp_path,
        f"""
        [defaults]
        lag = "100ms"
        decode = {{schema = '{SCHEMA}'}}
        [topics.{good}]
        [topics.{poison}]
        [topics.{stopped}]
        on_error = "stop"
        """,
    )

    with running(run_of(memory.bootstrap_servers, file)) as run:
        for _ in range(20):
            memory.produce(good, objects(10))
            for name in (poison, stopped):
                memory.produce(name, [*objects(1), *[Record(b"{" * 100)] * 1000])
        wait_until(
            lambda: (
                states(run) == {good: State.CURRENT, poison: State.CURRENT, stopped: State.FAILED}
                and [len(rows_of(tmp_path / "lake" / name)) for name in (good, poison, stopped)]
                == [200, 20_020, 20_020]
                and {good: 200, poison: 20, stopped: 0} == {each.topic: each.decoded for each in run.statuses}
            )
        )
        found = errors(run)

    typed = Location.parse(str(tmp_path / "lake-typed"))
    dlq = DecodedTable.found(typed.child(f"{poison}~dlq"))
    assert 20_000 == dlq.row_count
    assert [] == [*audit_decoded(dlq, poison, checksums=True)]
    assert sorted([0] * 20) == typed_ids(tmp_path / "lake-typed" / poison)
    assert {stopped} == found.keys()
    assert f"{stopped}-0 offset 1: " in found[stopped]
    assert "\n" not in found[stopped]


@pytest.mark.usefixtures("no_other_topics")
def test_clock_that_steps_back_delays_and_drops_nothing(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create(topic, partitions=2)
    text = f"defaults.iceberg = true\n[topics.{topic}]\nlag = '100ms'\ndecode = 'json'\n"
    file = written(tmp_path, text + "retain = '1h'\nretain_typed = '1h'\n")
    real, real_ns = time.time, time.time_ns
    step_s = [0.0]

    with running(run_of(memory.bootstrap_servers, file)) as run:
        monkeypatch.setattr("time.time", lambda: real() + step_s[0])
        monkeypatch.setattr("time.time_ns", lambda: real_ns() + int(step_s[0] * 1e9))
        for number, step_s[0] in enumerate([0.0, -3 * DAY_S, -DAY_S, 0.0, -400 * DAY_S], 1):
            memory.produce(topic, objects(10))
            wait_until(
                lambda count=10 * number: (
                    states(run) == {topic: State.CURRENT}  # type: ignore[misc]
                    and count == sum(each.records for each in run.statuses)
                    and count == sum(each.decoded for each in run.statuses)
                )
            )
        found = errors(run)

    assert {} == found
    assert without_times(rows_of(tmp_path / "lake" / topic)) == log_of(memory, topic)
    assert sorted([*range(10)] * 5) == typed_ids(tmp_path / "lake-typed" / topic)
    assert rows_of(tmp_path / "lake" / topic) == rows_of_iceberg(newest_metadata(tmp_path / "lake" / topic))
