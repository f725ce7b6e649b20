"""The archive of a topic: a Delta table that records its own progress.

The commit that adds records also sets how far each partition is archived, as `txn` actions. Checkpoints of the log and
optimizations keep these actions:

    korvet/<topic id>/<partition>               archived offset: everything below it is in the table
    korvet/<topic id>/<partition>/start         the offset at which the archive begins
    korvet/<topic id>/<partition>/covered       the end of the last range with records; the next file name begins here
    korvet/<topic id>/<partition>/gap/<offset>  an accepted gap: from <offset> (inclusive) to this number (exclusive)

A LakeTable is one snapshot and never changes. deltalake does not check the order of commits, so this module does: a
range is committed only if it begins at the snapshot's archived offset. The commit targets the version after the
snapshot, and the store refuses it if another commit took this version. After a commit, or a conflict, reopen the table.

The table's properties name its topic: korvet.kind, korvet.topic, korvet.topic.id, korvet.format.version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self
from uuid import UUID

import numpy as np
import pyarrow.fs as pafs
from attrs import define, evolve, frozen
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.actions import add_action
from korvet.lake.column_reading import read_columns
from korvet.lake.delta_log import DeltaLog
from korvet.lake.errors import NewerFormat, NoTable, OutOfOrder, RecreatedTopic, WrongTable
from korvet.lake.files import ArchivedRange
from korvet.lake.location import Location
from korvet.lake.range_checksums import GAPS, RANGES, SKIPPED, RangeChecksum, Ranges, range_checksums_of
from korvet.lake.schema import ARCHIVE_SCHEMA, Int64s
from korvet.lake.snapshots import Snapshot
from korvet.lake.store_errors import store_errors
from korvet.lake.table_files import FileIndex, TableFile, files_in

FORMAT_VERSION = 1
ARCHIVE = "archive"
KIND, TOPIC, TOPIC_ID, VERSION = "korvet.kind", "korvet.topic", "korvet.topic.id", "korvet.format.version"
# Opening reads the log from the last checkpoint on, one request per commit. deltalake's default of 100 is slow.
CHECKPOINT_INTERVAL = "20"


@frozen(order=True)
class Gap:
    """Offsets of a partition in [start, end) that were gone before they could be archived."""

    partition: int
    start: int
    end: int


@define(slots=False)
class LakeTable(Snapshot):
    """One snapshot of a topic's archive, made by `open` or `open_or_create`. It needs no closing."""

    # --- Opening ------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, lake: Location, topic: str, topic_id: UUID | None = None, *, previous: LakeTable | None = None
    ) -> Self:
        """Open the newest snapshot of a topic's archive in a lake.

        Without `topic_id`, any incarnation of the topic is accepted. `previous`, an earlier snapshot of the same
        table, avoids reading its part of the log again. Raises NoTable, WrongTable, NewerFormat, Unreachable.
        """
        location = lake.child(topic)
        with store_errors(location):
            delta = DeltaTable(location.url, storage_options=location.storage_options())
            found_id = _check(location, delta, topic, topic_id)
            known = None
            if previous is not None and previous.delta.metadata().id == delta.metadata().id:
                if previous.version == delta.version() and isinstance(previous, cls):
                    return previous
                known = (previous.version, previous.transactions)
            transactions = DeltaLog(location).transactions(delta.version(), since=known)
        return cls(location, topic, found_id, delta, transactions)

    @classmethod
    def open_or_create(cls, lake: Location, topic: str, topic_id: UUID) -> Self:
        """Open the newest snapshot, or create an empty table if there is none.

        Raises NoTable if there are files but no table; also the errors of `open`.
        """
        location = lake.child(topic)
        try:
            return cls.open(lake, topic, topic_id)
        except NoTable:
            refuse_other_things(location)
        with store_errors(location):
            try:
                DeltaTable.create(
                    location.url,
                    ARCHIVE_SCHEMA,
                    mode="error",
                    partition_by=["date"],
                    name=topic,
                    description=f"The records of topic {topic}, archived by korvet.",
                    configuration={
                        KIND: ARCHIVE,
                        TOPIC: topic,
                        TOPIC_ID: str(topic_id),
                        VERSION: str(FORMAT_VERSION),
                        "delta.checkpointInterval": CHECKPOINT_INTERVAL,
                    },
                    storage_options=location.storage_options(),
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                # Another writer created it first, or creation failed. In the first case, `open` checks the table.
                if not DeltaTable.is_deltatable(location.url, location.storage_options()):
                    raise
        return cls.open(lake, topic, topic_id)

    def check(self, topic_id: UUID) -> None:
        """Raise RecreatedTopic if the archive is not that of the topic with this id."""
        _check(self.location, self.delta, self.topic, topic_id)

    # --- Contents -----------------------------------------------------------------------------------------

    @cached_property
    def archived_up_to(self) -> dict[int, int]:
        """The archived offset of each partition that was ever archived: everything below it is in the table."""
        numbers = {}
        prefix = f"{self.app_id}/"
        for app_id, number in self.transactions.items():
            rest = app_id.removeprefix(prefix)
            if rest != app_id and rest.isdecimal():
                numbers[int(rest)] = number
        return dict(sorted(numbers.items()))

    def start(self, partition: int) -> int | None:
        """Return the offset at which a partition's archive begins, None if it was never archived."""
        return self.transactions.get(f"{self.app_id}/{partition}/start")

    @property
    def offset_count(self) -> int:
        """Number of archived offsets, of all partitions."""
        return sum(number - (self.start(partition) or 0) for partition, number in self.archived_up_to.items())

    def covered(self, partition: int) -> int | None:
        """Return the end of the partition's last range with records. File names account for all offsets below it."""
        return self.transactions.get(f"{self.app_id}/{partition}/covered", self.start(partition))

    @cached_property
    def gaps(self) -> list[Gap]:
        """The accepted gaps, sorted."""
        gaps = []
        prefix = f"{self.app_id}/"
        for app_id, end in self.transactions.items():
            partition, _, start = app_id.removeprefix(prefix).partition("/gap/")
            if start.isdecimal() and partition.isdecimal():
                gaps.append(Gap(int(partition), int(start), end))
        return sorted(gaps)

    @cached_property
    def index(self) -> FileIndex:
        """The files of this snapshot."""
        return FileIndex(files_in(self.delta))

    @property
    def files(self) -> list[TableFile]:
        """The files of this snapshot, by path."""
        return self.index.files

    def files_of(self, partition: int, start: int, end: int) -> list[TableFile]:
        """Return the files that may hold records of a partition in [start, end), by their first offset.

        Files of different dates overlap, so their rows must be merged to be in order.
        """
        return self.index.overlapping(partition, start, end)

    def ranges_of(self, partition: int) -> Ranges:
        """Return the range checksums of a partition that the log still has."""
        return self._ranges.get(partition) or Ranges()

    @cached_property
    def _ranges(self) -> dict[int, Ranges]:
        return range_checksums_of(self.commits())

    def offsets_of(self, partition: int, start: int, end: int) -> Int64s:
        """Return the sorted, distinct offsets in [start, end) that the files have of a partition.

        Reads two columns of every file that may have any. Raises Unreachable.
        """
        filesystem = self.location.filesystem()
        found = [np.empty(0, np.int64)]
        with store_errors(self.location):
            for file in self.files_of(partition, start, end):
                rows = read_columns(filesystem, self.absolute(file), ["partition", "offset"])
                offsets: Int64s = rows.column("offset").to_numpy()
                wanted = (
                    (rows.column("partition").to_numpy() == partition) & (offsets >= start) & (offsets < end)
                )
                found.append(offsets[wanted])
        return np.unique(np.concatenate(found))

    # --- Committing ---------------------------------------------------------------------------------------

    def commit(self, ranges: Sequence[ArchivedRange], gaps: Sequence[Gap] = ()) -> Self:
        """Add the files of `ranges` and advance archived offsets in one commit. Return the snapshot with this commit.

        A partition's ranges and gaps must be contiguous and begin at its archived offset; a new partition begins at
        its first range. Raises OutOfOrder, CommitConflict if another writer committed since this snapshot, or
        Unreachable. After an error nothing was committed, as far as can be determined.
        """
        transactions = self._next_transactions(ranges, gaps)
        commit_info: dict[str, Any] = {
            RANGES: [
                RangeChecksum(r.partition, r.start, r.end, r.count, r.checksum).to_list() for r in ranges
            ],
            GAPS: [[gap.partition, gap.start, gap.end] for gap in gaps],
        }
        if skipped := [[r.partition, r.start, r.end, r.aborted, r.markers] for r in ranges if r.skipped]:
            commit_info[SKIPPED] = skipped
        return self.write(
            [add_action(file) for item in ranges for file in item.files], commit_info, transactions
        )

    def write(
        self,
        actions: Sequence[AddAction | RemoveAction],
        commit_info: Mapping[str, Any],
        transactions: Mapping[str, int],
        *,
        retries: int | None = None,
        replacing: Schema | None = None,
    ) -> Self:
        """Commit as `Snapshot` does, and flush the commits to disk if the table is local."""
        newer = super().write(actions, commit_info, transactions, retries=retries, replacing=replacing)
        DeltaLog(self.location).sync(self.version + 1, newer.version)
        return newer

    def reopened(self) -> Self:
        """Return the newest snapshot of the same table."""
        if self.is_newest():
            return self
        lake = evolve(self.location, url=self.location.url.rpartition("/")[0])
        return type(self).open(lake, self.topic, self.topic_id, previous=self)

    def _next_transactions(self, ranges: Iterable[ArchivedRange], gaps: Iterable[Gap]) -> dict[str, int]:
        """Return the `txn` versions to set in a commit of these ranges and gaps. Raises OutOfOrder."""
        positions = dict(self.archived_up_to)
        changed: dict[str, int] = {}
        items: list[ArchivedRange | Gap] = [*ranges, *gaps]
        for item in sorted(items, key=lambda item: (item.partition, item.start, item.end)):
            name = f"{self.app_id}/{item.partition}"
            number = positions.get(item.partition)
            if number is None:
                number = changed[f"{name}/start"] = item.start
            if item.start != number or item.end < item.start:
                what = "was archived before" if item.start < number else "would leave a gap"
                raise OutOfOrder(
                    f"{self.topic}-{item.partition}: {item.start} to {item.end} {what}; "
                    f"the table's number is {number}."
                )
            positions[item.partition] = changed[name] = item.end
            if isinstance(item, Gap):
                changed[f"{name}/gap/{item.start}"] = item.end
            elif item.files:
                changed[f"{name}/covered"] = item.end
        return changed


def refuse_other_things(location: Location) -> None:
    """Raise NoTable if the location has files, which are no Delta table.

    With a log, it is a table that another process creates now.
    """
    with store_errors(location):
        filesystem = location.filesystem()
        info = filesystem.get_file_info(location.path)
        if info.type == pafs.FileType.NotFound:
            return
        if info.type == pafs.FileType.Directory:
            files = filesystem.get_file_info(pafs.FileSelector(location.path, allow_not_found=True))
            folders = location.folders()
            if "_delta_log" in folders or not (files or folders):
                return
    raise NoTable(f"{location} is not a Delta table, and not empty; choose another place with --lake.")


def _check(location: Location, delta: DeltaTable, topic: str, topic_id: UUID | None) -> UUID:
    """Return the topic id that a table belongs to. Raises WrongTable and NewerFormat."""
    properties: Mapping[str, str] = delta.metadata().configuration
    if properties.get(KIND) != ARCHIVE:
        raise WrongTable(
            f"{location} is a Delta table, but no archive of korvet's; choose another place with --lake."
        )
    if not properties.get(VERSION, "").isdecimal() or int(properties[VERSION]) > FORMAT_VERSION:
        raise NewerFormat(
            f"{location} has format version {properties.get(VERSION)}; this korvet reads up to {FORMAT_VERSION}. "
            "Update korvet."
        )
    if properties.get(TOPIC) != topic:
        raise WrongTable(f"{location} is the archive of topic {properties.get(TOPIC)}, not of {topic}.")
    found_id = UUID(properties[TOPIC_ID])
    if topic_id is not None and topic_id != found_id:
        raise RecreatedTopic(
            f"{location} is the archive of an earlier topic {topic}, which was deleted and created again since "
            f"(its id was {found_id}, now it is {topic_id}); archive the new one to another place, "
            "or move the old table away. korvet lake query --archived reads the old table alone."
        )
    return found_id
