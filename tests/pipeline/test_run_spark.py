"""`korvet lake run` as its users run it, with Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from korvet.cli.lake.audit import command as audit
from korvet.client import Record
from tests.lake.replay import rows_of
from tests.pipeline.archiving import log_of, without_times
from tests.pipeline.lake_runs import RunProcess, fetched, seed, states, written
from tests.pipeline.support import Cluster
from tests.pipeline.test_run import no_other_topics, objects, typed_ids, wait_until  # noqa: F401  a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.usefixtures("no_other_topics")
def test_tables_advance_while_one_stays_failed_and_are_exact_after_a_kill(
    memory: Cluster, topic: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    number = seed("RUN_SEED")
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

    with RunProcess(memory, file, ("--metrics", "127.0.0.1:0")) as process:
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
        assert any(f"{poison}: decode: {poison}-" in line for line in process.lines)
        memory.produce(good, objects(5000))
        process.killed_after(Random(number).uniform(0, 1))
    file.write_text(file.read_text().replace('on_error = "stop"', "max_bad_rows = 0"))
    with RunProcess(memory, file, ("--once",)) as process:
        assert 3 == process.end()
        for name in (good, poison):
            assert re.search(rf"^{name}: current, ", process.out, re.MULTILINE)
        assert f"korvet: {poison}: 1 bad rows, more than max_bad_rows = 0" in process.lines
    audited = CliRunner().invoke(
        audit, ["--lake", str(tmp_path / "lake"), "--bootstrap-servers", memory.bootstrap_servers]
    )

    assert sorted([*range(100), *range(100), *range(5000)]) == typed_ids(tmp_path / "lake-typed" / good)
    for name in (good, poison):
        assert without_times(rows_of(tmp_path / "lake" / name)) == log_of(memory, name)
    assert 0 == audited.exit_code, audited.output
    report(f"RUN_SEED={number}: korvet lake run killed with SIGKILL, 5,301 records, each once")
