"""Bad rows are decoded again: each row is in the typed or in the dlq table, once, whatever ends or overtakes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.job import DecodeJob
from korvet.pipeline.decoding.redriving import NotRedriven, redrive
from korvet.pipeline.decoding.rounds import Decoding
from korvet.pipeline.decoding.tables import DLQ, TYPED, DecodedTable
from tests.pipeline.decoding import TOPIC_ID, Lake

pytestmark = pytest.mark.slow

LONG = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
FIRST: dict[str, Any] = {"schema": LONG, "unknown": "dlq"}
#: Fields without a column are dropped now.
THEN: dict[str, Any] = {"schema": LONG}
STEPS = ["before redrive", "between commits of redrive", "after redrive"]


class Killed(Exception):  # noqa: N818  it happened
    """A step was reached at which the process ends."""


def end_at(step: str, decoding: Decoding) -> None:
    def end(name: str) -> None:
        if name == step:
            raise Killed

    decoding.on_step = end


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a table of rows 0, 3, … 27, and a dlq table with 20 rows, of which 10 will fit."""
    lake = Lake(tmp_path)
    for first in range(0, 30, 15):
        numbers = range(first, first + 15)
        lake.archive([[{"id": n}, {"id": n, "more": 1}, {"id": str(n)}][n % 3] for n in numbers])
        lake.decode(**FIRST)
    assert ([*range(0, 30, 3)], 20) == (lake.values("id"), len(lake.bad()))
    return lake


def tables(lake: Lake) -> list[DecodedTable]:
    places = {lake.topic: TYPED, f"{lake.topic}~dlq": DLQ}
    typed = lake.location("typed")
    return [DecodedTable.open(typed.child(name), kind, lake.topic, TOPIC_ID) for name, kind in places.items()]


def check(lake: Lake) -> None:
    """Assert that the rows that fit are in the typed table, the others in the dlq table, and audits find no fault."""
    assert [n for n in range(30) if n % 3 < 2] == lake.values("id")
    assert {n: f'$.id: "{n}" is not of type bigint' for n in range(2, 30, 3)} == lake.bad()
    for table in tables(lake):
        assert [] == [*audit_decoded(table, table.location.path, checksums=True)]


def test_rows_that_fit_now_move_to_the_typed_table(lake: Lake) -> None:
    done = redrive(lake.decoding(**THEN))

    assert (20, 10) == (done.rows, done.typed)
    check(lake)
    assert 10 == redrive(lake.decoding(**THEN)).rows
    check(lake)


def test_rows_that_still_do_not_fit_make_no_commit(lake: Lake) -> None:
    versions = [table.version for table in tables(lake)]

    done = redrive(lake.decoding(**FIRST))

    assert (20, 0) == (done.rows, done.typed)
    assert versions == [table.version for table in tables(lake)]


@pytest.mark.parametrize("step", STEPS)
def test_redrive_that_is_killed_is_completed_by_the_next_one(lake: Lake, step: str) -> None:
    decoding = lake.decoding(**THEN)
    end_at(step, decoding)

    with pytest.raises(Killed):
        redrive(decoding)
    redrive(lake.decoding(**THEN))

    check(lake)


@pytest.mark.parametrize("step", ["before redrive", "between commits of redrive"])
def test_two_redrives_move_each_row_once(lake: Lake, step: str) -> None:
    decoding = lake.decoding(**THEN)
    overtaken: list[str] = []

    def overtake(name: str) -> None:
        if name == step and not overtaken:
            overtaken.append(name)
            redrive(lake.decoding(**THEN))

    decoding.on_step = overtake
    redrive(decoding)

    assert [step] == overtaken
    check(lake)


@pytest.mark.parametrize("step", STEPS)
def test_records_are_decoded_and_files_joined_meanwhile(lake: Lake, step: str) -> None:
    """A round between two steps."""
    decoding = lake.decoding(**THEN)

    def grow(name: str) -> None:
        if name == step and lake.next_offset() == 30:
            lake.archive([{"id": 100}, {"id": "bad"}])
            lake.decode(**THEN)

    decoding.on_step = grow
    redrive(decoding)

    assert [*(n for n in range(30) if n % 3 < 2), 100] == lake.values("id")
    assert [*range(2, 30, 3), 31] == [*lake.bad()]


def test_rows_of_an_interrupted_round_are_left_to_it(lake: Lake) -> None:
    """The dlq table is ahead of the typed table."""
    lake.archive([{"id": 100, "more": 1}])
    decoding = lake.decoding(**FIRST)
    end_at("between commits", decoding)
    with pytest.raises(Killed):
        decoding.round()

    redrive(lake.decoding(**THEN))
    check_bad = 30 in lake.bad()
    lake.decode(**THEN)

    assert check_bad
    assert 100 not in lake.values("id")
    redrive(lake.decoding(**THEN))
    assert 100 in lake.values("id")
    assert 30 not in lake.bad()


def test_new_columns_are_added_for_rows_that_need_them(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.archive([{"id": 1}, {"id": 2, "color": "red"}])
    lake.decode(**FIRST)

    done = redrive(lake.decoding(schema=LONG, unknown="add"))

    assert ["color string"] == done.columns
    assert [(1, None), (2, "red")] == lake.values("id", "color")
    assert {} == lake.bad()


def test_partitioned_tables_and_tables_without_bad_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.archive([{"id": 1}, {"id": 1, "x": 2}, {"id": 2, "x": 2}])
    assert 0 == redrive(lake.decoding(**FIRST)).rows
    lake.decode(**FIRST, partition_by=["days"])

    assert 2 == redrive(lake.decoding(**THEN, partition_by=["days"])).typed

    assert [1, 1, 2] == lake.values("id")
    assert 0 == redrive(lake.decoding(**THEN, partition_by=["days"])).rows


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"upsert": True}, "rows of a table with upsert are decoded again only with deletes = 'soft' and"),
        ({"on_error": "skip"}, "with on_error = 'skip' there is no dlq table"),
    ],
)
def test_tables_that_cannot_be_redriven_are_refused(
    lake: Lake, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotRedriven, match=reason):
        redrive(lake.decoding(**THEN, **settings))


def test_small_groups_of_files_are_commits_of_their_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.pipeline.decoding.redriving.GROUP_BYTES", 1)
    before = [table.version for table in tables(lake)]

    redrive(lake.decoding(**THEN))

    check(lake)
    assert [2, 2] == [table.version - version for table, version in zip(tables(lake), before, strict=True)]


def test_job_decodes_bad_rows_again_once(lake: Lake) -> None:
    job = DecodeJob([lake.decoding(**THEN)], redrives=True)
    lake.archive([{"id": 100}])

    job.run()

    assert (10, 1, 1) == (
        job.progress["orders"].redriven,
        job.progress["orders"].typed,
        job.progress["orders"].records,
    )
    assert 100 in lake.values("id")
