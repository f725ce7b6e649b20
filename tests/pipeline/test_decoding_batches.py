"""Archived JSON becomes rows, or bad rows that say why; nothing is cast on the way."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from korvet.pipeline.decoding.row_decoding import DLQ_SCHEMA, Decoded, Decoder, decode
from korvet.pipeline.decoding.specification import specifications
from tests.pipeline.decoding import START_MS, archived

UTC = dt.UTC


def decoded(values: list[object], *fields: tuple[str, pa.DataType] | pa.Field, **settings: Any) -> Decoded:
    """Decode values to columns. `keys` and `timestamps_ms` are those of the records."""
    records = {name: settings.pop(name) for name in ("keys", "timestamps_ms") if name in settings}
    specification = specifications(("orders",), None, settings)["orders"]
    schema = pa.schema(fields)
    return decode(Decoder.for_json(specification, list(schema)), archived("orders", values, **records))


def fault(value: object, kind: pa.DataType, **settings: Any) -> str:
    """Return the error for a value that a column of this type refuses."""
    found = decoded([{"x": value} if not isinstance(value, bytes) else value], ("x", kind), **settings)
    assert found.typed.num_rows == 0
    (error,) = found.bad.column("error").to_pylist()
    return str(error)


def held(value: object, kind: pa.DataType, **settings: Any) -> Any:
    """Return a value as decoded for a column of this type."""
    found = decoded([{"x": value} if not isinstance(value, bytes) else value], ("x", kind), **settings)
    assert found.bad.column("error").to_pylist() == []
    (row,) = found.typed.column("x").to_pylist()
    return row


INTEGER, DOUBLE, TEXT, FLAG = pa.int64(), pa.float64(), pa.string(), pa.bool_()
INSTANT, LOCAL, DAY, BYTES = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.binary()
MONEY = pa.decimal128(6, 2)
WIDEN = "korvet lake widen makes the column"


@pytest.mark.parametrize(
    "value, kind, error",
    [
        (1.5, INTEGER, "$.x: 1.5 is not of type bigint"),
        (1.0, INTEGER, "$.x: 1.0 is not of type bigint"),
        ("1", INTEGER, '$.x: "1" is not of type bigint'),
        (True, INTEGER, "$.x: true is not of type bigint"),
        (2**63, INTEGER, "$.x: 9223372036854775808 is out of range of bigint"),
        (-(2**63) - 1, INTEGER, "$.x: -9.223372036854776e+18 is not of type bigint"),
        (2**31, pa.int32(), f"$.x: 2147483648 is out of range of int; {WIDEN} bigint"),
        (2**63, pa.int32(), "$.x: 9223372036854775808 is out of range of int"),
        (128, pa.int8(), f"$.x: 128 is out of range of tinyint; {WIDEN} smallint"),
        ([1], INTEGER, "$.x: [1] is not of type bigint"),
        ("1.5", DOUBLE, '$.x: "1.5" is not of type double'),
        (False, DOUBLE, "$.x: false is not of type double"),
        (2**53 + 1, DOUBLE, "$.x: 9007199254740993 has more digits than double can hold"),
        (2**24 + 1, pa.float32(), f"$.x: 16777217 has more digits than float can hold; {WIDEN} double"),
        (1e39, pa.float32(), f"$.x: 1e+39 is out of range of float; {WIDEN} double"),
        (1, TEXT, "$.x: 1 is not of type string"),
        ({"a": 1}, TEXT, '$.x: {"a": 1} is not of type string'),
        (1, FLAG, "$.x: 1 is not of type boolean"),
        ("true", FLAG, '$.x: "true" is not of type boolean'),
        ("2026-1-31", DAY, '$.x: "2026-1-31" is not a date; accepted: 2026-01-31'),
        ("20260131", DAY, '$.x: "20260131" is not a date; accepted: 2026-01-31'),
        ("2026-02-30", DAY, '$.x: "2026-02-30" is not a date; accepted: 2026-01-31'),
        (20000, DAY, "$.x: 20000 is not of type date"),
        (
            "yesterday",
            INSTANT,
            '$.x: "yesterday" is not a timestamp; accepted: 2026-01-31T12:00:00.123456Z',
        ),
        (
            "2026-01-31T12:00:00",
            INSTANT,
            '$.x: "2026-01-31T12:00:00" has no UTC offset: that is timestamp_ntz, not timestamp',
        ),
        (
            "2026-01-31T12:00:00Z",
            LOCAL,
            '$.x: "2026-01-31T12:00:00Z" has a UTC offset: that is timestamp, not timestamp_ntz',
        ),
        (
            "2026-01-31T25:00:00Z",
            INSTANT,
            '$.x: "2026-01-31T25:00:00Z" is not a timestamp: hour must be in 0..23',
        ),
        (
            "2026-01-31T12:00:00.123456789Z",
            INSTANT,
            '$.x: "2026-01-31T12:00:00.123456789Z" has nanoseconds, which truncate_nanoseconds = true would cut off',
        ),
        (1767225600, INSTANT, "$.x: 1767225600 is not of type timestamp"),
        ("no base64", BYTES, '$.x: "no base64" is not base64, the encoding of bytes in JSON'),
        (1.005, MONEY, f"$.x: 1.005 has more digits than decimal(6,2) can hold; {WIDEN} decimal(7,3)"),
        (12345, MONEY, f"$.x: 12345 has more digits than decimal(6,2) can hold; {WIDEN} decimal(7,2)"),
        ("1.50", MONEY, '$.x: "1.50" is not of type decimal(6,2)'),
        (1, pa.list_(INTEGER), "$.x: 1 is not an array"),
        ([1, "2"], pa.list_(INTEGER), '$.x[]: "2" is not of type bigint'),
        ([], pa.struct([("a", INTEGER)]), "$.x: [] is not an object"),
        ({"a": 1.5}, pa.struct([("a", INTEGER)]), "$.x.a: 1.5 is not of type bigint"),
        (
            [{"a": [1, None]}, {"a": ["x"]}],
            pa.list_(pa.struct([("a", pa.list_(INTEGER))])),
            '$.x[].a[]: "x" is not of type bigint',
        ),
        ({"k": "v"}, pa.map_(TEXT, INTEGER), '$.x.*: "v" is not of type bigint'),
        ({"k": 1}, pa.map_(INTEGER, INTEGER), '$.x.<key>: "k" is not of type bigint'),
    ],
)
def test_value_of_another_type_than_its_column_makes_a_bad_row(
    value: object, kind: pa.DataType, error: str
) -> None:
    assert error == fault(value, kind)


@pytest.mark.parametrize(
    "value, kind, expected",
    [
        (2**63 - 1, INTEGER, 2**63 - 1),
        (-(2**63), INTEGER, -(2**63)),
        (None, INTEGER, None),
        (1, DOUBLE, 1.0),
        (0.1, DOUBLE, 0.1),
        (0.5, pa.float32(), 0.5),
        ("héllo", TEXT, "héllo"),
        (True, FLAG, True),
        ("2026-01-31", DAY, dt.date(2026, 1, 31)),
        ("2026-01-31T12:00:00.5+02:00", INSTANT, dt.datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC)),
        ("2026-01-31 12:00Z", INSTANT, dt.datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.120000000Z", INSTANT, dt.datetime(2026, 1, 31, 12, 0, 0, 120_000, UTC)),
        ("2026-01-31T12:00:00", LOCAL, dt.datetime(2026, 1, 31, 12)),  # noqa: DTZ001  it has none
        ("AP8=", BYTES, b"\x00\xff"),
        (1.5, MONEY, Decimal("1.50")),
        (7, MONEY, Decimal("7.00")),
        ([1, None], pa.list_(INTEGER), [1, None]),
        ([], pa.list_(INTEGER), []),
        ([[1], [], None], pa.list_(pa.list_(INTEGER)), [[1], [], None]),
        ({"a": None}, pa.struct([("a", INTEGER)]), {"a": None}),
        ({"k": 1, "l": None}, pa.map_(TEXT, INTEGER), [("k", 1), ("l", None)]),
    ],
)
def test_value_of_the_type_of_its_column_is_unchanged(
    value: object, kind: pa.DataType, expected: object
) -> None:
    assert expected == held(value, kind)


def test_decimals_are_not_converted_through_a_float() -> None:
    value = b'{"x": 12345678901234567890.123456789}'

    assert Decimal("12345678901234567890.123456789") == held(value, pa.decimal128(38, 9))


def test_numbers_can_be_kept_as_text() -> None:
    found = decoded(
        [b'{"x": 1.50}', b'{"x": 123456789012345678901}', b'{"x": 1e2}'], ("x", TEXT), numbers="string"
    )

    assert ["1.50", "123456789012345678901", "1e2"] == found.typed.column("x").to_pylist()


def test_integer_and_double_columns_are_typed_when_numbers_are_kept_as_text() -> None:
    found = decoded(
        [b'{"i": 7, "d": 7.5}', b'{"i": 7.5, "d": 1}'], ("i", INTEGER), ("d", DOUBLE), numbers="string"
    )

    assert [{"i": 7, "d": 7.5}] == found.typed.select(["i", "d"]).to_pylist()
    assert ["$.i: 7.5 is not of type bigint"] == found.bad.column("error").to_pylist()


@pytest.mark.parametrize(
    "unit, number", [("epoch_s", 1_767_225_600), ("epoch_ms", START_MS), ("epoch_us", START_MS * 1000)]
)
def test_timestamps_can_be_numbers(unit: str, number: int) -> None:
    expected = dt.datetime(2026, 1, 1, tzinfo=UTC)

    assert expected == held(number, INSTANT, timestamps=unit)
    assert expected.replace(tzinfo=None) == held(number, LOCAL, timestamps=unit)


def test_numbers_out_of_range_of_timestamp_make_bad_rows() -> None:
    assert "$.x: 1000000000000 (epoch_s) is out of range of timestamp" == fault(
        10**12, INSTANT, timestamps="epoch_s"
    )
    assert "$.x: 1.5 is not a whole number, as timestamps = 'epoch_ms' has them" == fault(
        1.5, INSTANT, timestamps="epoch_ms"
    )


def test_nanoseconds_are_truncated_when_configured() -> None:
    value = "2026-01-31T12:00:00.123456789Z"

    assert dt.datetime(2026, 1, 31, 12, 0, 0, 123_456, UTC) == held(value, INSTANT, truncate_nanoseconds=True)


@pytest.mark.parametrize(
    "value, error",
    [
        (b"", "$: is not JSON: "),
        (b"hello", "$: is not JSON: "),
        (b'{"x": 1', "$: is not JSON: "),
        (b'{"x": 1} {"x": 2}', "$: is not JSON: "),
        (b'{"x": NaN}', "$: is not JSON: "),
        (b'{"x": "\xff"}', "$: is not JSON: "),
        (b"\x00\x00\x00\x00\x07abc", "$: is not JSON: "),
        (b"[true]", "$: [true] is not an object"),
        (b"null", "$: null is not an object"),
        (b'"text"', '$: "text" is not an object'),
        (
            b'{"x":' * 2000 + b"1" + b"}" * 2000,
            "$",
        ),  # too deep for CPython's parser up to 3.12; no bigint, anyway
    ],
)
@pytest.mark.parametrize("numbers", ["long", "string"])
def test_value_that_is_not_an_object_makes_a_bad_row(value: bytes, error: str, numbers: str) -> None:
    assert fault(value, INTEGER, numbers=numbers).startswith(error)


def test_lone_surrogate_makes_a_bad_row() -> None:
    assert "half a character" in fault(b'{"x": "\\ud800"}', TEXT, numbers="string")
    assert "is not JSON" in fault(b'{"x": "\\ud800"}', TEXT)


def test_bad_rows_report_their_first_error_and_good_rows_are_kept() -> None:
    values: list[object] = [{"a": 1, "b": "x"}, {"a": "1", "b": 2}, {"a": 3, "b": None}, b"{", {"a": 4}]

    found = decoded(values, ("a", INTEGER), ("b", TEXT))

    assert [(1, "x", 0), (3, None, 2), (4, None, 4)] == [
        (row["a"], row["b"], row["_offset"]) for row in found.typed.to_pylist()
    ]
    assert [1, 3] == found.bad.column("offset").to_pylist()
    assert '$.a: "1" is not of type bigint' == found.bad.column("error")[0].as_py()


def test_bad_row_contains_all_columns_of_the_archive() -> None:
    records = archived("orders", [b"{"], 3, 41, ["key"])
    decoder = Decoder.for_json(specifications(("orders",), None, {})["orders"], [pa.field("x", INTEGER)])

    bad = decode(decoder, records).bad

    assert DLQ_SCHEMA == bad.schema
    assert records.to_pylist() == bad.drop_columns(["error"]).to_pylist()


def test_tombstones_are_counted_and_not_bad() -> None:
    found = decoded([None, {"x": 1}, None], ("x", INTEGER))

    assert ([1], 0, 2) == (found.typed.column("x").to_pylist(), found.bad.num_rows, found.tombstones)


def test_tombstones_can_be_kept_as_rows_without_values() -> None:
    found = decoded([None, {"x": 1}], pa.field("x", INTEGER, nullable=False), tombstones="keep")

    assert [None, 1] == found.typed.column("x").to_pylist()


def test_missing_required_field_makes_a_bad_row() -> None:
    inner = pa.struct([pa.field("y", INTEGER, nullable=False)])
    fields = pa.field("x", INTEGER, nullable=False), pa.field("s", inner)

    found = decoded([{"x": 1}, {"x": None}, {}, {"x": 1, "s": {}}, {"x": 2, "s": {"y": 1}}], *fields)

    assert [0, 4] == found.typed.column("_offset").to_pylist()
    assert [
        "$.x: is missing, and must be there",
        "$.x: is missing, and must be there",
        "$.s.y: is missing, and must be there",
    ] == found.bad.column("error").to_pylist()


def test_fields_without_a_column_are_dropped_or_make_a_bad_row() -> None:
    values: list[object] = [{"x": 1, "y": None}, {"x": 2}, {"x": 3, "s": {"z": 1}}]
    fields = ("x", INTEGER), ("s", pa.struct([("t", INTEGER)]))

    assert [1, 2, 3] == decoded(values, *fields, unknown="drop").typed.column("x").to_pylist()
    assert ["$.y: there is no column for it", "$.s.z: there is no column for it"] == decoded(
        values, *fields, unknown="dlq"
    ).bad.column("error").to_pylist()


def test_non_empty_fields_that_cannot_be_added_make_a_bad_row() -> None:
    values: list[object] = [
        {"x": 1, "new": 1},
        {"x": 1, "new": None},
        {"X": 1},
        {"": 1},
        {"_offset": 1},
        {"e": [{}]},
    ]

    found = decoded(values, ("x", INTEGER), unknown="add")

    assert [1, 5] == found.typed.column("_offset").to_pylist()
    assert [
        "$.new: no column could be added for it (max_columns, or its type differs between rows)",
        "$.X: differs from column 'x' only in case; give it another name with rename",
        "$.: no column can have this name; give it another with rename",
        "$._offset: is the name of a column of the table's own; give it another with rename",
    ] == found.bad.column("error").to_pylist()


def test_origin_of_a_row_is_in_underscore_columns() -> None:
    found = decoded(
        [{"x": 1}, {"x": 2}],
        ("x", INTEGER),
        keys=["k", None],
        timestamps_ms=[START_MS, 2**62],
        keep_raw=True,
        keep_key=True,
        partition_by=["days"],
    )

    assert [
        {
            "x": 1,
            "_partition": 0,
            "_offset": 0,
            "_timestamp": dt.datetime(2026, 1, 1, tzinfo=UTC),
            "_key": b"k",
            "_raw": b'{"x": 1}',
            "_date": dt.date(2026, 1, 1),
        },
        {
            "x": 2,
            "_partition": 0,
            "_offset": 1,
            "_timestamp": None,
            "_key": None,
            "_raw": b'{"x": 2}',
            "_date": None,
        },
    ] == found.typed.to_pylist()


def test_date_of_a_timestamp_before_1970() -> None:
    found = decoded([{"x": 1}], ("x", INTEGER), timestamps_ms=[-1_500], partition_by=["days"])

    assert [dt.date(1969, 12, 31)] == found.typed.column("_date").to_pylist()


def test_empty_string_is_refused_as_partition_value() -> None:
    found = decoded([{"x": ""}, {"x": "a"}], ("x", TEXT), ("y", TEXT), partition_by=["x"])

    assert ["$.x: is empty, and tables are not partitioned by that"] == found.bad.column("error").to_pylist()


def test_debezium_envelopes_are_unwrapped() -> None:
    values: list[object] = [
        {"op": "c", "before": None, "after": {"id": 1}, "ts_ms": 5},
        {"payload": {"op": "u", "before": {"id": 1}, "after": {"id": 2}}, "schema": {}},
        {"op": "d", "before": {"id": 2}, "after": None},
        {"op": "d", "before": None, "after": None},
        None,
        {"op": "r", "after": {"id": "x"}},
        {"op": "t"},
        {"op": "c", "after": None},
        {"id": 1},
        {"payload": 1},
    ]

    found = decoded(values, pa.field("id", INTEGER, nullable=False), unwrap="debezium")

    assert [(1, "c"), (2, "u"), (2, "d"), (None, "d")] == [
        (row["id"], row["_op"]) for row in found.typed.to_pylist()
    ]
    assert [
        '$.id: "x" is not of type bigint',
        '$: op "t" is none of c, r, u, d',
        "$: op c without an object in after: null",
        "$: is not a Debezium envelope: it has no op",
        "$: payload 1 is not an object",
    ] == found.bad.column("error").to_pylist()


def test_fields_are_renamed_by_their_paths() -> None:
    values: list[object] = [
        {"amt": 1},
        {"amount": 2},
        {"amt": 3, "amount": None},
        {"amt": 4, "amount": 5},
        {"c": {"name": "n", "z": 1}},
        {"c": 7},
    ]
    fields = ("amount", INTEGER), ("customer", TEXT), ("c", pa.struct([("z", INTEGER)]))

    found = decoded(values, *fields, rename={"amt": "amount", "c.name": "customer"})

    assert [1, 2, 3, None] == found.typed.column("amount").to_pylist()
    assert "n" == found.typed.column("customer")[3].as_py()
    assert [
        "$: holds both 'amt' and 'amount', which is what the first is renamed to",
        "$.c: 7 is not an object",
    ] == found.bad.column("error").to_pylist()


def test_nested_fields_are_flattened() -> None:
    values: list[object] = [
        {"a": {"b": {"c": 1}, "l": [{"d": 2}]}, "m": {"k": 1}},
        {"a": None},
        {"a_b_c": 5},
        {"a_b_c": 5, "a": {"b": {"c": 1}}},
    ]
    fields = ("a_b_c", INTEGER), ("a_l", pa.list_(pa.struct([("d", INTEGER)]))), ("m", pa.map_(TEXT, INTEGER))

    found = decoded(values, *fields, flatten="_")

    assert [(1, [{"d": 2}], [("k", 1)]), (None, None, None), (5, None, None)] == [
        (row["a_b_c"], row["a_l"], row["m"]) for row in found.typed.to_pylist()
    ]
    assert ["$: has two fields that flatten to 'a_b_c'"] == found.bad.column("error").to_pylist()


def test_upsert_marks_deletions_and_requires_keys() -> None:
    found = decoded(
        [{"x": 1}, None, {"x": 2}, None], ("x", INTEGER), keys=["a", "a", None, None], upsert=True
    )

    assert [(b"a", False), (b"a", True)] == [
        (row["_key"], row["_deleted"]) for row in found.typed.to_pylist()
    ]
    assert ["key: is null, and upsert goes by it"] * 2 == found.bad.column("error").to_pylist()


def test_rows_already_in_the_dlq_are_left_out() -> None:
    specification = specifications(("orders",), None, {})["orders"]
    decoder = Decoder.for_json(specification, [pa.field("x", INTEGER)])

    found = decode(decoder, archived("orders", [{"x": 1}, {"x": 2}, b"{", b"["]), {(0, 1), (0, 2), (1, 0)})

    assert [0] == found.typed.column("_offset").to_pylist()
    assert [3] == found.bad.column("offset").to_pylist()
