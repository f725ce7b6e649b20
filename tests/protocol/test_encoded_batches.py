"""Reading batches from buffers that are split anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.encoded_batches import BatchHeader, EncodedBatches
from korvet.protocol.errors import CorruptMessage
from korvet.protocol.record_batch import HEADER_BYTES, build_batch

counts = st.lists(st.integers(1, 4), max_size=6)


def encoded(counts: Sequence[int]) -> tuple[bytes, list[BatchHeader], list[bytes]]:
    """Return batches with these numbers of records in one buffer, their headers, and the batches."""
    headers, batches, offset = [], [], 0
    for count in counts:
        records = [(delta, 0, None, b"v" * 40 * delta, ()) for delta in range(count)]
        data = bytes(build_batch(records, base_offset=offset))
        headers.append(BatchHeader(offset, offset + count - 1, count, len(data)))
        batches.append(data)
        offset += 2 * count
    return b"".join(batches), headers, batches


@given(counts=counts, cuts=st.lists(st.integers(0, 1500)))
def test_buffers_may_be_split_anywhere(counts: list[int], cuts: list[int]) -> None:
    data, headers, batches = encoded(counts)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    split = EncodedBatches([memoryview(data)[start:end] for start, end in pairwise(bounds)])

    assert (data, len(data)) == (split.joined(), split.size)
    assert headers == list(split.headers())
    assert batches == list(split.batches(largest=len(data)))
    assert [each for each in batches if len(each) <= 200] == list(split.batches(largest=200))
    assert split == EncodedBatches([data])


def test_encoded_batches_are_no_sequence() -> None:
    assert not hasattr(EncodedBatches, "__iter__")
    assert not hasattr(EncodedBatches, "__getitem__")


@pytest.mark.parametrize("removed", [1, 20, 70, 100])
def test_incomplete_batch_is_corrupt(removed: int) -> None:
    data, headers, _ = encoded([1, 3])
    found = EncodedBatches([data[:100], data[100:-removed]]).headers()

    assert headers[0] == next(found)
    with pytest.raises(CorruptMessage, match="ends .* bytes after the last buffer"):
        list(found)


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, HEADER_BYTES - 13])
def test_batch_shorter_than_its_header_is_corrupt(length: int) -> None:
    data = bytearray(encoded([1])[0])
    data[8:12] = length.to_bytes(4, "big", signed=True)

    with pytest.raises(CorruptMessage, match="shorter than its header"):
        list(EncodedBatches([data]).headers())
