"""The rows that each commit of a typed or a dlq table inserted, updated and deleted.

The feed is derived from the files that commits have added and removed. They stay until a vacuum, so writers record
nothing for it. The partition and the offset of its record identify a row, so a row that a commit only moved to another
file is no change. In a table for upserts, a removed row and an added one of the same key are an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
from attrs import define, field

from korvet.lake.delta_log import Commit, DeltaLog
from korvet.lake.errors import NoVersion
from korvet.lake.schema import Int64s
from korvet.lake.store_errors import store_errors
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
        there = log.versions()
    for version in range(first, (table.version if last is None else last) + 1):
        if version not in there:
            earliest = min(number for number in there if number > version)
            raise NoVersion(
                f"{table.location}: version {version} is not in the table's log any more, which begins with "
                f"{earliest}. Begin with the rows of the table, and the changes after its newest version, "
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


@define
class _CommitChanges:
    """The changes of a commit."""

    table: DecodedTable
    commit: Commit
    _filesystem: pafs.FileSystem = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._filesystem = self.table.location.filesystem()

    def all(self) -> Iterator[pa.Table]:
        removed, added = self.commit.removed, self.commit.added
        moved = _common(self._places(removed), self._places(added)) if removed and added else {}
        new = map(partial(_without, moved, self.table.place), self._rows(added))
        old = map(partial(_without, moved, self.table.place), self._rows(removed))
        if not (removed and added and self.table.keys):
            for kind, tables in ((DELETE, old), (INSERT, new)):
                for rows in tables:
                    yield self._typed(rows, np.full(rows.num_rows, kind))
            return
        # A merge adds as many rows as it has read from the archive at a time.
        inserted = pa.concat_tables([self.table.schema.empty_table(), *new])
        keys = KeyIndex.of(inserted, Keys(self.table.keys))
        numbers = keys.find(inserted)
        updated = np.zeros(len(numbers), bool)
        for rows in old:
            found = keys.find(rows)
            updated |= np.isin(numbers, found)
            yield self._typed(rows, np.where(found >= 0, BEFORE_UPDATE, DELETE))
        yield self._typed(inserted, np.where(updated, AFTER_UPDATE, INSERT))

    def _rows(
        self, files: Sequence[dict[str, Any]], columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows of files. Raises FileNotFoundError, DamagedFile, Unreachable."""
        schema = self.table.schema
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        for action in files:
            values = action.get("partitionValues") or {}
            inside = pa.schema([each for each in wanted if each.name not in values])
            file = DecodedFile(action["path"], action.get("size") or 0, 0, None, values, {}, {})
            for rows in conformed_rows(self.table, file, inside, self._filesystem):
                yield pa.table(
                    [
                        rows[each.name]
                        if each.name not in values
                        else pa.repeat(partition_value(values[each.name], each.type), rows.num_rows)
                        for each in wanted
                    ],
                    schema=wanted,
                )

    def _places(self, files: Sequence[dict[str, Any]]) -> dict[int, Int64s]:
        """Return the offsets of the rows of files, by partition."""
        found: dict[int, list[Int64s]] = {}
        for rows in self._rows(files, self.table.place):
            partitions, offsets = (rows[name].to_numpy() for name in self.table.place)
            for number in np.unique(partitions).tolist():
                found.setdefault(number, []).append(offsets[partitions == number])
        return {number: np.concatenate(several) for number, several in found.items()}

    def _typed(self, rows: pa.Table, kinds: npt.NDArray[np.str_]) -> pa.Table:
        """Append the columns of the feed."""
        time = pa.scalar(self.commit.time_ms, pa.timestamp("ms", "UTC"))
        rows = rows.append_column(CHANGE_TYPE, pa.array(kinds, pa.string()))
        rows = rows.append_column(COMMIT_VERSION, pa.repeat(pa.scalar(self.commit.version), rows.num_rows))
        return rows.append_column(COMMIT_TIMESTAMP, pa.repeat(time, rows.num_rows))


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
