"""The archive of a topic: a Delta table that is its own checkpoint.

How far a partition has been archived is written by the very commit that adds its records, as `txn` actions, which
no checkpoint of the log and no optimization drops:

    korvet/<topic id>/<partition>               archived up to this offset: what is below it is in the table
    korvet/<topic id>/<partition>/start         the offset the archive begins with
    korvet/<topic id>/<partition>/covered       where the last range that had records ended; file names go on there
    korvet/<topic id>/<partition>/gap/<offset>  a gap somebody has accepted: from <offset> up to this number

A handle is one snapshot, and stays it. deltalake checks no order, so it is done here: ranges are committed only where
they begin exactly at the snapshot's number, by a commit on that same snapshot, which the store refuses when there was
another in between. After a commit, or a conflict, open the table anew.

What a table belongs to is in its properties: korvet.kind, korvet.topic, korvet.topic.id, korvet.format.version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self
from uuid import UUID, uuid4

import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, evolve, field, frozen
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.actions import add_action
from korvet.lake.delta_log import DeltaLog
from korvet.lake.errors import (
    CommitConflict,
    NewerFormat,
    NoTable,
    OutOfOrder,
    RecreatedTopic,
    Unreachable,
    WrongTable,
)
from korvet.lake.files import ArchivedRange, DataFile
from korvet.lake.location import Location
from korvet.lake.schema import ARCHIVE_SCHEMA, Int64s
from korvet.lake.table_files import FileIndex, TableFile, files_in
from korvet.lake.told import GAPS, RANGES, Ranges, Told, told_by

FORMAT_VERSION = 1
ARCHIVE = "archive"
KIND, TOPIC, TOPIC_ID, VERSION = "korvet.kind", "korvet.topic", "korvet.topic.id", "korvet.format.version"
# What a commit calls itself, in commitInfo.
COMMIT_ID = "korvet.commit"
# Every opening reads the log from the last checkpoint on; deltalake's 100 entries are many, one request each.
CHECKPOINT_INTERVAL = "20"


@frozen(order=True)
class Gap:
    """Offsets of a partition, from `start` up to, without, `end`, that were gone before they could be archived."""

    partition: int
    start: int
    end: int


@define(slots=False)
class LakeTable:
    """One snapshot of a topic's archive, made by `open` or `open_or_create`. Nothing needs to be closed."""

    location: Location  # of the table itself
    topic: str
    topic_id: UUID
    version: int
    #: deltalake's handle of this snapshot, for what is not offered here. It must not be refreshed.
    delta: DeltaTable = field(repr=False)
    #: The last version of every application id.
    transactions: Mapping[str, int] = field(repr=False)

    # --- Opening ------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, lake: Location, topic: str, topic_id: UUID | None = None, *, previous: LakeTable | None = None
    ) -> Self:
        """The newest snapshot of the archive that a topic has in a lake.

        Without `topic_id`, that of whatever incarnation of the topic was archived. `previous`, a snapshot of the same
        table, saves reading its part of the log again. Raises NoTable, WrongTable, NewerFormat, Unreachable.
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
        return cls(location, topic, found_id, delta.version(), delta, transactions)

    @classmethod
    def open_or_create(cls, lake: Location, topic: str, topic_id: UUID) -> Self:
        """The same, with an empty table made where there is nothing yet.

        Raises NoTable where there is something that is no table.
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
                # Somebody else was first, or it cannot be made: opening tells.
                if not DeltaTable.is_deltatable(location.url, location.storage_options()):
                    raise
        return cls.open(lake, topic, topic_id)

    # --- What it knows ------------------------------------------------------------------------------------

    @property
    def app_id(self) -> str:
        """What the application ids of its `txn` actions begin with."""
        return f"korvet/{self.topic_id}"

    @cached_property
    def archived_up_to(self) -> dict[int, int]:
        """For each partition that was ever archived: the offset up to which, without it, it was."""
        numbers = {}
        prefix = f"{self.app_id}/"
        for app_id, number in self.transactions.items():
            rest = app_id.removeprefix(prefix)
            if rest != app_id and rest.isdecimal():
                numbers[int(rest)] = number
        return dict(sorted(numbers.items()))

    def start(self, partition: int) -> int | None:
        """The offset a partition's archive begins with, None where it was never archived."""
        return self.transactions.get(f"{self.app_id}/{partition}/start")

    def covered(self, partition: int) -> int | None:
        """Where the partition's last range that had records ended: names of files tell of all up to here."""
        return self.transactions.get(f"{self.app_id}/{partition}/covered", self.start(partition))

    @cached_property
    def gaps(self) -> list[Gap]:
        """The gaps that were accepted, sorted."""
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
        """The files that may hold records of a partition from `start` up to, without, `end`, by their first offset.

        Files of several dates overlap: in order are only all of them merged.
        """
        return self.index.overlapping(partition, start, end)

    def ranges_of(self, partition: int) -> Ranges:
        """What commits have said of the partition's ranges, as far as the log remembers them."""
        return self._ranges.get(partition) or Ranges()

    @cached_property
    def _ranges(self) -> dict[int, Ranges]:
        return told_by(self.commits())

    def offsets_of(self, partition: int, start: int, end: int) -> Int64s:
        """The offsets, from `start` up to, without, `end`, that the files have of a partition; sorted, each once.

        Reads two columns of every file that may have any. Raises Unreachable.
        """
        filesystem = self.location.filesystem()
        found = [np.empty(0, np.int64)]
        with store_errors(self.location):
            for file in self.files_of(partition, start, end):
                rows = pq.read_table(
                    self.absolute(file),
                    columns=["partition", "offset"],
                    filesystem=filesystem,
                    partitioning=None,
                )
                offsets: Int64s = rows.column("offset").to_numpy()
                wanted = (
                    (rows.column("partition").to_numpy() == partition) & (offsets >= start) & (offsets < end)
                )
                found.append(offsets[wanted])
        return np.unique(np.concatenate(found))

    def absolute(self, file: TableFile | DataFile) -> str:
        """A file's path on the filesystem of `location`."""
        return f"{self.location.path}/{file.path}"

    def commits(self, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Version and commitInfo of each commit from version `first` up to this snapshot that the log still holds."""
        with store_errors(self.location):
            yield from DeltaLog(self.location).commits(first, self.version)

    # --- Committing ---------------------------------------------------------------------------------------

    def commit(self, ranges: Sequence[ArchivedRange], gaps: Sequence[Gap] = ()) -> Self:
        """Add ranges' files and move their partitions' numbers on, all in one commit; the snapshot that has it.

        A partition's ranges and gaps must follow each other, beginning at its number; a partition without a number
        begins where its first range does. Raises OutOfOrder, or CommitConflict when somebody else has committed
        since this snapshot was taken, or Unreachable; then nothing was committed, as far as can be known.
        """
        transactions = self._next_transactions(ranges, gaps)
        said = {
            RANGES: [Told(r.partition, r.start, r.end, r.count, r.checksum).to_list() for r in ranges],
            GAPS: [[gap.partition, gap.start, gap.end] for gap in gaps],
        }
        return self.write([add_action(file) for item in ranges for file in item.files], said, transactions)

    def write(
        self,
        actions: Sequence[AddAction | RemoveAction],
        said: Mapping[str, Any],
        transactions: Mapping[str, int],
        *,
        retries: int | None = None,
    ) -> Self:
        """Commit actions, numbers that move, and what is `said` in commitInfo; the snapshot that has it.

        `retries` is how often deltalake may put it on top of others' commits that it thinks do not exclude it. Raises
        CommitConflict when somebody else was faster, and Unreachable.
        """
        commit_id = uuid4().hex
        properties = CommitProperties(
            custom_metadata={COMMIT_ID: commit_id, **said},
            max_commit_retries=retries,
            app_transactions=[Transaction(app_id, number) for app_id, number in transactions.items()],
        )
        with store_errors(self.location):
            try:
                self.delta.create_write_transaction(
                    list(actions),
                    "append",
                    self.delta.schema(),
                    partition_by=["date"],
                    commit_properties=properties,
                )
            except CommitFailedError as error:
                newer = self.reopened()
                if not newer.has_commit(commit_id, self.version + 1):
                    raise CommitConflict(f"{self.location}: {first_line(error)}") from error
                return newer
        newer = self.reopened()
        DeltaLog(self.location).sync(self.version + 1, newer.version)
        return newer

    def reopened(self) -> Self:
        """The newest snapshot of the same table."""
        lake = evolve(self.location, url=self.location.url.rpartition("/")[0])
        return type(self).open(lake, self.topic, self.topic_id, previous=self)

    def has_commit(self, commit_id: str, first: int) -> bool:
        """Whether one of the commits from version `first` on is that one: an answer may be lost on its way."""
        return any(info.get(COMMIT_ID) == commit_id for _, info in self.commits(first))

    def _next_transactions(self, ranges: Iterable[ArchivedRange], gaps: Iterable[Gap]) -> dict[str, int]:
        """The numbers after a commit of these. Raises OutOfOrder."""
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


@contextmanager
def store_errors(location: Location) -> Iterator[None]:
    """Let what deltalake and pyarrow raise be one of ours, in one line that names the place."""
    try:
        yield
    except TableNotFoundError:
        raise NoTable(f"There is no Delta table at {location}.") from None
    except DeltaProtocolError as error:
        raise NewerFormat(f"{location}: {first_line(error)}") from error
    except (OSError, DeltaError) as error:
        if "Unsupported" in str(error):  # what readers of the protocol must understand, and this one does not
            raise NewerFormat(f"{location}: {first_line(error)}") from error
        raise Unreachable(f"{location}: {first_line(error)}") from error


def refuse_other_things(location: Location) -> None:
    """Raise NoTable where there are files already, of which none is a Delta table's."""
    with store_errors(location):
        filesystem = location.filesystem()
        info = filesystem.get_file_info(location.path)
        if info.type == pafs.FileType.NotFound:
            return
        if info.type != pafs.FileType.Directory or filesystem.get_file_info(
            pafs.FileSelector(location.path, allow_not_found=True)
        ):
            raise NoTable(f"{location} is not a Delta table, and not empty; choose another place with --to.")


def _check(location: Location, delta: DeltaTable, topic: str, topic_id: UUID | None) -> UUID:
    """The topic id a table was made for. Raises WrongTable and NewerFormat."""
    told: Mapping[str, str] = delta.metadata().configuration
    if told.get(KIND) != ARCHIVE:
        raise WrongTable(
            f"{location} is a Delta table, but no archive of korvet's; choose another place with --to."
        )
    if not told.get(VERSION, "").isdecimal() or int(told[VERSION]) > FORMAT_VERSION:
        raise NewerFormat(
            f"{location} is of format version {told.get(VERSION)}; this korvet knows up to {FORMAT_VERSION}. Update it."
        )
    if told.get(TOPIC) != topic:
        raise WrongTable(f"{location} is the archive of topic {told.get(TOPIC)}, not of {topic}.")
    found_id = UUID(told[TOPIC_ID])
    if topic_id is not None and topic_id != found_id:
        raise RecreatedTopic(
            f"{location} is the archive of an earlier topic {topic}, which was deleted and created anew since "
            f"(its id was {found_id}, now it is {topic_id}); archive the new one to another place, "
            "or move the old table away. korvet lake query --archived reads the old table alone."
        )
    return found_id


def first_line(error: Exception) -> str:
    """Return what went wrong in one line, for deltalake's errors with the innermost cause."""
    text = str(error).strip()
    cause = re.split(r"\n\s*(?:\x1b\[\d+m)*\u21b3", text)[-1] if "\u21b3" in text else ""
    answer = re.search(r"<Code>([^<]*)</Code>(?:<Message>([^<]*)</Message>)?", cause)
    if answer is not None:
        cause = ": ".join(filter(None, answer.groups()))
    cause = " ".join(re.sub(r"\x1b\[\d+m", "", cause).split())
    first = text.partition("\n")[0].rstrip(".")
    return f"{first}: {cause.rstrip('.')}." if cause else f"{first}."
