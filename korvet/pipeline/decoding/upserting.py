"""Upsert: the typed table keeps the latest row of each key, and no row of a deleted key, or one that is marked.

Rows are staged as files in a hidden folder of the table. A merge reads the keys of all files, writes the files that
have a replaced row again without it, and adds the new rows, in one commit with the decoded offsets. The commit is for
the version after the one that was read, so a file that another writer has changed meanwhile makes it fail. If record
keys have the framing of Confluent's clients, they are compared without it, since the same key has another schema id
after the schema has changed.

With `deletes = "soft"`, a deletion keeps the values of the key's latest row. It is a row also if there was none, so
that an older record that is decoded later does not become the key's row. A table of one of several record types has no
such rows, since a tombstone does not state the type of its row.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, field, frozen
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.location import Location
from korvet.lake.parallel import results
from korvet.lake.retrying import retried_writing
from korvet.lake.schema import BUCKET, Int64s
from korvet.lake.store_errors import store_errors
from korvet.lake.table_features import refuse_other_features
from korvet.pipeline.decoding.columns import DELETED, DELETED_AT, OFFSET, OPERATION, PARTITION, TIMESTAMP
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.rewriting import conformed_rows, file_schema, written_instead
from korvet.pipeline.decoding.row_keys import KeyIndex, Keys, Mask, Places, latest
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable, Part, Span, commit_info, partition_text

STAGING = "_korvet_staging"
FOLDER = re.compile(r"(\d+)-[0-9a-f]{32}")
# Later rounds delete what killed rounds have staged, after this time.
STALE_MS = 24 * 3600 * 1000
# The columns of a marked row that are those of the deletion. All others are those of the key's latest row before.
OF_DELETION = (PARTITION, OFFSET, TIMESTAMP, OPERATION, DELETED, DELETED_AT)


def new_folder() -> str:
    """Return a new folder for staged files."""
    return f"{STAGING}/{time.time_ns() // 1_000_000}-{uuid4().hex}"


def sweep(location: Location, folder: str | None = None) -> None:
    """Delete a folder of staged files, and folders older than STALE_MS."""
    filesystem = location.filesystem()
    selector = pafs.FileSelector(f"{location.path}/{STAGING}", allow_not_found=True)
    oldest_ms = time.time_ns() // 1_000_000 - STALE_MS
    with store_errors(location):
        for info in filesystem.get_file_info(selector):
            match = FOLDER.fullmatch(info.base_name)
            ours = folder is not None and info.path.endswith(folder)
            if ours or (match is not None and int(match[1]) < oldest_ms):
                location.delete_folder(f"{STAGING}/{info.base_name}")


def staged(location: Location, parts: Sequence[Part]) -> pa.Table:
    """Return the staged rows. Raises OSError."""
    filesystem = location.filesystem()
    paths = [f"{location.path}/{part.path}" for part in parts]
    return pa.concat_tables([pq.read_table(path, filesystem=filesystem, partitioning=None) for path in paths])


@frozen
class Newest:
    """The row of each key in some new rows. `has_values` is False for deletions without a row before them."""

    #: In the order of the numbers of their keys.
    rows: pa.Table
    keys: KeyIndex
    places: Places
    deleted: Mask
    has_values: Mask

    @classmethod
    def of(cls, rows: pa.Table, keys: Keys) -> Newest:
        index = KeyIndex.of(rows, keys)
        numbers = index.find(rows)
        places = Places.of(rows)
        deleted = rows[DELETED].to_numpy()
        found = latest(numbers, places, np.arange(rows.num_rows))
        with_values = found.copy()
        has_values = ~deleted[found]
        live = latest(numbers, places, np.flatnonzero(~deleted))
        at = np.searchsorted(numbers[live], numbers[found])
        before = np.append(live, -1)[at]
        is_there = (before >= 0) & (numbers[before] == numbers[found])
        with_values[is_there & deleted[found]] = before[is_there & deleted[found]]
        has_values |= is_there
        return cls(
            marked(rows.take(with_values), rows.take(found)),
            index,
            places.at(found),
            deleted[found],
            has_values,
        )


def marked(values: pa.Table, deletions: pa.Table) -> pa.Table:
    """Return rows with the values of one table, and what the other one states of their deletion.

    Columns that `values` lack, such as partition columns, are those of `deletions`.
    """
    there = {*values.column_names} - {*OF_DELETION}
    columns = [(values if name in there else deletions)[name] for name in deletions.column_names]
    return pa.Table.from_arrays(columns, schema=deletions.schema)


@define
class FileChange:
    """The effect of new rows on a file. `older` are the new rows that do not count against rows of the file."""

    older: Int64s
    matched: Int64s
    #: Marked rows, with the values that they have in the file.
    kept: pa.Table | None = None
    #: None if the file has no replaced row; empty if it has no other rows.
    written: list[Part] | None = None


def merge(
    table: DecodedTable,
    rows: pa.Table | None,
    keys: Keys,
    spans: Sequence[Span],
    *,
    marks_absent: bool = True,
    info: Mapping[str, Any] | None = None,
    transactions: Mapping[str, int] | None = None,
) -> DecodedTable:
    """Merge rows, and advance the decoded offsets of spans, in one commit. Return the snapshot with this commit.

    `rows` have the column `_deleted`; None: there are none. `marks_absent` states whether deletions of keys without a
    row become marked rows. `info` and `transactions` are further entries of the commit. Raises OutOfOrder,
    CommitConflict, DamagedFile, NewerFormat, Unreachable. Then nothing was committed, as far as can be determined.
    """
    numbers = {**table.next_numbers(spans), **(transactions or {})}
    info = {**commit_info(spans), **(info or {})}
    if rows is None or not rows.num_rows:
        return table.write([], info, numbers)
    refuse_other_features(table.location, table.delta)
    newest = Newest.of(rows, keys)
    is_soft = DELETED in table.schema.names
    added = ~newest.deleted
    if is_soft:
        added |= marks_absent | newest.has_values
    actions: list[AddAction | RemoveAction] = []
    kept = []
    for file, change in results(partial(_change, table, newest), _files_with_buckets_of(newest.rows, table)):
        added[change.older] = False
        if change.written is not None:
            actions += [part.add_action() for part in change.written]
            actions.append(file.remove_action(data_change=True))
        if change.kept is not None:
            added[change.matched] = False
            kept.append(change.kept)
    schema = table.schema
    new = newest.rows.filter(pa.array(added)).select(schema.names).cast(schema)
    found = pa.concat_tables([new, *kept]).combine_chunks()
    parts = retried_writing(table.location, partial(_written, table, found))
    actions += [part.add_action() for part in parts]
    return table.write(actions, info, numbers, retries=0)


def _files_with_buckets_of(rows: pa.Table, table: DecodedTable) -> list[DecodedFile]:
    """Return the files that may have rows with the same keys: those of the same buckets, if the table has buckets."""
    if table.buckets is None:
        return table.files
    wanted = {partition_text(each) for each in pc.unique(rows[BUCKET]).to_pylist()}
    return [file for file in table.files if file.partition_values[BUCKET] in wanted]


def _written(table: DecodedTable, rows: pa.Table) -> list[Part]:
    """Write rows to new files."""
    with PartWriter(table.location, tuple(table.delta.metadata().partition_columns)) as writer:
        writer.write(rows)
    return writer.parts


def _change(table: DecodedTable, newest: Newest, file: DecodedFile) -> FileChange:
    return retried_writing(table.location, partial(_changed, table, newest, file))


def _changed(table: DecodedTable, newest: Newest, file: DecodedFile) -> FileChange:
    """Find the rows of a file that new rows replace, and write the file without them. Raises as `merge`."""
    filesystem = table.location.filesystem()
    schema = file_schema(table)
    wanted = [
        name for name in (PARTITION, OFFSET, TIMESTAMP, *newest.keys.keys.columns) if name in schema.names
    ]
    there = list(conformed_rows(table, file, pa.schema([schema.field(name) for name in wanted]), filesystem))
    rows = pa.concat_tables(there)
    numbers = newest.keys.find(rows)
    at = np.flatnonzero(numbers >= 0)
    matched = numbers[at]
    counts = newest.places.at(matched).count_against(Places.of(rows).at(at))
    change = FileChange(matched[~counts], matched[:0])
    replaced, by = at[counts], matched[counts]
    if not len(replaced):
        return change
    is_kept = (
        newest.deleted[by] & ~newest.has_values[by] if DELETED in schema.names else np.zeros(len(by), bool)
    )
    left = _Left(replaced, replaced[is_kept])
    part = written_instead(table, [file], map(left.take, conformed_rows(table, file, schema, filesystem)))
    change.written = [] if part is None else [part]
    if is_kept.any():
        change.matched = by[is_kept]
        deletions = newest.rows.select(table.schema.names).take(pa.array(change.matched))
        change.kept = marked(pa.concat_tables(left.kept), deletions.cast(table.schema))
    return change


@define
class _Left:
    """Takes the replaced rows out of a file's row groups, and keeps some of them. Both are sorted indexes."""

    replaced: Int64s
    wanted: Int64s
    kept: list[pa.Table] = field(factory=list)
    _first: int = 0

    def take(self, rows: pa.Table) -> pa.Table:
        """Return the rows of the next row group that are not replaced."""
        first, self._first = self._first, self._first + rows.num_rows
        inside = self.wanted[(self.wanted >= first) & (self.wanted < self._first)] - first
        self.kept.append(rows.take(pa.array(inside)))
        mask = np.ones(rows.num_rows, bool)
        mask[self.replaced[(self.replaced >= first) & (self.replaced < self._first)] - first] = False
        return rows.filter(pa.array(mask))
