"""A table's files, and what their names say.

A file holds records of one topic-partition and one date, sorted by offset. Its name tells which offsets it stands for:

    date=2026-01-31/00007-00000000000000000100-00000000000000000200-1of2-<random>.parquet

Together with the other of the two files (another date), it holds everything that partition 7 had from offset 100
up to, and without, 200. So whoever looks at a snapshot's names alone sees whether anything is missing from it, also
when offsets have holes (aborted transactions, compaction), and after commits long forgotten. Ranges that held no
records have no file: the next file's range begins where the last one ended.

Files that were joined hold several ranges that follow each other, and are named as one range. Several of them may be
of one date. A file that records were erased from says how many, before the random part of its name; which offsets
these were, its footer says by partition, as the value of korvet.erased. (Where somebody else has put several
partitions into one file, there are semicolons between them.)

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
    """What a file's name says: piece `piece` of `pieces` of the offsets from `start` up to, without, `end`.

    `erased` records were in it and were erased.
    """

    partition: int
    start: int
    end: int
    piece: int
    pieces: int
    erased: int = 0


def file_path(held: FileRange, date: str | None) -> str:
    """A path inside the table that nobody has used: attempts that failed may have left files of the same range."""
    name = f"{held.partition:05d}-{held.start:020d}-{held.end:020d}-{held.piece}of{held.pieces}"
    if held.erased:
        name += f"-{held.erased}erased"
    return f"{date_folder(date)}/{name}-{uuid4().hex}.parquet"


def foreign_path(date: str | None) -> str:
    """The same for a file that stands in the place of one that somebody else has named: it says as little."""
    return f"{date_folder(date)}/part-{uuid4().hex}.parquet"


def date_folder(date: str | None) -> str:
    return NULL_DATE_FOLDER if date is None else f"date={date}"


def file_range(path: str) -> FileRange | None:
    """What a path says, None for one that somebody else has named (a foreign OPTIMIZE, for one)."""
    match = NAME.fullmatch(path)
    if match is None:
        return None
    return FileRange(*(int(number or 0) for number in match.groups()))


def erased_text(places: Mapping[int, Int64s]) -> bytes:
    """Sorted offsets by partition, as a footer tells them: 7:104,110-111;8:5."""
    return ";".join(f"{partition}:{_runs_text(offsets)}" for partition, offsets in places.items()).encode()


def _runs_text(offsets: Int64s) -> str:
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    runs = (run for run in np.split(offsets, breaks) if len(run))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def erased_offsets(text: bytes) -> dict[int, Int64s]:
    """What `erased_text` has written."""
    found = {}
    for part in filter(None, text.decode().split(";")):
        partition, _, runs = part.partition(":")
        bounds = [run.partition("-") for run in runs.split(",")]
        offsets = [np.arange(int(first), int(last or first) + 1, dtype=np.int64) for first, _, last in bounds]
        found[int(partition)] = np.concatenate(offsets)
    return found


def united(several: Iterable[Mapping[int, Int64s]]) -> dict[int, Int64s]:
    """The offsets of all of these, by partition, sorted, each once."""
    found: dict[int, list[Int64s]] = {}
    for places in several:
        for partition, offsets in places.items():
            found.setdefault(partition, []).append(offsets)
    return {partition: np.unique(np.concatenate(offsets)) for partition, offsets in sorted(found.items())}


@frozen
class DataFile:
    """A file that was written and is to be committed: all that an `add` action says of it.

    Without rows (all were erased), the bounds say nothing.
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
    #: The greatest partition, where somebody else has put several into one file.
    last_partition: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataFile:
        return cls(**values)


@frozen
class ArchivedRange:
    """A partition's offsets from `start` up to, without, `end`, as they are in these files, ready to be committed.

    `count` and `checksum` are those of the records (see `writing.checksum`), `row_bytes` what their columns take in
    memory. Without records there are no files.
    """

    partition: int
    start: int
    end: int
    count: int = 0
    checksum: int = 0
    row_bytes: int = 0
    files: tuple[DataFile, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ArchivedRange:
        files = tuple(DataFile.from_dict(file) for file in values["files"])
        return cls(**{**values, "files": files})
