"""Replace files of a table by others in one commit, which succeeds only while all replaced files are in the table.

By default, deltalake retries a commit on top of other writers' commits without checking whether one of them removed the
same files; rows would be duplicated. So a commit is attempted for exactly one version, the one after the snapshot. If
another writer took this version, the newest snapshot is opened, and the commit is tried again only if the snapshot
still has all the files. Archived offsets do not change, so archivers may commit between attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.actions import add_action, remove_action
from korvet.lake.errors import CommitConflict
from korvet.lake.files import DataFile
from korvet.lake.snapshots import Snapshot
from korvet.lake.table import LakeTable
from korvet.lake.table_files import TableFile

S = TypeVar("S", bound=Snapshot)

# An archiver at its busiest commits a few times a second.
ATTEMPTS = 100


def replace(
    table: LakeTable,
    gone: Sequence[TableFile],
    new: Sequence[DataFile],
    *,
    data_change: bool,
    commit_info: Callable[[LakeTable], Mapping[str, Any]] = lambda _: {},
    transactions: Mapping[str, int] | None = None,
) -> LakeTable:
    """Remove the files `gone` and add the files `new` in one commit. Return the snapshot with this commit.

    `data_change` is False if the rows stay the same. `commit_info` returns the entries for a commit on top of a
    snapshot; `transactions` are `txn` versions to set. Raises CommitConflict if another writer removed one of the
    files, and Unreachable.
    """
    return swap(
        table,
        [remove_action(file, data_change=data_change) for file in gone],
        [add_action(file, data_change=data_change) for file in new],
        commit_info,
        transactions,
    )


def swap(
    table: S,
    gone: Sequence[RemoveAction],
    new: Sequence[AddAction],
    commit_info: Callable[[S], Mapping[str, Any]],
    transactions: Mapping[str, int] | None = None,
) -> S:
    """Commit these actions, as `replace` does."""
    for _ in range(ATTEMPTS):
        _refuse_gone(table, gone)
        try:
            return table.write([*new, *gone], commit_info(table), transactions or {}, retries=0)
        except CommitConflict:
            newer = table.reopened()
            if newer.version == table.version:
                raise
            table = newer
    raise CommitConflict(f"{table.location}: others have committed {ATTEMPTS} times meanwhile; try again.")


def _refuse_gone(table: Snapshot, gone: Sequence[RemoveAction]) -> None:
    """Raise CommitConflict if the snapshot lacks one of the files."""
    there = {file.path for file in table.files}
    for file in gone:
        if file.path not in there:
            raise CommitConflict(
                f"{table.location}: another writer replaced {file.path} meanwhile; nothing was committed."
            )
