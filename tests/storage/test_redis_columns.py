"""Entries that are alike, packed column by column: the same bytes as one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.compression import Codec
from korvet.protocol.record_batch import HEADER_BYTES, decode_records, parse_batches, validate
from korvet.storage.offsets import DenseOffsets, OffsetMapper, TimestampOffsets
from korvet.storage.redis.read.columns import pack_run
from korvet.storage.redis.read.entries import Entry
from korvet.storage.redis.read.rebuild import Epoch, rebuild_one_by_one, rebuild_records

T0 = 1_795_206_585_000
UNLIMITED = 1 << 30
MAPPERS = [TimestampOffsets(10), TimestampOffsets(1), TimestampOffsets(16), DenseOffsets()]

mappers = st.sampled_from(MAPPERS)
payloads = st.binary(max_size=5) | st.sampled_from([b"x" * 64, b"y" * 8200])
times = st.sampled_from([T0, T0 + 1, T0 + 70, T0 - 9000, -1, 2**63 - 1, -(2**63) + 1])


def first_offset_of(mapper: OffsetMapper) -> int:
    return mapper.base_offset(7, T0)


def alike(
    mapper: OffsetMapper,
    values: list[bytes],
    *,
    keys: list[bytes] | None = None,
    times: list[int] | None = None,
    producer: bytes = b"",
    first_offset: int | None = None,
) -> list[Entry]:
    """Entries of one shape under consecutive IDs."""
    start = first_offset_of(mapper) if first_offset is None else first_offset
    entries = []
    for index, value in enumerate(values):
        fields = [b"key", keys[index]] if keys else []
        fields += [b"value", value, b"timestamp", b"%d" % (times[index] if times else T0)]
        fields += [b"$producer", producer] if producer else []
        entries.append((mapper.entry_id(start + index), fields))
    return entries


@given(
    mapper=mappers,
    values=st.lists(payloads, min_size=2, max_size=70),
    has_keys=st.booleans(),
    moments=st.lists(times, min_size=1, max_size=5),
    producer=st.sampled_from([b"", b"7:3", b"nonsense"]),
    limit=st.sampled_from([UNLIMITED, 0, HEADER_BYTES, 100, 300, 9000, 60_000]),
    gap=st.none() | st.integers(0, 69),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
    at_least_one=st.booleans(),
)
def test_packed_runs_equal_entries_rebuilt_one_by_one(
    mapper: OffsetMapper,
    values: list[bytes],
    has_keys: bool,
    moments: list[int],
    producer: bytes,
    limit: int,
    gap: int | None,
    codec: Codec,
    at_least_one: bool,
) -> None:
    spread = [moments[index % len(moments)] for index in range(len(values))]
    keys = values[::-1] if has_keys else None
    entries = alike(mapper, values, keys=keys, times=spread, producer=producer)
    if gap is not None:
        del entries[gap : gap + 1]
    epochs = [Epoch(0, 0), Epoch(1, first_offset_of(mapper) + 40)]

    expected = rebuild_one_by_one(entries, mapper, epochs, limit, codec=codec, at_least_one=at_least_one)
    actual = rebuild_records(entries, mapper, epochs, limit, codec=codec, at_least_one=at_least_one)

    assert b"".join(expected.buffers) == b"".join(actual.buffers)
    assert expected[1:] == actual[1:]


@pytest.mark.parametrize("mapper", MAPPERS)
@pytest.mark.parametrize("count", [2, 65, 1025, 3000])
def test_run_over_many_milliseconds_is_one_batch(mapper: OffsetMapper, count: int) -> None:
    values = [b"%d" % index for index in range(count)]
    first_offset = first_offset_of(mapper) + 1
    entries = alike(mapper, values, times=[T0 + index for index in range(count)], first_offset=first_offset)

    run = pack_run(entries, mapper, UNLIMITED)
    rebuilt = rebuild_records(entries, mapper, [Epoch(0, 0)], UNLIMITED, at_least_one=True)

    assert run is not None
    (batch,) = parse_batches(b"".join(rebuilt.buffers))
    validate(batch)
    assert first_offset == batch.base_offset
    assert [(index, T0 + index, None, value, ()) for index, value in enumerate(values)] == decode_records(
        batch
    )


def test_ids_without_an_offset_do_not_fill_gaps() -> None:
    # The first and the last offset are as far apart as if all three had one.
    mapper = TimestampOffsets(10)
    fields = [b"value", b"v", b"timestamp", b"5"]
    entries: list[Entry] = [(b"7-1", fields), (b"7-1024", fields), (b"8-0", fields), (b"8-1", fields)]
    gapped: list[Entry] = [(b"7-1022", fields), (b"7-1024", fields), (b"8-0", fields)]

    for each in (entries, gapped):
        rebuilt = rebuild_records(each, mapper, [Epoch(0, 0)], UNLIMITED, at_least_one=True)

        assert pack_run(each, mapper, UNLIMITED) is None
        assert 1 == rebuilt.skipped


@pytest.mark.parametrize(
    "other",
    [
        [b"value", b"v", b"timestamp", b"soon"],
        [b"value", b"v"],
        [b"value", b"v", b"timestamp", b"5", b"header.h", b"1"],
        [b"key", b"v", b"timestamp", b"5"],
        [b"value", b"v", b"timestamp", b"5", b"$producer", b"1:0"],
        [b"name", b"bob", b"age", b"7"],
    ],
)
def test_entry_of_another_shape_prevents_packing(other: list[bytes]) -> None:
    mapper = DenseOffsets()
    entries = alike(mapper, [b"a", b"b", b"c"])
    entries[1] = (entries[1][0], other)

    expected = rebuild_one_by_one(
        entries, mapper, [Epoch(0, 0)], UNLIMITED, codec=Codec.NONE, at_least_one=True
    )

    assert pack_run(entries, mapper, UNLIMITED) is None
    assert expected == rebuild_records(entries, mapper, [Epoch(0, 0)], UNLIMITED, at_least_one=True)


def test_entries_are_packed_up_to_the_size_limit() -> None:
    entries = alike(DenseOffsets(), [b"x" * 100] * 10)

    run = pack_run(entries, DenseOffsets(), 500)

    assert run is not None
    assert 500 // (100 + 8) == run.records
