"""Statistics of a file's columns for Delta's log: least and greatest values, and numbers of nulls.

They are taken from the metadata of the Parquet file that was just written, so no value is looked at again. With them,
readers skip files. They must be exact, since readers also answer `min` and `max` by them. So a column lacks its bounds
if the file's are missing, or if it has NaN, which Parquet leaves out of its bounds.

Texts have no bounds: the log keeps them for 30 days, also those of rows that were erased.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import field, frozen

# Columns of values with statistics, the first ones, as in Delta's own writers.
COLUMNS = 32
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  Parquet's is without a zone, or in UTC

Bound = int | float | str


@frozen
class Statistics:
    """Least and greatest values, and numbers of nulls, by column. Dates and timestamps are as in Delta's log."""

    least: dict[str, Bound] = field(factory=dict)
    greatest: dict[str, Bound] = field(factory=dict)
    nulls: dict[str, int] = field(factory=dict)


def statistics_of(metadata: pq.FileMetaData, schema: pa.Schema, without_bounds: Iterable[str]) -> Statistics:
    """Return the statistics of the first columns of values, and of all columns about the record."""
    found = Statistics()
    excluded = frozenset(without_bounds)
    numbers = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    # A name with a point could also be that of a field in a struct.
    flat = [each for each in schema if each.name in numbers and "." not in each.name]
    own = [each for each in flat if each.name.startswith("_")]
    for each in [*[one for one in flat if one not in own][:COLUMNS], *own]:
        chunks = [
            metadata.row_group(group).column(numbers[each.name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not all(chunk is not None and chunk.has_null_count for chunk in chunks):
            continue
        found.nulls[each.name] = sum(chunk.null_count for chunk in chunks)
        filled = [chunk for chunk in chunks if chunk.num_values]
        if not filled or each.name in excluded or not all(chunk.has_min_max for chunk in filled):
            continue
        least = bound(min(chunk.min_raw for chunk in filled), each.type)
        greatest = bound(max(chunk.max_raw for chunk in filled), each.type)
        if least is not None and greatest is not None:
            found.least[each.name], found.greatest[each.name] = least, greatest
    return found


def bound(value: Any, kind: pa.DataType) -> Bound | None:
    """Return a value of Parquet's statistics as in Delta's log, or None if the log has none of the type."""
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_floating(kind):
        return float(value) if math.isfinite(value) else None
    try:
        if pa.types.is_date(kind):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if pa.types.is_timestamp(kind):
            found = EPOCH + timedelta(microseconds=value)
            text = found.isoformat(timespec="microseconds")
            return f"{text}Z" if kind.tz else text
    except OverflowError:
        return None
    return None


def with_nan(rows: pa.Table) -> set[str]:
    """Return the columns that have NaN."""
    floats = [each.name for each in rows.schema if pa.types.is_floating(each.type)]
    return {name for name in floats if pc.any(pc.is_nan(rows.column(name))).as_py()}
