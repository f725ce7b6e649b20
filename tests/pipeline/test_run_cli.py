"""`korvet lake run` without records, so without Spark: usage, the HTTP port, and signals."""

# ruff: noqa: F811  the fixtures of other modules

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Korvet, korvet  # noqa: F401  a fixture
from tests.pipeline.lake_runs import RunProcess, fetched, states, written
from tests.pipeline.support import Cluster
from tests.pipeline.test_archive_cli import broker  # noqa: F401  a fixture
from tests.pipeline.test_run import no_other_topics, wait_until  # noqa: F401  a fixture


@pytest.mark.parametrize(
    "text, arguments, message",
    [
        ("", ["--metrics", "nowhere"], "'nowhere' is not an address; accepted: HOST:PORT."),
        ("", ["-b", "nowhere:0"], "is not a broker address"),
        ("", ["--spark-conf", "x=1"], "'x' is not a Spark setting"),
        ("", ["--lake", "gopher://x/y"], "there are no tables at gopher://"),
        ("", ["--lake", "s3://bucket"], "a bucket without a prefix needs typed"),
        ("typed = 'lake'\n", ["--lake", "lake"], "is the location of the archives."),
        ("defaults.lagg = '1s'\n", [], "$.defaults.lagg: there is no such setting; is lag meant?"),
        ("spark.x = '1'\n", [], "lake.toml: $.spark: 'x' is not a Spark setting"),
    ],
)
def test_usage_errors_are_reported_in_one_line(
    korvet: Korvet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = korvet("lake", "run", "--once", "--config", str(written(tmp_path, text)), *arguments)

    assert (2, 1) == (outcome.status, outcome.err.count("\n"))
    assert message in outcome.err
    assert ["lake.toml"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.usefixtures("no_other_topics")
def test_once_exits_with_0_without_records_and_with_1_without_the_topic(
    korvet: Korvet, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    empty = korvet("lake", "run", "--once", "--config", str(written(tmp_path, "")))
    lacking = korvet("lake", "run", "--once", "--config", str(written(tmp_path, f"[topics.{topic}]\n")))
    memory.create(topic)
    idle = korvet("lake", "run", "--once", "--json", "--config", str(tmp_path / "lake.toml"))

    assert (0, "No topic is enabled: ") == (empty.status, empty.out[:21])
    assert (1, f"{topic}: failed, 0 records, 0 B, lag 0; There is no topic {topic}.\n") == (
        lacking.status,
        lacking.out,
    )
    assert (0, "current", None) == (
        idle.status,
        *(json.loads(idle.out)[0][name] for name in ("state", "exceeded")),
    )


def test_unreachable_brokers_are_reported_in_one_line(
    korvet: Korvet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.run.runner.ATTEMPTS", 1)
    outcome = korvet("lake", "run", "--once", "--config", str(written(tmp_path, "")), "-b", "127.0.0.1:1")

    assert (1, "korvet: 127.0.0.1:1: Connection refused. (NETWORK_EXCEPTION)\n") == (
        outcome.status,
        outcome.err,
    )


def test_port_in_use_is_reported_in_one_line(korvet: Korvet, memory: Cluster, tmp_path: Path) -> None:
    used = ["--metrics", memory.bootstrap_servers]
    outcome = korvet("lake", "run", "--once", "--config", str(written(tmp_path, "")), *used)

    assert (1, 1) == (outcome.status, outcome.err.count("\n"))
    assert memory.bootstrap_servers.rpartition(":")[2] in outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_topics")
def test_process_exits_with_1_and_one_line_for_each_failed_table(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    wrong, lacking = f"{topic}-wrong", f"{topic}-lacking"
    for name in (topic, wrong):
        memory.create(name)
    (tmp_path / "lake" / wrong).mkdir(parents=True)
    (tmp_path / "lake" / wrong / "file").touch()
    sections = "".join(f"[topics.{name}]\n" for name in (topic, wrong, lacking))
    with RunProcess(memory, written(tmp_path, sections), ("--once",)) as process:
        status = process.end()

    reasons = {
        lacking: f"There is no topic {lacking}.",
        wrong: f"{tmp_path}/lake/{wrong} is not a Delta table, and not empty; choose another place with --lake.",
    }
    lines = [f"{name}: failed, 0 records, 0 B, lag 0; {reason}" for name, reason in reasons.items()]
    assert (1, [f"{topic}: current, 0 records, 0 B, lag 0", *lines]) == (status, process.out.splitlines())
    assert [f"korvet: {name}: {reason}" for name, reason in reasons.items()] == process.lines[:2]
    assert [tmp_path / "lake" / wrong / "file"] == [*(tmp_path / "lake" / wrong).iterdir()]


@pytest.mark.slow
def test_process_exits_with_2_and_writes_nothing_for_an_unknown_key(memory: Cluster, tmp_path: Path) -> None:
    with RunProcess(memory, written(tmp_path, "defaults.lagg = '1s'\n"), ("--once",)) as process:
        status = process.end()

    fault = "$.defaults.lagg: there is no such setting; is lag meant?"
    assert (2, "", [f"korvet: {tmp_path}/lake.toml: {fault}"]) == (status, process.out, process.lines)
    assert ["lake.toml"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.usefixtures("no_other_topics")
def test_state_is_served_until_sigterm(memory: Cluster, topic: str, tmp_path: Path) -> None:
    memory.create(topic)
    file = written(tmp_path, f"defaults.lag = '100ms'\n[topics.{topic}]\n")
    with RunProcess(memory, file, ("--metrics", "127.0.0.1:0")) as process:
        url = process.wait_for(r"metrics: (http://\S+)/metrics")[1]
        wait_until(lambda: states(url) == {topic: "current"})
        found = [fetched(f"{url}/{name}") for name in ("livez", "readyz", "nothing")]
        metrics = fetched(f"{url}/metrics")[1]
        status = process.end(signal.SIGTERM)

    assert [(200, "ok\n"), (200, "ok\n")] == found[:2]
    assert (404, "served are /metrics, /livez and /readyz, and /status\n") == found[2]
    assert f'korvet_lake_table_state{{state="current",topic="{topic}"}} 1.0' in metrics
    assert (0, f"{topic}: current, 0 records, 0 B, lag 0\n") == (status, process.out)
