"""Rows to record batches, many at a time: numpy makes the numbers between the bytes, Arrow joins both.

All records of a batch have its timestamp, so their timestamp deltas are zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from korvet.client.partitioner import MULTIPLIER, SEED, partition_of_key
from korvet.pipeline.varints import Bytes, Int64s, write_varints
from korvet.protocol.compression import Codec, compress
from korvet.protocol.crc32c import crc32c
from korvet.protocol.record_batch import CRC_AT, CRC_COVERS_FROM, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES

# At most what a record takes beside key, value and headers.
RECORD_OVERHEAD_BYTES = 36
# Keys beyond are hashed one by one.
LONG_KEY = 256
ATTRIBUTES = 1  # bytes, all zero, as is the timestamp delta behind it
NOTHING = b""


@frozen(eq=False)
class Rows:
    """What is to be written: columns of the same length. `headers` are as on the wire, their count in front."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.BinaryArray | None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indexes: Int64s) -> Rows:
        order = pa.array(indexes)
        return Rows(
            self.keys.take(order),
            self.values.take(order),
            None if self.headers is None else self.headers.take(order),
        )

    def slice(self, start: int, end: int) -> Rows:
        headers = None if self.headers is None else self.headers.slice(start, end - start)
        return Rows(self.keys.slice(start, end - start), self.values.slice(start, end - start), headers)

    def sizes(self) -> Int64s:
        """At most how many bytes each record takes."""
        sizes = lengths(self.keys) + lengths(self.values) + RECORD_OVERHEAD_BYTES
        return sizes if self.headers is None else sizes + lengths(self.headers)


def encode_batches(rows: Rows, *, timestamp: int, codec: Codec, max_bytes: int) -> Iterator[bytearray]:
    """The rows as batches of at most `max_bytes` before compression; a larger record has one of its own."""
    for start, end in chunks(rows.sizes(), max_bytes - HEADER_BYTES):
        yield encode_batch(rows.slice(start, end), timestamp=timestamp, codec=codec)


def encode_batch(rows: Rows, *, timestamp: int, codec: Codec) -> bytearray:
    """One batch of all these rows, at least one."""
    records: pa.Buffer | bytes = encode_records(rows)
    if codec is not Codec.NONE:
        records = compress(codec, memoryview(records))
    batch = bytearray(HEADER_BYTES)
    batch += records
    last = len(rows) - 1
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LOG_OVERHEAD_BYTES,
        -1,
        2,
        0,
        codec,
        last,
        timestamp,
        timestamp,
        -1,
        -1,
        -1,
        last + 1,
    )
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return batch


def encode_records(rows: Rows) -> pa.Buffer:
    """Records one behind the other, with offset deltas from 0 on."""
    count = len(rows)
    deltas = write_varints(np.arange(count, dtype=np.int64))
    key_sizes, value_sizes = write_varints(field_sizes(rows.keys)), write_varints(field_sizes(rows.values))
    sizes = ATTRIBUTES + 1 + deltas[1] + key_sizes[1] + value_sizes[1]
    sizes += (
        lengths(rows.keys) + lengths(rows.values) + (1 if rows.headers is None else lengths(rows.headers))
    )
    zero = np.zeros((count, 1), np.uint8), np.ones(count, np.int64)
    front = _joined_rows([write_varints(sizes), zero, zero, deltas, key_sizes])
    headers = pa.scalar(b"\0", pa.binary()) if rows.headers is None else rows.headers
    return _joined([front, rows.keys, _joined_rows([value_sizes]), rows.values, headers])


def encode_headers(headers: pa.ListArray) -> pa.BinaryArray:
    """Lists of (key, value), or null, as on the wire: their count, then each. Raises ValueError for a null key."""
    offsets = np.asarray(headers.offsets).astype(np.int64)
    counts = np.where(np.asarray(headers.is_valid()), np.diff(offsets), 0)
    entries = headers.values
    names = entries.field(0).cast(pa.binary())
    values = entries.field(1).cast(pa.binary())
    if names.null_count:
        raise ValueError("A header has no key.")
    bodies = _joined_array(
        [
            _joined_rows([write_varints(field_sizes(names))]),
            names,
            _joined_rows([write_varints(field_sizes(values))]),
            values,
        ]
    )
    ends = np.asarray(pa.Array.from_buffers(pa.int32(), len(bodies) + 1, [None, bodies.buffers()[1]]))
    # A null list may still have entries, which are nobody's; so every list is cut out on its own.
    lists = pa.Array.from_buffers(
        pa.binary(),
        len(headers),
        [None, pa.py_buffer(ends[offsets].astype(np.int32)), bodies.buffers()[2]],
    )
    lists = pc.if_else(pa.array(counts > 0), lists, pa.scalar(NOTHING, pa.binary()))
    return _joined_array([_joined_rows([write_varints(counts)]), lists])


def chunks(sizes: Int64s, limit: int) -> Iterator[tuple[int, int]]:
    """Where to cut, so that the sizes in between add up to at most `limit`, or there is only one."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        end = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        yield start, end
        start, before = end, int(ends[end - 1])


def partitions_of(keys: pa.BinaryArray, count: int) -> Int64s:
    """The partition, of `count`, that each key goes to, as in Kafka's Java client; null keys are taken as empty."""
    offsets, data = _offsets_and_bytes(keys)
    sizes = np.diff(offsets)
    long = np.flatnonzero(sizes > LONG_KEY)
    hashes = _murmur2(data, offsets[:-1], np.where(sizes > LONG_KEY, 0, sizes))
    partitions = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    for index in long:
        partitions[index] = partition_of_key(keys[int(index)].as_py(), count)
    return partitions


def lengths(array: pa.BinaryArray) -> Int64s:
    """How many bytes each has, 0 for a null."""
    return np.asarray(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)


def field_sizes(array: pa.BinaryArray) -> Int64s:
    """How many bytes each has, -1 for a null."""
    return np.asarray(pc.fill_null(pc.binary_length(array), -1)).astype(np.int64)


def _murmur2(data: Bytes, at: Int64s, sizes: Int64s) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    multiplier = np.uint32(MULTIPLIER)
    # Four bytes from anywhere, also where fewer are left.
    windows = np.lib.stride_tricks.sliding_window_view(np.append(data, np.zeros(4, np.uint8)), 4)
    hashes = np.uint32(SEED) ^ sizes.astype(np.uint32)
    words = sizes >> 2
    for word in range(int(words.max(initial=0))):
        those = np.flatnonzero(words > word)
        k = np.ascontiguousarray(windows[at[those] + 4 * word]).view("<u4")[:, 0] * multiplier
        k = (k ^ k >> np.uint32(24)) * multiplier
        hashes[those] = hashes[those] * multiplier ^ k
    those = np.flatnonzero(sizes & 3)
    if those.size:
        rest = (sizes[those] & 3).astype(np.uint32)
        tail = np.ascontiguousarray(windows[at[those] + 4 * words[those]]).view("<u4")[:, 0]
        tail &= (np.uint32(1) << (np.uint32(8) * rest)) - np.uint32(1)
        hashes[those] = (hashes[those] ^ tail) * multiplier
    hashes = (hashes ^ hashes >> np.uint32(13)) * multiplier
    return hashes ^ hashes >> np.uint32(15)


def _offsets_and_bytes(array: pa.BinaryArray) -> tuple[Int64s, Bytes]:
    """Where an array's bytes begin and end, nulls between the same two, and the bytes."""
    sizes = lengths(array)
    if array.null_count:
        array = pc.fill_null(array, NOTHING)
    _, offsets, data = array.buffers()
    first = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    if not len(sizes):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    return first.astype(np.int64), np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _joined_rows(fields: Sequence[tuple[Bytes, Int64s]]) -> pa.BinaryArray:
    """Fields of a few bytes each, one behind the other in every row."""
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
