"""Decode record batches to columns, many records at a time: numpy locates the fields, Arrow copies the bytes.

The position of a record depends on the length of the one before it, which requires a loop. But runs of records with the
same length, which are detected for thousands of records together, are skipped in one step. The other fields are located
for all records together. Keys and values are views of the fetched bytes until Arrow copies them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from korvet.lake.varints import Bytes, Int64s, read_varints
from korvet.protocol.compression import Codec, decompress
from korvet.protocol.errors import InvalidRecord
from korvet.protocol.record_batch import HEADER_BYTES, RecordBatch

# Bytes decompressed at a time. A single batch may have more, up to the limit below.
DECODED_BYTES = 16 * 1024 * 1024
MAX_BATCH_BYTES = 1024 * 1024 * 1024

# Limits of the search for runs of records with the same length, and of its pauses.
FIRST_RUN = 64
LONGEST_RUN = 64 * 1024
SHORT_RUN = 16
WALK = 64
LONGEST_WALK = 4096

# Arrow's binary views contain values of at most this many bytes themselves.
INLINE_BYTES = 12

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])


@frozen(eq=False)
class Columns:
    """Records of one partition, in the order of the log.

    `timestamps` are in ms, as on the wire; `timestamp_types` are 0 (CreateTime) or 1 (LogAppendTime). `headers` has
    lists of (key, value), null for a record without headers; it is None if headers were not requested.
    """

    offsets: Int64s
    timestamps: Int64s
    timestamp_types: np.ndarray[tuple[int], np.dtype[np.int32]]
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.ListArray | None


def decode(
    batches: Iterable[RecordBatch], *, start: int, end: int, headers: bool = False
) -> Iterator[Columns]:
    """Yield the records of these batches with offsets in [start, end), some MB at a time.

    It neither checks CRCs nor skips control batches. Raises InvalidRecord for records that contradict their batch or
    do not decompress, and MessageTooLarge beyond MAX_BATCH_BYTES.
    """
    for group, pieces in _groups(batches):
        columns = _decode(group, pieces, start, end, headers=headers)
        if len(columns.offsets):
            yield columns


def decode_offsets(batches: Iterable[RecordBatch], *, start: int, end: int) -> Int64s:
    """Return the offsets of these batches' records in [start, end)."""
    found = [np.empty(0, np.int64)]
    for batch in batches:
        if batch.record_count == batch.last_offset_delta + 1:
            offsets = np.arange(batch.base_offset, batch.last_offset + 1, dtype=np.int64)
        else:
            everything = decode((batch,), start=batch.base_offset, end=batch.last_offset + 1)
            offsets = np.concatenate([found[0], *(columns.offsets for columns in everything)])
        found.append(offsets[(offsets >= start) & (offsets < end)])
    return np.concatenate(found)


def _groups(batches: Iterable[RecordBatch]) -> Iterator[tuple[list[RecordBatch], list[memoryview | bytes]]]:
    """Yield batches with their decompressed records, about DECODED_BYTES at a time."""
    group: list[RecordBatch] = []
    pieces: list[memoryview | bytes] = []
    size = 0
    for batch in batches:
        records: memoryview | bytes = batch.buffer[HEADER_BYTES:]
        if batch.compression is not Codec.NONE:
            records = decompress(batch.compression, records, max_bytes=MAX_BATCH_BYTES)
        if group and size + len(records) > DECODED_BYTES:
            yield group, pieces
            group, pieces, size = [], [], 0
        group.append(batch)
        pieces.append(records)
        size += len(records)
    if group:
        yield group, pieces


def _decode(
    group: Sequence[RecordBatch],
    pieces: Sequence[memoryview | bytes],
    start: int,
    end: int,
    *,
    headers: bool,
) -> Columns:
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    array = np.frombuffer(data, np.uint8)
    counts = np.array([batch.record_count for batch in group], np.int64)
    try:
        begins, ends = _boundaries(data, array, group, pieces)
        timestamps, at = read_varints(
            array, begins + 1
        )  # the first byte has the attributes, which are unused
        offsets, at = read_varints(array, at)
        offsets += np.repeat(np.array([batch.base_offset for batch in group], np.int64), counts)
        timestamps += np.repeat(np.array([batch.base_timestamp for batch in group], np.int64), counts)
        types = np.zeros(len(offsets), np.int32)
        if any(batch.is_log_append_time for batch in group):
            appended = np.repeat(np.array([batch.is_log_append_time for batch in group]), counts)
            timestamps = np.where(
                appended,
                np.repeat(np.array([batch.max_timestamp for batch in group], np.int64), counts),
                timestamps,
            )
            types[appended] = 1
        if len(offsets) and (group[0].base_offset < start or group[-1].last_offset >= end):
            wanted = (offsets >= start) & (offsets < end)
            offsets, timestamps, types = offsets[wanted], timestamps[wanted], types[wanted]
            at, ends = at[wanted], ends[wanted]
        key_at, key_sizes, at = _sized(array, at)
        value_at, value_sizes, at = _sized(array, at)
        counts, at = read_varints(array, at)
        if (at > ends).any() or (counts < 0).any() or (at[counts == 0] != ends[counts == 0]).any():
            raise InvalidRecord("A record's length is not that of its fields.")
        buffer = pa.py_buffer(data)
        return Columns(
            offsets,
            timestamps,
            types,
            gather(buffer, key_at, key_sizes),
            gather(buffer, value_at, value_sizes),
            _headers(buffer, array, at, ends, counts) if headers else None,
        )
    except IndexError:
        raise InvalidRecord("The records end too early.") from None


def _sized(array: Bytes, at: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the positions of length-prefixed fields, their sizes (-1 for null), and the positions after them."""
    sizes, at = read_varints(array, at)
    if sizes.size and sizes.min() < -1:
        raise InvalidRecord("A field has a negative length.")
    return at, sizes, at + np.maximum(sizes, 0)


# --- Positions of records ---------------------------------------------------------------------------------


def _boundaries(
    data: memoryview | bytes,
    array: Bytes,
    group: Sequence[RecordBatch],
    pieces: Sequence[memoryview | bytes],
) -> tuple[Int64s, Int64s]:
    """Return where all records begin, after their lengths, and where they end. Raises InvalidRecord, IndexError."""
    walk = _Walk(data, array)
    position = 0
    for batch, piece in zip(group, pieces, strict=True):
        before = walk.count
        walk.batch(position, position + len(piece))
        if walk.count - before != batch.record_count:
            raise InvalidRecord(f"A batch of {batch.record_count} records holds {walk.count - before}.")
        position += len(piece)
    return walk.result()


@define
class _Walk:
    """Steps from record to record by length, and skips runs of records with the same length."""

    _data: memoryview | bytes
    _array: Bytes
    count: int = 0
    _chunks: list[tuple[Int64s, Int64s]] = field(factory=list)  # positions and sizes of records
    _begins: list[int] = field(factory=list)  # positions of records that are in no chunk yet
    _sizes: list[int] = field(factory=list)
    _steps: int = 1  # number of steps before the next search for a run

    def batch(self, position: int, end: int) -> None:
        """Locate the records between two positions."""
        while position < end:
            last, begin, position = self._step(position, end)
            run, whole = self._run(last, begin, position, end), position - last
            if run >= SHORT_RUN:
                self._flush()
                begins = np.arange(run, dtype=np.int64) * whole + (begin + whole)
                self._chunks.append((begins, np.full(run, position - begin, np.int64)))
            else:
                self._begins += [begin + n * whole for n in range(1, run + 1)]
                self._sizes += [position - begin] * run
            self.count += run
            position += run * whole
            self._steps = 1 if run >= SHORT_RUN else min(max(WALK, 2 * self._steps), LONGEST_WALK)
        if position != end:
            raise InvalidRecord("A record's length goes beyond its batch.")

    def result(self) -> tuple[Int64s, Int64s]:
        """Return where all records begin and end."""
        self._flush()
        if not self._chunks:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins = np.concatenate([chunk[0] for chunk in self._chunks])
        return begins, begins + np.concatenate([chunk[1] for chunk in self._chunks])

    def _step(self, position: int, end: int) -> tuple[int, int, int]:
        """Take some steps. Return where the last record begins, where its body begins, and where it ends."""
        data = self._data
        last = begin = position
        before = len(self._begins)
        for _ in range(self._steps):
            last = position
            n = data[position]
            begin = position + 1
            shift = 7
            if n > 127:
                n &= 127
                while True:
                    byte = data[begin]
                    begin += 1
                    n |= (byte & 127) << shift
                    if byte < 128:
                        break
                    shift += 7
            if n & 1 or n > MAX_BATCH_BYTES:
                raise InvalidRecord(f"A record cannot have the length {n >> 1 ^ -(n & 1)}.")
            size = n >> 1
            self._begins.append(begin)
            self._sizes.append(size)
            position = begin + size
            if position >= end:
                break
        self.count += len(self._begins) - before
        return last, begin, position

    def _run(self, last: int, begin: int, position: int, end: int) -> int:
        """Return how many records from `position` on have the same length as the record at `last`."""
        array, prefix, whole = self._array, self._array[last:begin], position - last
        possible = (end - position) // whole
        run, window = 0, FIRST_RUN
        while run < possible:
            count = min(window, possible - run)
            start = position + run * whole
            rows = array[start : start + count * whole].reshape(count, whole)
            # By column: a reduction over rows of a few bytes takes much longer.
            equal = rows[:, 0] == prefix[0]
            for place in range(1, len(prefix)):
                equal &= rows[:, place] == prefix[place]
            if not equal.all():
                return run + int(equal.argmin())
            run += count
            window = min(8 * window, LONGEST_RUN)
        return run

    def _flush(self) -> None:
        if self._begins:
            self._chunks.append((np.array(self._begins, np.int64), np.array(self._sizes, np.int64)))
            self._begins, self._sizes = [], []


# --- Bytes ------------------------------------------------------------------------------------------------


def gather(buffer: pa.Buffer, at: Int64s, sizes: Int64s) -> pa.BinaryArray:
    """Return the bytes at these positions of a buffer, null where the size is -1. Raises IndexError beyond its end."""
    # Arrow copies them from binary views: a view has the size, four bytes of prefix (unused here), the buffer's index,
    # and the position; for up to 12 bytes it has the size and the bytes themselves.
    count = len(at)
    valid = sizes >= 0
    if not valid.any():
        return pa.nulls(count, pa.binary())
    if int((at + sizes).max()) > buffer.size:
        raise IndexError("a field ends behind its buffer")
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = np.maximum(sizes, 0)
    views[:, 3] = at
    short = np.flatnonzero((sizes <= INLINE_BYTES) & (sizes > 0))
    if short.size:
        array = np.frombuffer(buffer, np.uint8)
        cells = np.minimum(at[short, None] + np.arange(INLINE_BYTES), len(array) - 1)
        views[short, 1:] = array[cells].view(np.int32)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array_of_views = pa.Array.from_buffers(pa.binary_view(), count, [bitmap, pa.py_buffer(views), buffer])
    return array_of_views.cast(pa.binary())


def _headers(buffer: pa.Buffer, array: Bytes, at: Int64s, ends: Int64s, counts: Int64s) -> pa.ListArray:
    """Return the headers of records with these counts: all first headers together, then all second ones, and so on."""
    rows = np.flatnonzero(counts > 0)
    if counts.sum() > len(array):
        raise InvalidRecord("A record's number of headers is impossible.")
    at, left = at[rows], counts[rows]
    columns: list[tuple[Int64s, Int64s, Int64s, Int64s, Int64s]] = []
    while rows.size:
        key_at, key_sizes, at = _sized(array, at)
        if (key_sizes < 0).any():
            raise InvalidRecord("A header has no key.")
        value_at, value_sizes, at = _sized(array, at)
        columns.append((rows, key_at, key_sizes, value_at, value_sizes))
        left = left - 1
        done = left == 0
        if (at[done] != ends[rows[done]]).any():
            raise InvalidRecord("A record's length is not that of its fields.")
        rows, at, left = rows[~done], at[~done], left[~done]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    if columns:
        row, key_at, key_sizes, value_at, value_sizes = map(np.concatenate, zip(*columns, strict=True))
        order = np.argsort(row, kind="stable")
        keys = _text(gather(buffer, key_at[order], key_sizes[order]))
        values = gather(buffer, value_at[order], value_sizes[order])
    else:
        keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    # Records without headers have null, as in Spark's own source.
    return pa.ListArray.from_arrays(pa.array(offsets), entries, mask=pa.array(counts == 0))


def _text(names: pa.BinaryArray) -> pa.StringArray:
    """Return header keys as text; invalid UTF-8 is replaced, as in Java."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
