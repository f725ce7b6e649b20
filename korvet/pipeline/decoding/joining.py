"""Join the small files of typed and dlq tables.

Rows of a typed table are in no order that readers depend on, so any files with the same partition values may become one
file. The oldest are joined first, which keeps offsets together; with `cluster_by`, rows are sorted by these columns.
Old files lack columns that the table has gained; joined files have them, with nulls.

A commit replaces files only if all of them are still in the table. Decoded offsets do not change, so decoding goes on
meanwhile; a merge (upsert) or an erasure of the same files makes one of the two commits fail, and it starts again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from korvet.lake.compacting import CLASS_BYTES, Joins, below, in_chunks, without_large_ones
from korvet.lake.errors import DamagedFile
from korvet.lake.replacing import swap
from korvet.pipeline.decoding.clustering import Clustering
from korvet.pipeline.decoding.rewriting import conformed_rows, file_schema, written_instead
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable, Part

if TYPE_CHECKING:
    from korvet.pipeline.decoding.distributing import Distribute

# Sorted together are files of so many times the target size, and become as many files.
MOST_SORTED = 8


@frozen
class FileGroup:
    """Files with the same partition values that are to become one file, or a few sorted ones."""

    files: tuple[DecodedFile, ...]
    count: int = 1

    @property
    def chunks(self) -> list[Sequence[DecodedFile]]:
        """The files, divided into as many parts as files are to be written."""
        return [self.files[number :: self.count] for number in range(self.count)]


@frozen
class JoinedFiles:
    """The files written for a group."""

    group: FileGroup
    files: tuple[Part, ...]


def groups_of(table: DecodedTable, target_bytes: int) -> list[FileGroup]:
    """Return the files to join up to the target size; an empty list if the table is compact."""
    groups = []
    for there in _by_values(table):
        if table.cluster_by:
            small = [file for file in there if file.size < target_bytes // 2]
            chunks = in_chunks(small, MOST_SORTED * target_bytes) if small else ()
        else:
            chunks = map(without_large_ones, in_chunks(there, target_bytes))
        groups += [_group(table, files, target_bytes) for files in chunks if len(files) > 1]
    return groups


def _group(table: DecodedTable, files: Sequence[DecodedFile], target_bytes: int) -> FileGroup:
    count = round(sum(file.size for file in files) / target_bytes) if table.cluster_by else 1
    return FileGroup(tuple(files), max(1, count))


def groups_by_class(table: DecodedTable, target_bytes: int) -> list[FileGroup]:
    """Return as many files at a time as an archive joins after each commit, all below a size, the smallest first."""
    groups: list[FileGroup] = []
    for there in _by_values(table):
        small = ([file for file in there if file.size < limit] for limit in CLASS_BYTES)
        found = (below(files, limit) for files, limit in zip(small, CLASS_BYTES, strict=True))
        groups += [_group(table, files, target_bytes) for files in next(filter(None, found), ())]
    return groups


def _by_values(table: DecodedTable) -> Iterator[list[DecodedFile]]:
    """Yield the files of each combination of partition values, the oldest first."""
    found: dict[tuple[Any, ...], list[DecodedFile]] = {}
    for file in table.files:
        found.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
    yield from found.values()


@define
class DecodedJoins(Joins[DecodedTable, FileGroup, JoinedFiles]):
    """Joins the small files of a typed or dlq table, and sorts their rows if the table has columns for that."""

    #: Chooses the groups to join: `groups_of` or `groups_by_class`.
    find: Callable[[DecodedTable, int], list[FileGroup]] = groups_of
    #: Runs the sorting; None: in this process.
    distribute: Distribute | None = None
    #: Called with the name of each step before it begins. Tests kill the process between steps.
    on_step: Callable[[str], None] = lambda _: None
    #: Sorting needs memory for the rows of a file, so this process sorts one group at a time.
    _sorting: threading.Lock = field(factory=threading.Lock, init=False)

    def groups(self) -> list[FileGroup]:
        """Implement `Joins`."""
        return self.find(self.table, self.target_bytes)

    def joined(self, table: DecodedTable, group: FileGroup) -> JoinedFiles:
        """Implement `Joins`. Also raises what sorting elsewhere raises: SparkFailed, JavaEnded."""
        self.on_step("join")
        if not table.cluster_by:
            return JoinedFiles(group, (_joined(table, group),))
        work = Clustering(
            table.location, table.kind, table.topic, table.topic_id, table.cluster_by, group.count
        )
        paths = tuple(file.path for file in group.files)
        if self.distribute is not None:
            (parts,) = self.distribute(work, [paths])
            return JoinedFiles(group, tuple(parts))
        with self._sorting:
            return JoinedFiles(group, tuple(work(paths)))

    def replaced(self, several: Sequence[JoinedFiles]) -> DecodedTable:
        """Implement `Joins`."""
        self.on_step("before commit")
        made = swap(
            self.table,
            [file.remove_action(data_change=False) for each in several for file in each.group.files],
            [part.add_action(data_change=False) for each in several for part in each.files],
            lambda _: {},
        )
        self.on_step("after commit")
        return made


def _joined(table: DecodedTable, group: FileGroup) -> Part:
    """Write a group's file. Raises DamagedFile, Unreachable, and FileNotFoundError if a vacuum removed an input."""
    filesystem = table.location.filesystem()
    schema = file_schema(table)
    rows = (rows for file in group.files for rows in conformed_rows(table, file, schema, filesystem))
    part = written_instead(table, group.files, rows)
    if part is None:
        raise DamagedFile(f"{table.location}/{group.files[0].path} and the files after it have no rows.")
    return part
