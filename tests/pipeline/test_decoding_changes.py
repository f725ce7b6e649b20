"""The feed of changes: applied version by version, it makes the rows of each version of the table."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from korvet.cli.lake.changes import command
from korvet.lake.vacuuming import vacuum
from korvet.pipeline.decoding.changes import CHANGE_TYPE, COMMIT_VERSION, changes
from korvet.pipeline.decoding.expiring import drop_before
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.tables import KEYS, DecodedTable
from tests.pipeline.decoding import DAY_MS, START_MS, Lake

Place = tuple[int, int]


def typed(lake: Lake, name: str = "orders") -> DecodedTable:
    return DecodedTable.found(lake.location("typed").child(name))


def feed(lake: Lake, first: int = 0) -> list[dict[str, Any]]:
    """Return the feed from a version on, without the times of commits."""
    found = [row for rows in changes(typed(lake), first) for row in rows.to_pylist()]
    for row in found:
        assert row.pop("_commit_timestamp").year >= 2026
    return found


def kinds(lake: Lake, column: str, first: int = 0) -> list[tuple[str, Any]]:
    return [(row[CHANGE_TYPE], row[column]) for row in feed(lake, first)]


def assert_feed_makes_each_version(lake: Lake) -> None:
    state: dict[Place, dict[str, Any]] = {}
    rows = feed(lake)
    names = typed(lake).schema.names
    for version in range(typed(lake).version + 1):
        for row in rows:
            if row[COMMIT_VERSION] == version:
                place = row["_partition"], row["_offset"]
                values = {name: row[name] for name in names}
                if row[CHANGE_TYPE] in ("insert", "update_postimage"):
                    assert place not in state
                    state[place] = values
                else:
                    assert values == state.pop(place)
        there = DeltaTable(str(lake.folder / "typed" / lake.topic), version=version).to_pyarrow_table()
        expected = {
            (row["_partition"], row["_offset"]): {name: row.get(name) for name in names}
            for row in there.to_pylist()
        }
        assert expected == state, f"after version {version}"


def test_appended_rows_are_inserted_and_joins_change_nothing(lake: Lake) -> None:
    for number in range(3):
        lake.archive([{"id": number}])
        lake.decode()
    before = feed(lake)

    assert [] == DecodedJoins(typed(lake)).run().errors

    assert [("insert", 0), ("insert", 1), ("insert", 2)] == kinds(lake, "id")
    assert before == feed(lake)
    assert_feed_makes_each_version(lake)


def test_rows_of_a_key_are_updated_and_deleted(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"a": 2}, {"a": 3}], keys=["x", "y", "z"])
    lake.decode(upsert=True)
    first = typed(lake).version + 1
    lake.archive([{"a": 10}, None, {"a": 4}], keys=["x", "y", "w"])
    lake.decode(upsert=True)

    found = kinds(lake, "a", first)

    assert [("delete", 2), ("insert", 4), ("update_postimage", 10), ("update_preimage", 1)] == sorted(found)
    assert_feed_makes_each_version(lake)


def test_rows_in_a_table_of_an_earlier_korvet_are_updated(lake: Lake) -> None:
    lake.archive([{"a": 1}], keys=["x"])
    lake.decode(upsert=True)
    first = typed(lake).with_properties({KEYS: "[]"}).version + 1
    lake.archive([{"a": 10}], keys=["x"])
    lake.decode(upsert=True)

    assert [("update_preimage", 1), ("update_postimage", 10)] == kinds(lake, "a", first)


def test_soft_deletion_is_an_update(lake: Lake) -> None:
    settings = {"upsert": True, "key": ["id"], "deletes": "soft", "unwrap": "debezium"}
    lake.archive([{"op": "c", "before": None, "after": {"id": 1, "a": 5}}])
    lake.decode(**settings)
    first = typed(lake).version + 1
    lake.archive([{"op": "d", "before": {"id": 1, "a": 5}, "after": None}])
    lake.decode(**settings)

    assert [("update_preimage", False), ("update_postimage", True)] == kinds(lake, "_deleted", first)
    assert_feed_makes_each_version(lake)


def test_expired_rows_are_deleted_also_with_partition_columns(lake: Lake) -> None:
    times = [START_MS, START_MS + DAY_MS, START_MS + DAY_MS + 1]
    lake.archive(
        [{"id": 1, "kind": "a"}, {"id": 2, "kind": "a"}, {"id": 3, "kind": None}], timestamps_ms=times
    )
    lake.decode(partition_by=["kind", "days"])
    first = typed(lake).version + 1

    drop_before(typed(lake), START_MS + DAY_MS)

    assert [("delete", "a")] == kinds(lake, "kind", first)
    assert_feed_makes_each_version(lake)


@pytest.mark.parametrize(
    "settings", [{}, {"key": ["id", "kind"]}, {"key": ["id", "kind"], "deletes": "soft"}]
)
@pytest.mark.parametrize("seed", range(3))
def test_random_changes_make_each_version(lake: Lake, settings: dict[str, Any], seed: int) -> None:
    random = Random(seed)
    for number in range(6):
        count = random.randrange(1, 8)
        values = [
            {"id": random.randrange(4), "kind": random.choice([None, "a", "b"]), f"new{number}": number}
            for _ in range(count)
        ]
        deleted = [None if not settings and random.random() < 0.3 else value for value in values]
        lake.archive(deleted, keys=[random.choice("xyz") for _ in values], partition=random.randrange(2))
        lake.decode(upsert=True, **settings)
        if random.random() < 0.3:
            assert [] == DecodedJoins(typed(lake)).run().errors
    assert_feed_makes_each_version(lake)


def run(lake: Lake, *options: str) -> Result:
    return CliRunner().invoke(command, ["orders", "--lake", str(lake.folder / "typed"), *options])


def test_command_prints_lines_of_json(lake: Lake) -> None:
    lake.archive([{"id": 1}, {"id": 2}])
    lake.decode()

    result = run(lake)

    assert 0 == result.exit_code
    first, second = map(json.loads, result.stdout.splitlines())
    assert (1, "insert", 2) == (first["id"], first["_change_type"], second["id"])
    assert "" == run(lake, "--from-version", str(typed(lake).version + 1)).stdout


def test_command_goes_on_with_later_commits(lake: Lake) -> None:
    lake.archive([{"id": 1}])
    lake.decode()
    arguments = ["lake", "changes", "orders", "--lake", str(lake.folder / "typed"), "--every", "10ms"]
    with subprocess.Popen(
        [sys.executable, "-m", "korvet", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert 1 == json.loads(process.stdout.readline())["id"]
        lake.archive([{"id": 2}])
        lake.decode()
        assert 2 == json.loads(process.stdout.readline())["id"]
        process.terminate()
        assert "" == process.stdout.read()
    assert 0 == process.returncode


def test_versions_that_are_gone_are_one_line(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"a": 2}], keys=["x", "y"])
    lake.decode(upsert=True)
    lake.archive([{"a": 3}], keys=["x"])
    lake.decode(upsert=True)
    assert vacuum(typed(lake), 0)

    result = run(lake)

    assert 1 == result.exit_code
    assert "a vacuum has removed files of version 1." in str(result.exception)

    typed(lake).delta.create_checkpoint()
    (lake.folder / "typed" / "orders" / "_delta_log" / f"{0:020d}.json").unlink()
    assert "version 0 is not in the table's log any more, which begins with 1." in str(run(lake).exception)


def test_options_that_fit_no_version_are_refused(lake: Lake) -> None:
    lake.archive([{"id": 1}])
    lake.decode()
    newest = typed(lake).version

    assert f"the newest version of orders is {newest}." in run(lake, "--from-version", "9").stderr
    assert f"the newest version of orders is {newest}." in run(lake, "--until-version", "9").stderr
    assert "1 is before --from-version 2" in run(lake, "--from-version", "2", "--until-version", "1").stderr
    assert "Only one of" in run(lake, "--until-version", "1", "--every", "1s").stderr
