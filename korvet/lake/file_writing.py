"""Write records to Parquet files. Spark's workers do this; they return the files' metadata to the committing driver.

A written file is not part of the table until it is committed, so a worker may be killed at any time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, field

from korvet.lake.encoding import field_sizes
from korvet.lake.files import ArchivedRange, DataFile, FileRange, file_path
from korvet.lake.location import Location, sync
from korvet.lake.schema import PARQUET_SCHEMA, Int64s, date_text, days

# A reader of a thousand records fetches one or two row groups; this bounds how many bytes it fetches.
ROW_GROUP_BYTES = 1_500_000
ROW_GROUP_ROWS = 8192
# Dictionaries pay off for strings that repeat. Trying them on payloads would cost more than writing the payloads.
DICTIONARY_COLUMNS = ["topic", "partition", "timestampType", "headers.list.element.key"]
NUMBER_ENCODINGS = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "timestamp_ms": "DELTA_BINARY_PACKED",
}
STATISTICS_COLUMNS = ["partition", "offset", "timestamp", "timestamp_ms"]
BOUNDED_COLUMNS = ["partition", "offset", "timestamp_ms"]
COMPRESSION = "zstd"

UInt64s = npt.NDArray[np.uint64]

# Bytes of rows to buffer before writing row groups, when rows arrive in small tables.
BUFFER_BYTES = 16 * 1024 * 1024


@define
class RangeWriter:
    """Writes one partition's records, range by range, to files of the table at `location`.

    `covered` is the end of the last range with files. The next file's range begins there, so that ranges without
    records leave no gap between file names. Each `write` writes one range, which is held in memory.
    """

    location: Location
    partition: int
    covered: int
    _filesystem: pafs.FileSystem = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._filesystem = self.location.filesystem()

    def write(self, rows: pa.Table, start: int, end: int) -> ArchivedRange:
        """Write rows of FILE_SCHEMA, sorted by offset: all that the partition has in [start, end).

        Return what to commit. Raises OSError if writing fails.
        """
        if not rows.num_rows:
            return ArchivedRange(self.partition, start, end)
        pieces = list(_by_date(rows))
        files = tuple(
            self._write_file(piece, date, FileRange(self.partition, self.covered, end, number, len(pieces)))
            for number, (date, piece) in enumerate(pieces, 1)
        )
        sync_folders(self.location, files)
        self.covered = end
        return ArchivedRange(self.partition, start, end, rows.num_rows, checksum(rows), rows.nbytes, files)

    def _write_file(self, rows: pa.Table, date: str | None, held: FileRange) -> DataFile:
        path = file_path(held, date)
        with FileWriter.open(self.location, path, date, filesystem=self._filesystem) as writer:
            writer.write(rows)
            return writer.close()


@define
class FileWriter:
    """Writes rows to a new file of a table. Use `open`, which closes the file if `close` was not called.

    At most BUFFER_BYTES of rows are buffered. All methods raise OSError if writing fails.
    """

    location: Location
    path: str  # inside the table
    date: str | None
    _sink: pa.NativeFile
    _parquet: pq.ParquetWriter
    _waiting: list[pa.Table] = field(factory=list, init=False)
    _waiting_bytes: int = field(default=0, init=False)
    count: int = field(default=0, init=False)
    #: Minimum and maximum of each of BOUNDED_COLUMNS.
    _bounds: dict[str, tuple[int, int]] = field(factory=dict, init=False)

    @classmethod
    @contextmanager
    def open(
        cls, location: Location, path: str, date: str | None, *, filesystem: pafs.FileSystem
    ) -> Iterator[Self]:
        """Open a writer of the file `path`. The file is complete once `close` has returned."""
        whole = f"{location.path}/{path}"
        if location.is_local:
            os.makedirs(os.path.dirname(whole), exist_ok=True)  # noqa: PTH103, PTH120  the filesystem's own paths
        with (
            filesystem.open_output_stream(whole) as sink,
            pq.ParquetWriter(
                sink,
                PARQUET_SCHEMA,
                compression=COMPRESSION,
                use_dictionary=DICTIONARY_COLUMNS,
                column_encoding=NUMBER_ENCODINGS,
                write_statistics=STATISTICS_COLUMNS,
                write_page_checksum=True,
                store_schema=False,
            ) as parquet,
        ):
            yield cls(location, path, date, sink, parquet)

    def write(self, rows: pa.Table) -> None:
        """Append rows of FILE_SCHEMA. All rows of a file must be sorted by offset."""
        if not rows.num_rows:
            return
        self.count += rows.num_rows
        for name in BOUNDED_COLUMNS:
            numbers = _numbers(rows, name)
            least, greatest = self._bounds.get(name, (int(numbers[0]), int(numbers[0])))
            self._bounds[name] = min(least, int(numbers.min())), max(greatest, int(numbers.max()))
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= BUFFER_BYTES:
            self._flush(is_all=False)

    def close(self, metadata: Mapping[bytes, bytes] | None = None) -> DataFile:
        """Write the buffered rows, and `metadata` into the footer. Return what to commit."""
        self._flush(is_all=True)
        if metadata:
            self._parquet.add_key_value_metadata(metadata)
        self._parquet.close()
        size = self._sink.tell()
        self._sink.close()
        if self.location.is_local:
            sync(f"{self.location.path}/{self.path}")
        nothing = (0, 0)
        first_partition, last_partition = self._bounds.get("partition", nothing)
        first_offset, last_offset = self._bounds.get("offset", nothing)
        first_ms, last_ms = self._bounds.get("timestamp_ms", nothing)
        return DataFile(
            path=self.path,
            size=size,
            modified_ms=time.time_ns() // 1_000_000,
            date=self.date,
            partition=first_partition,
            count=self.count,
            first_offset=first_offset,
            last_offset=last_offset,
            first_ms=first_ms,
            last_ms=last_ms,
            last_partition=last_partition,
        )

    def _flush(self, *, is_all: bool) -> None:
        """Write buffered rows: all, or only full row groups."""
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        group = rows_of_a_group(rows)
        ready = rows.num_rows if is_all else rows.num_rows // group * group
        if ready:
            self._parquet.write_table(rows.slice(0, ready), row_group_size=group)
        rest = rows.slice(ready)
        self._waiting = [rest] if rest.num_rows else []
        self._waiting_bytes = rest.nbytes


def sync_folders(location: Location, files: Iterable[DataFile]) -> None:
    """Flush the folders of written files, so that the files survive a crash of the machine."""
    if location.is_local:
        for folder in {file.path.partition("/")[0] for file in files}:
            sync(f"{location.path}/{folder}")


def rows_of_a_group(rows: pa.Table) -> int:
    """Return the number of rows per row group: about ROW_GROUP_BYTES, at least one row."""
    size: int = max(1, rows.nbytes // max(1, rows.num_rows))
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // size))


def checksum(rows: pa.Table) -> int:
    """Return a checksum of the records that does not depend on their order or on the split into files.

    It is the sum (modulo 2^64) of `record_checksums` over the rows. Page checksums cover the bytes of keys and
    values.
    """
    return int(np.sum(record_checksums(rows), dtype=np.uint64))


def record_checksums(rows: pa.Table) -> UInt64s:
    """Return the record checksums: a hash of each row's offset, timestamp_ms, and lengths of key and value."""
    mixed = _mixed_bits(_numbers(rows, "offset").astype(np.uint64))
    mixed = _mixed_bits(mixed ^ _numbers(rows, "timestamp_ms").astype(np.uint64))
    for name in ("key", "value"):
        mixed = _mixed_bits(mixed ^ field_sizes(rows.column(name)).astype(np.uint64))
    return mixed


def _mixed_bits(numbers: UInt64s) -> UInt64s:
    """Apply the finalizer of splitmix64: every input bit affects every output bit."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _by_date(rows: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the rows of each date by offset. Dates ascend; rows without a date come first."""
    day = days(_numbers(rows, "timestamp_ms"))
    if (day == day[0]).all():
        yield date_text(int(day[0])), rows
        return
    order = np.argsort(day, kind="stable")
    distinct, starts = np.unique(day[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    for index, value in enumerate(distinct.tolist()):
        yield date_text(value), rows.take(pa.array(order[bounds[index] : bounds[index + 1]]))


def _numbers(rows: pa.Table, name: str) -> Int64s:
    numbers: Int64s = rows.column(name).to_numpy()
    return numbers
