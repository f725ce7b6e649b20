"""Formatting and parsing records as lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.cli.record_lines import BadLine, TextLines, from_json, to_json, to_text
from korvet.client import ConsumedRecord, Record

TEXT_OR_BYTES = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=10), TEXT_OR_BYTES), max_size=4).map(tuple)


def test_text_line_is_the_value() -> None:
    assert Record(b"a:b") == TextLines().record(b"a:b")


def test_key_separator_splits_at_its_first_occurrence() -> None:
    assert Record(b"b:c", key=b"a") == TextLines(b":").record(b"a:b:c")


def test_line_without_the_separator_has_no_key() -> None:
    assert Record(b"abc") == TextLines(b":").record(b"abc")


def test_text_lines_may_share_key_headers_and_partition() -> None:
    lines = TextLines(key=b"k", headers=(("a", b"1"),), partition=3)

    assert Record(b"v", b"k", (("a", b"1"),), partition=3) == lines.record(b"v")


def test_value_that_stands_for_null_is_a_tombstone() -> None:
    lines = TextLines(b":", null=b"")

    assert Record(None, key=b"a") == lines.record(b"a:")
    assert Record(b"-", key=b"a") == lines.record(b"a:-")


def test_json_line_sets_every_part_of_a_record() -> None:
    line = b'{"key":"k","value":"v","headers":[["a","1"],["a",null]],"timestamp":17,"partition":3}'

    assert Record(b"v", b"k", (("a", b"1"), ("a", None)), 17, 3) == from_json(line)


def test_json_line_without_value_is_a_tombstone() -> None:
    assert Record(None, key=b"k") == from_json(b'{"key": "k"}')


def test_other_json_values_become_compact_json_text() -> None:
    assert Record('{"a":[1,"ü"]}'.encode()) == from_json(b'{"value": {"a": [1, "\\u00fc"]}}')


def test_headers_may_be_an_object() -> None:
    assert (("a", b"1"), ("b", b"2")) == from_json(b'{"headers": {"a": "1", "b": "2"}}').headers


def test_timestamp_may_be_in_iso_format() -> None:
    assert 1500 == from_json(b'{"timestamp": "1970-01-01T00:00:01.5Z"}').timestamp


@pytest.mark.parametrize(
    "line, complaint",
    [
        (b"nonsense", "not JSON"),
        (b"[1]", "not a JSON object but [1]"),
        (b'{"vaule": "x"}', "unknown field 'vaule'"),
        (b'{"value": {"base64": "?"}}', 'value: "?" is not base64'),
        (b'{"value": {"base64": 7}}', "value: 7 is not base64"),
        (b'{"headers": "x"}', "headers: a list of [name, value]"),
        (b'{"headers": [["a"]]}', 'headers: [name, value] expected, not ["a"]'),
        (b'{"headers": [["a", 1]]}', "header a: text, null or"),
        (b'{"timestamp": true}', "timestamp: milliseconds"),
        (b'{"timestamp": "soon"}', "timestamp: 'soon' is not a time"),
        (b'{"partition": -1}', "partition: a number from 0 on"),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else "",
)
def test_bad_line_is_refused_with_its_reason(line: bytes, complaint: str) -> None:
    with pytest.raises(BadLine) as refusal:
        from_json(line)

    assert complaint in refusal.value.message


@given(key=TEXT_OR_BYTES, value=TEXT_OR_BYTES, headers=HEADERS)
def test_records_survive_a_json_round_trip(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    line = to_json(ConsumedRecord("orders", 2, 7, 1500, key, value, headers))

    assert b"\n" not in line
    assert Record(value, key, headers, 1500, 2) == from_json(line)


def test_json_line_leaves_empty_headers_out() -> None:
    line = to_json(ConsumedRecord("orders", 0, 1, 2, None, b"v", ()))

    expected = {"topic": "orders", "partition": 0, "offset": 1, "timestamp": 2, "key": None, "value": "v"}
    assert expected == json.loads(line)


@pytest.mark.parametrize(
    "key, value, separator, expected",
    [
        (b"k", None, None, b""),
        (b"k", b"v", None, b"v"),
        (None, b"v", b"\t", b"\tv"),
        (b"k", b"v", b": ", b"k: v"),
    ],
)
def test_text_contains_key_and_value_and_prints_null_as_empty(
    key: bytes | None, value: bytes | None, separator: bytes | None, expected: bytes
) -> None:
    assert expected == to_text(ConsumedRecord("orders", 0, 1, 2, key, value, ()), separator)
