"""Read whole files of typed and dlq tables, and write files in place of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from attrs import evolve

from korvet.lake.errors import DamagedFile
from korvet.lake.file_reading import damage, opened
from korvet.lake.location import sync
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable, Part


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
