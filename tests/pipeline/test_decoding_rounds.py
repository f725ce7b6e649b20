"""Rounds: an archive's rows are in the typed table or in its dlq table, each once, whatever ends a round."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from korvet.config import ConfigError
from korvet.lake.errors import CommitConflict, OutOfOrder, WrongTable
from korvet.lake.table import LakeTable
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.planning import MissingRows
from korvet.pipeline.decoding.rounds import BadRow, Decoding
from tests.pipeline.decoding import TOPIC_ID, Lake

pytestmark = pytest.mark.slow


class Killed(Exception):  # noqa: N818  it happened
    """A round ended at some step, as if its process had been killed."""


def kill_at(step: str, decoding: Decoding) -> None:
    """Run a round that ends at this step."""

    def end(name: str) -> None:
        if name == step:
            raise Killed

    decoding.on_step = end
    with pytest.raises(Killed):
        decoding.round()


def test_schema_grows_in_four_phases(lake: Lake) -> None:
    settings: dict[str, Any] = {}
    lake.archive([{"id": 1, "price": 5}])
    lake.decode(**settings)
    assert [(1, 5)] == lake.values("id", "price")

    # Fields are added, inside of others, too.
    lake.archive(
        [{"id": 2, "price": 6, "note": "n", "tags": [{"k": "a"}]}, {"id": 3, "tags": [{"k": "b", "v": 1.5}]}]
    )
    (result,) = lake.decode(**settings)
    assert "note string, tags array<struct<k: string, v: double>>" == result.columns
    assert [(1, None), (2, [{"k": "a", "v": None}]), (3, [{"k": "b", "v": 1.5}])] == lake.values("id", "tags")

    # Wider: beyond 32 bits, which a long holds from the start.
    lake.archive([{"id": 2**40, "price": 2**62}])
    lake.decode(**settings)
    assert (2**40, 2**62) == lake.values("id", "price")[-1]

    # Renamed by the producer, and mapped to the column that was there.
    mapping = lake.folder / "renames.toml"
    mapping.write_text('cost = "price"\n"meta.note" = "note"\n')
    settings["rename_file"] = str(mapping)
    lake.archive([{"id": 5, "cost": 7, "meta": {"note": "m"}}, {"id": 6, "price": 8}])
    (result,) = lake.decode(**settings)
    assert "" == result.columns
    assert [(7, "m"), (8, None)] == lake.values("price", "note")[-2:]

    # Incompatible: nothing is cast.
    lake.archive([{"id": 7, "price": 7.5}, {"id": "8"}, {"id": 9, "note": {"text": "x"}}, {"id": 10}])
    lake.decode(**settings)
    assert [1, 2, 3, 2**40, 5, 6, 10] == lake.values("id")
    assert {
        6: "$.price: 7.5 is not of type bigint",
        7: '$.id: "8" is not of type bigint',
        8: '$.note: {"text": "x"} is not of type string',
    } == lake.bad()


def test_integer_field_widens_when_numbers_are_double(lake: Lake) -> None:
    for value in (1, 1.5, 2**53 + 1):
        lake.archive([{"x": value}])
        lake.decode(numbers="double")

    assert [1.0, 1.5] == lake.values("x")
    assert {2: "$.x: 9007199254740993 has more digits than double can hold"} == lake.bad()


def test_columns_are_inferred_from_a_sample_without_a_schema(lake: Lake) -> None:
    lake.archive([{"a": 1}, {"b": "x"}, {"c": True}])

    (result,) = lake.decode(unknown="dlq", sample=2)

    assert "a bigint, b string" == result.columns
    assert {2: "$.c: there is no column for it"} == lake.bad()


def test_sample_without_objects_is_refused(lake: Lake) -> None:
    lake.archive(["text", [1]])

    with pytest.raises(SchemaFault, match="none of the first 10000 records is an object with fields"):
        lake.decode(unknown="drop")
    assert not (lake.folder / "typed").exists()


def test_empty_archive_creates_no_table(lake: Lake) -> None:
    lake.archive([])

    assert [] == lake.decode()
    assert not (lake.folder / "typed").exists()


def test_range_of_tombstones_advances_the_decoded_offset(lake: Lake) -> None:
    lake.archive([None, None])
    (result,) = lake.decode()

    assert (2, 2, 0) == (result.outcome.records, result.outcome.tombstones, result.outcome.typed)
    assert [] == lake.decode()


def test_each_commit_contains_its_rows_and_its_decoded_offset(lake: Lake) -> None:
    lake.archive([{"a": 1}, b"{"])
    lake.archive([{"a": 2}], partition=3)
    lake.decode()
    lake.archive([{"a": 3}])
    lake.decode()

    for name in ("orders", "orders~dlq"):
        delta = DeltaTable(str(lake.folder / "typed" / name))
        numbers = {
            partition: delta.transaction_version(f"korvet/{TOPIC_ID}/{partition}") for partition in (0, 3)
        }
        assert {0: 3, 3: 1} == numbers


@pytest.mark.parametrize(
    "step", ["plan", "infer", "decode", "before commit", "between commits", "after commit"]
)
def test_round_killed_at_any_step_writes_each_row_once(lake: Lake, step: str) -> None:
    lake.archive([{"a": 1}, b"{", {"a": 2}])
    lake.decode()
    lake.archive([{"a": 3, "b": "x"}, b"[", {"a": "4"}])
    lake.archive([{"a": 5}], partition=1)

    kill_at(step, lake.decoding())
    lake.archive([{"a": 6}, b"]"])  # more records arrive in the meantime
    lake.decode()

    assert [1, 2, 3, 6, 5] == lake.values("a")
    assert [1, 4, 5, 7] == list(lake.bad())


def test_round_killed_between_commits_is_completed_by_another_specification(lake: Lake) -> None:
    """Rows that the first specification accepts are bad for the second, and vice versa."""
    file = written(lake, "a", "timestamp")
    lake.archive([{"a": "2026-01-31T00:00:00Z"}, {"a": 5000}])
    kill_at("between commits", lake.decoding(schema_file=file))
    assert [1] == list(lake.bad())
    lake.archive([{"a": 7000}])

    lake.decode(schema_file=file, timestamps="epoch_ms")

    assert [2] == lake.values("_offset")
    assert [0, 1] == list(lake.bad())


def written(lake: Lake, name: str, kind: str) -> str:
    """Write a file with a schema of one column in Spark's JSON, and return its path."""
    file = lake.folder / f"{name}-{kind}.json"
    field = f'{{"name": "{name}", "type": "{kind}", "nullable": true, "metadata": {{}}}}'
    file.write_text(f'{{"type": "struct", "fields": [{field}]}}')
    return str(file)


def test_deleted_dlq_is_recreated(lake: Lake) -> None:
    lake.archive([{"a": 1}, b"{"])
    lake.decode()
    lake.archive([{"a": 2}, b"["])
    (lake.folder / "typed" / "orders~dlq").rename(lake.folder / "gone")
    lake.decode()

    assert [1, 2] == lake.values("a")
    assert [1, 3] == list(lake.bad())


def test_two_concurrent_rounds_write_each_row_once(lake: Lake) -> None:
    lake.archive([{"a": 1}, b"{"])
    lake.decode()
    lake.archive([{"a": 2}, b"["])
    slow = lake.decoding()

    def other(step: str) -> None:
        if step == "before commit":
            slow.on_step = lambda _: None
            lake.decode()

    slow.on_step = other
    with pytest.raises((CommitConflict, OutOfOrder)):
        slow.round()

    assert [1, 2] == lake.values("a")
    assert [1, 3] == list(lake.bad())
    assert slow.round() is None


def test_on_error_skip_leaves_bad_rows_out_and_creates_no_dlq(lake: Lake) -> None:
    lake.archive([{"a": 1}, b"{", {"a": 2}])
    (result,) = lake.decode(on_error="skip")

    assert ([1, 2], 1) == (lake.values("a"), result.outcome.bad)
    assert not (lake.folder / "typed" / "orders~dlq").exists()


def test_on_error_stop_names_the_bad_row_and_commits_nothing(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    lake.decode()
    lake.archive([{"a": 2}, {"a": "x"}])

    with pytest.raises(BadRow, match=r'orders-0 offset 2: \$.a: "x" is not of type bigint'):
        lake.decode(on_error="stop")
    assert [1] == lake.values("a")


def test_rows_are_in_files_of_their_partition_values(lake: Lake) -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "who": "UA", "n": 1},
        {"a": 2, "who": "é/=%", "n": None},
        {"a": 3, "who": None, "n": 1},
        {"a": 4, "who": "UA", "n": 1},
    ]
    lake.archive(rows)
    lake.decode(partition_by=["who", "n"])

    assert [(1, "UA", 1), (2, "é/=%", None), (3, None, 1), (4, "UA", 1)] == lake.values("a", "who", "n")
    delta = DeltaTable(str(lake.folder / "typed" / "orders"))
    assert ["who", "n"] == delta.metadata().partition_columns
    assert 3 == len(delta.file_uris())


def test_rows_of_many_days_are_partitioned_by_day(lake: Lake) -> None:
    day_ms = 86_400_000
    lake.archive([{"a": n} for n in range(80)], timestamps_ms=[n * day_ms for n in range(40)] * 2)
    lake.decode(partition_by=["days"])

    assert list(range(80)) == lake.values("a")
    delta = DeltaTable(str(lake.folder / "typed" / "orders"))
    found = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    assert {f"1970-01-{day:02d}" for day in range(1, 32)} <= {str(row["partition._date"]) for row in found}


def test_delta_log_statistics_match_the_file(lake: Lake) -> None:
    lake.archive([{"a": 1}, b"{", {"a": 2}])
    lake.decode()

    (row,) = pa.table(DeltaTable(str(lake.folder / "typed/orders")).get_add_actions(flatten=True)).to_pylist()
    assert (2, 0, 2) == (row["num_records"], row["min._offset"], row["max._offset"])
    path = lake.folder / "typed/orders" / row["path"]
    assert [(1, 0), (2, 2)] == duckdb.sql(f"select a, _offset from '{path}'").fetchall()
    assert path.stat().st_size == row["size_bytes"]


@pytest.mark.parametrize(
    "first, then, error",
    [
        ({}, {"partition_by": ["a"]}, "is partitioned by nothing; tables do not change that"),
        ({}, {"upsert": True}, "was made without upsert"),
        ({"upsert": True}, {}, "was made for upsert"),
    ],
)
def test_partitioning_and_upsert_of_a_table_cannot_change(
    lake: Lake, first: dict[str, Any], then: dict[str, Any], error: str
) -> None:
    lake.archive([{"a": 1, "b": 1}], keys=["k"])
    lake.decode(**first)
    lake.archive([{"a": 2, "b": 1}], keys=["k"])

    with pytest.raises(WrongTable, match=error):
        lake.decode(**then)


def test_column_type_that_differs_from_the_schema_is_refused(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    lake.decode()
    lake.archive([{"a": 1}])

    with pytest.raises(
        WrongTable, match="a is bigint in the table and double in the schema; tables do not change"
    ):
        lake.decode(schema_file=written(lake, "a", "double"))


def test_archive_of_a_recreated_topic_is_refused(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    lake.decode()
    (lake.folder / "typed").rename(lake.folder / "kept")
    other = Lake(lake.folder / "other")
    table = LakeTable.open_or_create(other.location("raw"), "orders", UUID(int=8))
    assert table.topic_id != TOPIC_ID

    decoding = lake.decoding()
    decoding.to = lake.location("kept")
    decoding.lake = other.location("raw")
    with pytest.raises(
        WrongTable, match="decoded from an earlier topic orders, which was deleted and created again"
    ):
        decoding.round()


def test_foreign_table_is_refused(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    place = lake.folder / "typed" / "orders"
    DeltaTable.create(str(place), pa.schema([("x", pa.int64())]))

    with pytest.raises(WrongTable, match="is a Delta table not made by korvet; choose another place"):
        lake.decode()


def test_rows_missing_from_the_archive_are_not_skipped(lake: Lake) -> None:
    lake.archive([{"a": 1}])
    lake.archive([{"a": 2}])
    lake.archive([{"a": 3}])
    DeltaTable(str(lake.folder / "raw/orders")).delete("offset = 1")

    decoding = lake.decoding()
    decoding.round()
    with pytest.raises(
        MissingRows, match="orders-0: offsets 1 to 1 are not in the archive as they were written"
    ):
        decoding.round()
    assert [1] == lake.values("a")

    decoding.accept_gap = True
    decoding.round()
    assert [1, 3] == lake.values("a")


def test_large_archive_is_decoded_in_several_commits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        lake.archive([{"a": number}])
        lake.archive([{"a": number}], partition=1)
    monkeypatch.setattr("korvet.pipeline.decoding.rounds.COMMIT_BYTES", 1)

    assert [2, 2, 2, 2] == [result.outcome.records for result in lake.decode()]
    assert [0, 1, 2, 3] * 2 == lake.values("a")


def test_files_of_a_foreign_optimize_are_decoded(lake: Lake) -> None:
    for number in range(3):
        lake.archive([{"a": number}])
        lake.archive([{"a": 10 + number}], partition=1)
    lake.decode()
    lake.archive([{"a": 3}])
    DeltaTable(str(lake.folder / "raw/orders")).optimize.compact()
    lake.archive([{"a": 4}])
    lake.decode()

    assert [0, 1, 2, 3, 4, 10, 11, 12] == lake.values("a")


def test_invalid_rename_file_is_refused(lake: Lake) -> None:
    (lake.folder / "renames.toml").write_text("a = 1\n")

    with pytest.raises(ConfigError, match="1 is not a text"):
        lake.decoding(rename_file=str(lake.folder / "renames.toml"))


def test_deleted_typed_table_is_recreated_without_the_rows_of_the_dlq(lake: Lake) -> None:
    lake.archive([{"a": 1}, b"{", {"a": "x"}, {"a": 2}])
    lake.decode()
    (lake.folder / "typed" / "orders").rename(lake.folder / "gone")
    lake.decode(numbers="string")

    assert ["1", "2"] == lake.values("a")
    assert [1, 2] == list(lake.bad())
