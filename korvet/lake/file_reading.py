"""Read whole files, one row group at a time, with page checksums verified. For rewriting and verifying files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from korvet.lake.errors import AbsentFile, DamagedFile, Unreachable
from korvet.lake.files import ERASED, erased_offsets
from korvet.lake.retrying import Retries, retried
from korvet.lake.schema import FILE_SCHEMA, Int64s
from korvet.lake.snapshots import File, Snapshot
from korvet.lake.store_errors import first_line
from korvet.lake.table import LakeTable
from korvet.lake.table_files import TableFile


@contextmanager
def opened(table: Snapshot, file: File, filesystem: pafs.FileSystem) -> Iterator[pq.ParquetFile]:
    """Open a file for reading.

    Raises DamagedFile, AbsentFile if the newest version has the file, FileNotFoundError if a vacuum removed it, and
    Unreachable.
    """
    with damage(table, file.path), filesystem.open_input_file(table.absolute(file)) as source:
        yield checked(source, pre_buffer=True)


def checked(source: pa.NativeFile, *, pre_buffer: bool = False) -> pq.ParquetFile:
    """Return a file whose readers raise OSError for a page that does not match its checksum."""
    return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=pre_buffer)


@contextmanager
def damage(table: Snapshot, path: str) -> Iterator[None]:
    """Raise DamagedFile for the errors that pyarrow raises for damaged bytes."""
    try:
        yield
    except FileNotFoundError as error:
        if any(file.path == path for file in table.reopened().files):
            raise AbsentFile(f"{table.location}/{path} is not there.") from error
        raise
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        if "AWS Error" in str(error) or getattr(error, "errno", None):
            raise Unreachable(f"{table.location}: {first_line(error)}") from error
        raise DamagedFile(f"{table.location}/{path} is damaged: {first_line(error)}") from error


def row_groups(
    table: LakeTable, file: TableFile, filesystem: pafs.FileSystem, columns: Sequence[str] = FILE_SCHEMA.names
) -> Iterator[pa.Table]:
    """Yield a file's rows in the order of the file, with these columns of FILE_SCHEMA. Raises as `opened`."""
    for _, _, rows in numbered_row_groups(table, file, filesystem, columns):
        yield rows


def numbered_row_groups(
    table: LakeTable, file: TableFile, filesystem: pafs.FileSystem, columns: Sequence[str] = FILE_SCHEMA.names
) -> Iterator[tuple[pq.ParquetFile, int, pa.Table]]:
    """Yield the open file with the number and the rows of each row group.

    After an error of the store, reading goes on at the same row group. Raises as `opened`.
    """
    retries = Retries()
    number = 0
    while True:
        try:
            with opened(table, file, filesystem) as parquet:
                while number < parquet.num_row_groups:
                    rows = row_group(parquet, number, file, columns)
                    retries.succeeded()
                    number += 1
                    yield parquet, number - 1, rows
                return
        except Unreachable as error:
            retries.wait_after(error)


def row_group(
    parquet: pq.ParquetFile, number: int, file: TableFile, columns: Sequence[str] = FILE_SCHEMA.names
) -> pa.Table:
    """Return the rows of a row group, with these columns. Call it within `opened`."""
    # Other types are a fault in our own files; other writers may use other types for the same values.
    names = list(columns)
    rows = parquet.read_row_group(number, columns=names).select(names)
    schema = pa.schema([FILE_SCHEMA.field(name) for name in names])
    if file.held is not None and rows.schema.types != schema.types:
        raise ValueError("its columns are not of the types they were written with.")
    return rows.cast(schema)


def by_partition(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition, with its number."""
    partitions = rows["partition"].to_numpy()
    distinct = np.unique(partitions)
    for partition in distinct.tolist():
        yield partition, rows if len(distinct) == 1 else rows.filter(pa.array(partitions == partition))


def erased_from(table: LakeTable, file: TableFile, filesystem: pafs.FileSystem) -> dict[int, Int64s]:
    """Return, by partition, the sorted offsets of the records erased from a file. Raises as `opened`."""
    if file.held is not None and not file.held.erased:
        return {}

    def offsets() -> dict[int, Int64s]:
        with opened(table, file, filesystem) as parquet:
            return erased_offsets((parquet.metadata.metadata or {}).get(ERASED, b""))

    return retried(offsets)
