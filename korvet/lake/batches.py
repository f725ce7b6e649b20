"""Rows of a table as record batches, as a broker sends them to consumers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from korvet.lake.encoding import Rows, column_of, encode_batch, encode_headers, spans
from korvet.protocol.record_batch import HEADER_BYTES

# Of one batch, before the limit of the request: consumers take whole batches at a time.
BATCH_BYTES = 1_000_000


def batches_of(rows: pa.Table, max_bytes: int, *, at_least_one: bool) -> Iterator[tuple[bytearray, int]]:
    """Batches of rows sorted by offset, each with the offset behind its last record, within `max_bytes` in all.

    With `at_least_one`, the first record comes whatever its size. Records keep their timestamps and the type of
    these; where one batch cannot say that of two records, or their offsets lie too far apart, there are two.
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
    """A table's rows with all that is on the wire, and the header `added`, if any, in each of them."""
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
    """The stretches of rows that may be in one batch, as indexes, and whose clock their timestamps are from."""
    types = rows["timestampType"].to_numpy()
    for first, end in pairwise([0, *(np.flatnonzero(np.diff(types)) + 1).tolist(), len(types)]):
        timestamp_type = int(types[first]) if end else 0
        for start, stop in spans(records.slice(first, end), timestamp_type=timestamp_type):
            yield first + start, first + stop, timestamp_type
