"""Rows of a table as record batches, as a broker sends them to consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from korvet.protocol.record import Headers, RawRecord
from korvet.protocol.record_batch import MAX_OFFSET_DELTA, TimestampType, build_batch

# Of one batch, before the limit of the request: consumers take whole batches at a time.
BATCH_BYTES = 1_000_000
# What a record takes beside its key, value and headers, at most, on the wire: lengths, attributes, deltas.
OVERHEAD_BYTES = 32
DELTA_LIMIT = 1 << 62  # of timestamps within a batch, far from where 64 bits end


def batches_of(rows: pa.Table, max_bytes: int, *, at_least_one: bool) -> Iterator[tuple[bytearray, int]]:
    """Batches of rows sorted by offset, each with the offset behind its last record, within `max_bytes` in all.

    With `at_least_one`, the first record comes whatever its size. Records keep their timestamps and the type of
    these; where one batch cannot say that of two records, or their offsets lie too far apart, there are two.
    """
    cumulated = np.cumsum(_sizes(rows))
    for start, end in _runs(rows):
        first = start
        while first < end:
            before = int(cumulated[first - 1]) if first else 0
            room = before + min(BATCH_BYTES, max_bytes)
            until = min(end, int(np.searchsorted(cumulated, room, side="right")))
            if until <= first:
                if not at_least_one:
                    return
                until = first + 1
            batch, next_offset = _batch(rows.slice(first, until - first))
            yield batch, next_offset
            at_least_one = False
            max_bytes -= len(batch)
            first = until


def _sizes(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """At most what each record takes in a batch."""
    sizes = np.full(rows.num_rows, OVERHEAD_BYTES, np.int64)
    for name in ("key", "value"):
        sizes += pc.fill_null(pc.binary_length(rows[name]).cast(pa.int64()), 0).to_numpy()
    headers = rows["headers"]
    if headers.null_count < rows.num_rows:
        for index, each in enumerate(headers.to_pylist()):
            sizes[index] += sum(4 * len(h["key"]) + len(h["value"] or b"") + 10 for h in each or ())
    return sizes


def _runs(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """The stretches of rows that may be in one batch, as indexes."""
    offsets: list[int] = rows["offset"].to_pylist()
    timestamps: list[int] = rows["timestamp_ms"].to_pylist()
    types: list[int] = rows["timestampType"].to_pylist()
    first = 0
    for index in range(1, len(offsets)):
        if (
            types[index] != types[first]
            or (types[index] == TimestampType.LOG_APPEND_TIME and timestamps[index] != timestamps[first])
            or offsets[index] - offsets[first] > MAX_OFFSET_DELTA
            or abs(timestamps[index] - timestamps[first]) > DELTA_LIMIT
        ):
            yield first, index
            first = index
    if offsets:
        yield first, len(offsets)


def _batch(rows: pa.Table) -> tuple[bytearray, int]:
    offsets: Sequence[int] = rows["offset"].to_pylist()
    base = offsets[0]
    records: Iterator[RawRecord] = (
        (offset - base, timestamp, key, value, _headers(headers))
        for offset, timestamp, key, value, headers in zip(
            offsets,
            rows["timestamp_ms"].to_pylist(),
            rows["key"].to_pylist(),
            rows["value"].to_pylist(),
            rows["headers"].to_pylist(),
            strict=True,
        )
    )
    timestamp_type = rows["timestampType"][0].as_py()
    return build_batch(
        records, base_offset=base, partition_leader_epoch=0, timestamp_type=timestamp_type
    ), offsets[-1] + 1


def _headers(headers: list[dict[str, object]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in headers) if headers else ()  # type: ignore[misc]
