"""Reports of `korvet lake run` in committed offsets, and what readers make of them."""

from __future__ import annotations

import json

import pytest

from korvet.client import OffsetAndMetadata, TopicPartition
from korvet.client.lake_tables import (
    ARCHIVE,
    ENDED,
    LOST,
    MARK,
    TYPED,
    Report,
    ReportedTable,
    ShownTable,
    lake_tables,
    reports_in,
)

NOW_MS = 1_800_000_000_000
TABLES = (
    ReportedTable(ARCHIVE, "/lake/orders", NOW_MS - 9_000, 3, 1000),
    ReportedTable(TYPED, "/typed/orders", NOW_MS - 20_000, 2, 500, behind=4),
)


def report(**changes: object) -> Report:
    return Report(**{"at_ms": NOW_MS - 2_000, "state": "current", "tables": TABLES, **changes})


def shown(
    made: Report, *offsets: int, end: int = 10, start: int = 0, clocked: tuple[str, ...] = ()
) -> list[ShownTable]:
    committed = {TopicPartition("orders", p): OffsetAndMetadata(each) for p, each in enumerate(offsets)}
    committed[TopicPartition("orders", 0)] = OffsetAndMetadata(offsets[0], metadata=made.to_text())
    bounds = {"orders": dict.fromkeys(range(len(offsets)), (start, end))}
    return lake_tables(committed, bounds, clocked, NOW_MS)


def test_report_is_read_as_it_was_written() -> None:
    made = report(error='the "catalogue" does not answer', lag_records=5)

    assert made == Report.parse(made.to_text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "null",
        "7",
        '{"a": 1}',
        json.dumps({MARK: 2}),
        json.dumps({MARK: 1}),
        json.dumps({MARK: 1, "tables": [], "at_ms": "1", "state": "current"}),
        json.dumps({MARK: 1, "tables": [{"kind": 1, "path": ""}], "at_ms": 1, "state": "current"}),
        json.dumps({MARK: 1, "tables": 7, "at_ms": 1, "state": "current"}),
        "[" * 100_000,
    ],
)
def test_other_metadata_is_no_report(text: str) -> None:
    assert Report.parse(text) is None


def test_fields_of_newer_runs_are_ignored() -> None:
    values = json.loads(report().to_text())
    values["colour"] = "red"
    values["tables"][0]["shape"] = "round"

    assert report() == Report.parse(json.dumps(values))


def test_longest_report_is_below_the_limit_of_kafka() -> None:
    tables = tuple(ReportedTable(each, "ü" * 5_000, 2**62, 2**62, 2**62, 2**62) for each in (ARCHIVE, TYPED))

    assert len(report(tables=tables, error="'" * 5_000, lag_records=2**62).to_text()) < 4096


def test_lag_is_that_of_now() -> None:
    archive, typed = shown(report(), 10, 7)

    assert (3, 9.0) == (archive.lag_records, archive.lag_s)
    assert (7, 20.0) == (typed.lag_records, typed.lag_s)
    assert ("current", 2.0, 3, 1000) == (archive.state, archive.age_s, archive.files, archive.bytes)


def test_table_with_all_records_has_no_lag() -> None:
    archive, typed = shown(report(), 10, 10)

    assert (0, 0.0) == (archive.lag_records, archive.lag_s)
    assert 4 == typed.lag_records


def test_deleted_records_are_not_behind() -> None:
    assert 1 == shown(report(), 2, start=9)[0].lag_records


def test_offsets_that_follow_the_clock_have_the_lag_of_the_report() -> None:
    def records(made: Report, offset: int) -> list[int | None]:
        return [each.lag_records for each in shown(made, offset, end=1 << 50, clocked=("orders",))]

    assert [3, 3] == records(report(lag_records=3), 0)
    assert [None, None] == records(report(lag_records=0), 0)  # appended after the report
    assert [None, None] == records(report(lag_records=3, is_last=True), 0)
    assert 0 == records(report(lag_records=3), 1 << 50)[0]


def test_run_that_does_not_report_is_lost_and_one_that_ended_is_not() -> None:
    old = NOW_MS - 61_000

    assert {LOST} == {each.state for each in shown(report(at_ms=old), 0)}
    assert {ENDED} == {each.state for each in shown(report(at_ms=old, is_last=True), 0)}
    assert "bad row" == shown(report(at_ms=old, error="bad row"), 0)[0].error


def test_newest_report_of_a_topic_counts() -> None:
    older, newer = report(at_ms=1), report(at_ms=2)
    committed = {
        TopicPartition("orders", number): OffsetAndMetadata(1, metadata=text)
        for number, text in enumerate((older.to_text(), newer.to_text(), older.to_text(), "mine"))
    }

    assert {"orders": newer} == reports_in(committed)


def test_report_on_many_tables_is_shortened_to_the_limit_of_metadata() -> None:
    tables = tuple(ReportedTable(TYPED, f"/typed/orders.{'ä' * 100}{number}") for number in range(100))
    report = Report(1, "current", (ReportedTable(ARCHIVE, "/lake/orders"), *tables), None)

    text = report.to_text()

    assert 3700 < len(text.encode()) <= 4096
    assert Report.parse(text).tables == report.tables[: len(Report.parse(text).tables)]
