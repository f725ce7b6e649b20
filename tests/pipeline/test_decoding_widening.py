"""Columns become wider in one commit: each row stays, whatever ends or overtakes it, and bad rows fit afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from korvet.cli.lake.widen import command
from korvet.lake.errors import CommitConflict
from korvet.lake.iceberg.mirror import Mirror
from korvet.lake.iceberg.original import Original
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.mirrored import FOLDER
from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.redriving import redrive
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.decoding.widening import NotWidened, Widen
from tests.lake.iceberg_reading import reading
from tests.pipeline.decoding import Lake

pytestmark = pytest.mark.slow

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def struct(**columns: Any) -> dict[str, Any]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    return {"type": "struct", "fields": fields}


LINES = {"type": "array", "elementType": struct(n="integer"), "containsNull": True}
COLUMNS: dict[str, Any] = {
    "id": "integer",
    "x": "float",
    "price": "decimal(6,2)",
    "lines": LINES,
    "name": "string",
}
SETTINGS = {"schema": json.dumps(struct(**COLUMNS))}
WIDER = {"id": "long", "x": "double", "price": "decimal(10,2)", "lines[].n": "long"}
OPTIONS = ["id=bigint", "x=double", "price=decimal(10,2)", "$.lines[].n=bigint"]
STEPS = ["write", "before commit", "after commit"]


def row(number: int, **other: Any) -> dict[str, Any]:
    return {"id": number, "x": 0.5, "price": 1.25, "lines": [{"n": number}], "name": "a", **other}


#: Rows that do not fit the columns, but do fit wider ones.
LARGE = [row(2**40), row(4, x=1e300), row(5, price=12345678.25), row(6, lines=[{"n": 1}, {"n": 2**40}])]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a typed table of three files with six rows, and a dlq table with four that will fit."""
    lake = Lake(tmp_path)
    for number in range(3):
        lake.archive([row(number), row(-number), *(LARGE if number == 1 else [])])
        lake.decode(**SETTINGS)
    assert (6, 4) == (len(lake.rows()), len(lake.bad()))
    return lake


def typed(lake: Lake) -> DecodedTable:
    return DecodedTable.found(lake.location("typed").child(lake.topic))


def widen(lake: Lake, *options: str, table: str = "orders") -> Result:
    words = [word for each in options for word in ("--column", each)]
    return CliRunner().invoke(command, [table, "--lake", str(lake.folder / "typed"), *words])


def check(lake: Lake, before: list[dict[str, Any]]) -> None:
    """Assert that the rows are those from before, in wider columns, and that the bad ones fit."""
    assert before == lake.rows()[: len(before)] or before == [each for each in lake.rows() if each in before]
    kinds = {each.name: str(each.type) for each in typed(lake).schema}
    assert ("int64", "double", "decimal128(10, 2)") == (kinds["id"], kinds["x"], kinds["price"])
    assert "int64" in kinds["lines"]
    assert [] == audit_decoded(typed(lake), "orders", checksums=True)
    redrive(lake.decoding(**SETTINGS))
    assert {} == lake.bad()
    assert {2**40, 4, 5, 6} <= set(lake.values("id"))


def test_reason_of_bad_rows_names_the_command_that_makes_them_fit(lake: Lake) -> None:
    wide = ["id: bigint", "x: double", "price: decimal(10,2)", "lines[].n: bigint"]
    for error, expected in zip(lake.bad().values(), wide, strict=True):
        name, _, kind = expected.partition(": ")
        assert error.startswith(f"$.{name}: ")
        assert error.endswith(f"; korvet lake widen makes the column {kind}")


def test_command_widens_columns_in_one_commit(lake: Lake) -> None:
    before, version = lake.rows(), typed(lake).version

    done, again = widen(lake, *OPTIONS), widen(lake, *OPTIONS)

    assert (0, "orders: 3 files were written again\n") == (done.exit_code, done.output)
    assert (0, "orders: nothing to widen\n") == (again.exit_code, again.output)
    assert version + 1 == typed(lake).version
    check(lake, before)
    assert Decimal("12345678.25") in lake.values("price")


def widen_until_killed(lake: Lake, step: str) -> None:
    """Widen in this process, and kill it (SIGKILL) at a step."""
    Widen(
        typed(lake),
        WIDER,
        on_step=lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == step else None,
    ).run()


@pytest.mark.parametrize("step", STEPS)
def test_killed_command_has_widened_all_or_nothing(lake: Lake, step: str) -> None:
    before, columns = lake.rows(), typed(lake).schema
    process = PROCESSES.Process(target=widen_until_killed, args=(lake, step))
    process.start()
    process.join()

    assert -signal.SIGKILL == process.exitcode
    assert before == lake.rows()
    assert (columns == typed(lake).schema) == (step != "after commit")
    lake.archive([row(7)])
    lake.decode(**SETTINGS)
    Widen(typed(lake), WIDER).run()
    check(lake, before)


@pytest.mark.parametrize("step", STEPS)
def test_rows_are_decoded_while_columns_are_widened(lake: Lake, step: str) -> None:
    before = lake.rows()
    written = []

    def grow(name: str) -> None:
        written.append(name)
        if name == step and written.count(name) == 1:
            lake.archive([row(7), row(2**41)])
            lake.decode(**SETTINGS)

    Widen(typed(lake), WIDER, on_step=grow).run()

    assert written.count("write") == (3 if step == "after commit" else 4)
    assert 7 in lake.values("id")
    assert (2**41 in lake.values("id")) == (step == "after commit")
    check(lake, before)


@pytest.mark.parametrize("step", ["decode", "before commit", "between commits"])
def test_round_that_is_overtaken_by_a_wider_column_starts_again(lake: Lake, step: str) -> None:
    lake.archive([row(7), row(2**41)])
    decoding = lake.decoding(**SETTINGS)

    def overtake(name: str) -> None:
        if name == step:
            assert 0 == widen(lake, *OPTIONS).exit_code

    before = lake.rows()
    decoding.on_step = overtake
    with pytest.raises(CommitConflict):
        decoding.round()
    lake.decode(**SETTINGS)

    assert 7 in lake.values("id")
    # The first commit of the round has put it into the dlq table.
    assert 2**41 in [*lake.values("id")] or "2199023255552 is out of range" in [*lake.bad().values()][-1]
    check(lake, before)
    assert 2**41 in lake.values("id")


def test_merges_and_columns_of_partitions_go_on(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    settings = {"schema": json.dumps(struct(id="integer", n="integer"))}
    for given in ({"upsert": True, "key": ["id"]}, {"partition_by": ["id"], "table": "other"}):
        lake.archive([{"id": 1, "n": 1}, {"id": 2, "n": 1}])
        lake.decode(**settings, **given)
        assert 0 == widen(lake, "id=bigint", table=given.get("table", "orders")).exit_code
        lake.archive([{"id": 1, "n": 2}, {"id": 2**40, "n": 2}])
        lake.decode(**settings, **given)

    assert {(1, 2), (2, 1), (2**40, 2)} == {(each["id"], each["n"]) for each in lake.rows()}
    assert {1, 2, 2**40} == {each["id"] for each in lake.rows("other")}


# --- Iceberg ------------------------------------------------------------------------------------------------


def mirrored(lake: Lake) -> Mirror:
    mirror = Mirror(PathCatalog(lake.location("typed"), FOLDER), "typed")
    mirror.update(Original.open(lake.location("typed"), lake.topic))
    return mirror


@pytest.mark.parametrize("partition_by", [(), ("id",)])
def test_iceberg_table_follows(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    lake = Lake(tmp_path)
    lake.archive([row(1), row(2), *LARGE])
    lake.decode(**SETTINGS, partition_by=partition_by)
    mirrored(lake)
    widen(lake, *OPTIONS)
    mirrored(lake)
    redrive(lake.decoding(**SETTINGS, partition_by=partition_by))
    mirror = mirrored(lake)

    expected = [
        (each["id"], each["x"], str(each["price"]), [line["n"] for line in each["lines"]], each["name"])
        for each in lake.rows()
    ]
    assert 6 == len(expected)
    query = "select id, x, price::varchar, [line.n for line in lines], name from {table} order by _offset"
    assert expected == reading(f"{lake.folder}/typed/orders/{FOLDER}", query)
    scanned = mirror.table(lake.topic).scan(row_filter="id > 3").to_arrow().to_pylist()
    assert sorted(each[0] for each in expected if each[0] > 3) == sorted(each["id"] for each in scanned)
    kinds = {each.name: str(each.field_type) for each in mirror.table(lake.topic).schema().fields}
    assert ("long", "double", "decimal(10, 2)") == (kinds["id"], kinds["x"], kinds["price"])


def test_decimal_of_a_mirrored_table_keeps_its_scale(lake: Lake) -> None:
    assert 0 == widen(lake, "price=decimal(7,3)").exit_code
    mirrored(lake)

    outcome = widen(lake, "price=decimal(9,4)")

    assert 1 == outcome.exit_code
    assert "has an Iceberg table, in which a decimal keeps its scale; keep it, or drop" in outcome.output
    assert 0 == widen(lake, "price=decimal(9,3)").exit_code
    mirrored(lake)


# --- Bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option, status, reason",
    [
        (
            "id",
            2,
            "'id' is not COLUMN=TYPE; accepted types: smallint, int, bigint, double, decimal(PRECISION,SCALE).",
        ),
        ("id=text", 2, "'id=text' is not COLUMN=TYPE"),
        ("price=decimal(39,2)", 2, "is not COLUMN=TYPE"),
        ("no=bigint", 1, "There is no column no; there are id, x, price, lines, name."),
        ("_offset=bigint", 1, "There is no column _offset"),
        ("lines.n=bigint", 1, "There is no column lines.n; name nested ones as the errors of bad rows do"),
        ("lines[].m=bigint", 1, "There is no column lines[].m"),
        ("lines=bigint", 1, "There is no column lines;"),
        (
            "name=bigint",
            1,
            "name is string, which cannot become bigint; accepted: int to bigint, float to double",
        ),
        ("id=double", 1, "id is int, which cannot become double"),
        ("id=smallint", 1, "id is int, which cannot become smallint"),
        ("price=decimal(6,3)", 1, "price is decimal(6,2), which cannot become decimal(6,3)"),
    ],
)
def test_columns_that_cannot_be_widened_are_refused_in_one_line(
    lake: Lake, option: str, status: int, reason: str
) -> None:
    version = typed(lake).version

    outcome = widen(lake, option)

    assert (status, version) == (outcome.exit_code, typed(lake).version)
    assert reason in outcome.output


def test_other_tables_are_refused(lake: Lake) -> None:
    with pytest.raises(NotWidened, match="is no typed table"):
        Widen(DecodedTable.found(lake.location("typed").child("orders~dlq")), WIDER).run()
    outcome = widen(lake, "id=bigint", table="missing")
    assert (1, 1) == (outcome.exit_code, len(outcome.output.splitlines()))
