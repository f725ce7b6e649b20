"""The records of some keys removed for good, and the table still provable.

A file that has such records is written anew without them, under a name that stands for the same offsets and says how
many were erased; which ones, its footer says. A file of which nothing is left stays, empty. So the chain of offsets is
whole as before, what is not there is known to have been erased, and readers pass over it as over a compacted topic's
holes. The numbers stay, too.

The rows are gone from the newest version then. They are still in the files of older ones, and in files that no version
has (of commits that others were faster with, of archivers that were killed): `old_files` finds these, and `remove`
removes them. Whatever is killed, to do it again does what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, evolve, field, frozen

from korvet.lake.at_once import results
from korvet.lake.errors import CommitConflict, DamagedFile
from korvet.lake.files import ERASED, DataFile, erased_text, file_path, file_range, foreign_path, united
from korvet.lake.reading import by_partition, erased_from, row_groups
from korvet.lake.replacing import refuse_deletion_vectors, replace
from korvet.lake.schema import Int64s
from korvet.lake.table import LakeTable, store_errors
from korvet.lake.table_files import TableFile
from korvet.lake.told import ANEW, without_records
from korvet.lake.writing import FileWriter, UInt64s, mixes, sync_folders

# Of files that were written anew, before it is committed.
COMMIT_BYTES = 1024**3
# How often it begins anew when others replace or add files all the time.
ROUNDS = 100


@frozen
class Place:
    """Records of one partition that are to go: their offsets, sorted as the file has them, and their mixes."""

    partition: int
    offsets: Int64s
    mixes: UInt64s


@define
class Erased:
    """What was erased from a table, or would be."""

    files: int = 0
    #: Files that could not be read, and may hold such records.
    errors: list[str] = field(factory=list)
    #: By partition, the offsets of the records, as they were found.
    _offsets: dict[int, list[Int64s]] = field(factory=dict, init=False)

    def add(self, places: Iterable[Place]) -> None:
        for place in places:
            self._offsets.setdefault(place.partition, []).append(place.offsets)

    def counts(self) -> dict[int, int]:
        """How many records, by partition."""
        return {partition: sum(map(len, several)) for partition, several in sorted(self._offsets.items())}

    def places(self) -> dict[int, Int64s]:
        """By partition, the offsets of the records, sorted."""
        return {partition: np.unique(np.concatenate(several)) for partition, several in self._offsets.items()}


@define
class Erasure:
    """Erases the records of `keys` (see `key_set`) from one table.

    What was committed stays when it is ended at any moment.
    """

    table: LakeTable
    keys: pa.Array
    #: Called with the bytes that were looked through, file by file.
    on_progress: Callable[[int], None] = lambda _: None
    done: Erased = field(factory=Erased)
    _filesystem: pafs.FileSystem = field(init=False)
    #: Paths of files that have no such records.
    _clean: set[str] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._filesystem = self.table.location.filesystem()

    def find(self) -> Erased:
        """What there is to erase. Raises LakeError."""
        found = Erased()
        for _, places in self._found(self.table.files, found.errors):
            found.add(places)
            found.files += 1
        return found

    def run(self) -> Erased:
        """Erase until no file of the newest version has any. Raises LakeError; `done` has what was committed."""
        refuse_deletion_vectors(self.table.location, self.table.delta)
        for _ in range(ROUNDS):
            self.table = self.table.reopened()
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
            waiting.append((file, self._written(file, places), places))
            size += file.size
            if size >= COMMIT_BYTES:
                self._commit(waiting)
                waiting, size = [], 0
        if waiting:
            self._commit(waiting)

    def _found(
        self, files: Sequence[TableFile], errors: list[str]
    ) -> Iterator[tuple[TableFile, list[Place]]]:
        """The files that have such records, and where; the others are clean from now on."""
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
        """Where a file has such records; only keys are read of row groups that have none."""
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
        return [Place(partition, rows["offset"].to_numpy(), mixes(rows)) for partition, rows in whole.items()]

    def _written(self, file: TableFile, places: Sequence[Place]) -> DataFile:
        """A file in the place of another one, without such records."""
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

        def told(table: LakeTable) -> Mapping[str, Any]:
            by_partition: dict[int, list[Place]] = {}
            for place in every:
                by_partition.setdefault(place.partition, []).append(place)
            anew = []
            for partition, places in by_partition.items():
                offsets = np.concatenate([place.offsets for place in places])
                gone = np.concatenate([place.mixes for place in places])
                anew += without_records(table.ranges_of(partition), offsets, gone)
            return {ANEW: [each.to_list() for each in anew]}

        gone, new = [file for file, _, _ in waiting], [file for _, file, _ in waiting]
        self.table = replace(self.table, gone, new, data_change=True, told=told)
        self._clean.update(file.path for file in new)
        self.done.files += len(gone)
        self.done.add(every)


def key_set(keys: Iterable[bytes]) -> pa.Array:
    """Keys, as they are looked for."""
    return pa.array(sorted(set(keys)), pa.binary())


def has_any(rows: pa.Table, keys: pa.Array) -> bool:
    return bool(pc.any(_among(rows, keys)).as_py())


def _among(rows: pa.Table, keys: pa.Array) -> pa.ChunkedArray:
    """For each row whether its key is one of these."""
    return pc.is_in(rows["key"], value_set=keys)


# --- What was erased --------------------------------------------------------------------------------------


def erased_places(table: LakeTable) -> dict[int, Int64s]:
    """By partition, the offsets of all records that were erased, as far as the snapshot stands for them; sorted.

    Reads the footers of files that records were erased from. Raises LakeError.
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
    """How many records were erased from the files that are ours, by their names."""
    return sum(file.held.erased for file in table.files if file.held is not None)


# --- Old files --------------------------------------------------------------------------------------------


@frozen
class OldFile:
    """A file in a table's folder that its newest version does not have."""

    path: str  # inside the table
    size: int
    #: Whether an archiver may be about to commit it: it goes beyond what is archived.
    may_come: bool
    #: Files that were being written when their writer was killed, or are right now, cannot be read.
    is_readable: bool = True

    @property
    def is_removable(self) -> bool:
        """Whether nobody can be about to commit it: who would, has not seen that its records were erased."""
        return self.is_readable and not self.may_come


def old_files(
    table: LakeTable, keys: pa.Array, on_progress: Callable[[int], None] = lambda _: None
) -> Iterator[OldFile]:
    """The files beside a snapshot that have records of these keys, or cannot be read. Raises Unreachable."""
    filesystem = table.location.filesystem()
    there = {file.path for file in table.files}
    with store_errors(table.location):
        selector = pafs.FileSelector(table.location.path, recursive=True, allow_not_found=True)
        infos = [info for info in filesystem.get_file_info(selector) if info.path.endswith(".parquet")]
    files = {info.path.removeprefix(table.location.path).lstrip("/"): info.size for info in infos}
    beside = [(path, size) for path, size in files.items() if path not in there and not path.startswith("_")]

    def looked_into(file: tuple[str, int]) -> OldFile | None:
        return _old_file(table, keys, filesystem, *file)

    for (_, size), found in results(looked_into, beside):
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
    """Remove old files now: older versions of the table that had them can be read no more. Raises Unreachable."""
    with store_errors(table.location):
        table.location.delete_files(file.path for file in files)
