"""`korvet lake query` with DataFusion, and in the session of a run."""

# ruff: noqa: F811  the fixtures of other modules

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict

from korvet.cli.lake.sql_socket import Request
from korvet.lake.errors import LakeError
from korvet.pipeline.datafusion import query
from korvet.pipeline.views import AmbiguousView, Lake
from tests.cli.conftest import Korvet, korvet  # noqa: F401  a fixture
from tests.pipeline.decoding import Lake as Tables
from tests.pipeline.lake_runs import RunProcess, states, written
from tests.pipeline.support import Cluster
from tests.pipeline.test_archive_cli import broker  # noqa: F401  a fixture
from tests.pipeline.test_run import no_other_topics, objects, wait_until  # noqa: F401  a fixture
from tests.servers import free_port


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return an archive of six records of which one is bad, and its typed table."""
    tables = Tables(tmp_path)
    tables.archive([{"id": n, "Item": "nut" if n % 2 else "bolt"} for n in range(5)], keys=[*"abcde"])
    tables.archive([b"{"])
    tables.decode()
    return Lake(tables.location("raw"), typed=tables.location("typed"))


@pytest.mark.slow
def test_datafusion_reads_archives_and_typed_tables(lake: Lake) -> None:
    columns, rows = query(lake, 'select "Item", sum(id) as ids from typed_orders group by 1 order by 1')
    _, (archived,) = query(lake, 'select count(*) as n, max("offset") as last, min(date) as day from ORDERS')
    _, bad = query(lake, 'select error from "typed_orders~dlq"')

    assert (["Item", "ids"], [("bolt", 6), ("nut", 4)]) == (columns, [tuple(row.values()) for row in rows])
    assert (6, 5, "2026-01-01") == (archived["n"], archived["last"], str(archived["day"]))
    assert 1 == len(bad)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql, reason",
    [
        ("select price from typed_orders", "No field named price"),
        ("select 1 from nothing", "table 'datafusion.public.nothing' not found"),
        ("selct 1", "Expected: an SQL statement"),
        ("delete from orders", "DELETE"),
    ],
)
def test_datafusion_reports_a_wrong_statement_in_one_line(lake: Lake, sql: str, reason: str) -> None:
    with pytest.raises(LakeError) as raised:
        query(lake, sql)

    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
    assert 6 == query(lake, "select count(*) as n from orders")[1][0]["n"]


@pytest.mark.slow
def test_exact_names_between_double_quotes_are_tables_of_datafusion(tmp_path: Path) -> None:
    for topic, count in {"a-b": 2, "a.b": 3}.items():
        Tables(tmp_path, topic).archive([b"x"] * count)
    lake = Lake(Tables(tmp_path).location("raw"))

    assert [{"n": 2}] == query(lake, 'select count(*) as n from "a-b"')[1]
    assert [{"n": 3}] == query(lake, 'select count(*) as n from "a.b"')[1]
    with pytest.raises(AmbiguousView, match="a_b names several: topic a-b, topic a.b"):
        query(lake, "select 1 from a_b")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--engine", "datafusion"], "reads no records from brokers: add --archived"),
        (
            ["--engine", "datafusion", "--archived", "--master", "local"],
            "are for Spark, not for --engine datafusion",
        ),
        (
            ["--engine", "datafusion", "--archived", "--remote", "sc://x"],
            "are for Spark, not for --engine datafusion",
        ),
        (["--remote", "sc://x", "--master", "local"], "are for a new session, not for that of --remote"),
        (
            ["--remote", "http://x", "--archived"],
            "'http://x' is not a Spark Connect server; accepted: sc://HOST:PORT",
        ),
        (["--remote", "unix:/nothing"], "No korvet lake run answers at /nothing: No such file or directory."),
        (["--remote", "unix:", "--archived"], "is not the path of a socket; accepted: unix:PATH"),
        (
            ["--remote", "sc://localhost:x", "--archived"],
            "is not a Spark Connect server: Port could not be cast",
        ),
    ],
)
def test_options_that_do_not_go_together_are_reported_in_one_line(
    korvet: Korvet, tmp_path: Path, options: list[str], message: str
) -> None:
    outcome = korvet("lake", "query", "select 1", "--lake", str(tmp_path), *options)

    assert 1 == outcome.err.count("\n")
    assert 0 != outcome.status
    assert message in outcome.err


@pytest.mark.slow
def test_command_with_datafusion_starts_no_java_and_prints_json(lake: Lake, tmp_path: Path) -> None:
    words = ['select key, "timestamp" from orders where "offset" = 1', "--engine", "datafusion", "--archived"]
    done = subprocess.run(
        [sys.executable, "-m", "korvet", "lake", "query", *words, "--lake", lake.location.path, "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)},
    )

    assert {"key": "b", "timestamp": "2026-01-01T00:00:00.001000+00:00"} == json.loads(done.stdout)
    assert "" == done.stderr


def asked(memory: Cluster, folder: Path, remote: str, sql: str) -> subprocess.CompletedProcess[str]:
    words = [sql, "--lake", str(folder / "lake"), "--typed", str(folder / "lake-typed"), "--json"]
    words += ["--remote", remote, "-b", memory.bootstrap_servers]
    command = [sys.executable, "-m", "korvet", "lake", "query", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


VALUES = """timestamp'2020-01-01 00:00:00' as time, cast(1.5 as decimal(5, 2)) as amount, binary('q') as word,
    named_struct('x', 1, 'y', X'ff') as pair, map('a', array(1, 2)) as lists, null as nothing, true as flag"""
# Tasks without files on disk: they end as soon as they are killed.
ENDLESS = "select sum(id % 7) from range(1000000000000000)"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("no_other_topics")
def test_queries_run_in_the_session_of_a_run(memory: Cluster, topic: str, tmp_path: Path) -> None:
    name = topic.replace("-", "_")
    memory.create(topic)
    memory.produce(topic, objects(100))
    file = written(tmp_path, f"defaults.lag = '200ms'\n[topics.{topic}]\ndecode = 'json'\n")
    port = free_port()
    path = tmp_path / "sql"
    arguments = ("--sql-port", str(port), "--sql-socket", str(path))
    remotes = (f"sc://localhost:{port}", f"unix:{path}")

    def rows(remote: str, sql: str) -> list[dict[str, Any]]:
        done = asked(memory, tmp_path, remote, sql)
        assert 0 == done.returncode, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def of_both(sql: str) -> list[dict[str, Any]]:
        connect, of_socket = (rows(remote, sql) for remote in remotes)
        assert connect == of_socket
        return connect

    with RunProcess(memory, file, (*arguments, "--metrics", "127.0.0.1:0")) as process:
        url = process.wait_for(r"metrics: (http://\S+)/metrics")[1]
        wait_until(lambda: answers(port) and states(url) == {topic: "current"})
        typed = of_both(f"select count(*) as n, max(_timestamp) as last, {VALUES} from typed_{name}")
        memory.produce(topic, objects(50))
        both = of_both(f"select count(*) as n from {name}")
        wrong = [asked(memory, tmp_path, remote, f"select nothing from {name}") for remote in remotes]
        # Without cancelling, this would use all cores from here on.
        with socket.socket(socket.AF_UNIX) as left:
            left.connect(str(path))
            request = Request.of(ENDLESS, str(tmp_path / "lake"), None, (), None, {}, 30.0)
            left.sendall(json.dumps(asdict(request)).encode() + b"\n")
        # Spark logs this when the tasks have ended. Stopping the session earlier would log errors.
        process.wait_for("SPARK_JOB_CANCELLED")
        after = rows(remotes[1], f"select count(*) as n from {name}")
        with RunProcess(memory, file, (*arguments, "--once")) as second:
            refused = second.end()
        status = process.end(signal.SIGTERM)
    gone = [asked(memory, tmp_path, remote, f"select 1 from {name}") for remote in remotes]

    assert [100] == [row["n"] for row in typed]
    assert typed[0]["last"].endswith("+00:00")
    assert [{"n": 150}] == both == after
    assert {"x": 1, "y": "/w=="} == typed[0]["pair"]
    for each in wrong:
        assert (1, 1) == (each.returncode, each.stderr.count("\n"))
        assert "`nothing`" in each.stderr
    assert (2, 1) == (refused, len(second.lines))
    assert f"127.0.0.1:{port}: Address already in use." in second.lines[0]
    assert 0 == status
    logged = [line for line in process.lines if "ERROR" in line or "WARN " in line]
    assert [] == [line for line in logged if "SPARK_JOB_CANCELLED" not in line], process.lines
    assert [1, 1] == [each.returncode for each in gone]
    assert f"No Spark Connect server answers at localhost:{port}: Connection refused" in gone[0].stderr
    assert f"No korvet lake run answers at {path}: No such file or directory." in gone[1].stderr
