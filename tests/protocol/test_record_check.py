"""Records of one layout are checked together; the result has to be that of checking each record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.protocol import record
from korvet.protocol.errors import InvalidRecord
from korvet.protocol.record import check
from korvet.protocol.record_batch import HEADER_BYTES, build_batch

COUNTS = (1, 63, 64, 65, 255, 256, 257, 700)


def packed(count: int, *, key: bytes | None, size: int, every_ms: float = 0) -> bytes:
    """Return the records of a batch whose records differ only in their offsets and timestamps."""
    return bytes(
        build_batch([(index, int(index * every_ms), key, bytes(size), ()) for index in range(count)])
    )[HEADER_BYTES:]


def outcome(data: bytes, count: int) -> str:
    try:
        for _ in check(data, count):
            pass
    except InvalidRecord as error:
        return str(error)
    return "accepted"


def each_by_itself(data: bytes, count: int) -> str:
    """Return the outcome of checking each record by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_size_of_alike", lambda *_: 0)
        return outcome(data, count)


@pytest.mark.rows
@pytest.mark.parametrize("key", [None, b"", b"k" * 3, b"k" * 100])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 10_000])
@pytest.mark.parametrize("every_ms", [0, 0.3, 1, 500])
@pytest.mark.parametrize("count", COUNTS)
def test_records_of_one_layout_are_accepted(
    count: int, key: bytes | None, size: int, every_ms: float
) -> None:
    assert outcome(packed(count, key=key, size=size, every_ms=every_ms), count) == "accepted"


def test_offset_deltas_of_three_bytes_are_accepted() -> None:
    assert outcome(packed(20_000, key=None, size=10), 20_000) == "accepted"


def test_records_of_one_layout_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    together = record._size_of_alike

    def remembered(*arguments: Any) -> int:
        found.append(together(*arguments))
        return found[-1]

    monkeypatch.setattr(record, "_size_of_alike", remembered)
    outcome(packed(20_000, key=b"key", size=10), 20_000)

    assert all(found)


@settings(max_examples=500)
@given(
    count=st.sampled_from(COUNTS),
    size=st.sampled_from([0, 5, 70]),
    key=st.sampled_from([None, b"key"]),
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
)
def test_one_other_byte_has_the_outcome_of_checking_each_record(
    count: int, size: int, key: bytes | None, place: float, value: int
) -> None:
    data = bytearray(packed(count, key=key, size=size))
    data[int(place * len(data))] = value

    assert each_by_itself(bytes(data), count) == outcome(bytes(data), count)


@pytest.mark.parametrize("announced", [0, 699, 701, 10_000])
@pytest.mark.parametrize("cut", [0, 1, 12])
def test_other_counts_and_ends_have_the_outcome_of_checking_each_record(announced: int, cut: int) -> None:
    data = packed(700, key=b"key", size=5)
    data = data[: len(data) - cut]

    assert each_by_itself(data, announced) == outcome(data, announced)
