"""Rows of a table as record batches: the plain decoder finds the same records in them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.encoding import encode_batch
from korvet.lake.row_batches import batches_of, records_of
from korvet.lake.schema import FILE_SCHEMA
from korvet.protocol.record_batch import Producing, RecordBatch, decode_records, parse_batches, validate

Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]

INT64 = 2**63
texts = st.none() | st.binary(max_size=20) | st.sampled_from([63, 64, 8191, 8192]).map(bytes)
header_lists = st.none() | st.lists(st.tuples(st.text(max_size=5), texts), max_size=3)
times = st.integers(-1, 10) | st.sampled_from([INT64 - 1, 2**62, 253_402_300_800_000, 0])
steps = st.integers(1, 3) | st.sampled_from([2**31 - 1, 2**31, 2**40])


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Generate rows with increasing offsets, and timestamps of both types."""
    offset, rows = 0, []
    for _ in range(draw(st.integers(1, 20))):
        offset += draw(steps)
        rows.append(
            (
                offset,
                draw(times),
                draw(st.sampled_from([0, 0, 1])),
                draw(texts),
                draw(texts),
                draw(header_lists),
            )
        )
    return rows


def arrow(rows: list[Row]) -> pa.Table:
    columns = dict(
        zip(
            ("offset", "timestamp_ms", "timestampType", "key", "value", "headers"),
            zip(*rows, strict=True),
            strict=True,
        )
    )
    return pa.table(
        {name: pa.array(list(values), FILE_SCHEMA.field(name).type) for name, values in columns.items()}
    )


def found_in(buffer: bytes | bytearray) -> tuple[RecordBatch, list[Row]]:
    (batch,) = parse_batches(buffer)
    validate(batch) if not batch.is_log_append_time else None
    kind = 1 if batch.is_log_append_time else 0
    return batch, [
        (batch.base_offset + delta, timestamp, kind, key, value, list(headers))
        for delta, timestamp, key, value, headers in decode_records(batch)
    ]


def on_the_wire(rows: list[Row]) -> list[Row]:
    return [(*row[:5], row[5] or []) for row in rows]


@settings(max_examples=50)
@given(tables(), st.sampled_from([1, 300, 1_000_000]))
def test_batches_contain_all_rows_in_order(rows: list[Row], max_bytes: int) -> None:
    found: list[Row] = []
    expected, table = on_the_wire(rows), arrow(rows)
    while len(found) < len(expected):
        before, size = len(found), 0
        for buffer, next_offset in batches_of(table.slice(before), max_bytes, at_least_one=True):
            batch, records = found_in(buffer)
            found += records
            size += len(buffer)
            assert next_offset == records[-1][0] + 1
            assert batch.max_timestamp == max(record[1] for record in records)
        assert len(found) > before
        assert size <= max_bytes or len(found) == before + 1

    assert expected == found


@pytest.mark.parametrize("size", [0, 1, 63, 100, 1_000, 8_192])
def test_batches_fill_max_bytes(size: int) -> None:
    now = 1_795_000_000_000
    rows: list[Row] = [(offset, now + offset, 0, b"key", bytes(size), None) for offset in range(5_000)]
    batches = [buffer for buffer, _ in batches_of(arrow(rows), 100_000, at_least_one=True)]

    records = found_in(batches[0])[1]
    one_more = len(batches[0]) + len(batches[0]) // len(records)
    assert one_more > 0.99 * 100_000 or len(records) == len(rows)
    assert len(batches) <= 2


def test_batch_contains_the_producer_id_epoch_and_sequence() -> None:
    rows: list[Row] = [(5, 7, 0, b"k", b"v", None), (6, 9, 0, None, None, None)]

    (batch,) = parse_batches(encode_batch(records_of(arrow(rows)), producing=Producing(3, 4, 5)))

    assert (3, 4, 5) == (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    assert (7, 9) == (batch.base_timestamp, batch.max_timestamp)


def test_header_is_added_to_each_record() -> None:
    rows: list[Row] = [(5, 7, 0, b"k", b"v", None), (6, 9, 0, None, None, [("a", None), ("", b"")])]
    added = (b"n", pa.array([b"1", b"22"], pa.binary()))

    _, found = found_in(encode_batch(records_of(arrow(rows), added)))

    assert [[("n", b"1")], [("a", None), ("", b""), ("n", b"22")]] == [row[5] for row in found]
