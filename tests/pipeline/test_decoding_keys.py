"""Upserts by columns, and deletions that are marked: the rows are those of a dict, whatever ends a round."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from korvet.config import ConfigError
from korvet.lake.errors import CommitConflict, WrongTable
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.joining import DecodedJoins
from korvet.pipeline.decoding.leaves import NUMBER_FROM_STRING, SchemaFault
from korvet.pipeline.decoding.redriving import redrive
from korvet.pipeline.decoding.tables import DecodedTable
from tests.lake.iceberg_reading import reading
from tests.pipeline.decoding import START_MS, Lake
from tests.pipeline.test_decoding_redriving import Killed, end_at

pytestmark = pytest.mark.slow

FIELDS = {"region": "string", "id": "long", "n": "long"}
COLUMNS = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()]
SCHEMA = json.dumps({"type": "struct", "fields": COLUMNS})
BY_TWO: dict[str, Any] = {"schema": SCHEMA, "upsert": True, "key": ["region", "id"]}
SOFT: dict[str, Any] = {**BY_TWO, "deletes": "soft"}
LENIENT: dict[str, Any] = {**SOFT, "lenient": [NUMBER_FROM_STRING]}


def key_of(region: str | None, number: int | None) -> str:
    """Return a record's key as Connect's JSON converter writes it without a schema."""
    return json.dumps({"region": region, "id": number})


def put(lake: Lake, *rows: tuple[str | None, int | None, Any], partition: int = 0) -> None:
    """Archive rows of region, id and n; None for n is a tombstone."""
    lake.archive(
        [None if n is None else {"region": region, "id": number, "n": n} for region, number, n in rows],
        keys=[key_of(region, number) for region, number, _ in rows],
        partition=partition,
    )


def state(lake: Lake) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    """Return n and `_deleted` of the rows by their keys, and assert that each key has one row."""
    rows = lake.rows()
    found = {(row["region"], row["id"]): (row["n"], row.get("_deleted")) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def typed(lake: Lake) -> DecodedTable:
    return DecodedTable.found(lake.location("typed").child(lake.topic))


def test_two_columns_are_a_key_in_which_null_equals_null(lake: Lake) -> None:
    put(lake, ("eu", 1, 1), ("us", 1, 2), (None, 1, 3), (None, None, 4), ("eu", None, 5))
    lake.decode(**BY_TWO)
    put(lake, ("eu", 1, 6), (None, 1, 7), ("eu", None, 8), (None, None, None))
    lake.decode(**BY_TWO)

    expected = {("eu", 1): 6, ("us", 1): 2, (None, 1): 7, ("eu", None): 8}
    assert {key: (n, None) for key, n in expected.items()} == state(lake)
    assert "_key" not in typed(lake).schema.names


def test_tombstone_finds_its_row_by_the_fields_of_the_records_key(lake: Lake) -> None:
    lake.archive([{"region": "eu", "id": number, "n": 1} for number in range(4)])
    lake.decode(**BY_TWO)
    with_schema = json.dumps({"schema": {}, "payload": {"region": "eu", "id": 1, "more": 2}})
    keys = [key_of("eu", 0), with_schema, None, "7", '{"id": 2}', '{"region": "eu", "id": "x"}']
    lake.archive([None] * 6, keys=keys)
    lake.decode(**BY_TWO)

    assert {("eu", 2), ("eu", 3)} == state(lake).keys()
    hint = "; by the fields region, id of the record's key a deletion finds its row"
    assert {
        6: f"key: is null{hint}",
        7: f"key: 7 is not an object{hint}",
        8: f"key: lacks region{hint}",
        9: '$.id: "x" is not of type bigint',
    } == lake.bad()


def test_deletion_of_debezium_has_its_key_in_the_value_or_in_the_key(lake: Lake) -> None:
    rows = [{"region": "eu", "id": number, "n": number} for number in range(3)]
    lake.archive([{"op": "c", "before": None, "after": row} for row in rows])
    lake.archive(
        [
            {"op": "d", "before": {"region": "eu", "id": 0}, "after": None},
            {"op": "d", "before": None, "after": None},
        ],
        keys=[None, key_of("eu", 1)],
    )
    for each in (BY_TWO, {**SOFT, "table": "soft"}):
        lake.decode(**each, unwrap="debezium")

    assert {("eu", 2): (2, None)} == state(lake)
    soft = [(row["n"], row["_deleted"], row["_op"]) for row in lake.table("soft").to_pylist()]
    assert [(0, True, "d"), (1, True, "d"), (2, False, "c")] == sorted(soft)


def test_deleted_row_is_marked_and_a_later_record_revives_it(lake: Lake) -> None:
    put(lake, ("eu", 1, 1), ("eu", 2, 2), ("eu", 2, None))
    put(lake, ("eu", 1, None), ("us", 9, None))
    lake.decode(**SOFT)

    assert {("eu", 1): (1, True), ("eu", 2): (2, True), ("us", 9): (None, True)} == state(lake)
    for row in lake.rows():
        assert row["_deleted_at"] == row["_timestamp"]
    put(lake, ("eu", 1, 7))
    lake.decode(**SOFT)
    assert (7, False) == state(lake)["eu", 1]
    assert [None] == [row["_deleted_at"] for row in lake.rows() if not row["_deleted"]]


def test_soft_deletes_by_the_records_key(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"a": 2}, None, None], keys=["x", "y", "x", "z"])
    lake.decode(upsert=True, deletes="soft")

    found = {row["_key"]: (row["a"], row["_deleted"]) for row in lake.rows()}
    assert {b"x": (1, True), b"y": (2, False), b"z": (None, True)} == found


def test_redriven_rows_replace_no_later_row_and_revive_no_deleted_one(lake: Lake) -> None:
    put(lake, ("eu", 1, "1"), ("eu", 2, "2"), ("eu", 3, "3"), ("eu", 2, None), ("eu", 3, 33), ("eu", 4, 4))
    put(lake, ("eu", 4, "44"), ("eu", 5, "no"))
    lake.decode(**SOFT)
    assert [0, 1, 2, 6, 7] == [*lake.bad()]

    assert 4 == redrive(lake.decoding(**LENIENT)).typed

    expected = {1: (1, False), 2: (None, True), 3: (33, False), 4: (44, False)}
    assert {("eu", number): each for number, each in expected.items()} == state(lake)
    assert [7] == [*lake.bad()]


@pytest.mark.parametrize("step", ["before redrive", "between commits of redrive", "after redrive"])
def test_killed_or_overtaken_redrive_is_completed(lake: Lake, step: str) -> None:
    put(lake, ("eu", 1, "1"), ("eu", 2, "2"), ("eu", 2, None))
    lake.decode(**SOFT)
    decoding = lake.decoding(**LENIENT)
    steps = []

    def overtake(name: str) -> None:
        steps.append(name)
        if name == step and steps.count(name) == 1:
            put(lake, ("eu", 1, 5))
            lake.decode(**LENIENT)
            redrive(lake.decoding(**LENIENT))

    decoding.on_step = overtake
    redrive(decoding)

    assert {("eu", 1): (5, False), ("eu", 2): (None, True)} == state(lake)
    assert {} == lake.bad()


def test_merge_that_another_commit_overtakes_starts_again(lake: Lake) -> None:
    put(lake, ("eu", 1, 1))
    lake.decode(**SOFT)
    put(lake, ("eu", 1, None))
    decoding = lake.decoding(**SOFT)

    def overtake(step: str) -> None:
        if step == "between commits":
            typed(lake).delta.delete("n = 1")

    decoding.on_step = overtake
    with pytest.raises(CommitConflict):
        decoding.round()
    lake.decode(**SOFT)

    assert {("eu", 1): (None, True)} == state(lake)


def test_duckdb_reads_the_same_rows_in_the_iceberg_table(lake: Lake) -> None:
    mirror = Mirror(PathCatalog(lake.location("typed"), FOLDER), "typed")
    for batch in (
        [("eu", 1, 1), (None, 1, 2)],
        [("eu", 1, None), (None, 1, 3)],
        [("eu", 1, 4), ("us", 1, None)],
    ):
        put(lake, *batch)
        lake.decode(**SOFT)
        mirror.update(Original.open(lake.location("typed"), lake.topic))

        query = "select region, id, n, _deleted_, epoch_ms(_deleted_at) from {table}"
        found = reading(f"{lake.folder}/typed/{lake.topic}/{FOLDER}", query)
        expected = [
            (
                row["region"], row["id"], row["n"], row["_deleted"],
                START_MS + row["_offset"] if row["_deleted"] else None,
            )
            for row in lake.rows()
        ]  # fmt: skip
        assert sorted(map(repr, expected)) == sorted(map(repr, found))


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"key": ["id"]}, "key: is for upsert"),
        ({"upsert": True, "key": ["id", "id"]}, "key: names a column twice"),
        ({"deletes": "soft"}, "deletes: 'soft' is for upsert; without it, tombstones = \"keep\""),
        ({"upsert": True, "deletes": "gentle"}, "deletes: 'gentle' is none of hard, soft"),
        ({"upsert": True, "key": 7}, "key: 7 is not a list of names"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    lake: Lake, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        lake.decoding(**given)


@pytest.mark.parametrize(
    "key, reason",
    [(["region", "no"], "key: there is no column no; there are region, id"), (["box"], "key: box is struct")],
)
def test_columns_that_identify_no_rows_are_refused(lake: Lake, key: list[str], reason: str) -> None:
    lake.archive([{"region": "eu", "id": 1, "box": {"x": 1}}])

    with pytest.raises(SchemaFault, match=reason):
        lake.decode(upsert=True, key=key)
    assert not (lake.folder / "typed/orders").exists()


def test_tables_do_not_change_their_keys_and_deletions(lake: Lake) -> None:
    put(lake, ("eu", 1, 1))
    lake.decode(**BY_TWO)
    put(lake, ("eu", 1, 2))

    for other, reason in (
        (
            {**BY_TWO, "key": ["id"]},
            "was made for upsert by region, id, not for upsert by id; decode to another",
        ),
        ({"schema": SCHEMA}, "was made for upsert by region, id, not without it"),
        (
            {"schema": SCHEMA, "upsert": True},
            "was made for upsert by region, id, not for upsert by the record's key",
        ),
        (SOFT, "was made with deletes = 'hard', not 'soft'"),
    ):
        with pytest.raises(WrongTable, match=reason):
            lake.decode(**other)
    assert {("eu", 1): (1, None)} == state(lake)


# --- A dict -------------------------------------------------------------------------------------------------


@frozen
class Row:
    """The dict's value for a key. `n` is that of the latest record with a value."""

    offset: int
    n: int | None
    deleted: bool


REGIONS, NUMBERS = st.sampled_from([None, "eu", "us"]), st.sampled_from([None, 1, 2])
#: n: a value, one that is bad until strings are permitted, or a tombstone.
VALUES = st.one_of(st.integers(0, 99), st.integers(0, 99).map(str), st.none())
RECORDS = st.lists(st.tuples(REGIONS, NUMBERS, VALUES), min_size=1, max_size=6)
STEPS = st.sampled_from(["decode", "before commit", "between commits", "after commit"])


class Upserts(RuleBasedStateMachine):
    """Decode, kill, redrive and join in any order. Each key stays in its partition."""

    deletes = "soft"

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="kk-")
        self.lake = Lake(Path(self._folder.name))
        self.model: dict[tuple[Any, Any], Row] = {}
        self.bad: dict[tuple[int, int], tuple[Any, Any, int]] = {}  # by partition and offset
        self.next = [0, 0]
        self.settings = {**BY_TWO, "deletes": self.deletes, "bucket_by": "id", "buckets": 2}

    def teardown(self) -> None:
        self._folder.cleanup()

    def apply(self, key: tuple[Any, Any], offset: int, n: int | None) -> None:
        before = self.model.get(key)
        if before is not None and before.offset > offset:
            return
        if n is None:
            self.model[key] = Row(offset, None if before is None else before.n, deleted=True)
        else:
            self.model[key] = Row(offset, n, deleted=False)

    @rule(records=RECORDS, step=st.one_of(st.none(), STEPS))
    def decode(self, records: list[tuple[Any, Any, Any]], step: str | None) -> None:
        """Archive records, note what decoding them will do, and end a round at a step."""
        for region, number, n in records:
            partition = len(str((region, number))) % 2
            put(self.lake, (region, number, n), partition=partition)
            offset = self.next[partition]
            self.next[partition] += 1
            if isinstance(n, str):
                self.bad[partition, offset] = region, number, int(n)
            else:
                self.apply((region, number), offset, n)
        decoding = self.lake.decoding(**self.settings)
        if step:
            end_at(step, decoding)
        with suppress(Killed):
            decoding.round()

    @rule()
    def redrive(self) -> None:
        if self.deletes == "soft" and any(self.next):
            self.lake.decode(**self.settings)
            redrive(self.lake.decoding(**self.settings, lenient=[NUMBER_FROM_STRING]))
            for (_, offset), (region, number, n) in sorted(self.bad.items()):
                self.apply((region, number), offset, n)
            self.bad.clear()

    @rule()
    def join(self) -> None:
        if (self.lake.folder / "typed/orders").exists():
            assert [] == DecodedJoins(typed(self.lake)).run().errors

    @invariant()
    def has_the_rows_of_the_dict(self) -> None:
        if not any(self.next):
            return
        self.lake.decode(**self.settings)
        expected = {
            key: (row.n, row.deleted if self.deletes == "soft" else None)
            for key, row in self.model.items()
            if self.deletes == "soft" or not row.deleted
        }
        assert expected == state(self.lake)
        bad = {(row["partition"], row["offset"]) for row in self.lake.table("orders~dlq").to_pylist()}
        assert self.bad.keys() == bad
        assert [] == audit_decoded(typed(self.lake), "orders", checksums=True)


class HardUpserts(Upserts):
    """The same, with deletions that remove rows."""

    deletes = "hard"


@pytest.mark.parametrize("machine", [Upserts, HardUpserts])
def test_rows_are_those_of_a_dict(machine: type[Upserts]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=5, stateful_step_count=8, deadline=None, suppress_health_check=[*HealthCheck]
        ),
    )
