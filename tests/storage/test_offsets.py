"""Offsets and entry IDs, into each other and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.storage.interface import OffsetMapping, TopicConfig
from korvet.storage.offsets import MAX_OFFSET, DenseOffsets, OffsetMapper, TimestampOffsets, offset_mapper

MAPPERS: list[OffsetMapper] = [DenseOffsets(), *(TimestampOffsets(bits) for bits in (1, 10, 13, 16))]
TODAY_MS = 1_763_666_000_123

mappers = st.sampled_from(MAPPERS)
offsets = st.integers(0, MAX_OFFSET)


def test_dense_offset_is_one_less_than_the_milliseconds_of_its_entry_id() -> None:
    mapper = DenseOffsets()

    assert [b"1-0", b"2-0", b"42-0"] == [mapper.entry_id(offset) for offset in (0, 1, 41)]
    assert [0, 1, 41] == [mapper.offset(entry_id) for entry_id in (b"1-0", b"2-0", b"42-0")]


@given(mapper=mappers, offset=offsets)
def test_offsets_survive_a_round_trip_through_entry_ids(mapper: OffsetMapper, offset: int) -> None:
    assert offset == mapper.offset(mapper.entry_id(offset))
    assert offset == mapper.offset_of_pair(*mapper.pair(offset))


@given(mapper=mappers, milliseconds=st.integers(0, 2**64 - 1), sequence=st.integers(0, 2**64 - 1))
def test_entry_id_with_an_offset_is_the_id_of_that_offset(
    mapper: OffsetMapper, milliseconds: int, sequence: int
) -> None:
    offset = mapper.offset_of_pair(milliseconds, sequence)

    assert offset is None or mapper.pair(offset) == (milliseconds, sequence)


@given(mapper=mappers, first=offsets, second=offsets)
def test_offsets_are_ordered_as_their_ids(mapper: OffsetMapper, first: int, second: int) -> None:
    assert (first < second) == (mapper.pair(first) < mapper.pair(second))


@pytest.mark.parametrize("bits", range(1, 17))
def test_current_offsets_are_exact_with_any_sequence_bits(bits: int) -> None:
    mapper = TimestampOffsets(bits)
    last = (TODAY_MS << bits) + (1 << bits) - 1

    assert (TODAY_MS, (1 << bits) - 1) == mapper.pair(last)
    assert (TODAY_MS + 1, 0) == mapper.pair(last + 1)


@pytest.mark.parametrize(
    "mapper, entry_id",
    [
        (TimestampOffsets(10), b"1234567890123-1024"),
        (TimestampOffsets(1), b"1234567890123-2"),
        (TimestampOffsets(16), b"18446744073709551615-0"),
        (TimestampOffsets(16), b"140737488355327-65535"),  # it would have no next offset
        (DenseOffsets(), b"5-1"),
        (DenseOffsets(), b"0-1"),
        (DenseOffsets(), b"18446744073709551615-0"),
    ],
)
def test_some_ids_have_no_offset(mapper: OffsetMapper, entry_id: bytes) -> None:
    assert mapper.offset(entry_id) is None


@pytest.mark.parametrize("mapper", MAPPERS, ids=str)
def test_entry_id_before_offset_0_is_the_zero_id(mapper: OffsetMapper) -> None:
    assert b"0-0" == mapper.entry_id_before(0)


@given(mapper=mappers, offset=st.integers(1, MAX_OFFSET))
def test_entry_id_before_an_offset_is_that_of_the_previous_offset(mapper: OffsetMapper, offset: int) -> None:
    assert mapper.entry_id_before(offset) == mapper.entry_id(offset - 1)


def test_timestamp_batch_starts_at_its_append_time() -> None:
    assert TODAY_MS << 10 == TimestampOffsets(10).base_offset(0, TODAY_MS)


def test_timestamp_batch_never_starts_before_the_log_end() -> None:
    mapper = TimestampOffsets(10)
    end = (TODAY_MS << 10) + 5

    assert end == mapper.base_offset(end, TODAY_MS)
    assert end == mapper.base_offset(end, TODAY_MS - 60_000)
    assert TODAY_MS + 1 << 10 == mapper.base_offset(end, TODAY_MS + 1)


def test_dense_batch_starts_at_the_log_end() -> None:
    assert 17 == DenseOffsets().base_offset(17, TODAY_MS)


@pytest.mark.parametrize("bits", [-1, 0, 17])
def test_sequence_bits_outside_1_to_16_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        TimestampOffsets(bits)


def test_offset_mapper_is_selected_by_the_topic_config() -> None:
    assert DenseOffsets() == offset_mapper(TopicConfig(mapping=OffsetMapping.DENSE))
    assert TimestampOffsets(13) == offset_mapper(TopicConfig(backend_settings={"offset.sequence.bits": "13"}))
