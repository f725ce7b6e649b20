"""Read a table as a log: record batches from an offset on, and offsets by timestamp. Blocking; independent of a broker.

Files of different dates interleave offsets, and files that another writer optimized may have any order. So rows are
merged: row groups are read by the lowest offset that they may contain, and a row is returned once no unread row group
can contain a lower offset. One row group is open at a time. Row groups that were read are cached, up to `cache_bytes`,
because consumers continue where they stopped.

Callers pass the offset up to which the topic was trimmed, so everything below must be archived. A snapshot that does
not reach this offset is older than the trimming, and is reopened. If rows are missing from the newest snapshot
(RESTORE, another writer's DELETE), reading fails; it does not skip them as a gap.
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

from korvet.lake.chain import Stretch, chained_up_to, missing_stretches, without
from korvet.lake.errors import NoTable, RowsMissing
from korvet.lake.file_reading import checked, damage, row_group
from korvet.lake.location import Location
from korvet.lake.remote_rows import Bounds, between, bounds_of, in_order, split
from korvet.lake.remote_values import ArchivedLog
from korvet.lake.row_batches import batches_of
from korvet.lake.table import LakeTable
from korvet.lake.table_files import INT64_MAX, INT64_MIN, TableFile

CACHE_BYTES = 64 * 1024 * 1024
CACHED_FILES = 4096  # files whose row group bounds are cached
COLUMNS = ["partition", "offset", "timestamp_ms", "timestampType", "key", "value", "headers"]
# Rows and row groups merged in one step: smaller steps make many small tables, larger ones read rows for nothing.
ROWS_AT_ONCE = 2_000
GROUPS_AT_ONCE = 64
# Seconds after which a read that has at least one batch returns: 5,000 dates are 5,000 files.
READ_LIMIT_S = 0.2

T = TypeVar("T")


class RemoteRecord(NamedTuple):
    offset: int
    timestamp: int  # ms


class RemoteBatches(NamedTuple):
    """Record batches in wire format. `next_offset` is the offset to read next, also if there are no batches."""

    data: bytes
    next_offset: int


class _Group(NamedTuple):
    """A row group that remains to be read."""

    file: TableFile
    number: int


@define(eq=False)
class RemoteReader:
    """Reader of all tables of a lake. Thread-safe."""

    lake: Location
    cache_bytes: int = CACHE_BYTES
    clock: Callable[[], float] = time.monotonic
    _tables: dict[tuple[str, UUID], LakeTable] = field(factory=dict)
    # By topic id and partition: a snapshot's version, and the offsets missing from it.
    _missing: dict[tuple[UUID, int], tuple[int, list[Stretch]]] = field(factory=dict)
    _groups: OrderedDict[tuple[str, int, int], pa.Table] = field(factory=OrderedDict)
    _cached: int = 0
    _bounds: OrderedDict[str, list[Bounds]] = field(factory=OrderedDict)
    _lock: Lock = field(factory=Lock)

    # --- Tables -------------------------------------------------------------------------------------------

    def refresh(self, topic: str, topic_id: UUID) -> dict[int, ArchivedLog]:
        """Reopen the table and return the log of each archived partition; an empty dict if there is no table.

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
        """Return the log of one partition in the current snapshot, None if it was never archived."""
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
        """Return a snapshot that has the partition archived up to `end`. Raises RowsMissing."""
        for is_fresh in (False, True):
            if is_fresh:
                self.refresh(topic, topic_id)
            table = self._table(topic, topic_id)
            if table is not None and table.archived_up_to.get(partition, 0) >= end:
                return table
        raise RowsMissing(f"{topic}-{partition}: offsets below {end} were trimmed, but are not archived.")

    # --- Requests -----------------------------------------------------------------------------------------

    def read(
        self, topic: str, topic_id: UUID, partition: int, offset: int, end: int, max_bytes: int
    ) -> RemoteBatches:
        """Return batches of the records in [offset, end); at least one if there is a record.

        Raises RowsMissing, Unreachable and other LakeErrors.
        """

        def read_from(table: LakeTable) -> RemoteBatches:
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
                    return RemoteBatches(b"".join(batches), position)
            return RemoteBatches(b"".join(batches), stop)

        return self._with_table(topic, topic_id, partition, end, read_from)

    def first(self, topic: str, topic_id: UUID, partition: int, offset: int, end: int) -> RemoteRecord | None:
        """Return the first record in [offset, end). Raises the same errors as `read`."""

        def find(table: LakeTable) -> RemoteRecord | None:
            for rows in self._rows(table, partition, offset, end):
                return RemoteRecord(rows["offset"][0].as_py(), rows["timestamp_ms"][0].as_py())
            return None

        return self._with_table(topic, topic_id, partition, end, find)

    def seek_ts(
        self, topic: str, topic_id: UUID, partition: int, timestamp: int, start: int, end: int
    ) -> RemoteRecord | None:
        """Return the first record, by offset, in [start, end) whose timestamp (ms) is at least `timestamp`."""

        def find(table: LakeTable) -> RemoteRecord | None:
            for rows in self._rows(table, partition, start, end, at_least_ms=timestamp):
                late = np.flatnonzero(rows["timestamp_ms"].to_numpy() >= timestamp)
                if late.size:
                    index = int(late[0])
                    return RemoteRecord(rows["offset"][index].as_py(), rows["timestamp_ms"][index].as_py())
            return None

        return self._with_table(topic, topic_id, partition, end, find)

    def seek_max_ts(
        self, topic: str, topic_id: UUID, partition: int, start: int, end: int
    ) -> RemoteRecord | None:
        """Return the record in [start, end) with the largest timestamp; of several, the one with the lowest offset."""

        def find(table: LakeTable) -> RemoteRecord | None:
            return self._largest(table, partition, start, end)

        return self._with_table(topic, topic_id, partition, end, find)

    def _largest(self, table: LakeTable, partition: int, start: int, end: int) -> RemoteRecord | None:
        """Read files and row groups by descending largest timestamp until none can hold a better record."""
        best: RemoteRecord | None = None
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
                found = RemoteRecord(rows["offset"][index].as_py(), int(timestamps[index]))
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
        """Yield the rows of [start, end) by offset, in tables of some rows, with the types that the files have.

        With `at_least_ms`, rows with earlier timestamps may be left out. Raises the same errors as `read`.
        """
        table = self._table_up_to(topic, topic_id, partition, end)
        while start < end:
            stop = self._present_up_to(table, partition, start, end)
            yield from self._rows(table, partition, start, stop, at_least_ms=at_least_ms)
            start = stop

    def _with_table(
        self, topic: str, topic_id: UUID, partition: int, end: int, work: Callable[[LakeTable], T]
    ) -> T:
        """Call `work` on a snapshot; if compaction and vacuum removed its files, once more on a newer snapshot."""
        table = self._table_up_to(topic, topic_id, partition, end)
        try:
            return work(table)
        except FileNotFoundError:
            self.refresh(topic, topic_id)
            return work(self._table_up_to(topic, topic_id, partition, end))

    def _present_up_to(self, table: LakeTable, partition: int, offset: int, end: int) -> int:
        """Return the offset up to which all rows from `offset` on are there. Raises RowsMissing if `offset` is not."""
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
        """Return the offsets of a partition that are missing from the snapshot."""
        # Once per version: it may read the offsets of all files.
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
        """Yield the partition's rows of [start, end) by offset, in tables of some rows.

        With `at_least_ms`, row groups whose timestamps are all earlier may be left out.
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
            filesystem = table.location.filesystem()
            with damage(table, file.path), filesystem.open_input_file(path) as source:
                known = bounds_of(pq.read_metadata(source))
            with self._lock:
                self._bounds[path] = known
                while len(self._bounds) > CACHED_FILES:
                    self._bounds.popitem(last=False)
        for number, bounds in enumerate(known):
            if bounds.first_offset < end and bounds.last_offset >= start:
                yield _Group(file, number), bounds

    def _read_group(self, table: LakeTable, group: _Group, partition: int) -> pa.Table:
        """Return the partition's rows of a row group, sorted by offset."""
        path = table.absolute(group.file)
        key = path, group.number, partition
        with self._lock:
            rows = self._groups.get(key)
            if rows is not None:
                self._groups.move_to_end(key)
                return rows
        filesystem = table.location.filesystem()
        with damage(table, group.file.path), filesystem.open_input_file(path) as source:
            rows = row_group(checked(source), group.number, group.file, COLUMNS)
        rows = in_order(rows.filter(pc.equal(rows["partition"], partition)).drop_columns(["partition"]))
        with self._lock:
            self._groups[key] = rows
            self._cached += rows.nbytes
            while self._cached > self.cache_bytes and len(self._groups) > 1:
                _, oldest = self._groups.popitem(last=False)
                self._cached -= oldest.nbytes
        return rows


def _stretches_of_others(table: LakeTable, partition: int) -> list[Stretch]:
    """Return the offset bounds of files that another writer named: any offset within may be in them."""
    return [
        Stretch(*file.bounds)
        for file in table.index.foreign
        if file.may_hold(partition, INT64_MIN, INT64_MAX)
    ]
