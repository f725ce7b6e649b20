"""Write decoded rows to Parquet files, each with a single value of every partition column.

Written files are not part of the table until they are committed. The number of open files is bounded. The values of
partition columns are in the log, and in the names of folders if they fit there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, field

from korvet.lake.location import Location
from korvet.pipeline.decoding.statistics import statistics_of, with_nan
from korvet.pipeline.decoding.tables import Part, partition_text

MOST_OPEN = 32
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024
COMPRESSION = "zstd"
PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.+-]{1,100}")
Values = tuple[Any, ...]


@define
class OpenFile:
    """A file that is being written. Rows are buffered until they fill a row group."""

    path: str
    partition_values: dict[str, str | None]
    sink: pa.NativeFile
    writer: pq.ParquetWriter
    schema: pa.Schema
    metadata: list[pq.FileMetaData]  # of the file, once the writer is closed
    waiting: list[pa.Table] = field(factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    count: int = 0
    with_nan: set[str] = field(factory=set)

    def write(self, rows: pa.Table) -> None:
        self.waiting.append(rows)
        self.waiting_rows += rows.num_rows
        self.waiting_bytes += rows.nbytes
        self.count += rows.num_rows
        self.with_nan |= with_nan(rows)
        if self.waiting_rows >= ROW_GROUP_ROWS or self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.concat_tables(self.waiting), row_group_size=ROW_GROUP_ROWS)
        self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0


@define
class PartWriter:
    """Writes rows to files inside a table's folder. As a context manager, it closes the files on exit, as `parts`."""

    location: Location
    partition_by: tuple[str, ...] = ()
    folder: str = ""
    parts: list[Part] = field(factory=list)
    _open: dict[Values, OpenFile] = field(factory=dict)
    _filesystem: pafs.FileSystem = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._filesystem = self.location.filesystem()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for values in list(self._open):
            if kind is None:
                self._finish(values)
            else:
                self._open.pop(values).sink.close()  # an uncommitted file stays behind, as after a kill

    def write(self, rows: pa.Table) -> None:
        """Write rows, each to the file of its partition values. Raises OSError."""
        for values, piece in self._by_values(rows):
            self._file(values, piece.schema).write(piece)

    def _by_values(self, rows: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        if not rows.num_rows:
            return
        if not self.partition_by:
            yield (), rows
            return
        numbers: dict[Values, list[int]] = {}
        lists = [rows.column(name).to_pylist() for name in self.partition_by]
        for number, values in enumerate(zip(*lists, strict=True)):
            numbers.setdefault(values, []).append(number)
        rest = rows.drop_columns(list(self.partition_by))
        for values, chosen in numbers.items():
            yield values, rest.take(pa.array(chosen, pa.int64()))

    def _file(self, values: Values, schema: pa.Schema) -> OpenFile:
        found = self._open.pop(values, None)
        if found is None:
            if len(self._open) >= MOST_OPEN:
                self._finish(next(iter(self._open)))  # the file that was least recently written to
            found = self._begin(values, schema)
        self._open[values] = found
        return found

    def _begin(self, values: Values, schema: pa.Schema) -> OpenFile:
        partition_values = {
            name: partition_text(value) for name, value in zip(self.partition_by, values, strict=True)
        }
        folders = [
            f"{name}={text}"
            for name, text in partition_values.items()
            if text and PLAIN_VALUE.fullmatch(text)
        ]
        path = "/".join([*filter(None, [self.folder]), *folders, f"{uuid4().hex}.parquet"])
        whole = f"{self.location.path}/{path}"
        if self.location.is_local:
            Path(whole).parent.mkdir(parents=True, exist_ok=True)
        sink = self._filesystem.open_output_stream(whole)
        metadata: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            sink,
            schema,
            compression=COMPRESSION,
            write_page_checksum=True,
            store_schema=False,
            metadata_collector=metadata,
        )
        return OpenFile(path, partition_values, sink, writer, schema, metadata)

    def _finish(self, values: Values) -> None:
        file = self._open.pop(values)
        file.flush()
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        modified_ms = time.time_ns() // 1_000_000
        statistics = statistics_of(file.metadata[0], file.schema, file.with_nan)
        part = Part(file.path, size, modified_ms, file.count, file.partition_values, statistics)
        self.parts.append(part)
