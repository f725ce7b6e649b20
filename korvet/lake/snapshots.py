"""The parts of a table's snapshot that upkeep needs, of archives as of tables that were decoded from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.location import Location


class File(Protocol):
    """A file of a snapshot."""

    @property
    def path(self) -> str:
        """The path in the log, relative to the table."""

    @property
    def size(self) -> int:
        """The size in bytes."""


class Snapshot(Protocol):
    """One version of a table."""

    @property
    def location(self) -> Location: ...
    @property
    def version(self) -> int: ...
    @property
    def delta(self) -> DeltaTable: ...
    @property
    def files(self) -> Sequence[File]: ...

    def absolute(self, file: Any) -> str:
        """Return a file's path on the filesystem of `location`."""

    def reopened(self) -> Self:
        """Return the newest snapshot of the same table."""

    def commits(self, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield version and commitInfo of each commit from `first` on that the log still has."""

    def write(
        self,
        actions: Sequence[AddAction | RemoveAction],
        commit_info: Mapping[str, Any],
        transactions: Mapping[str, int],
        *,
        retries: int | None = None,
    ) -> Self:
        """Commit, and return the snapshot with this commit. Raises CommitConflict and Unreachable."""
