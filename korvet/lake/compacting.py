"""Join small files: contiguous ranges become one range, with one or a few files per date.

A commit of the archive writes one file per partition and date, however few records there are. Compaction joins whole
ranges with all their dates. The result is one range, from the first range's start to the last range's end, and its
files are named accordingly (see `files`). So the names prove as much as before, and nothing else has to be recorded.
Within a partition and date, files are concatenated in the order of their offsets.

Retention drops whole ranges, so ranges of several days are not joined: a range joins only if its newest date is not
later than the newest date so far. A late record's date then has one file for each day on which one arrived.

A joined range has at most the target size per date, and at most MANY_DATES times the target. A range that is much
larger than all ranges after it is not rewritten, so that frequent small commits do not rewrite large files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Generic, Protocol, TypeVar

import pyarrow.fs as pafs
from attrs import Factory, define, field, frozen

from korvet.lake.chain import Stretch, without
from korvet.lake.errors import CommitConflict, DamagedFile
from korvet.lake.file_reading import erased_from, row_groups
from korvet.lake.file_writing import FileWriter, sync_folders
from korvet.lake.files import ERASED, DataFile, FileRange, erased_text, file_path, united
from korvet.lake.parallel import results
from korvet.lake.range_checksums import REPLACED, RangeChecksum, summed
from korvet.lake.record_checksum import RecordChecksum
from korvet.lake.replacing import replace
from korvet.lake.retrying import retried, retried_writing
from korvet.lake.snapshots import File, Snapshot
from korvet.lake.table import LakeTable
from korvet.lake.table_features import refuse_other_features
from korvet.lake.table_files import TableFile

TARGET_BYTES = 128_000_000
MANY_DATES = 16
# A range of at least LEFT_BYTES is not rewritten if the ranges after it are LEFT_FACTOR times smaller.
LEFT_BYTES = 1_000_000
LEFT_FACTOR = 8
# Sizes below which adjacent ranges are joined when there are CLASS_RANGES of them.
CLASS_BYTES = (1_000_000, 8_000_000, 64_000_000)
CLASS_RANGES = 16
# Bytes of joined input files after which to commit.
COMMIT_BYTES = 1024**3
# Rounds before giving up. A new round starts when other writers replaced files, or when joined ranges can be joined
# again.
ROUNDS = 20


class Sized(Protocol):
    """Something with a size in bytes."""

    @property
    def size(self) -> int: ...


R = TypeVar("R", bound=Sized)


@frozen(slots=False)
class HeldRange:
    """A range whose files are all in the snapshot."""

    partition: int
    start: int
    end: int
    files: tuple[TableFile, ...]

    @cached_property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def dates(self) -> frozenset[str | None]:
        return frozenset(file.date for file in self.files)

    @property
    def newest(self) -> str:
        """The newest date, or an empty string if no file has one."""
        return max(date or "" for date in self.dates)


@frozen(slots=False)
class Group:
    """Contiguous ranges that are to become one range."""

    ranges: tuple[HeldRange, ...]
    target_bytes: int

    @property
    def partition(self) -> int:
        return self.ranges[0].partition

    @property
    def start(self) -> int:
        return self.ranges[0].start

    @property
    def end(self) -> int:
        return self.ranges[-1].end

    @cached_property
    def files(self) -> list[TableFile]:
        return [file for each in self.ranges for file in each.files]

    @cached_property
    def chunks(self) -> list[list[TableFile]]:
        """The files to join into one file each: by date, in the order of their offsets."""
        by_date: dict[str | None, list[TableFile]] = {}
        for file in self.files:
            by_date.setdefault(file.date, []).append(file)
        ordered = sorted(by_date.items(), key=lambda item: item[0] or "")
        return [chunk for _, files in ordered for chunk in in_chunks(files, self.target_bytes)]

    @property
    def is_worthwhile(self) -> bool:
        return len(self.chunks) < len(self.files)


def in_chunks(files: Sequence[R], target_bytes: int) -> Iterator[list[R]]:
    """Split files into chunks of at most `target_bytes`. A larger file is a chunk."""
    chunk: list[R] = []
    size = 0
    for file in files:
        if chunk and size + file.size > target_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(file)
        size += file.size
    yield chunk


def groups_of(table: LakeTable, target_bytes: int, ends: Mapping[int, int] | None = None) -> list[Group]:
    """Return the ranges to join, by partition and offset; an empty list if the table is compact.

    `ends` limits each partition to ranges below an offset.
    """
    groups = []
    for partition, end in (table.archived_up_to if ends is None else ends).items():
        there = [each for each in held_ranges(table, partition) if each.end <= end]
        for ranges in _together(there, target_bytes):
            group = Group(tuple(ranges), target_bytes)
            if group.is_worthwhile:
                groups.append(group)
    return groups


def groups_by_class(
    table: LakeTable, target_bytes: int, ends: Mapping[int, int] | None = None
) -> list[Group]:
    """Return CLASS_RANGES adjacent ranges at a time to join, all below a size of CLASS_BYTES, the smallest first.

    For tables that are joined after each commit: fewer than CLASS_RANGES small ranges remain side by side, and a
    record is rewritten a few times. The parameters are those of `groups_of`.
    """
    groups = []
    for partition, end in (table.archived_up_to if ends is None else ends).items():
        there = [each for each in held_ranges(table, partition) if each.end <= end]
        for run in _joinable(there):
            several = next(filter(None, (below(run, limit) for limit in CLASS_BYTES)), ())
            groups += [Group(tuple(ranges), target_bytes) for ranges in several]
    return [group for group in groups if group.is_worthwhile]


def _joinable(ranges: Sequence[HeldRange]) -> Iterator[list[HeldRange]]:
    """Split ranges into runs that may become one range, of any size."""
    run: list[HeldRange] = []
    newest = ""
    for each in ranges:
        if run and not (run[-1].end == each.start and each.newest <= newest):
            yield run
            run = []
        run.append(each)
        newest = max(newest, each.newest)
    if run:
        yield run


def below(run: Sequence[R], limit_bytes: int) -> list[list[R]]:
    """Return the first CLASS_RANGES of each stretch of ranges below a size, and the next ones, if there are as many."""
    found: list[list[R]] = []
    stretch: list[R] = []
    for each in run:
        if each.size >= limit_bytes:
            stretch = []
            continue
        stretch.append(each)
        if len(stretch) == CLASS_RANGES:
            found.append(stretch)
            stretch = []
    return found


def held_ranges(table: LakeTable, partition: int) -> list[HeldRange]:
    """Return a partition's complete ranges in order, without those that overlap another range."""
    found: dict[tuple[int, int, int], list[TableFile]] = {}
    for file in table.index.named(partition):
        if file.held is not None:
            found.setdefault((file.held.start, file.held.end, file.held.pieces), []).append(file)
    ranges: list[HeldRange] = []
    reached = -1
    for (start, end, pieces), files in sorted(found.items()):
        if ranges and start < ranges[-1].end:
            ranges.pop()
        elif start >= reached and len(files) == pieces == len({file.held for file in files}):
            ranges.append(HeldRange(partition, start, end, tuple(sorted(files, key=_piece))))
        reached = max(reached, end)
    return ranges


def _piece(file: TableFile) -> int:
    return 0 if file.held is None else file.held.piece


def _together(ranges: Sequence[HeldRange], target_bytes: int) -> Iterator[list[HeldRange]]:
    """Split ranges into runs that may each become one range."""
    run: list[HeldRange] = []
    newest = ""
    for each in ranges:
        may_join = run and run[-1].end == each.start and each.newest <= newest
        if run and not (may_join and _size(run) + each.size <= _limit([*run, each], target_bytes)):
            yield without_large_ones(run)
            run = []
        run.append(each)
        newest = max(newest, each.newest)
    if run:
        yield without_large_ones(run)


def _limit(ranges: Sequence[HeldRange], target_bytes: int) -> int:
    dates = frozenset[str | None]().union(*(each.dates for each in ranges))
    return target_bytes * min(len(dates), MANY_DATES)


def without_large_ones(run: list[R]) -> list[R]:
    """Leave out ranges at the beginning that are much larger than all ranges after them."""
    first = 0
    while first < len(run) - 1 and run[first].size > max(LEFT_BYTES, LEFT_FACTOR * _size(run[first + 1 :])):
        first += 1
    return run[first:]


def _size(ranges: Sequence[Sized]) -> int:
    return sum(each.size for each in ranges)


# --- Joining ----------------------------------------------------------------------------------------------


@define
class Compacted:
    """Result of a compaction: files and bytes before and after."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    #: Groups that could not be joined, and the reason.
    errors: list[str] = Factory(list)


class Joinable(Protocol):
    """Files that are to become fewer files."""

    @property
    def files(self) -> Sequence[File]: ...


class Written(Protocol):
    """The files written for a group."""

    @property
    def group(self) -> Joinable: ...
    @property
    def files(self) -> Sequence[File]: ...


T = TypeVar("T", bound=Snapshot)
G = TypeVar("G", bound=Joinable)
W = TypeVar("W", bound=Written)


@define
class Joins(ABC, Generic[T, G, W]):
    """Joins the small files of one table. It may be interrupted at any time; each commit is complete."""

    table: T
    target_bytes: int = TARGET_BYTES
    #: Called with the number of bytes that were read, once per group.
    on_progress: Callable[[int], None] = lambda _: None
    done: Compacted = field(factory=Compacted)
    #: The first file of each group with a damaged file.
    _damaged: set[str] = field(factory=set, init=False)

    @abstractmethod
    def groups(self) -> list[G]:
        """Return the groups to join in the snapshot."""

    @abstractmethod
    def joined(self, table: T, group: G) -> W:
        """Write a group's files. Raises DamagedFile, Unreachable, and FileNotFoundError after a vacuum."""

    @abstractmethod
    def replaced(self, several: Sequence[W]) -> T:
        """Commit the files of several groups in place of those that they are made of. Raises CommitConflict."""

    def run(self) -> Compacted:
        """Join until there is nothing more to join. Raises LakeError; `done` still counts what was committed."""
        refuse_other_features(self.table.location, self.table.delta)
        for _ in range(ROUNDS):
            groups = [group for group in self.groups() if group.files[0].path not in self._damaged]
            if not groups:
                return self.done
            try:
                self._round(groups)
            except (CommitConflict, FileNotFoundError):
                self.table = self.table.reopened()
        raise CommitConflict(
            f"{self.table.location}: others replace the same files all the time; try again later."
        )

    def _round(self, groups: Sequence[G]) -> None:
        waiting: list[W] = []
        size = 0
        for group, joined in results(partial(self._joined_or_damaged, self.table), groups):
            read = sum(file.size for file in group.files)
            self.on_progress(read)
            if isinstance(joined, DamagedFile):
                self._damaged.add(group.files[0].path)
                self.done.errors.append(str(joined))
                continue
            waiting.append(joined)
            size += read
            if size >= COMMIT_BYTES:
                self._commit(waiting)
                waiting, size = [], 0
        if waiting:
            self._commit(waiting)

    def _joined_or_damaged(self, table: T, group: G) -> W | DamagedFile:
        try:
            return retried_writing(table.location, partial(self.joined, table, group))
        except DamagedFile as error:
            return error

    def _commit(self, several: Sequence[W]) -> None:
        self.table = retried(lambda: self.replaced(several))
        gone = [file.size for each in several for file in each.group.files]
        new = [file.size for each in several for file in each.files]
        self.done.files_before += len(gone)
        self.done.files_after += len(new)
        self.done.bytes_before += sum(gone)
        self.done.bytes_after += sum(new)


@define
class Compaction(Joins[LakeTable, Group, "Joined"]):
    """Joins the small files of an archive."""

    #: Chooses the groups to join, such as `groups_of` and `groups_by_class`.
    find: Callable[[LakeTable, int, Mapping[int, int] | None], list[Group]] = groups_of
    #: Archived offsets at the start. Newer ranges are left out, so that the run ends while an archiver goes on.
    _ends: Mapping[int, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ends = self.table.archived_up_to

    def groups(self) -> list[Group]:
        """Implement `Joins`."""
        return self.find(self.table, self.target_bytes, self._ends)

    def joined(self, table: LakeTable, group: Group) -> Joined:
        """Implement `Joins`."""
        return _joined(table, group)

    def replaced(self, several: Sequence[Joined]) -> LakeTable:
        """Implement `Joins`."""
        gone = [file for joined in several for file in joined.group.files]
        new = [file for joined in several for file in joined.files]
        commit_info = {REPLACED: [joined.recorded.to_list() for joined in several]}
        return replace(self.table, gone, new, data_change=False, commit_info=lambda _: commit_info)


@frozen
class Joined:
    """The files written for a group, and their range checksum."""

    group: Group
    files: list[DataFile]
    recorded: RangeChecksum


def _joined(table: LakeTable, group: Group) -> Joined:
    """Write a group's files. Raises DamagedFile, Unreachable, and FileNotFoundError if a vacuum removed an input."""
    checksum = RecordChecksum(group.partition)
    filesystem = table.location.filesystem()
    files = []
    for number, chunk in enumerate(group.chunks, 1):
        erased = sum(file.held.erased for file in chunk if file.held is not None)
        held = FileRange(group.partition, group.start, group.end, number, len(group.chunks), erased)
        files.append(_written(table, chunk, held, checksum, filesystem))
    sync_folders(table.location, files)
    recorded = RangeChecksum(group.partition, group.start, group.end, checksum.count, checksum.checksum)
    expected = expectation(table, group.partition, group.start, group.end)
    if expected is not None and expected != recorded:
        raise DamagedFile(
            f"{table.location}: offsets {group.start} to {group.end - 1} of partition {group.partition} are not the "
            "committed records, so their files are left unchanged; korvet lake audit --checksums reports details."
        )
    return Joined(group, files, recorded)


def _written(
    table: LakeTable,
    chunk: Sequence[TableFile],
    held: FileRange,
    checksum: RecordChecksum,
    filesystem: pafs.FileSystem,
) -> DataFile:
    path = file_path(held, chunk[0].date)
    erased = united(erased_from(table, file, filesystem) for file in chunk)
    last = -1
    with FileWriter.open(table.location, path, chunk[0].date, filesystem=filesystem) as writer:
        for file in chunk:
            for rows in row_groups(table, file, filesystem):
                last = checksum.add_in_order(rows, last, f"{table.location}/{file.path}")
                writer.write(rows)
        return writer.close({ERASED: erased_text(erased)} if held.erased else None)


def expectation(table: LakeTable, partition: int, start: int, end: int) -> RangeChecksum | None:
    """Return the recorded count and checksum of [start, end), or None if the log no longer covers all of it."""
    inside = table.ranges_of(partition).within(start, end)
    recorded = [Stretch(each.start, each.end) for each in inside]
    recorded += [Stretch(gap.start, gap.end) for gap in table.gaps if gap.partition == partition]
    if without(Stretch(max(start, table.start(partition) or 0), end), recorded):
        return None
    return summed(partition, start, end, inside)
