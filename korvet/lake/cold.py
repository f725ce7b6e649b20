"""A table read as a log: record batches from an offset on, and where times are. Blocking; knows no broker.

Files of several dates interleave offsets, and what somebody else has optimized keeps no order at all. So rows are
merged: row groups are read in the order of the lowest offset that may be in them, and a row is final once nothing that
is still unread can come before it. Nothing but one row group is open at a time, and what was read is kept, up to
`cache_bytes`, as consumers go on where they stopped.

Rows are asked for up to an offset that the caller knows to be archived (what was trimmed). A snapshot that does not
reach that far is older than the trimming, and is opened anew; where rows are missing all the same (RESTORE, a
foreign DELETE), that is an error and no gap to be passed over.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import count
from threading import Lock
from typing import NamedTuple, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define, field

from korvet.lake.batches import batches_of
from korvet.lake.chain import Stretch, chained_up_to, missing_stretches, without
from korvet.lake.cold_frames import ArchivedLog
from korvet.lake.cold_rows import Bounds, between, bounds_of, in_order, split
from korvet.lake.errors import NoTable, RowsMissing
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.lake.table_files import INT64_MAX, INT64_MIN, TableFile

CACHE_BYTES = 64 * 1024 * 1024
CACHED_FILES = 4096  # whose row groups are remembered
COLUMNS = ["partition", "offset", "timestamp_ms", "timestampType", "key", "value", "headers"]
# What is merged at once: fewer would be many small tables, more would be read for nothing.
ROWS_AT_ONCE = 2_000
GROUPS_AT_ONCE = 64
# A read that has something ends after this long: 5,000 dates are 5,000 files.
READ_LIMIT_S = 0.2

T = TypeVar("T")


class ColdRecord(NamedTuple):
    offset: int
    timestamp: int  # ms


class ColdBatches(NamedTuple):
    """Record batches, ready for the wire; `next_offset` is where to go on, also when there are none."""

    data: bytes
    next_offset: int


class _Group(NamedTuple):
    """A row group that is to be read."""

    file: TableFile
    number: int


@define(eq=False)
class ColdReader:
    """Reads all tables of a lake. Several threads may use it."""

    lake: Location
    cache_bytes: int = CACHE_BYTES
    clock: Callable[[], float] = time.monotonic
    _tables: dict[tuple[str, UUID], LakeTable] = field(factory=dict)
    # By table, partition: the version of a snapshot, and what is missing from it.
    _missing: dict[tuple[UUID, int], tuple[int, list[Stretch]]] = field(factory=dict)
    _groups: OrderedDict[tuple[str, int, int], pa.Table] = field(factory=OrderedDict)
    _cached: int = 0
    _bounds: OrderedDict[str, list[Bounds]] = field(factory=OrderedDict)
    _lock: Lock = field(factory=Lock)

    # --- Tables -------------------------------------------------------------------------------------------

    def refresh(self, topic: str, topic_id: UUID) -> dict[int, ArchivedLog]:
        """What the table has by now, of every partition that was ever archived; nothing where there is no table.

        Raises LakeError (Unreachable, WrongTable, NewerFormat).
        """
        key = topic, topic_id
        try:
            table = LakeTable.open(self.lake, topic, topic_id, previous=self._tables.get(key))
        except NoTable:
            self._tables.pop(key, None)
            return {}
        self._tables[key] = table
        return {partition: self._archived(table, partition) for partition in table.archived_up_to}

    def archived(self, topic: str, topic_id: UUID, partition: int) -> ArchivedLog | None:
        """The same of one partition, of the snapshot at hand."""
        table = self._table(topic, topic_id)
        if table is None or partition not in table.archived_up_to:
            return None
        return self._archived(table, partition)

    def _archived(self, table: LakeTable, partition: int) -> ArchivedLog:
        end = table.archived_up_to[partition]
        start = table.start(partition)
        chained = chained_up_to(table, partition)
        return ArchivedLog(end if start is None else start, end, end if chained is None else chained)

    def _table(self, topic: str, topic_id: UUID) -> LakeTable | None:
        if (topic, topic_id) not in self._tables:
            self.refresh(topic, topic_id)
        return self._tables.get((topic, topic_id))

    def _table_up_to(self, topic: str, topic_id: UUID, partition: int, end: int) -> LakeTable:
        """A snapshot that has the partition up to `end`. Raises RowsMissing."""
        for is_fresh in (False, True):
            if is_fresh:
                self.refresh(topic, topic_id)
            table = self._table(topic, topic_id)
            if table is not None and table.archived_up_to.get(partition, 0) >= end:
                return table
        raise RowsMissing(f"{topic}-{partition}: offsets below {end} were trimmed, but are not archived.")

    # --- Verbs --------------------------------------------------------------------------------------------

    def read(
        self, topic: str, topic_id: UUID, partition: int, offset: int, end: int, max_bytes: int
    ) -> ColdBatches:
        """Batches of the records from `offset` up to, without, `end`; one at least, where there is a record.

        Raises RowsMissing, Unreachable and other LakeErrors.
        """

        def read_from(table: LakeTable) -> ColdBatches:
            stop = self._present_up_to(table, partition, offset, end)
            batches: list[bytes | bytearray] = []
            size, position, until = 0, offset, self.clock() + READ_LIMIT_S
            for rows in self._rows(table, partition, offset, stop):
                for batch, next_offset in batches_of(rows, max_bytes - size, at_least_one=not batches):
                    batches.append(batch)
                    size += len(batch)
                    position = next_offset
                is_all = position > rows["offset"][-1].as_py()
                if not is_all or size >= max_bytes or self.clock() > until:
                    return ColdBatches(b"".join(batches), position)
            return ColdBatches(b"".join(batches), stop)

        return self._with_table(topic, topic_id, partition, end, read_from)

    def first(self, topic: str, topic_id: UUID, partition: int, offset: int, end: int) -> ColdRecord | None:
        """The first record from `offset` up to, without, `end`. Raises as `read`."""

        def find(table: LakeTable) -> ColdRecord | None:
            for rows in self._rows(table, partition, offset, end):
                return ColdRecord(rows["offset"][0].as_py(), rows["timestamp_ms"][0].as_py())
            return None

        return self._with_table(topic, topic_id, partition, end, find)

    def seek_ts(
        self, topic: str, topic_id: UUID, partition: int, timestamp: int, start: int, end: int
    ) -> ColdRecord | None:
        """The first record in offset order, of [start, end), whose timestamp (ms) is at least `timestamp`."""

        def find(table: LakeTable) -> ColdRecord | None:
            for rows in self._rows(table, partition, start, end, at_least_ms=timestamp):
                late = np.flatnonzero(rows["timestamp_ms"].to_numpy() >= timestamp)
                if late.size:
                    index = int(late[0])
                    return ColdRecord(rows["offset"][index].as_py(), rows["timestamp_ms"][index].as_py())
            return None

        return self._with_table(topic, topic_id, partition, end, find)

    def seek_max_ts(
        self, topic: str, topic_id: UUID, partition: int, start: int, end: int
    ) -> ColdRecord | None:
        """The first record of [start, end) that bears the largest timestamp."""

        def find(table: LakeTable) -> ColdRecord | None:
            return self._largest(table, partition, start, end)

        return self._with_table(topic, topic_id, partition, end, find)

    def _largest(self, table: LakeTable, partition: int, start: int, end: int) -> ColdRecord | None:
        """Reads what may have the largest timestamp first, and of several the one with the lowest offset."""
        best: ColdRecord | None = None
        order = count()
        heap: list[tuple[int, int, int, TableFile | _Group]] = []
        for file in table.files_of(partition, start, end):
            largest = INT64_MAX if file.last_ms is None else file.last_ms
            heap.append((-largest, file.first_offset or 0, next(order), file))
        heapq.heapify(heap)
        while heap and (best is None or heap[0][:2] < (-best.timestamp, best.offset)):
            _, _, _, item = heapq.heappop(heap)
            if isinstance(item, TableFile):
                for group, bounds in self._groups_of(table, item, start, end):
                    heapq.heappush(heap, (-bounds.largest_ms, bounds.first_offset, next(order), group))
                continue
            rows = between(self._read_group(table, item, partition), start, end)
            if rows.num_rows:
                timestamps = rows["timestamp_ms"].to_numpy()
                index = int(timestamps.argmax())
                found = ColdRecord(rows["offset"][index].as_py(), int(timestamps[index]))
                best = (
                    found
                    if best is None
                    else min(best, found, key=lambda each: (-each.timestamp, each.offset))
                )
        return best

    def rows(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        start: int,
        end: int,
        *,
        at_least_ms: int | None = None,
    ) -> Iterator[pa.Table]:
        """The rows of [start, end) in the order of their offsets, some at a time; with columns as in the files.

        With `at_least_ms`, rows before that time may be left out. Raises as `read`.
        """
        table = self._table_up_to(topic, topic_id, partition, end)
        while start < end:
            stop = self._present_up_to(table, partition, start, end)
            yield from self._rows(table, partition, start, stop, at_least_ms=at_least_ms)
            start = stop

    def _with_table(
        self, topic: str, topic_id: UUID, partition: int, end: int, work: Callable[[LakeTable], T]
    ) -> T:
        """`work` on a snapshot; again on a newer one when its files are gone, compacted and vacuumed away."""
        table = self._table_up_to(topic, topic_id, partition, end)
        try:
            return work(table)
        except FileNotFoundError:
            self.refresh(topic, topic_id)
            return work(self._table_up_to(topic, topic_id, partition, end))

    def _present_up_to(self, table: LakeTable, partition: int, offset: int, end: int) -> int:
        """How far, from `offset` on, all rows are there. Raises RowsMissing when they are missing right there."""
        for stretch in self._missing_of(table, partition):
            if stretch.start <= offset < stretch.end:
                raise RowsMissing(
                    f"{table.location}: offsets {stretch.start} to {stretch.end - 1} of partition {partition} "
                    "were archived, and are not in its files any more."
                )
            if offset < stretch.start < end:
                return stretch.start
        return end

    def _missing_of(self, table: LakeTable, partition: int) -> list[Stretch]:
        """What a snapshot has lost of a partition, looked for once: it may take going over all of its files."""
        version, missing = self._missing.get((table.topic_id, partition), (-1, []))
        if version != table.version:
            elsewhere = _stretches_of_others(table, partition)
            missing = [
                stretch
                for unproven in missing_stretches(table, partition)
                for stretch in without(unproven, elsewhere)
            ]
            self._missing[table.topic_id, partition] = table.version, missing
        return missing

    # --- Rows ---------------------------------------------------------------------------------------------

    def _rows(
        self, table: LakeTable, partition: int, start: int, end: int, *, at_least_ms: int | None = None
    ) -> Iterator[pa.Table]:
        """The partition's rows of [start, end) in the order of their offsets, some at a time.

        With `at_least_ms`, row groups whose timestamps all lie before it may be left out.
        """
        order = count()
        heap: list[tuple[int, int, TableFile | _Group]] = [
            (start if file.first_offset is None else file.first_offset, next(order), file)
            for file in table.files_of(partition, start, end)
            if at_least_ms is None or file.last_ms is None or file.last_ms >= at_least_ms
        ]
        heapq.heapify(heap)
        waiting: list[pa.Table] = []
        size = 0
        while heap:
            if size >= ROWS_AT_ONCE or len(waiting) >= GROUPS_AT_ONCE:
                ready, waiting = split(waiting, heap[0][0])
                size = sum(rows.num_rows for rows in waiting)
                if ready.num_rows:
                    yield ready
            _, _, item = heapq.heappop(heap)
            if isinstance(item, TableFile):
                for group, bounds in self._groups_of(table, item, start, end):
                    if at_least_ms is None or bounds.largest_ms >= at_least_ms:
                        heapq.heappush(heap, (bounds.first_offset, next(order), group))
            else:
                rows = between(self._read_group(table, item, partition), start, end)
                if rows.num_rows:
                    waiting.append(rows)
                    size += rows.num_rows
        if waiting:
            yield split(waiting, end)[0]

    def _groups_of(
        self, table: LakeTable, file: TableFile, start: int, end: int
    ) -> Iterator[tuple[_Group, Bounds]]:
        path = table.absolute(file)
        with self._lock:
            known = self._bounds.get(path)
        if known is None:
            with table.location.filesystem().open_input_file(path) as source:
                known = bounds_of(pq.read_metadata(source))
            with self._lock:
                self._bounds[path] = known
                while len(self._bounds) > CACHED_FILES:
                    self._bounds.popitem(last=False)
        for number, bounds in enumerate(known):
            if bounds.first_offset < end and bounds.last_offset >= start:
                yield _Group(file, number), bounds

    def _read_group(self, table: LakeTable, group: _Group, partition: int) -> pa.Table:
        """A row group's rows of the partition, sorted by offset."""
        path = table.absolute(group.file)
        key = path, group.number, partition
        with self._lock:
            rows = self._groups.get(key)
            if rows is not None:
                self._groups.move_to_end(key)
                return rows
        with table.location.filesystem().open_input_file(path) as source:
            rows = pq.ParquetFile(source).read_row_group(group.number, columns=COLUMNS)
        rows = in_order(rows.filter(pc.equal(rows["partition"], partition)).drop_columns(["partition"]))
        with self._lock:
            self._groups[key] = rows
            self._cached += rows.nbytes
            while self._cached > self.cache_bytes and len(self._groups) > 1:
                _, oldest = self._groups.popitem(last=False)
                self._cached -= oldest.nbytes
        return rows


def _stretches_of_others(table: LakeTable, partition: int) -> list[Stretch]:
    """Where records may be that somebody else has put into files of his own: no name says what these hold."""
    return [
        Stretch(*file.bounds)
        for file in table.index.foreign
        if file.may_hold(partition, INT64_MIN, INT64_MAX)
    ]
