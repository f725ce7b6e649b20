"""Rows say which columns they want, and the outcome does not depend on who looked at which of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.pipeline.decoding.inference import Numbers, Wanted, grown, wanted
from korvet.pipeline.decoding.leaves import Number


def columns(rows: list[dict[str, Any]], *fields: tuple[str, pa.DataType], **options: Any) -> dict[str, str]:
    """Infer the columns for rows. Return Arrow's names of their types, by column."""
    known = list(pa.schema(fields))
    return {one.name: str(one.type) for one in grown(known, wanted(rows, known), **options)}


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, "int64"),
        (1.0, "double"),
        ("1", "string"),
        (True, "bool"),
        ({"b": 1}, "struct<b: int64>"),
        ([1], "list<item: int64>"),
        ([[None, "x"]], "list<item: list<item: string>>"),
        ([{"b": 1}, {"c": "x"}], "list<item: struct<b: int64, c: string>>"),
    ],
)
def test_column_type_is_inferred_from_the_value(value: object, expected: str) -> None:
    assert {"a": expected} == columns([{"a": value}])


@pytest.mark.parametrize("value", [None, [], {}, [None], {"b": None}, [{}], {"b": {"c": []}}])
def test_null_and_empty_values_infer_no_column(value: object) -> None:
    assert {} == columns([{"a": value}])


@pytest.mark.parametrize(
    "numbers, integers, mixed",
    [("long", "int64", "double"), ("double", "double", "double"), ("string", "string", "string")],
)
def test_numbers_setting_selects_the_column_type(numbers: Numbers, integers: str, mixed: str) -> None:
    assert {"a": integers} == columns([{"a": 1}, {"a": 2}], numbers=numbers)
    assert {"a": mixed} == columns([{"a": 1}, {"a": 2.5}, {"a": 3}], numbers=numbers)


def test_numbers_kept_as_text_infer_string_columns() -> None:
    assert {"a": "string"} == columns([{"a": Number("1.50")}], numbers="string")


def test_most_frequent_type_becomes_the_column_type() -> None:
    assert {"a": "string"} == columns([{"a": 1}, {"a": "x"}, {"a": "y"}])
    assert {"a": "int64"} == columns([{"a": "x"}, {"a": 1}, {"a": 2}])
    assert {"a": "double"} == columns([{"a": "x"}, {"a": "y"}, {"a": 1}, {"a": 2}, {"a": 2.5}])


def test_existing_columns_keep_their_type_and_gain_nested_fields() -> None:
    fields = (
        ("a", pa.int32()),
        ("s", pa.struct([("x", pa.int64())])),
        ("l", pa.list_(pa.struct([("x", pa.date32())]))),
    )
    rows: list[dict[str, Any]] = [
        {"a": "text", "s": {"x": "y", "z": 1}, "l": [{"x": 1}, {"w": True}], "n": 1},
        {"s": 5, "l": "x"},
    ]

    assert {
        "a": "int32",
        "s": "struct<x: int64, z: int64>",
        "l": "list<item: struct<x: date32[day], w: bool>>",
        "n": "int64",
    } == columns(rows, *fields)


@pytest.mark.parametrize("name", ["A", "", "_offset", "_Raw"])
def test_invalid_column_names_are_left_out(name: str) -> None:
    assert {"a": "int64"} == columns([{"a": 1, name: 1}], reserved=("_offset", "_raw"))


def test_columns_are_added_up_to_max_columns() -> None:
    rows = [{f"id{number}": 1} for number in range(10)]

    assert ["s", "id0", "id1"] == list(
        columns(rows, ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())])), max_columns=4)
    )


def test_too_deeply_nested_values_infer_no_column() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}

    assert {"b": "int64"} == columns([{"deep": deep, "b": 1}])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdB"), VALUES, max_size=4), max_size=8),
    st.integers(0, 8),
)
def test_inference_is_independent_of_how_rows_are_split(rows: list[dict[str, Any]], cut: int) -> None:
    known = [pa.field("d", pa.struct([("a", pa.int64())]))]
    total: Wanted = Counter()
    for piece in (rows[:cut], rows[cut:]):
        total.update(wanted(piece, known))

    assert grown(known, wanted(rows, known)) == grown(known, total)
