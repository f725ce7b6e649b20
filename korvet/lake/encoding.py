"""Encode many rows as record batches: numpy encodes the varints, Arrow concatenates them with keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from korvet.lake.varints import Bytes, Int64s, write_varints
from korvet.protocol.compression import Codec, compress
from korvet.protocol.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAX_OFFSET_DELTA,
    NOBODY,
    TRANSACTIONAL_BIT,
    Producing,
    TimestampType,
    write_header,
)

ATTRIBUTES = 1  # bytes, all zero
NOTHING = b""
DELTA_LIMIT = 1 << 62  # ms between timestamps of a batch; far below the limit of 64 bits


@frozen(eq=False)
class Rows:
    """Columns of the same length. `headers` are encoded, with their count in front.

    Without `offsets`, records are consecutive. Without `timestamps` (ms), the batch has one timestamp.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.BinaryArray | None
    offsets: Int64s | None = None
    timestamps: Int64s | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indexes: Int64s) -> Rows:
        order = pa.array(indexes)
        return Rows(
            self.keys.take(order),
            self.values.take(order),
            None if self.headers is None else self.headers.take(order),
            None if self.offsets is None else self.offsets[indexes],
            None if self.timestamps is None else self.timestamps[indexes],
        )

    def slice(self, start: int, end: int) -> Rows:
        return Rows(
            self.keys.slice(start, end - start),
            self.values.slice(start, end - start),
            None if self.headers is None else self.headers.slice(start, end - start),
            None if self.offsets is None else self.offsets[start:end],
            None if self.timestamps is None else self.timestamps[start:end],
        )

    def sizes(self) -> Int64s:
        """Return an upper bound of each record's encoded size, whichever record its batch begins with."""
        keys, values = lengths(self.keys), lengths(self.values)
        sizes = keys + values + (1 if self.headers is None else lengths(self.headers))
        if len(self):
            deltas = spread(self.offsets) if self.offsets is not None else len(self)
            times = spread(self.timestamps) if self.timestamps is not None else 0
            numbers = (deltas, times, int(keys.max()), int(values.max()))
            sizes += ATTRIBUTES + sum(map(varint_bytes, numbers))
            sizes += varint_bytes(int(sizes.max()))
        return sizes


def encode_batches(rows: Rows, *, timestamp: int, codec: Codec, max_bytes: int) -> Iterator[bytearray]:
    """Yield batches of at most `max_bytes` before compression; a larger record gets a batch to itself."""
    for start, end in chunks(rows.sizes(), max_bytes - HEADER_BYTES):
        yield encode_batch(rows.slice(start, end), timestamp=timestamp, codec=codec)


def encode_batch(
    rows: Rows,
    *,
    timestamp: int = 0,
    timestamp_type: int = TimestampType.CREATE_TIME,
    codec: Codec = Codec.NONE,
    partition_leader_epoch: int = -1,
    producing: Producing = NOBODY,
) -> bytearray:
    """Encode all rows, at least one, as one batch. `timestamp` applies if the rows have no timestamps.

    LogAppendTime is a property of the batch, not of a record: with that type, all rows must have the same timestamp.
    """
    records: pa.Buffer | bytes = encode_records(rows)
    if codec is not Codec.NONE:
        records = compress(codec, memoryview(records))
    batch = bytearray(HEADER_BYTES)
    batch += records
    write_header(
        batch,
        base_offset=0 if rows.offsets is None else int(rows.offsets[0]),
        partition_leader_epoch=partition_leader_epoch,
        attributes=codec
        | (LOG_APPEND_TIME_BIT if timestamp_type == TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if producing.is_transactional else 0),
        last_offset_delta=len(rows) - 1 if rows.offsets is None else int(rows.offsets[-1] - rows.offsets[0]),
        base_timestamp=timestamp if rows.timestamps is None else int(rows.timestamps[0]),
        max_timestamp=timestamp if rows.timestamps is None else int(rows.timestamps.max()),
        producer_id=producing.producer_id,
        producer_epoch=producing.producer_epoch,
        base_sequence=producing.base_sequence,
        record_count=len(rows),
    )
    return batch


def encode_records(rows: Rows) -> pa.Buffer:
    """Encode records one after the other, with deltas to the first one's offset and timestamp."""
    count = len(rows)
    offsets = np.arange(count, dtype=np.int64) if rows.offsets is None else rows.offsets - rows.offsets[0]
    deltas = write_varints(offsets)
    zero = np.zeros((count, 1), np.uint8), np.ones(count, np.int64)
    times = zero if rows.timestamps is None else write_varints(rows.timestamps - rows.timestamps[0])
    key_sizes, value_sizes = write_varints(field_sizes(rows.keys)), write_varints(field_sizes(rows.values))
    sizes = ATTRIBUTES + times[1] + deltas[1] + key_sizes[1] + value_sizes[1]
    sizes += (
        lengths(rows.keys) + lengths(rows.values) + (1 if rows.headers is None else lengths(rows.headers))
    )
    front = _joined_rows([write_varints(sizes), zero, times, deltas, key_sizes])
    headers = pa.scalar(b"\0", pa.binary()) if rows.headers is None else rows.headers
    return _joined([front, rows.keys, _joined_rows([value_sizes]), rows.values, headers])


def spans(rows: Rows, *, timestamp_type: int = TimestampType.CREATE_TIME) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of runs whose deltas fit one batch. With LogAppendTime, a run has a single timestamp."""
    times = np.zeros(len(rows), np.int64) if rows.timestamps is None else rows.timestamps
    offsets = np.arange(len(rows), dtype=np.int64) if rows.offsets is None else rows.offsets
    cuts = np.flatnonzero(np.diff(times)) + 1 if timestamp_type == TimestampType.LOG_APPEND_TIME else ()
    bounds = [0, *(int(cut) for cut in cuts), len(rows)]
    for first, end in pairwise(bounds):
        start = first
        while start < end:
            far = np.flatnonzero(
                (offsets[start:end] - offsets[start] > MAX_OFFSET_DELTA)
                | (np.abs(times[start:end].astype(np.float64) - float(times[start])) > DELTA_LIMIT)
            )
            stop = start + int(far[0]) if far.size else end
            yield start, stop
            start = stop


def encode_headers(
    headers: pa.ListArray, added: tuple[bytes, pa.BinaryArray] | None = None
) -> pa.BinaryArray:
    """Encode lists of (key, value), or null, as record headers, count first. `added` adds one header to each list.

    Raises ValueError for a null key.
    """
    offsets = np.asarray(headers.offsets).astype(np.int64)
    counts = np.where(np.asarray(headers.is_valid()), np.diff(offsets), 0)
    entries = headers.values
    names = entries.field(0).cast(pa.binary())
    values = entries.field(1).cast(pa.binary())
    if names.null_count:
        raise ValueError("A header has no key.")
    bodies = _fields(names, values)
    ends = np.asarray(pa.Array.from_buffers(pa.int32(), len(bodies) + 1, [None, bodies.buffers()[1]]))
    # A null list may still have entries in the child array, which belong to no row. So slice out every list.
    lists = pa.Array.from_buffers(
        pa.binary(),
        len(headers),
        [None, pa.py_buffer(ends[offsets].astype(np.int32)), bodies.buffers()[2]],
    )
    lists = pc.if_else(pa.array(counts > 0), lists, pa.scalar(NOTHING, pa.binary()))
    if added is None:
        return _joined_array([_joined_rows([write_varints(counts)]), lists])
    name, texts = added
    one_more = _fields(pa.array([name] * len(texts), pa.binary()), texts)
    return _joined_array([_joined_rows([write_varints(counts + 1)]), lists, one_more])


def chunks(sizes: Int64s, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of runs whose sizes add up to at most `limit`, or that have a single item."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        end = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        yield start, end
        start, before = end, int(ends[end - 1])


def column_of(table: pa.Table, name: str) -> pa.Array:
    """Return a table's column in one chunk."""
    chunks = table.column(name)
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()


def spread(numbers: Int64s) -> int:
    """Return the difference of the largest and the smallest number."""
    return int(numbers.max()) - int(numbers.min())


def varint_bytes(number: int) -> int:
    """Return the size in bytes of the zigzag varint of `number`, an upper bound for smaller absolute values."""
    return max(1, -(-(2 * number).bit_length() // 7))


def lengths(array: pa.BinaryArray) -> Int64s:
    """Return the length in bytes of each value, 0 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)


def field_sizes(array: pa.BinaryArray | pa.ChunkedArray) -> Int64s:
    """Return the length in bytes of each value, -1 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(array), -1)).astype(np.int64)


def _fields(names: pa.BinaryArray, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return names and values, which may be null, each after its length."""
    sizes = [_joined_rows([write_varints(field_sizes(each))]) for each in (names, values)]
    return _joined_array([sizes[0], names, sizes[1], values])


def _joined_rows(fields: Sequence[tuple[Bytes, Int64s]]) -> pa.BinaryArray:
    """Concatenate fields of a few bytes each, row by row."""
    count = len(fields[0][1])
    sizes = np.sum([field_sizes for _, field_sizes in fields], axis=0)
    cells = np.concatenate([rows for rows, _ in fields], axis=1)
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] < cells.size:
        used = np.concatenate([np.arange(rows.shape[1]) < sizes[:, None] for rows, sizes in fields], axis=1)
        cells = cells[used]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(cells))]
    )


def _joined(pieces: Sequence[pa.BinaryArray | pa.Scalar]) -> pa.Buffer:
    array = _joined_array(pieces)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return data.slice(int(ends[array.offset]), int(ends[array.offset + len(array)] - ends[array.offset]))


def _joined_array(pieces: Sequence[pa.BinaryArray | pa.Scalar]) -> pa.BinaryArray:
    return pc.binary_join_element_wise(
        *pieces, pa.scalar(NOTHING, pa.binary()), null_handling="replace", null_replacement=""
    )
