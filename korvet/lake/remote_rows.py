"""Bounds of row groups from their statistics, and merging of rows from several row groups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from korvet.lake.schema import Int64s
from korvet.lake.table_files import INT64_MAX, INT64_MIN


class Bounds(NamedTuple):
    """Statistics of a row group; the widest range where a statistic is missing."""

    first_offset: int
    last_offset: int
    largest_ms: int


def bounds_of(metadata: pq.FileMetaData) -> list[Bounds]:
    """Return the bounds of each row group of a file."""
    return [bounds_of_group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]


def bounds_of_group(group: pq.RowGroupMetaData) -> Bounds:
    first, last, largest = INT64_MIN, INT64_MAX, INT64_MAX
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max:
            continue
        if column.path_in_schema == "offset":
            first, last = statistics.min, statistics.max
        elif column.path_in_schema == "timestamp_ms":
            largest = statistics.max
    return Bounds(first, last, largest)


def _offsets(rows: pa.Table) -> Int64s:
    offsets: Int64s = rows["offset"].to_numpy()
    return offsets


def in_order(rows: pa.Table) -> pa.Table:
    """Sort rows by offset, each column in one chunk. Keep one row of an offset that another writer duplicated."""
    offsets = _offsets(rows)
    if not (np.diff(offsets) > 0).all():
        _, order = np.unique(offsets, return_index=True)
        rows = rows.take(pa.array(order))
    return rows.combine_chunks()


def between(rows: pa.Table, start: int, end: int) -> pa.Table:
    """Return the slice of `rows`, sorted by offset, that is in [start, end)."""
    first, last = np.searchsorted(_offsets(rows), [start, end])
    return rows.slice(first, last - first)


def split(waiting: list[pa.Table], bound: int) -> tuple[pa.Table, list[pa.Table]]:
    """Return the rows with offsets below `bound`, merged, and the remaining tables."""
    ready = [between(rows, INT64_MIN, bound) for rows in waiting]
    rest = [rows for rows in (between(rows, bound, INT64_MAX) for rows in waiting) if rows.num_rows]
    some = [rows for rows in ready if rows.num_rows]
    if len(some) > 1:
        return in_order(pa.concat_tables(some)), rest
    return (some or ready)[0], rest
