"""A table's files and the format of their names.

A file holds records of one topic-partition and one date, sorted by offset. Its name states the offsets it stands for:

    date=2026-01-31/00007-00000000000000000100-00000000000000000200-1of2-<random>.parquet

Together with the second file (of another date), it holds everything that partition 7 had in [100, 200). So the names
of a snapshot's files suffice to find out whether anything is missing from it, even if offsets have holes (aborted
transactions, compaction) and the commits are no longer in the log. Ranges without records have no file: the next
file's range begins where the last one ended.

Files that were joined hold several contiguous ranges, and are named as one range. Several of them may have the same
date. The name of a file from which records were erased states their number before the random part. Its footer lists
their offsets by partition, as the value of korvet.erased. (Files that another writer made may hold several partitions,
separated by semicolons there.)

    00007-00000000000000000100-00000000000000000200-1of2-3erased-<random>.parquet      korvet.erased = 7:104,110-111
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
from attrs import asdict, frozen

from korvet.lake.schema import Int64s

NULL_DATE_FOLDER = "date=__HIVE_DEFAULT_PARTITION__"
NAME = re.compile(r"(?:.*/)?(\d{5,})-(\d{20})-(\d{20})-(\d+)of(\d+)(?:-(\d+)erased)?-[0-9a-f]+\.parquet")
ERASED = b"korvet.erased"


@frozen(order=True)
class FileRange:
    """The range in a file's name: piece `piece` of `pieces` of the offsets in [start, end).

    `erased` is the number of records that were erased from the file.
    """

    partition: int
    start: int
    end: int
    piece: int
    pieces: int
    erased: int = 0


def file_path(held: FileRange, date: str | None) -> str:
    """Return a new path inside the table. It is random: failed attempts may have left files of the same range."""
    name = f"{held.partition:05d}-{held.start:020d}-{held.end:020d}-{held.piece}of{held.pieces}"
    if held.erased:
        name += f"-{held.erased}erased"
    return f"{date_folder(date)}/{name}-{uuid4().hex}.parquet"


def foreign_path(date: str | None) -> str:
    """Return a new path for a file that replaces another writer's file; like that one's, it states no range."""
    return f"{date_folder(date)}/part-{uuid4().hex}.parquet"


def date_folder(date: str | None) -> str:
    return NULL_DATE_FOLDER if date is None else f"date={date}"


def file_range(path: str) -> FileRange | None:
    """Return the range that a path states, or None for a path that another writer chose (another OPTIMIZE)."""
    match = NAME.fullmatch(path)
    if match is None:
        return None
    return FileRange(*(int(number or 0) for number in match.groups()))


def erased_text(places: Mapping[int, Int64s]) -> bytes:
    """Return sorted offsets by partition in the format of the footer: 7:104,110-111;8:5."""
    return ";".join(f"{partition}:{_runs_text(offsets)}" for partition, offsets in places.items()).encode()


def _runs_text(offsets: Int64s) -> str:
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    runs = (run for run in np.split(offsets, breaks) if len(run))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def erased_offsets(text: bytes) -> dict[int, Int64s]:
    """Parse the format of `erased_text`."""
    found = {}
    for part in filter(None, text.decode().split(";")):
        partition, _, runs = part.partition(":")
        bounds = [run.partition("-") for run in runs.split(",")]
        offsets = [np.arange(int(first), int(last or first) + 1, dtype=np.int64) for first, _, last in bounds]
        found[int(partition)] = np.concatenate(offsets)
    return found


def united(several: Iterable[Mapping[int, Int64s]]) -> dict[int, Int64s]:
    """Return the union of the offsets by partition, sorted, without duplicates."""
    found: dict[int, list[Int64s]] = {}
    for places in several:
        for partition, offsets in places.items():
            found.setdefault(partition, []).append(offsets)
    return {partition: np.unique(np.concatenate(offsets)) for partition, offsets in sorted(found.items())}


@frozen
class DataFile:
    """A written file, not yet committed, with everything that its `add` action needs.

    If all of its rows were erased, the bounds have no meaning.
    """

    path: str  # inside the table
    size: int
    modified_ms: int
    date: str | None
    partition: int
    count: int
    first_offset: int
    last_offset: int
    first_ms: int  # least and greatest timestamp_ms
    last_ms: int
    #: The largest partition, if another writer put several into one file.
    last_partition: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataFile:
        return cls(**values)


@frozen
class ArchivedRange:
    """A partition's offsets in [start, end), written to files and ready to be committed.

    `count` and `checksum` are those of the records (see `writing.checksum`); `row_bytes` is the memory size of their
    columns. A range without records has no files. `aborted` and `markers` are the numbers of records of aborted
    transactions and of markers (control batches) in the range, which are not written.
    """

    partition: int
    start: int
    end: int
    count: int = 0
    checksum: int = 0
    row_bytes: int = 0
    files: tuple[DataFile, ...] = ()
    aborted: int = 0
    markers: int = 0

    @property
    def skipped(self) -> int:
        """The number of records in the range that are not written."""
        return self.aborted + self.markers

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ArchivedRange:
        files = tuple(DataFile.from_dict(file) for file in values["files"])
        return cls(**{**values, "files": files})
