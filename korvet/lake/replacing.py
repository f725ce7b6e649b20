"""Files of a table replaced by others, in one commit, which is made only while all that it replaces is still there.

deltalake, left to itself, commits anew on top of what others have committed meanwhile, and does not look whether one of
them has removed the same files: rows would be doubled. So a commit is made for exactly one version, the snapshot's
next; when somebody else has made that, the newest snapshot is looked at, and only if it has all the files still is the
commit tried again. The numbers are not touched, so an archiver's commits and these do not exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.actions import add_action, remove_action
from korvet.lake.errors import CommitConflict, NewerFormat
from korvet.lake.files import DataFile
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.lake.table_files import TableFile

# An archiver at its busiest commits a few times a second.
ATTEMPTS = 100


def replace(
    table: LakeTable,
    gone: Sequence[TableFile],
    new: Sequence[DataFile],
    *,
    data_change: bool,
    told: Callable[[LakeTable], Mapping[str, Any]] = lambda _: {},
    transactions: Mapping[str, int] | None = None,
) -> LakeTable:
    """Commit that `gone` are gone and `new` are there; the snapshot that has it.

    `data_change` says whether rows have changed, too; what `told` says of a snapshot goes into the commitInfo of a
    commit that follows it; `transactions` are numbers that move. Raises CommitConflict when one of the files has gone
    otherwise, and Unreachable.
    """
    actions: list[AddAction | RemoveAction] = [add_action(file, data_change=data_change) for file in new]
    actions += [remove_action(file, data_change=data_change) for file in gone]
    for _ in range(ATTEMPTS):
        _refuse_gone(table, gone)
        try:
            return table.write(actions, told(table), transactions or {}, retries=0)
        except CommitConflict:
            newer = table.reopened()
            if newer.version == table.version:
                raise
            table = newer
    raise CommitConflict(f"{table.location}: others have committed {ATTEMPTS} times meanwhile; try again.")


def _refuse_gone(table: LakeTable, gone: Sequence[TableFile]) -> None:
    """Raise CommitConflict where the snapshot does not have a file any more."""
    there = {file.path for file in table.files}
    for file in gone:
        if file.path not in there:
            raise CommitConflict(
                f"{table.location}: {file.path} was replaced by somebody else meanwhile; nothing was committed."
            )


def refuse_deletion_vectors(location: Location, delta: DeltaTable) -> None:
    """Raise where rows may be deleted that are in the files still: to write them anew would bring them back."""
    if "deletionVectors" in (delta.protocol().reader_features or ()):
        raise NewerFormat(
            f"{location} has deletion vectors, of somebody else's making, and its files cannot be written anew."
        )
