"""Keys and values as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.web.values import FORMATS, shown


@pytest.mark.parametrize(
    "data, kind, text",
    [
        (None, "null", "null"),
        (b"", "empty", "empty"),
        (b"plain", "text", "plain"),
        ("schlüssel".encode(), "text", "schlüssel"),
        (b'{"a": 1}', "json", '{\n  "a": 1\n}'),
        (b"\x00\xff", "hex", f"00000000  00 ff{' ' * 42}  .."),
    ],
    ids=["null", "empty", "text", "unicode", "json", "binary"],
)
def test_the_format_follows_from_the_bytes(data: bytes | None, kind: str, text: str) -> None:
    assert (kind, text) == (shown(data).kind, shown(data).text)


@pytest.mark.parametrize("digits", ["1.10", "0.1000", "123456789012345678901234567890", "1e400", "-0.0"])
def test_numbers_in_json_keep_their_digits(digits: str) -> None:
    assert f'{{\n  "a": {digits}\n}}' == shown(f'{{"a":{digits}}}'.encode()).text


def test_bytes_that_are_not_of_the_chosen_format_say_so() -> None:
    found = shown(b"no json", "json")

    assert ("text", "the bytes are not JSON") == (found.kind, found.fault)


def test_deeply_nested_json_is_shown_as_text() -> None:
    assert "text" == shown(b"[" * 100_000).kind


def test_a_large_value_is_cut() -> None:
    found = shown("é".encode() * 1_000_000)

    assert (True, "text", 2_000_000) == (found.is_cut, found.kind, found.size)


def test_the_preview_of_hex_is_its_bytes() -> None:
    assert "00 ff" == shown(b"\x00\xff").preview
    assert shown(b"\x00" * 17).preview.endswith("00 …")


@given(st.none() | st.binary() | st.text().map(lambda text: text.encode()), st.sampled_from(FORMATS))
def test_any_bytes_are_shown_in_any_format(data: bytes | None, form: str) -> None:
    found = shown(data, form)

    assert isinstance(found.preview, str)
    assert len(data or b"") == found.size
