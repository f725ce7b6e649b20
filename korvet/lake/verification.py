"""Read every byte of a table and compare it with what the commits recorded.

For each file: the pages have their checksums; the rows have the partition, date and offsets that the file's name and
the table's log state, in order; and they are within the statistics by which readers skip row groups. For each range:
number and checksum of the records are those that were committed, as far as the log still has the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from attrs import define, field, frozen

from korvet.lake.chain import Stretch, missing_stretches
from korvet.lake.errors import AbsentFile, DamagedFile
from korvet.lake.file_reading import by_partition, damage, numbered_row_groups
from korvet.lake.file_writing import UInt64s, record_checksums
from korvet.lake.location import Location
from korvet.lake.range_checksums import RangeChecksum
from korvet.lake.remote_rows import Bounds, bounds_of_group
from korvet.lake.retrying import retried
from korvet.lake.schema import Int64s, date_text, days
from korvet.lake.snapshots import File, Snapshot
from korvet.lake.store_errors import store_errors
from korvet.lake.table import LakeTable
from korvet.lake.table_files import INT64_MIN, TableFile

F = TypeVar("F", bound=File)


@frozen
class Wrong:
    """A fault of the offsets of a partition in [start, end)."""

    partition: int
    start: int
    end: int
    what: str


def wrongs(table: LakeTable, on_progress: Callable[[int], None] = lambda _: None) -> Iterator[Wrong]:
    """Yield the faults of the snapshot's files. `absent` yields missing files, `chain` finds missing offsets.

    `on_progress` is called with the number of bytes that were read, once per file. Raises Unreachable.
    """
    sums = {partition: _Sums(table.ranges_of(partition).items) for partition in table.archived_up_to}
    filesystem = table.location.filesystem()
    damaged: list[Wrong] = []
    for file in table.files:
        try:
            for rows in _proven(table, file, filesystem):
                for partition, some in by_partition(rows):
                    if partition in sums:
                        sums[partition].add(some)
        except (AbsentFile, FileNotFoundError):
            damaged.append(_of_file(file, ""))
        except DamagedFile as error:
            damaged.append(_of_file(file, str(error)))
            yield damaged[-1]
        on_progress(file.size)
    for partition, each in sums.items():
        skipped = [Stretch(wrong.start, wrong.end) for wrong in damaged if wrong.partition in {partition, -1}]
        skipped.append(Stretch(INT64_MIN, table.start(partition) or 0))  # dropped by retention
        yield from each.wrongs([*skipped, *missing_stretches(table, partition)])


def absent(table: LakeTable) -> Iterator[Wrong]:
    """Yield the files of a snapshot that the store lacks or has in another length. Raises Unreachable."""
    yield from (_of_file(file, what) for file, what in stored_otherwise(table, table.files))


def stored_otherwise(table: Snapshot, files: Sequence[F]) -> Iterator[tuple[F, str]]:
    """Yield the files that the store lacks or has in another length, and what is wrong. Raises Unreachable."""

    def found() -> dict[str, int]:
        with store_errors(table.location):
            selector = pafs.FileSelector(table.location.path, recursive=True, allow_not_found=True)
            return {info.path: info.size for info in table.location.filesystem().get_file_info(selector)}

    sizes = retried(found)
    for file in files:
        size = sizes.get(table.absolute(file))
        if size is None:
            yield file, f"{_name(table.location, file)} is not there"
        elif size != file.size:
            yield file, f"{_name(table.location, file)} has {size} bytes, where {file.size} were written"


def _of_file(file: TableFile, what: str) -> Wrong:
    """Return a fault of all offsets of a file. The partition is -1 if the file does not state a single one."""
    if file.held is not None:
        return Wrong(file.held.partition, file.held.start, file.held.end, what)
    partition = file.only_partition
    return Wrong(-1 if partition is None else partition, *file.bounds, what)


# --- A file -----------------------------------------------------------------------------------------------


def _proven(table: LakeTable, file: TableFile, filesystem: pafs.FileSystem) -> Iterator[pa.Table]:
    """Yield a file's rows after checking them. Raises the same errors as `reading.opened`."""
    count, last = 0, INT64_MIN
    for parquet, number, rows in numbered_row_groups(table, file, filesystem):
        with damage(table, file.path):
            rows.validate(full=True)
            # Not earlier: damaged statistics make pyarrow abort the process, unless reading failed before.
            bounds = bounds_of_group(parquet.metadata.row_group(number))
        fault = _fault(file, rows, bounds, last)
        if fault:
            raise DamagedFile(f"{_name(table.location, file)} is damaged: {fault}, in row group {number}.")
        count += rows.num_rows
        last = int(rows["offset"][-1].as_py()) if rows.num_rows else last
        yield rows
    if file.count is not None and count != file.count:
        raise DamagedFile(
            f"{_name(table.location, file)} is damaged: {count} rows, where there were {file.count}."
        )


def _fault(file: TableFile, rows: pa.Table, bounds: Bounds, last: int) -> str:
    """Describe the fault of a row group's rows; an empty string if there is none. `last` is the previous offset."""
    if not rows.num_rows:
        return ""
    offsets: Int64s = rows["offset"].to_numpy()
    timestamps: Int64s = rows["timestamp_ms"].to_numpy()
    least, greatest = int(offsets.min()), int(offsets.max())
    if (bounds.first_offset > least or bounds.last_offset < greatest) or bounds.largest_ms < timestamps.max():
        return "its statistics are not those of its rows"
    if any(date_text(int(day)) != file.date for day in np.unique(days(timestamps))):
        return f"it has rows of other dates than {file.date}"
    if file.held is None:
        return ""
    if not (rows["partition"].to_numpy() == file.held.partition).all():
        return f"it has rows of other partitions than {file.held.partition}"
    if least <= last or (np.diff(offsets) <= 0).any():
        return "its rows are not in the order of their offsets"
    if least < file.held.start or greatest >= file.held.end:
        return f"it has offsets from {least} to {greatest}"
    return ""


def _name(location: Location, file: File) -> str:
    return f"{location}/{file.path}"


# --- Ranges -----------------------------------------------------------------------------------------------


@define
class _Sums:
    """Counts and checksums of a partition's ranges, summed over its files. `recorded` is sorted without overlaps."""

    recorded: list[RangeChecksum]
    starts: Int64s = field(init=False)
    ends: Int64s = field(init=False)
    counts: Int64s = field(init=False)
    checksums: UInt64s = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.starts = np.array([each.start for each in self.recorded], np.int64)
        self.ends = np.array([each.end for each in self.recorded], np.int64)
        self.counts = np.zeros(len(self.recorded), np.int64)
        self.checksums = np.zeros(len(self.recorded), np.uint64)

    def add(self, rows: pa.Table) -> None:
        offsets: Int64s = rows["offset"].to_numpy()
        places = np.searchsorted(self.starts, offsets, side="right") - 1
        known = places >= 0
        known[known] = offsets[known] < self.ends[places[known]]
        np.add.at(self.counts, places[known], 1)
        np.add.at(self.checksums, places[known], record_checksums(rows)[known])

    def wrongs(self, skipped: Sequence[Stretch]) -> Iterator[Wrong]:
        """Yield the ranges that differ from their commit, except those that overlap offsets already reported."""
        for each, count, checksum in zip(
            self.recorded, self.counts.tolist(), self.checksums.tolist(), strict=True
        ):
            if (count, checksum) == (each.count, each.checksum):
                continue
            if any(stretch.start < each.end and each.start < stretch.end for stretch in skipped):
                continue
            what = f"{each.count} records were committed, " + (
                f"and {count} are in the files"
                if count != each.count
                else "and in the files are others, by their checksum"
            )
            yield Wrong(each.partition, each.start, each.end, what)
