from __future__ import annotations

import struct
from itertools import cycle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.pipeline.record_columns import decode, decode_offsets
from korvet.protocol.compression import Codec
from korvet.protocol.errors import InvalidRecord
from korvet.protocol.record import Headers, RawRecord
from korvet.protocol.record_batch import (
    HEADER_BYTES,
    RecordBatch,
    TimestampType,
    build_batch,
    decode_records,
    parse_batches,
)

# Sizes around those where a varint gets longer, and where an Arrow view holds the bytes itself.
texts = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.sampled_from([0, 1, 12, 13, 62, 63, 64, 65, 8191, 8192]).map(bytes),
)
headers_of = st.lists(st.tuples(st.text(max_size=5), texts), max_size=4).map(tuple)
timestamps = st.integers(-(2**40), 2**41)


@st.composite
def records_of(draw: st.DrawFn) -> list[RawRecord]:
    bodies = draw(
        st.one_of(
            st.lists(st.tuples(timestamps, texts, texts, headers_of), min_size=1, max_size=20),
            # a run of equal ones, which is stepped over, with something else behind it
            st.tuples(st.integers(1, 300), st.tuples(timestamps, texts, texts, headers_of)).map(
                lambda run: [run[1]] * run[0] + [(0, b"k", b"v", ())]
            ),
        )
    )
    steps = cycle(draw(st.lists(st.sampled_from([1, 1, 1, 2, 100, 9000]), min_size=1, max_size=5)))
    delta = -1
    records = []
    for timestamp, key, value, headers in bodies:
        delta += next(steps)
        records.append((delta, timestamp, key, value, headers))
    return records


def batch_of(
    records: list[RawRecord],
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> RecordBatch:
    return RecordBatch(
        build_batch(records, base_offset=base_offset, codec=codec, timestamp_type=timestamp_type)
    )


def expected_of(batches: list[RecordBatch]) -> list[tuple[int, int, bytes | None, bytes | None, Headers]]:
    return [
        (batch.base_offset + delta, timestamp, key, value, headers)
        for batch in batches
        for delta, timestamp, key, value, headers in decode_records(batch)
    ]


def decoded(
    batches: list[RecordBatch], start: int = 0, end: int = 2**63 - 1
) -> list[tuple[int, int, bytes | None, bytes | None, Headers]]:
    found = []
    for columns in decode(batches, start=start, end=end, headers=True):
        assert columns.headers is not None
        for array in (columns.keys, columns.values, columns.headers):
            array.validate(full=True)
        found += list(
            zip(
                columns.offsets.tolist(),
                columns.timestamps.tolist(),
                columns.keys.to_pylist(),
                columns.values.to_pylist(),
                [
                    tuple((header["key"], header["value"]) for header in headers or ())
                    for headers in columns.headers.to_pylist()
                ],
                strict=True,
            )
        )
    return found


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(records_of(), st.sampled_from(Codec), st.sampled_from(TimestampType)),
        min_size=1,
        max_size=4,
    )
)
def test_decoded_columns_match_the_plain_decoder(
    given_batches: list[tuple[list[RawRecord], Codec, TimestampType]],
) -> None:
    batches, base_offset = [], 0
    for records, codec, timestamp_type in given_batches:
        batches.append(batch_of(records, base_offset, codec, timestamp_type))
        base_offset = batches[-1].last_offset + 1

    assert expected_of(batches) == decoded(batches)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(records_of(), st.integers(0, 200), st.integers(0, 200))
def test_only_records_of_the_range_are_decoded(records: list[RawRecord], start: int, length: int) -> None:
    batches = [batch_of(records, 50)]
    end = start + length
    expected = [record for record in expected_of(batches) if start <= record[0] < end]

    assert expected == decoded(batches, start, end)
    assert [record[0] for record in expected] == decode_offsets(batches, start=start, end=end).tolist()


def test_timestamp_types_are_those_of_the_batches() -> None:
    batches = [
        batch_of(
            [(0, 5, None, b"a", ()), (1, 7, None, b"b", ())], 0, Codec.NONE, TimestampType.LOG_APPEND_TIME
        ),
        batch_of([(0, 6, None, b"c", ())], 2),
    ]
    (columns,) = decode(batches, start=0, end=3)

    assert [1, 1, 0] == columns.timestamp_types.tolist()
    assert [7, 7, 6] == columns.timestamps.tolist()


def test_invalid_utf8_in_header_keys_is_replaced_as_in_java() -> None:
    batch = build_batch([(0, 0, None, b"v", (("AB", b"x"),))])
    at = bytes(batch).index(b"AB")
    batch[at : at + 2] = b"\xffB"
    (columns,) = decode(parse_batches(batch), start=0, end=1, headers=True)

    assert columns.headers is not None
    assert [[{"key": "\ufffdB", "value": b"x"}]] == columns.headers.to_pylist()


def test_damaged_records_are_refused() -> None:
    records: list[RawRecord] = [(n, 0, b"key", b"value" * 9, (("h", b"x"),)) for n in range(3)]
    good = build_batch(records)
    refused = 0
    for at in range(HEADER_BYTES, len(good)):
        for wrong in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            batch = bytearray(good)
            batch[at] = wrong
            try:
                expected = expected_of([RecordBatch(batch)])
            except InvalidRecord:
                expected = None
            try:
                found = decoded([RecordBatch(batch)])
            except InvalidRecord:
                refused += 1
                continue
            # Offsets that do not rise and header keys that are no text are for the plain decoder to refuse.
            assert expected is None or expected == found

    assert refused > 100


def test_wrong_record_count_is_refused() -> None:
    batch = build_batch([(0, 0, None, b"v", ())])
    struct.pack_into(">i", batch, 57, 2)
    with pytest.raises(InvalidRecord, match="A batch of 2 records holds 1"):
        list(decode([RecordBatch(batch)], start=0, end=2))
