"""Encode rows of a table as the record batches that a broker sends to consumers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from korvet.lake.encoding import Rows, column_of, encode_batch, encode_headers, spans
from korvet.protocol.record_batch import HEADER_BYTES

# Bytes of one batch. The limit of the Fetch request applies as well; consumers process whole batches.
BATCH_BYTES = 1_000_000


def batches_of(rows: pa.Table, max_bytes: int, *, at_least_one: bool) -> Iterator[tuple[bytearray, int]]:
    """Yield record batches of `rows`, sorted by offset, each with its last offset plus one.

    All batches together take at most `max_bytes`; with `at_least_one`, the first record is sent whatever its size.
    Records keep their timestamp and timestamp type. A new batch starts where the timestamp type changes, and where
    offset or timestamp deltas would not fit one batch.
    """
    records = records_of(rows)
    cumulated = np.cumsum(records.sizes())
    for start, end, timestamp_type in _runs(rows, records):
        first = start
        while first < end:
            before = int(cumulated[first - 1]) if first else 0
            room = min(BATCH_BYTES, max_bytes) - HEADER_BYTES
            until = min(end, int(np.searchsorted(cumulated, before + room, side="right")))
            if until <= first:
                if not at_least_one:
                    return
                until = first + 1
            batch = encode_batch(
                records.slice(first, until), timestamp_type=timestamp_type, partition_leader_epoch=0
            )
            yield batch, int(rows["offset"][until - 1].as_py()) + 1
            at_least_one = False
            max_bytes -= len(batch)
            first = until


def records_of(rows: pa.Table, added: tuple[bytes, pa.BinaryArray] | None = None) -> Rows:
    """Return all columns of `rows` that the wire format has, with the header `added`, if any, on each record."""
    headers = column_of(rows, "headers")
    bare = added is None and headers.null_count == len(headers)
    return Rows(
        keys=column_of(rows, "key").cast(pa.binary()),
        values=column_of(rows, "value").cast(pa.binary()),
        headers=None if bare else encode_headers(headers, added),
        offsets=rows["offset"].to_numpy(),
        timestamps=rows["timestamp_ms"].to_numpy(),
    )


def _runs(rows: pa.Table, records: Rows) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, timestamp type) of the row ranges that one batch can hold."""
    types = rows["timestampType"].to_numpy()
    for first, end in pairwise([0, *(np.flatnonzero(np.diff(types)) + 1).tolist(), len(types)]):
        timestamp_type = int(types[first]) if end else 0
        for start, stop in spans(records.slice(first, end), timestamp_type=timestamp_type):
            yield first + start, first + stop, timestamp_type
