"""Upsert: the latest row of each key, whatever batches it came in, and whatever ended a round."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from korvet.lake.errors import CommitConflict, OutOfOrder
from tests.pipeline.decoding import START_MS, TOPIC_ID, Lake
from tests.pipeline.test_decoding_rounds import kill_at

pytestmark = pytest.mark.slow


def by_key(lake: Lake, *columns: str) -> dict[str, Any]:
    """Return the rows of the typed table by key, and assert that each key has one row."""
    rows = lake.rows()
    found = {row["_key"].decode(): tuple(row[column] for column in columns) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return {key: values[0] if len(values) == 1 else values for key, values in sorted(found.items())}


def test_latest_offset_wins_and_tombstones_delete(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}, None], keys=["x", "y", "x", "z", "z"])
    result = lake.decode(upsert=True)
    assert {"x": (3, 2), "y": (2, 1)} == by_key(lake, "a", "_offset")
    assert [(4, 1)] == [(each.outcome.typed, each.outcome.tombstones) for each in result]

    lake.archive([None, {"a": 5}, {"a": 6}, None, {"a": 7}], keys=["x", "z", "y", "none", "x"])
    lake.decode(upsert=True)
    assert {"x": (7, 9), "y": (6, 7), "z": (5, 6)} == by_key(lake, "a", "_offset")

    lake.archive([None, None], keys=["x", "z"])
    lake.decode(upsert=True)
    assert {"y": 6} == by_key(lake, "a")


def test_upsert_adds_columns_and_ignores_bad_rows(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"Some Name": 1, "a": 2}], keys=["x", "y"])
    lake.decode(upsert=True, rename={"Some Name": "SomeName"})
    lake.archive([{"a": "bad"}, {"a": 3, "select": {"it": 1}}], keys=["x", "y"])
    lake.decode(upsert=True, rename={"Some Name": "SomeName"})

    assert {"x": (1, None, None), "y": (3, None, {"it": 1})} == by_key(lake, "a", "SomeName", "select")
    assert {2: '$.a: "bad" is not of type bigint'} == lake.bad()


def test_debezium_deletes_rows(lake: Lake) -> None:
    changes: list[object] = [
        {"op": "c", "before": None, "after": {"id": 1}},
        {"op": "c", "before": None, "after": {"id": 2}},
        {"op": "d", "before": {"id": 1}, "after": None},
        None,
        {"op": "u", "before": None, "after": {"id": 22}},
    ]
    lake.archive(changes, keys=["1", "2", "1", "1", "2"])
    lake.decode(upsert=True, unwrap="debezium")

    assert {"2": (22, "u")} == by_key(lake, "id", "_op")


def test_latest_timestamp_wins_for_a_key_in_two_partitions(lake: Lake) -> None:
    lake.archive([{"a": 1}], keys=["x"], timestamps_ms=[START_MS + 5])
    lake.archive([{"a": 2}], keys=["x"], timestamps_ms=[START_MS + 9], partition=1)
    lake.decode(upsert=True)
    assert {"x": 2} == by_key(lake, "a")

    lake.archive([{"a": 3}], keys=["x"], timestamps_ms=[START_MS + 7])
    lake.decode(upsert=True)
    assert {"x": 2} == by_key(lake, "a")


def test_latest_offset_wins_within_a_partition_despite_timestamps(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"a": 2}], keys=["x", "x"], timestamps_ms=[START_MS + 5, START_MS])
    lake.archive([{"a": 3}], keys=["x"], timestamps_ms=[START_MS - 5])
    lake.decode(upsert=True)

    assert {"x": 3} == by_key(lake, "a")


@pytest.mark.parametrize("step", ["decode", "before commit", "between commits", "after commit"])
def test_upsert_killed_at_any_step_is_completed_by_the_next_round(lake: Lake, step: str) -> None:
    lake.archive([{"a": 1}, {"a": 2}, b"{"], keys=["x", "y", "z"])
    lake.decode(upsert=True)
    lake.archive([{"a": 3}, None, b"["], keys=["x", "y", "z"])
    kill_at(step, lake.decoding(upsert=True))
    lake.archive([{"a": 4}], keys=["y"])
    lake.decode(upsert=True)

    assert {"x": (3, 3), "y": (4, 6)} == by_key(lake, "a", "_offset")
    assert [2, 5] == list(lake.bad())


def test_two_concurrent_upserts_apply_each_change_once(lake: Lake) -> None:
    lake.archive([{"a": 1}], keys=["x"])
    lake.decode(upsert=True, on_error="skip")
    lake.archive([{"a": 2}], keys=["x"])
    slow = lake.decoding(upsert=True, on_error="skip")

    def other(step: str) -> None:
        if step == "before commit":
            slow.on_step = lambda _: None
            lake.decode(upsert=True, on_error="skip")
            lake.archive([{"a": 3}], keys=["x"])
            lake.decode(upsert=True, on_error="skip")

    slow.on_step = other
    with pytest.raises((CommitConflict, OutOfOrder)):
        slow.round()

    assert {"x": (3, 2)} == by_key(lake, "a", "_offset")


def test_stale_staging_folders_are_removed(lake: Lake) -> None:
    stale = lake.folder / "typed/orders/_korvet_staging" / f"1-{'a' * 32}"
    lake.archive([{"a": 1}], keys=["x"])
    lake.decode(upsert=True)
    stale.mkdir(parents=True)
    lake.archive([{"a": 2}], keys=["x"])
    lake.decode(upsert=True)

    assert [] == list((lake.folder / "typed/orders/_korvet_staging").iterdir())


def test_many_upserts_match_a_dict(lake: Lake) -> None:
    random = Random(5)
    model: dict[str, int] = {}
    for _ in range(6):
        keys = [f"k{random.randrange(40)}" for _ in range(60)]
        values = [None if random.random() < 0.2 else {"a": random.randrange(1000)} for _ in keys]
        for key, value in zip(keys, values, strict=True):
            model.pop(key, None)
            if value is not None:
                model[key] = value["a"]
        lake.archive(values, keys=keys)
        lake.decode(upsert=True)

    assert dict(sorted(model.items())) == by_key(lake, "a")
    delta = DeltaTable(str(lake.folder / "typed/orders"))
    assert 360 == delta.transaction_version(f"korvet/{TOPIC_ID}/0")
