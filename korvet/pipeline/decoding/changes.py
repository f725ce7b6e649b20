"""The rows that each commit of a typed or a dlq table inserted, updated and deleted.

The feed is derived from the files that commits have added and removed. They stay until a vacuum, so writers record
nothing for it. The partition and the offset of its record identify a row, so a row that a commit only moved to another
file is no change. In a table for upserts, a removed row and an added one of the same key are an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from attrs import frozen

from korvet.lake.delta_log import Commit, DeltaLog
from korvet.lake.errors import NoVersion
from korvet.lake.schema import Int64s
from korvet.lake.store_errors import store_errors
from korvet.pipeline.decoding.columns import KEY
from korvet.pipeline.decoding.rewriting import conformed_rows
from korvet.pipeline.decoding.row_keys import KeyIndex, Keys
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable

# The names of Delta's change data feed.
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
INSERT, DELETE, BEFORE_UPDATE, AFTER_UPDATE = "insert", "delete", "update_preimage", "update_postimage"


def changes(table: DecodedTable, first: int, last: int | None = None) -> Iterator[pa.Table]:
    """Yield the changed rows of the versions from `first` to `last`, by default the snapshot's, commit by commit.

    Each table has the columns of the snapshot, with null where a row is older than a column, and then `_change_type`
    (string: insert, delete, update_preimage, update_postimage), `_commit_version` (long) and `_commit_timestamp`.
    Raises NoVersion if a version, or one of its files, is not there any more; DamagedFile, Unreachable.
    """
    log = DeltaLog(table.location)
    with store_errors(table.location):
        there = set(log.versions())
    for version in range(first, (table.version if last is None else last) + 1):
        if version not in there:
            raise NoVersion(
                f"{table.location}: version {version} is not in the table's log any more, which begins with "
                f"{min(there)}. Begin with the rows of the table, and the changes after its newest version, "
                f"{table.version}."
            )
        with store_errors(table.location):
            commit = log.commit(version)
        try:
            yield from _CommitChanges(table, commit).all()
        except FileNotFoundError:
            raise NoVersion(
                f"{table.location}: a vacuum has removed files of version {version}. Begin with the rows of the table, "
                f"and the changes after its newest version, {table.version}."
            ) from None


@frozen
class _CommitChanges:
    """The changes of a commit."""

    table: DecodedTable
    commit: Commit

    def all(self) -> Iterator[pa.Table]:
        """Yield the changed rows, the removed ones first."""
        table = self.table
        removed, added = (list(map(_file, each)) for each in (self.commit.removed, self.commit.added))
        moved = _common(table.offsets(removed), table.offsets(added)) if removed and added else {}
        new = map(partial(_without, moved, table.place), self._rows(added))
        old = map(partial(_without, moved, table.place), self._rows(removed))
        columns = table.keys or tuple({KEY} & set(table.schema.names))  # made by an earlier korvet
        if not (removed and added and columns):
            for kind, tables in ((DELETE, old), (INSERT, new)):
                for rows in tables:
                    yield self._with_kinds(rows, np.full(rows.num_rows, kind))
            return
        # A merge adds as many rows as it has read from the archive at a time.
        inserted = pa.concat_tables([table.schema.empty_table(), *new])
        keys = KeyIndex.of(inserted, Keys(columns))
        numbers = keys.find(inserted)
        updated = np.zeros(len(numbers), bool)
        for rows in old:
            found = keys.find(rows)
            updated |= np.isin(numbers, found)
            yield self._with_kinds(rows, np.where(found >= 0, BEFORE_UPDATE, DELETE))
        yield self._with_kinds(inserted, np.where(updated, AFTER_UPDATE, INSERT))

    def _rows(self, files: Sequence[DecodedFile]) -> Iterator[pa.Table]:
        """Yield the rows of files. Raises FileNotFoundError, DamagedFile, Unreachable."""
        schema = self.table.schema
        filesystem = self.table.location.filesystem()
        for file in files:
            values = file.partition_values
            inside = pa.schema([each for each in schema if each.name not in values])
            for rows in conformed_rows(self.table, file, inside, filesystem):
                columns = [
                    pa.repeat(partition_value(values[each.name], each.type), rows.num_rows)
                    if each.name in values
                    else rows[each.name]
                    for each in schema
                ]
                yield pa.table(columns, schema=schema)

    def _with_kinds(self, rows: pa.Table, kinds: npt.NDArray[np.str_]) -> pa.Table:
        """Append the columns of the feed."""
        time = pa.scalar(self.commit.time_ms, pa.timestamp("ms", "UTC"))
        rows = rows.append_column(CHANGE_TYPE, pa.array(kinds, pa.string()))
        rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(self.commit.version), rows.num_rows))
        return rows.append_column(COMMIT_TIMESTAMP, pa.repeat(time, rows.num_rows))


def _file(action: Mapping[str, Any]) -> DecodedFile:
    """Return the file of an `add` or a `remove` action."""
    # Both are optional in a `remove` action.
    size, values = action.get("size") or 0, action.get("partitionValues") or {}
    return DecodedFile(action["path"], size, 0, None, values, {}, {})


def _common(some: dict[int, Int64s], others: dict[int, Int64s]) -> dict[int, Int64s]:
    """Return the offsets that both have, by partition."""
    return {number: np.intersect1d(some[number], others[number]) for number in some.keys() & others.keys()}


def _without(moved: dict[int, Int64s], place: tuple[str, str], rows: pa.Table) -> pa.Table:
    """Return the rows that are at none of these offsets."""
    partitions, offsets = (rows[name].to_numpy() for name in place)
    left = np.ones(rows.num_rows, bool)
    for number, several in moved.items():
        left &= (partitions != number) | ~np.isin(offsets, several)
    return rows if left.all() else rows.filter(pa.array(left))


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a partition column, which the log has as text."""
    if text is not None and pa.types.is_timestamp(kind):
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(kind)
    return pa.scalar(text, pa.string()).cast(kind)
