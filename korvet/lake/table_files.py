"""The files of one snapshot, indexed by partition and offset."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from deltalake import DeltaTable

from korvet.lake.files import FileRange, file_range
from korvet.lake.schema import Int64s

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


@frozen
class TableFile:
    """A file of a snapshot. Missing statistics are None. `held` is the range in its name, None in a foreign name."""

    path: str
    size: int
    date: str | None
    count: int | None
    first_partition: int | None
    last_partition: int | None
    first_offset: int | None
    last_offset: int | None
    #: The greatest timestamp_ms.
    last_ms: int | None
    held: FileRange | None

    @property
    def only_partition(self) -> int | None:
        """The partition of all rows, or None if the statistics do not name a single one."""
        return self.first_partition if self.first_partition == self.last_partition else None

    @property
    def bounds(self) -> tuple[int, int]:
        """Bounds of the file's offsets, as [start, end)."""
        return (
            INT64_MIN if self.first_offset is None else self.first_offset,
            INT64_MAX if self.last_offset is None else self.last_offset + 1,
        )

    def may_hold(self, partition: int, start: int, end: int) -> bool:
        """Return True if the file may have records of the partition in [start, end)."""
        if self.count == 0:
            return False
        if self.first_partition is None or self.last_partition is None:
            return True
        if not self.first_partition <= partition <= self.last_partition:
            return False
        if self.first_offset is None or self.last_offset is None:
            return True
        return self.first_offset < end and start <= self.last_offset


def files_in(delta: DeltaTable) -> list[TableFile]:
    """Return the files of deltalake's snapshot, by path."""
    columns = pa.table(delta.get_add_actions(flatten=True))
    there = set(columns.column_names)

    def values(name: str) -> list[Any]:
        return columns.column(name).to_pylist() if name in there else [None] * columns.num_rows

    paths, dates = values("path"), values("partition.date")
    files = [
        TableFile(*file)
        for file in zip(
            paths,
            values("size_bytes"),
            (None if date is None else str(date) for date in dates),
            values("num_records"),
            values("min.partition"),
            values("max.partition"),
            values("min.offset"),
            values("max.offset"),
            values("max.timestamp_ms"),
            map(file_range, paths),
            strict=True,
        )
    ]
    return sorted(files, key=lambda file: file.path)


@define(slots=False)
class FileIndex:
    """A snapshot's files, indexed by partition and offset bounds."""

    files: list[TableFile] = field(repr=False)

    def overlapping(self, partition: int, start: int, end: int) -> list[TableFile]:
        """Return the files that may hold records of the partition in [start, end), by their first offset."""
        found = [file for file in self._of_several if file.may_hold(partition, start, end)]
        if partition in self._bounds:
            files, firsts, lasts = self._bounds[partition]
            found += [files[index] for index in np.flatnonzero((firsts < end) & (lasts >= start))]
        return sorted(found, key=lambda file: (file.first_offset or 0, file.path))

    def named(self, partition: int) -> list[TableFile]:
        """Return the files whose names state the partition, empty files included, by path."""
        return self._named.get(partition, [])

    @cached_property
    def foreign(self) -> list[TableFile]:
        """The files that another writer named."""
        return [file for file in self.files if file.held is None]

    @cached_property
    def _named(self) -> dict[int, list[TableFile]]:
        found: dict[int, list[TableFile]] = {}
        for file in self.files:
            if file.held is not None:
                found.setdefault(file.held.partition, []).append(file)
        return found

    @cached_property
    def _of_several(self) -> list[TableFile]:
        """The files whose statistics do not name a single partition."""
        return [file for file in self.files if file.only_partition is None]

    @cached_property
    def _bounds(self) -> dict[int, tuple[list[TableFile], Int64s, Int64s]]:
        """By partition: files, their first offsets, their last offsets. Unknown bounds are the widest possible."""
        found: dict[int, list[TableFile]] = {}
        for file in self.files:
            partition = file.only_partition
            if partition is not None and file.count != 0:
                found.setdefault(partition, []).append(file)
        return {
            partition: (
                files,
                _numbers((file.first_offset for file in files), INT64_MIN),
                _numbers((file.last_offset for file in files), INT64_MAX),
            )
            for partition, files in found.items()
        }


def _numbers(values: Iterable[int | None], unknown: int) -> Int64s:
    return np.array([unknown if value is None else value for value in values], np.int64)
