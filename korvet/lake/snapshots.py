"""Snapshots of korvet's Delta tables: of archives, and of tables that were decoded from them.

A snapshot never changes. A commit targets the version after it, and is refused if another writer took this version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self
from urllib.parse import unquote
from uuid import UUID, uuid4

from attrs import define, evolve, field
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.delta_log import CommitFile, DeltaLog
from korvet.lake.errors import CommitConflict
from korvet.lake.location import Location
from korvet.lake.store_errors import first_line, store_errors
from korvet.lake.table_features import refuse_column_mapping

# The key of a commit's own id in commitInfo.
COMMIT_ID = "korvet.commit"


class File(Protocol):
    """A file of a snapshot."""

    @property
    def path(self) -> str:
        """The path in the log, relative to the table, percent-encoded."""

    @property
    def size(self) -> int:
        """The size in bytes."""


@define(slots=False)
class Snapshot:
    """One version of a table. It needs no closing."""

    location: Location  # of the table itself
    topic: str
    topic_id: UUID
    #: None after a commit on this snapshot, with which the handle moves to the next one.
    _delta: DeltaTable | None = field(repr=False)
    #: The latest version of each application id.
    transactions: Mapping[str, int] = field(repr=False)
    version: int = field(init=False)
    _commit: CommitFile | None = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.version = self.delta.version()
        with store_errors(self.location):
            self._commit = DeltaLog(self.location).file(self.version)

    @property
    def delta(self) -> DeltaTable:
        """The handle of this version in deltalake, for features that this class lacks. It must not be refreshed."""
        if self._delta is None:
            with store_errors(self.location):
                self._delta = DeltaTable(
                    self.location.url, self.version, storage_options=self.location.storage_options()
                )
        return self._delta

    @property
    def app_id(self) -> str:
        """The prefix of the application ids of the table's `txn` actions."""
        return f"korvet/{self.topic_id}"

    @property
    @abstractmethod
    def files(self) -> Sequence[File]:
        """The files of this version."""

    @abstractmethod
    def reopened(self) -> Self:
        """Return the newest snapshot of the same table."""

    def is_newest(self) -> bool:
        """Return True if no commit has followed. Raises Unreachable."""
        # Two requests, where opening the table takes one for each commit since the last checkpoint.
        with store_errors(self.location):
            return DeltaLog(self.location).ends_with(self.version, self._commit)

    def absolute(self, file: Any) -> str:
        """Return a file's path on the filesystem of `location`."""
        return f"{self.location.path}/{unquote(file.path)}"

    def commits(self, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield version and commitInfo of each commit from `first` up to this version that the log still has."""
        with store_errors(self.location):
            yield from DeltaLog(self.location).commits(first, self.version)

    def has_commit(self, commit_id: str, first: int) -> bool:
        """Return True if a commit from version `first` on has this id."""
        # A commit whose response was lost looks like a conflict with itself.
        return any(info.get(COMMIT_ID) == commit_id for _, info in self.commits(first))

    def write(
        self,
        actions: Sequence[AddAction | RemoveAction],
        commit_info: Mapping[str, Any],
        transactions: Mapping[str, int],
        *,
        retries: int | None = None,
        replacing: Schema | None = None,
    ) -> Self:
        """Commit actions, entries of commitInfo and `txn` versions. Return the snapshot with this commit.

        With `replacing`, the actions replace all files of the snapshot, and these are the table's columns. `retries` is
        how often deltalake may retry on top of other writers' commits that it considers compatible.
        Raises CommitConflict, Unreachable, NewerFormat. Then nothing was committed, as far as can be determined.
        """
        refuse_column_mapping(self.location, self.delta)
        properties, commit_id = committing(commit_info, transactions, retries)
        with store_errors(self.location):
            try:
                self.delta.create_write_transaction(
                    list(actions),
                    "append" if replacing is None else "overwrite",
                    replacing or self.delta.schema(),
                    partition_by=self.delta.metadata().partition_columns,
                    commit_properties=properties,
                )
            except CommitFailedError as error:
                newer = self.reopened()
                if not newer.has_commit(commit_id, self.version + 1):
                    raise CommitConflict(f"{self.location}: {first_line(error)}") from error
                return newer
            return self.following()

    def following(self) -> Self:
        """Return the newest snapshot after a commit on this one. The handle moves to it.

        Raises OSError, DeltaError.
        """
        delta, self._delta = self.delta, None
        delta.update_incremental()
        since = (self.version, self.transactions)
        transactions = DeltaLog(self.location).transactions(delta.version(), since=since)
        return evolve(self, delta=delta, transactions=transactions)


def committing(
    commit_info: Mapping[str, Any], transactions: Mapping[str, int], retries: int | None
) -> tuple[CommitProperties, str]:
    """Return the properties of a commit, and the commit id in them."""
    commit_id = uuid4().hex
    properties = CommitProperties(
        custom_metadata={COMMIT_ID: commit_id, **commit_info},
        max_commit_retries=retries,
        app_transactions=[Transaction(name, number) for name, number in transactions.items()],
    )
    return properties, commit_id
