"""Small files joined: ranges that follow each other become one range, its files one or a few for each date.

A commit of the archive makes a file for each partition and date, however few records there are. Joined are whole
ranges, with all their dates: what comes of them is a range again, from the first one's start to the last one's end, and
its files are named so (see `files`). So the names prove the same as before, and nothing else has to be remembered.
Within a partition and date, files are put one behind the other, which keeps rows in the order of their offsets.

What is dropped as too old goes by ranges, so those of several days are not made one: ranges are joined as long as the
newest date so far is the same. A late record's date then has one file for each day on which there was one.

No range is joined into one of more than the target for each date, or of MANY_DATES times the target; and one that is
far larger than all that is behind it is left as it is, so that little by little nothing is written often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import pyarrow.fs as pafs
from attrs import Factory, define, field, frozen

from korvet.lake.at_once import results
from korvet.lake.chain import Stretch, without
from korvet.lake.errors import CommitConflict, DamagedFile
from korvet.lake.files import ERASED, DataFile, FileRange, erased_text, file_path, united
from korvet.lake.reading import erased_from, row_groups
from korvet.lake.replacing import refuse_deletion_vectors, replace
from korvet.lake.table import LakeTable
from korvet.lake.table_files import TableFile
from korvet.lake.tally import Tally
from korvet.lake.told import ANEW, Told, summed
from korvet.lake.writing import FileWriter, sync_folders

TARGET_BYTES = 128_000_000
MANY_DATES = 16
# A range of at least so many bytes is not written anew for what is this many times smaller.
LEFT_BYTES = 1_000_000
LEFT_FACTOR = 8
# Of files that were joined, before it is committed.
COMMIT_BYTES = 1024**3
# How often it begins anew when others replace the same files, or when what was joined can be joined further.
ROUNDS = 20


@frozen(slots=False)
class HeldRange:
    """A range all of whose files are there."""

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
        """The newest date, an empty text where there is none."""
        return max(date or "" for date in self.dates)


@frozen(slots=False)
class Group:
    """Ranges that follow each other and are to be one."""

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
        """The files that are to become one, by date, each in the order of their offsets."""
        by_date: dict[str | None, list[TableFile]] = {}
        for file in self.files:
            by_date.setdefault(file.date, []).append(file)
        ordered = sorted(by_date.items(), key=lambda item: item[0] or "")
        return [chunk for _, files in ordered for chunk in _chunks(files, self.target_bytes)]

    @property
    def is_worthwhile(self) -> bool:
        return len(self.chunks) < len(self.files)


def _chunks(files: Sequence[TableFile], target_bytes: int) -> Iterator[list[TableFile]]:
    chunk: list[TableFile] = []
    size = 0
    for file in files:
        if chunk and size + file.size > target_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(file)
        size += file.size
    yield chunk


def groups_of(table: LakeTable, target_bytes: int, ends: Mapping[int, int] | None = None) -> list[Group]:
    """What is to be joined, by partition and offset; nothing in a table that is compact.

    `ends` are offsets not to go beyond, by partition.
    """
    groups = []
    for partition, end in (table.archived_up_to if ends is None else ends).items():
        there = [each for each in held_ranges(table, partition) if each.end <= end]
        for ranges in _together(there, target_bytes):
            group = Group(tuple(ranges), target_bytes)
            if group.is_worthwhile:
                groups.append(group)
    return groups


def held_ranges(table: LakeTable, partition: int) -> list[HeldRange]:
    """A partition's ranges, in order; none that lacks files, or that overlaps with another one."""
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
    """The ranges in runs, each of which may become one."""
    run: list[HeldRange] = []
    newest = ""
    for each in ranges:
        may_join = run and run[-1].end == each.start and each.newest <= newest
        if run and not (may_join and _size(run) + each.size <= _limit([*run, each], target_bytes)):
            yield _without_large_ones(run)
            run = []
        run.append(each)
        newest = max(newest, each.newest)
    if run:
        yield _without_large_ones(run)


def _limit(ranges: Sequence[HeldRange], target_bytes: int) -> int:
    dates = frozenset[str | None]().union(*(each.dates for each in ranges))
    return target_bytes * min(len(dates), MANY_DATES)


def _without_large_ones(run: list[HeldRange]) -> list[HeldRange]:
    first = 0
    while first < len(run) - 1 and run[first].size > max(LEFT_BYTES, LEFT_FACTOR * _size(run[first + 1 :])):
        first += 1
    return run[first:]


def _size(ranges: Sequence[HeldRange]) -> int:
    return sum(each.size for each in ranges)


# --- Joining ----------------------------------------------------------------------------------------------


@define
class Compacted:
    """What was done to a table: how many files and bytes have become how many."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    #: What could not be joined, and why.
    errors: list[str] = Factory(list)


@define
class Compaction:
    """Joins the small files of one table. What was committed stays when it is ended at any moment."""

    table: LakeTable
    target_bytes: int = TARGET_BYTES
    #: Called with bytes that were read, now and then.
    on_progress: Callable[[int], None] = lambda _: None
    done: Compacted = field(factory=Compacted)
    _damaged: set[tuple[int, int]] = field(factory=set, init=False)
    #: An archiver that never rests is not run after.
    _ends: Mapping[int, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ends = self.table.archived_up_to

    def run(self) -> Compacted:
        """Join until there is nothing more to join. Raises LakeError; `done` says what was committed before."""
        refuse_deletion_vectors(self.table.location, self.table.delta)
        for _ in range(ROUNDS):
            groups = [group for group in self.groups() if (group.partition, group.start) not in self._damaged]
            if not groups:
                return self.done
            try:
                self._round(groups)
            except (CommitConflict, FileNotFoundError):
                self.table = self.table.reopened()
        raise CommitConflict(
            f"{self.table.location}: others replace the same files all the time; try again later."
        )

    def groups(self) -> list[Group]:
        return groups_of(self.table, self.target_bytes, self._ends)

    def _round(self, groups: Sequence[Group]) -> None:
        waiting: list[Joined] = []
        size = 0
        for group, joined in results(partial(_joined_or_damaged, self.table), groups):
            read = sum(file.size for file in group.files)
            self.on_progress(read)
            if isinstance(joined, DamagedFile):
                self._damaged.add((group.partition, group.start))
                self.done.errors.append(str(joined))
                continue
            waiting.append(joined)
            size += read
            if size >= COMMIT_BYTES:
                self._commit(waiting)
                waiting, size = [], 0
        if waiting:
            self._commit(waiting)

    def _commit(self, several: Sequence[Joined]) -> None:
        gone = [file for joined in several for file in joined.group.files]
        new = [file for joined in several for file in joined.files]
        told = {ANEW: [joined.told.to_list() for joined in several]}
        self.table = replace(self.table, gone, new, data_change=False, told=lambda _: told)
        self.done.files_before += len(gone)
        self.done.files_after += len(new)
        self.done.bytes_before += sum(file.size for file in gone)
        self.done.bytes_after += sum(file.size for file in new)


@frozen
class Joined:
    """The files of a group, written, and what they hold."""

    group: Group
    files: list[DataFile]
    told: Told


def _joined_or_damaged(table: LakeTable, group: Group) -> Joined | DamagedFile:
    try:
        return _joined(table, group)
    except DamagedFile as error:
        return error


def _joined(table: LakeTable, group: Group) -> Joined:
    """Write a group's files. Raises DamagedFile, Unreachable, and FileNotFoundError where a vacuum was faster."""
    tally = Tally(group.partition)
    filesystem = table.location.filesystem()
    files = []
    for number, chunk in enumerate(group.chunks, 1):
        erased = sum(file.held.erased for file in chunk if file.held is not None)
        held = FileRange(group.partition, group.start, group.end, number, len(group.chunks), erased)
        files.append(_written(table, chunk, held, tally, filesystem))
    sync_folders(table.location, files)
    told = Told(group.partition, group.start, group.end, tally.count, tally.checksum)
    expected = expectation(table, group.partition, group.start, group.end)
    if expected is not None and expected != told:
        raise DamagedFile(
            f"{table.location}: offsets {group.start} to {group.end - 1} of partition {group.partition} are not the "
            "records that were committed, so their files stay as they are; korvet lake audit --checksums says more."
        )
    return Joined(group, files, told)


def _written(
    table: LakeTable, chunk: Sequence[TableFile], held: FileRange, tally: Tally, filesystem: pafs.FileSystem
) -> DataFile:
    path = file_path(held, chunk[0].date)
    erased = united(erased_from(table, file, filesystem) for file in chunk)
    last = -1
    with FileWriter.open(table.location, path, chunk[0].date, filesystem=filesystem) as writer:
        for file in chunk:
            for rows in row_groups(table, file, filesystem):
                last = tally.add_in_order(rows, last, f"{table.location}/{file.path}")
                writer.write(rows)
        return writer.close({ERASED: erased_text(erased)} if held.erased else None)


def expectation(table: LakeTable, partition: int, start: int, end: int) -> Told | None:
    """What commits said of the records from `start` up to, without, `end`; None if not all of them is remembered."""
    inside = table.ranges_of(partition).within(start, end)
    told = [Stretch(each.start, each.end) for each in inside]
    told += [Stretch(gap.start, gap.end) for gap in table.gaps if gap.partition == partition]
    if without(Stretch(max(start, table.start(partition) or 0), end), told):
        return None
    return summed(partition, start, end, inside)
