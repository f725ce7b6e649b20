"""Join the small files of typed and dlq tables.

Rows of a typed table are in no order that readers depend on, so any files with the same partition values may become one
file. The oldest are joined first, which keeps offsets together. Old files lack columns that the table has gained;
joined files have them, with nulls.

A commit replaces files only if all of them are still in the table. Decoded offsets do not change, so decoding goes on
meanwhile; a merge (upsert) or an erasure of the same files makes one of the two commits fail, and it starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from attrs import define, evolve, frozen

from korvet.lake.compacting import CLASS_BYTES, Joins, below, in_chunks, without_large_ones
from korvet.lake.errors import DamagedFile
from korvet.lake.file_reading import damage, opened
from korvet.lake.location import sync
from korvet.lake.replacing import swap
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable, Part


@frozen
class FileGroup:
    """Files with the same partition values that are to become one file."""

    files: tuple[DecodedFile, ...]

    @property
    def chunks(self) -> list[Sequence[DecodedFile]]:
        """The files to join into one file each."""
        return [self.files]


@frozen
class JoinedFile:
    """The file written for a group."""

    group: FileGroup
    files: tuple[Part, ...]


def groups_of(table: DecodedTable, target_bytes: int) -> list[FileGroup]:
    """Return the files to join up to the target size; an empty list if the table is compact."""
    return [
        FileGroup(tuple(files))
        for there in _by_values(table)
        for chunk in in_chunks(there, target_bytes)
        if len(files := without_large_ones(chunk)) > 1
    ]


def groups_by_class(table: DecodedTable, target_bytes: int) -> list[FileGroup]:  # noqa: ARG001  as `groups_of`
    """Return as many files at a time as an archive joins after each commit, all below a size, the smallest first."""
    groups: list[FileGroup] = []
    for there in _by_values(table):
        small = ([file for file in there if file.size < limit] for limit in CLASS_BYTES)
        found = (below(files, limit) for files, limit in zip(small, CLASS_BYTES, strict=True))
        groups += [FileGroup(tuple(files)) for files in next(filter(None, found), ())]
    return groups


def _by_values(table: DecodedTable) -> Iterator[list[DecodedFile]]:
    """Yield the files of each combination of partition values, the oldest first."""
    found: dict[tuple[Any, ...], list[DecodedFile]] = {}
    for file in table.files:
        found.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
    yield from found.values()


@define
class DecodedJoins(Joins[DecodedTable, FileGroup, JoinedFile]):
    """Joins the small files of a typed or dlq table."""

    #: Chooses the groups to join: `groups_of` or `groups_by_class`.
    find: Callable[[DecodedTable, int], list[FileGroup]] = groups_of
    #: Called with the name of each step before it begins. Tests kill the process between steps.
    on_step: Callable[[str], None] = lambda _: None

    def groups(self) -> list[FileGroup]:
        """Implement `Joins`."""
        return self.find(self.table, self.target_bytes)

    def joined(self, table: DecodedTable, group: FileGroup) -> JoinedFile:
        """Implement `Joins`."""
        self.on_step("join")
        return JoinedFile(group, (_joined(table, group),))

    def replaced(self, several: Sequence[JoinedFile]) -> DecodedTable:
        """Implement `Joins`."""
        self.on_step("before commit")
        made = swap(
            self.table,
            [file.remove_action(data_change=False) for each in several for file in each.group.files],
            [part.add_action(data_change=False) for each in several for part in each.files],
            lambda _: {},
        )
        self.on_step("after commit")
        return made


def _joined(table: DecodedTable, group: FileGroup) -> Part:
    """Write a group's file. Raises DamagedFile, Unreachable, and FileNotFoundError if a vacuum removed an input."""
    filesystem = table.location.filesystem()
    schema = file_schema(table)
    rows = (rows for file in group.files for rows in conformed_rows(table, file, schema, filesystem))
    part = written_instead(table, group.files, rows)
    if part is None:
        raise DamagedFile(f"{table.location}/{group.files[0].path} and the files after it have no rows.")
    return part


def written_instead(
    table: DecodedTable, files: Sequence[DecodedFile], rows: Iterable[pa.Table]
) -> Part | None:
    """Write rows to a file with the partition values of `files`, which they share. Return None if there are no rows."""
    first = files[0]
    folder = first.path.rpartition("/")[0]
    # A folder with escaped characters is not needed: the log has the values of partition columns.
    with PartWriter(table.location, (), "" if "%" in folder else folder) as writer:
        for each in rows:
            writer.write(each)
    if not writer.parts:
        return None
    (part,) = writer.parts
    if table.location.is_local:
        path = Path(table.location.path, part.path)
        sync(str(path))
        sync(str(path.parent))
    return evolve(part, partition_values=first.partition_values)


def file_schema(table: DecodedTable) -> pa.Schema:
    """Return the columns of the table's files: those of the table without partition columns."""
    columns = table.delta.metadata().partition_columns
    return pa.schema([each for each in table.schema if each.name not in columns])


def conformed_rows(
    table: DecodedTable, file: DecodedFile, schema: pa.Schema, filesystem: pafs.FileSystem
) -> Iterator[pa.Table]:
    """Yield the rows of each row group, with page checksums verified, in the columns of the schema, which may be a few.

    Raises DamagedFile, also if their number is not that of the log; AbsentFile, FileNotFoundError, Unreachable.
    """
    count = 0
    with opened(table, file, filesystem) as parquet:
        there = parquet.schema_arrow.names
        some = [name for name in there if name in schema.names]
        for number in range(parquet.num_row_groups):
            with damage(table, file.path):
                rows = parquet.read_row_group(number, some if len(some) < len(there) else None)
                rows = conformed(rows, schema)
            count += rows.num_rows
            yield rows
    if file.count is not None and count != file.count:
        raise DamagedFile(
            f"{table.location}/{file.path} is damaged: {count} rows, where there were {file.count}."
        )


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with these columns. Columns and nested fields that they lack are null."""
    there = set(rows.schema.names)
    columns = [
        rows[each.name].cast(each.type) if each.name in there else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
