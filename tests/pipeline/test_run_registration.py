"""A run registers its tables in the catalogue of [register]. A refusal stays with its table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.client import Record
from korvet.pipeline.run.schedule import State
from tests.lake.catalogues import Unity, unity_server
from tests.pipeline.lake_runs import run_once, written
from tests.pipeline.support import Cluster
from tests.pipeline.test_run import (
    errors,
    no_other_topics,  # noqa: F401  a fixture
    objects,
    states,
    typed_ids,
)


@pytest.fixture
def unity() -> Iterator[Unity]:
    with unity_server() as server:
        yield server


def lake_toml(folder: Path, unity: Unity, topics: str) -> Path:
    return written(
        folder,
        f"""
        [register]
        type = "unity"
        uri = "{unity.url}"
        catalog = "main"
        [defaults]
        decode = "json"
        {topics}
        """,
    )


def columns(unity: Unity, table: str) -> list[str]:
    return [each["name"] for each in unity.tables[f"main.{table}"]["columns"]]


@pytest.mark.usefixtures("no_other_topics")
def test_all_tables_are_registered_and_follow_new_columns(
    memory: Cluster, topic: str, tmp_path: Path, unity: Unity
) -> None:
    left_out = f"{topic}-left-out"
    for name in (topic, left_out):
        memory.create(name)
        memory.produce(name, objects(10))
    file = lake_toml(tmp_path, unity, f"[topics.{topic}]\n[topics.{left_out}]\nregister = false\n")
    assert [] == run_once(memory, file).failed

    name = topic.replace("-", "_").lower()
    assert {f"main.korvet.{name}", f"main.typed.{name}", f"main.typed.{name}_dlq"} == unity.tables.keys()
    assert "color" not in columns(unity, f"typed.{name}")
    asked = len(unity.asked)
    memory.produce(topic, [Record(b'{"id": 10, "color": "red"}')])

    assert [] == run_once(memory, file).failed

    assert "color" in columns(unity, f"typed.{name}")
    changes = [each for each in unity.asked[asked:] if not each.startswith("GET")]
    assert [f"DELETE tables/main.typed.{name}", "POST tables"] == changes


@pytest.mark.usefixtures("no_other_topics")
def test_refused_table_is_one_line_and_the_others_go_on(
    memory: Cluster, topic: str, tmp_path: Path, unity: Unity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.run.runner.ATTEMPTS", 1)
    good, bad = f"{topic}-good", f"{topic}-bad"
    for name in (good, bad):
        memory.create(name)
        memory.produce(name, objects(10))
    unity.refused[f"'name': '{bad.replace('-', '_').lower()}'"] = 403, {"message": "you have no right"}

    run = run_once(memory, lake_toml(tmp_path, unity, f"[topics.'{topic}-.*']\n"))

    assert {bad: State.RETRYING, good: State.CURRENT} == states(run)
    api = f"{unity.url}/api/2.1/unity-catalog"
    assert {bad: f"register: POST {api}/tables was answered with 403: you have no right."} == errors(run)
    for name in (good, bad):
        assert [*range(10)] == typed_ids(tmp_path / "lake-typed" / name)

    unity.refused.clear()
    assert [] == run_once(memory, run.file.folder / "lake.toml").failed
    assert 6 == len(unity.tables)
