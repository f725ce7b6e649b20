"""Erase the records of some keys permanently, in a way that the table can still be verified.

A file with such records is rewritten without them. The new file's name claims the same offsets and states how many
records were erased; its footer lists their offsets. A file whose records were all erased stays, empty. So the chain of
offsets is as complete as before, missing offsets are known to be erased, and readers skip them as they skip the holes
of a compacted topic. The archived offsets do not change.

Afterwards the newest version has no such rows. Files of older versions still have them, and so may files that were
never committed (an attempt that lost a race, an archiver that was killed). `old_files` finds these files and `remove`
deletes them. An interrupted erasure is completed by running it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, evolve, field, frozen

from korvet.lake.errors import CommitConflict, DamagedFile
from korvet.lake.file_reading import by_partition, erased_from, row_groups
from korvet.lake.file_writing import FileWriter, UInt64s, record_checksums, sync_folders
from korvet.lake.files import ERASED, DataFile, erased_text, file_path, file_range, foreign_path, united
from korvet.lake.parallel import results
from korvet.lake.range_checksums import REPLACED, without_records
from korvet.lake.replacing import replace
from korvet.lake.retrying import retried, retried_writing
from korvet.lake.schema import Int64s
from korvet.lake.store_errors import store_errors
from korvet.lake.table import LakeTable
from korvet.lake.table_features import refuse_other_features
from korvet.lake.table_files import TableFile

# Bytes of rewritten input files after which to commit.
COMMIT_BYTES = 1024**3
# Rounds before giving up, when other writers keep replacing or adding files.
ROUNDS = 100


@frozen
class Place:
    """Records of one partition to erase: offsets, in the order of the file, and record checksums."""

    partition: int
    offsets: Int64s
    record_checksums: UInt64s


@define
class Erased:
    """Result of an erasure, or of the search for records to erase."""

    files: int = 0
    #: Messages about files that could not be read and may hold such records.
    errors: list[str] = field(factory=list)
    #: By partition, the offsets of the erased records, in the order in which they were found.
    _offsets: dict[int, list[Int64s]] = field(factory=dict, init=False)

    def add(self, places: Iterable[Place]) -> None:
        for place in places:
            self._offsets.setdefault(place.partition, []).append(place.offsets)

    def counts(self) -> dict[int, int]:
        """Return the number of records per partition."""
        return {partition: sum(map(len, several)) for partition, several in sorted(self._offsets.items())}

    def places(self) -> dict[int, Int64s]:
        """Return the sorted offsets of the records per partition."""
        return {partition: np.unique(np.concatenate(several)) for partition, several in self._offsets.items()}


@define
class Erasure:
    """Erases the records of `keys` (see `key_set`) from one table.

    It may be interrupted at any time; each commit is complete.
    """

    table: LakeTable
    keys: pa.Array
    #: Called with the number of bytes that were searched, once per file.
    on_progress: Callable[[int], None] = lambda _: None
    done: Erased = field(factory=Erased)
    _filesystem: pafs.FileSystem = field(init=False)
    #: Paths of files without such records.
    _clean: set[str] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._filesystem = self.table.location.filesystem()

    def find(self) -> Erased:
        """Return the records to erase, without erasing them. Raises LakeError."""
        found = Erased()
        for _, places in self._found(self.table.files, found.errors):
            found.add(places)
            found.files += 1
        return found

    def run(self) -> Erased:
        """Erase until no file of the newest version has such records. Raises LakeError; `done` counts the commits."""
        refuse_other_features(self.table.location, self.table.delta)
        for _ in range(ROUNDS):
            self.table = retried(self.table.reopened)
            files = [file for file in self.table.files if file.path not in self._clean]
            if not files:
                return self.done
            with suppress(CommitConflict, FileNotFoundError):
                self._round(files)
        raise CommitConflict(
            f"{self.table.location}: others replace the same files all the time; try again later."
        )

    def _round(self, files: Sequence[TableFile]) -> None:
        waiting: list[tuple[TableFile, DataFile, list[Place]]] = []
        size = 0
        for file, places in self._found(files, self.done.errors):
            new = retried_writing(self.table.location, partial(self._written, file, places))
            waiting.append((file, new, places))
            size += file.size
            if size >= COMMIT_BYTES:
                self._commit(waiting)
                waiting, size = [], 0
        if waiting:
            self._commit(waiting)

    def _found(
        self, files: Sequence[TableFile], errors: list[str]
    ) -> Iterator[tuple[TableFile, list[Place]]]:
        """Yield each file with such records, and their places; remember the others as clean."""
        for file, places in results(self._places_or_damaged, files):
            self.on_progress(file.size)
            if isinstance(places, DamagedFile):
                errors.append(f"{places} It may hold such records.")
            elif places:
                yield file, places
                continue
            self._clean.add(file.path)

    def _places_or_damaged(self, file: TableFile) -> list[Place] | DamagedFile:
        try:
            return self._places(file)
        except DamagedFile as error:
            return error

    def _places(self, file: TableFile) -> list[Place]:
        """Return the places of such records in a file."""
        # Two passes: most row groups have no such record, so the first pass reads only the keys.
        if not any(
            has_any(rows, self.keys) for rows in row_groups(self.table, file, self._filesystem, ["key"])
        ):
            return []
        found: dict[int, list[pa.Table]] = {}
        columns = ["partition", "offset", "timestamp_ms", "key", "value"]
        for rows in row_groups(self.table, file, self._filesystem, columns):
            some = rows.filter(_among(rows, self.keys))
            for partition, theirs in by_partition(some):
                found.setdefault(partition, []).append(theirs)
        whole = {partition: pa.concat_tables(several) for partition, several in sorted(found.items())}
        return [
            Place(partition, rows["offset"].to_numpy(), record_checksums(rows))
            for partition, rows in whole.items()
        ]

    def _written(self, file: TableFile, places: Sequence[Place]) -> DataFile:
        """Write the file that replaces `file`, without such records."""
        before = erased_from(self.table, file, self._filesystem)
        erased = united([before, *({place.partition: place.offsets} for place in places)])
        if file.held is None:
            path = foreign_path(file.date)
        else:
            more = sum(len(place.offsets) for place in places)
            path = file_path(evolve(file.held, erased=file.held.erased + more), file.date)
        location = self.table.location
        with FileWriter.open(location, path, file.date, filesystem=self._filesystem) as writer:
            for rows in row_groups(self.table, file, self._filesystem):
                writer.write(rows.filter(pc.invert(_among(rows, self.keys))))
            written = writer.close({ERASED: erased_text(erased)})
        sync_folders(location, [written])
        return written

    def _commit(self, waiting: Sequence[tuple[TableFile, DataFile, list[Place]]]) -> None:
        every = [place for _, _, places in waiting for place in places]

        def commit_info(table: LakeTable) -> Mapping[str, Any]:
            by_partition: dict[int, list[Place]] = {}
            for place in every:
                by_partition.setdefault(place.partition, []).append(place)
            recomputed = []
            for partition, places in by_partition.items():
                offsets = np.concatenate([place.offsets for place in places])
                gone = np.concatenate([place.record_checksums for place in places])
                recomputed += without_records(table.ranges_of(partition), offsets, gone)
            return {REPLACED: [each.to_list() for each in recomputed]}

        gone, new = [file for file, _, _ in waiting], [file for _, file, _ in waiting]
        self.table = retried(
            lambda: replace(self.table, gone, new, data_change=True, commit_info=commit_info)
        )
        self._clean.update(file.path for file in new)
        self.done.files += len(gone)
        self.done.add(every)


def key_set(keys: Iterable[bytes]) -> pa.Array:
    """Return keys as the sorted array that `Erasure` searches for."""
    return pa.array(sorted(set(keys)), pa.binary())


def has_any(rows: pa.Table, keys: pa.Array) -> bool:
    return bool(pc.any(_among(rows, keys)).as_py())


def _among(rows: pa.Table, keys: pa.Array) -> pa.ChunkedArray:
    """Return a mask of the rows whose key is one of `keys`."""
    return pc.is_in(rows["key"], value_set=keys)


# --- What was erased --------------------------------------------------------------------------------------


def erased_places(table: LakeTable) -> dict[int, Int64s]:
    """Return, by partition, the sorted offsets of all records that were erased from the snapshot's files.

    Reads the footers of these files. Raises LakeError.
    """
    filesystem = table.location.filesystem()
    with store_errors(table.location):
        return united(erased_from(table, file, filesystem) for file in table.files)


def record_count(table: LakeTable) -> int:
    """Return how many records a table holds. Reads the footers of files whose commits have no statistics."""
    uncounted = [file.path for file in table.files if file.count is None]
    counted = sum(file.count or 0 for file in table.files)
    if not uncounted:
        return counted
    filesystem = table.location.filesystem()
    for path in uncounted:
        with filesystem.open_input_file(f"{table.location.path}/{path}") as source:
            counted += pq.read_metadata(source).num_rows
    return counted


def erased_count(table: LakeTable) -> int:
    """Return the number of records erased from files with our names; other files do not state it."""
    return sum(file.held.erased for file in table.files if file.held is not None)


# --- Old files --------------------------------------------------------------------------------------------


@frozen
class OldFile:
    """A file in a table's folder that its newest version does not have."""

    path: str  # inside the table
    size: int
    #: True if an archiver may still commit it: it goes beyond the archived offset.
    may_come: bool
    #: False for a file that is being written, or whose writer was killed.
    is_readable: bool = True

    @property
    def is_removable(self) -> bool:
        """True if no writer that started before the erasure can still commit this file."""
        return self.is_readable and not self.may_come


def old_files(
    table: LakeTable, keys: pa.Array, on_progress: Callable[[int], None] = lambda _: None
) -> Iterator[OldFile]:
    """Yield files outside of the snapshot that have records of these keys, or cannot be read. Raises Unreachable."""
    filesystem = table.location.filesystem()
    there = {file.path for file in table.files}
    with store_errors(table.location):
        selector = pafs.FileSelector(table.location.path, recursive=True, allow_not_found=True)
        infos = [info for info in filesystem.get_file_info(selector) if info.path.endswith(".parquet")]
    files = {info.path.removeprefix(table.location.path).lstrip("/"): info.size for info in infos}
    beside = [(path, size) for path, size in files.items() if path not in there and not path.startswith("_")]

    def inspected(file: tuple[str, int]) -> OldFile | None:
        return _old_file(table, keys, filesystem, *file)

    for (_, size), found in results(inspected, beside):
        on_progress(size)
        if found is not None:
            yield found


def _old_file(
    table: LakeTable, keys: pa.Array, filesystem: pafs.FileSystem, path: str, size: int
) -> OldFile | None:
    held = file_range(path)
    may_come = held is not None and held.end > table.archived_up_to.get(held.partition, 0)
    file = TableFile(path, size, None, None, None, None, None, None, None, held)
    try:
        is_found = any(has_any(rows, keys) for rows in row_groups(table, file, filesystem, ["key"]))
    except FileNotFoundError:
        return None
    except DamagedFile:
        return OldFile(path, size, may_come, is_readable=False)
    return OldFile(path, size, may_come) if is_found else None


def remove(table: LakeTable, files: Iterable[OldFile]) -> None:
    """Delete old files; older versions of the table become unreadable. Raises Unreachable."""
    with store_errors(table.location):
        table.location.delete_files(file.path for file in files)
