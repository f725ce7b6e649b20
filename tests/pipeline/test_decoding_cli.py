"""`korvet lake decode` without Spark: its output, and its errors for invalid input."""

from __future__ import annotations

import click
import pytest

from korvet.cli import main, report
from korvet.cli.lake.decode import summarize
from korvet.pipeline.decoding.job import DecodeJob, Progress
from tests.pipeline.decoding import Lake

pytestmark = pytest.mark.slow


def decode(lake: Lake, *arguments: str, to: str | None = None) -> int:
    """Run the command, and return its exit status."""
    places = ["--lake", str(lake.folder / "raw"), "--typed", to or str(lake.folder / "typed")]
    with pytest.raises(SystemExit) as ended:
        main(["lake", "decode", *places, *arguments])
    return int(str(ended.value.code or 0))


def test_show_prints_columns_and_bad_rows_and_writes_no_table(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.archive([{"id": 1, "of": {"a b": 1, "": 1, "c": [1.5]}}, b"{", None])

    assert 0 == decode(lake, "--topics", "orders", "--show")

    lines = capsys.readouterr().out.splitlines()
    assert [
        "orders: id bigint, of struct<a_x0020_b: bigint, c: array<double>>",
        "orders: of the first 3 records 2 would be bad rows",
        "  orders-0 offset 0: $.of.: no column can have this name; give it another with rename",
    ] == lines[:3]
    assert lines[3].startswith("  orders-0 offset 1: $: is not JSON")
    assert not (lake.folder / "typed").exists()


@pytest.mark.parametrize(
    "arguments, status, error",
    [
        (("--topics", "orders"), 2, "One of --once, --every and --show is needed."),
        (("--topics", "orders", "--show", "--once"), 2, "One of --once, --every and --show is needed."),
        (
            ("--topics", "orders", "--every", "soon"),
            2,
            "'soon' is not a duration. Accepted: PT1H30M, P7D, 90s, 1h30m",
        ),
        (("--show",), 2, "No topic is named: give --topics, or a file with sections [topics.<name>]."),
        (
            ("--topics", "orders", "--format", "xml", "--show"),
            2,
            "topic orders.format: 'xml' is none of json, json-schema, avro",
        ),
        (("--topics", "orders", "--schema-file", "no.json", "--show"), 2, "there is no file"),
        (("--topics", "orders", "--format", "avro", "--show"), 2, "avro needs schema_file, or registry"),
        (("--topics", "nobody", "--show"), 1, "nobody: There is no Delta table at"),
        (
            ("--topics", "orders", "--format", "avro", "--registry", "http://127.0.0.1:1", "--show"),
            1,
            "The registry at http://127.0.0.1:1 does not answer",
        ),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    lake: Lake, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, error: str
) -> None:
    lake.archive([{"id": 1}])

    assert status == decode(lake, *arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line
    assert not (lake.folder / "typed").exists()


def test_typed_tables_cannot_be_written_into_the_archive_location(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == decode(lake, "--topics", "orders", "--once", to=str(lake.folder / "raw/"))
    assert "is the location of the archive; typed tables need a different one." in capsys.readouterr().err


@pytest.mark.parametrize("ending", [click.exceptions.Exit(1), SystemExit(1)])
def test_exit_exceptions_are_reported_without_further_output(
    ending: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == report(ending)
    assert "" == capsys.readouterr().err


def test_summary_contains_failures_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    job = DecodeJob([])
    job.progress["orders"] = Progress("orders", records=3, typed=1, bad=1, tombstones=1)
    summarize(job, as_json=False)
    job.progress["pages"] = Progress("pages", error="There is no table.")
    with pytest.raises(click.exceptions.Exit):
        summarize(job, as_json=False)

    assert [
        "orders: 3 records: 1 typed, 1 bad, 1 tombstones",
        "orders: 3 records: 1 typed, 1 bad, 1 tombstones",
        "pages: 0 records: 0 typed, 0 bad, 0 tombstones; failed: There is no table.",
    ] == capsys.readouterr().out.splitlines()


def test_topic_without_one_good_value_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    job = DecodeJob([])
    job.progress["orders"] = Progress("orders", records=3, typed=0, bad=2, tombstones=1)
    with pytest.raises(click.exceptions.Exit):
        summarize(job, as_json=False)

    assert "korvet: orders: none of its values could be decoded" in capsys.readouterr().err
