"""Keys of the rows of upsert tables: which rows have equal keys, and which of these rows counts.

A key is the record's key, or some columns of the values, where null equals null. Among rows of one partition, the
greatest offset counts. If a key moved to another partition (partitions were added), the later timestamp counts, and
of equal timestamps the greater partition. So the result does not depend on how rows are divided into rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
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

    def numbered(self, tables: Sequence[pa.Table]) -> list[Int64s]:
        """Return a number for each row of the tables. Rows of all tables have equal numbers if their keys are equal."""
        rows = pa.concat_tables([each.select(self.columns) for each in tables])
        numbers = np.zeros(rows.num_rows, np.int64)
        for name in self.columns:
            values = rows[name].combine_chunks()
            if self.framing_bytes:
                # pyarrow's binary_slice fails for many short values.
                values = pa.array([each and each[self.framing_bytes :] for each in values.to_pylist()])
            encoded = values.dictionary_encode(null_encoding="encode")
            both = numbers * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
            _, numbers = np.unique(both, return_inverse=True)
        ends = np.cumsum([each.num_rows for each in tables])
        return np.split(numbers.astype(np.int64), ends[:-1])


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
    """Return the indexes of the rows that count, one of each key. `numbers` identify keys; `chosen` are indexes."""
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
