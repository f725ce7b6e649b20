"""Keys of the rows of upsert tables: which rows have equal keys, and which of these rows counts.

A key is the record's key, or some columns of the values, where null equals null. Among rows of one partition, the
greatest offset counts. If a key moved to another partition (partitions were added), the later timestamp counts, and
of equal timestamps the greater partition. So the result does not depend on how rows are divided into rounds.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from korvet.lake.schema import Int64s
from korvet.pipeline.decoding.columns import OFFSET, PARTITION, TIMESTAMP

Mask = npt.NDArray[np.bool_]
NO_TIME = np.iinfo(np.int64).min


@frozen
class Keys:
    """The columns that identify a row. `framing_bytes` at the beginning of binary values are ignored."""

    columns: tuple[str, ...]
    framing_bytes: int = 0

    def column(self, rows: pa.Table, name: str) -> pa.ChunkedArray:
        """Return the part of a column that identifies rows."""
        values = rows[name]
        if not self.framing_bytes:
            return values
        # pyarrow's binary_slice fails for many short values.
        return pa.chunked_array(
            [[each and each[self.framing_bytes :] for each in values.to_pylist()]], values.type
        )


@frozen
class KeyIndex:
    """Numbers for the keys of some rows, from 0 up."""

    keys: Keys
    #: By column, its values, and the sorted combinations of a number for the columns before with a value's index.
    _levels: tuple[tuple[pa.Array, Int64s], ...]

    @classmethod
    def of(cls, rows: pa.Table, keys: Keys) -> KeyIndex:
        numbers = np.zeros(rows.num_rows, np.int64)
        levels = []
        for name in keys.columns:
            column = keys.column(rows, name)
            values = pc.unique(column)
            combinations, numbers = np.unique(_combined(numbers, column, values), return_inverse=True)
            levels.append((values, combinations))
        return cls(keys, tuple(levels))

    def find(self, rows: pa.Table) -> Int64s:
        """Return the number of each row's key, -1 if no row of the index has it."""
        numbers = np.zeros(rows.num_rows, np.int64)
        for name, (values, combinations) in zip(self.keys.columns, self._levels, strict=True):
            found = _combined(numbers, self.keys.column(rows, name), values)
            numbers = np.searchsorted(combinations, found)
            numbers[np.append(combinations, -1)[numbers] != found] = -1
        return numbers


def _combined(numbers: Int64s, column: pa.ChunkedArray, values: pa.Array) -> Int64s:
    """Return the combinations of numbers with indexes of values, -2 where one of them is missing."""
    places = pc.index_in(column, value_set=values).fill_null(-1).to_numpy().astype(np.int64)
    found: Int64s = np.where((numbers < 0) | (places < 0), -2, numbers * len(values) + places)
    return found


@frozen
class Places:
    """Partitions, offsets and timestamps of rows, in microseconds since 1970."""

    partitions: Int64s
    offsets: Int64s
    times: Int64s

    @classmethod
    def of(cls, rows: pa.Table) -> Self:
        times = rows[TIMESTAMP].cast(pa.int64()).fill_null(NO_TIME)
        partitions, offsets = (rows[name].to_numpy().astype(np.int64) for name in (PARTITION, OFFSET))
        return cls(partitions, offsets, times.to_numpy())

    def at(self, rows: Int64s) -> Places:
        """Return the places of some rows, given by their indexes."""
        return Places(self.partitions[rows], self.offsets[rows], self.times[rows])

    def count_against(self, others: Places) -> Mask:
        """Return which rows count, and not the row of the same key at the same index of `others`."""
        later = (self.times > others.times) | (
            (self.times == others.times) & (self.partitions > others.partitions)
        )
        found: Mask = np.where(self.partitions == others.partitions, self.offsets > others.offsets, later)
        return found


def latest(numbers: Int64s, places: Places, chosen: Int64s) -> Int64s:
    """Return the rows that count, one of each key, ordered by the numbers of their keys. `chosen` are rows' indexes."""
    chosen = _last(chosen, numbers, places.partitions, places.offsets)
    order = np.lexsort((places.partitions[chosen], places.times[chosen], numbers[chosen]))
    ordered = chosen[order]
    return ordered[_ends(numbers[ordered])]


def _last(chosen: Int64s, numbers: Int64s, partitions: Int64s, offsets: Int64s) -> Int64s:
    """Return the row with the greatest offset of each key and partition."""
    ordered = chosen[np.lexsort((offsets[chosen], partitions[chosen], numbers[chosen]))]
    return ordered[_ends(numbers[ordered]) | _ends(partitions[ordered])]


def _ends(values: Int64s) -> Mask:
    """Return which values are followed by another value, or by none."""
    return np.append(values[1:] != values[:-1], np.ones(min(1, len(values)), bool))
