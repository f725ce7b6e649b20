"""`korvet lake run` as its users run it, with Spark."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from korvet.client import Record
from tests.lake.replay import rows_of
from tests.pipeline.archiving import growing, log_of, values, without_times
from tests.pipeline.lake_runs import RunProcess, fetched, seed, states, written
from tests.pipeline.support import Cluster
from tests.pipeline.test_run import no_other_topics, objects, typed_ids, wait_until  # noqa: F401  a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.usefixtures("no_other_topics")
def test_tables_advance_while_one_stays_failed_and_once_exits_with_1(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    good, poison = f"{topic}-good", f"{topic}-poison"
    for name in (good, poison):
        memory.create(name, partitions=2)
        memory.produce(name, objects(100))
    memory.produce(poison, [Record(b"{")])
    file = written(
        tmp_path,
        f"""
        [defaults]
        lag = "200ms"
        decode = {{format = "json", schema = "id bigint"}}
        iceberg = true
        [topics.{good}]
        [topics.{poison}]
        on_error = "stop"
        """,
    )

    with RunProcess(memory, file, ("--metrics", "127.0.0.1:0", "--json")) as process:
        url = process.wait_for(r"metrics: (http://\S+)/metrics")[1]
        wait_until(lambda: {good: "current", poison: "failed"} == states(url))
        memory.produce(good, objects(100))
        wait_until(
            lambda: fetched(f"{url}/metrics")[1].count(f'{{result="typed",topic="{good}"}} 200.0') == 1
        )
        assert ((200, "ok\n"), (200, "ok\n")) == (fetched(f"{url}/livez"), fetched(f"{url}/readyz"))
        metrics = fetched(f"{url}/metrics")[1]
        assert f'korvet_lake_table_state{{state="failed",topic="{poison}"}} 1.0' in metrics
        assert 404 == fetched(f"{url}/nothing")[0]
        assert 1 == process.end(signal.SIGTERM)
        summary = {each["topic"]: each for each in json.loads(process.out)}
        assert any(f"{poison}: decode: {poison}-" in line for line in process.lines)
    with RunProcess(memory, file, ("--once",)) as process:
        assert 1 == process.end()
        assert re.search(rf"^{good}: current, 0 records", process.out, re.MULTILINE)
        assert re.search(rf"^{poison}: failed, .*on_error is 'stop'", process.out, re.MULTILINE)

    assert ("current", "failed") == (summary[good]["state"], summary[poison]["state"])
    assert sorted([*range(100), *range(100)]) == typed_ids(tmp_path / "lake-typed" / good)
    for name in (good, poison):
        assert without_times(rows_of(tmp_path / "lake" / name)) == log_of(memory, name)


@pytest.mark.usefixtures("no_other_topics")
def test_run_with_spark_is_exact_after_it_was_killed(
    memory: Cluster, topic: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    number = seed("RUN_SEED")
    random = Random(number)
    memory.create(topic, partitions=2)
    file = written(tmp_path, f"[defaults]\nlag = '100ms'\n[topics.{topic}]\n")
    with growing(memory, topic):
        for _ in range(2):
            with RunProcess(memory, file) as process:
                process.wait_for(r"archived [1-9]")
                process.killed_after(random.uniform(0, 0.5))
    memory.produce(topic, values(10))
    with RunProcess(memory, file, ("--once",)) as process:
        assert 0 == process.end()
    audit = subprocess.run(
        [
            sys.executable,
            "-m",
            "korvet",
            "lake",
            "audit",
            "--lake",
            str(tmp_path / "lake"),
            "--bootstrap-servers",
            memory.bootstrap_servers,
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    rows = rows_of(tmp_path / "lake" / topic)
    assert without_times(rows) == log_of(memory, topic)
    assert (0, f"{topic}: {len(rows):,} records, all accounted for\n") == (audit.returncode, audit.stdout)
    report(f"RUN_SEED={number}: 2 kills -9 of korvet lake run, {len(rows):,} records, each once")
