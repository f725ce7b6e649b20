"""Sort rows of a typed table by some columns while its files are joined, so that readers skip files and row groups.

Several columns are sorted along a Z-curve of ranks, on which rows are near each other that are near in each column. A
rank is the place of a value among the quantiles of a sample. So the rows are read twice: once for the sample, once to
distribute them to as many files as are to be written. Each of these is then sorted in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from attrs import frozen

from korvet.lake.location import Location
from korvet.lake.schema import Int64s
from korvet.pipeline.decoding.decoded_files import ROW_GROUP_ROWS
from korvet.pipeline.decoding.rewriting import conformed_rows, file_schema, written_instead
from korvet.pipeline.decoding.tables import DecodedFile, DecodedTable, Part

SAMPLE_ROWS = 65_536
# A rank has this number of bits: 1,024 quantiles.
RANK_BITS = 10

Values = npt.NDArray[np.generic]


@frozen
class Ranks:
    """Quantiles of some columns, and the positions on the curve at which one file ends and the next one begins."""

    quantiles: tuple[Values, ...]
    ends: Int64s

    @classmethod
    def of(cls, sample: pa.Table, files: int) -> Ranks:
        """Return the ranks for rows of which these are a sample, and for a number of files."""
        number = 1 << RANK_BITS
        found = []
        for column in sample.columns:
            values = np.sort(comparable(column.drop_null()))
            found.append(
                values[np.linspace(0, len(values) - 1, number - 1).astype(int)] if len(values) else values
            )
        ranks = cls(tuple(found), np.array([], np.int64))
        positions = np.sort(ranks.positions(sample))
        ends = positions[(np.arange(1, files) * len(positions)) // files]
        return cls(ranks.quantiles, ends)

    def positions(self, rows: pa.Table) -> Int64s:
        """Return the rows' positions on the curve. Nulls are the least values."""
        ranks = []
        for quantiles, column in zip(self.quantiles, rows.columns, strict=True):
            rank = np.zeros(rows.num_rows, np.int64)
            is_there = column.is_valid().to_numpy()
            if len(quantiles):
                rank[is_there] = np.searchsorted(quantiles, comparable(column.drop_null()))
            ranks.append(rank)
        found = np.zeros(rows.num_rows, np.int64)
        for bit in reversed(range(RANK_BITS)):
            for rank in ranks:
                found = (found << 1) | ((rank >> bit) & 1)
        return found

    def in_order(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return the rows sorted along the curve."""
        if len(columns) == 1:
            order = pc.sort_indices(rows[columns[0]])
        else:
            order = pa.array(np.argsort(self.positions(rows.select(columns)), kind="stable"))
        return rows.take(order)


def comparable(column: pa.ChunkedArray) -> Values:
    """Return values, none of them null, as an array that numpy can sort."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    elif not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        values = np.empty(len(column), object)
        values[:] = column.to_pylist()
        return values
    found: Values = column.to_numpy()
    return found


@frozen
class Clustering:
    """The sorting of files of a table into new files. It can be pickled, and works the same in every process."""

    location: Location
    kind: str
    topic: str
    topic_id: UUID
    columns: tuple[str, ...]
    #: The number of new files.
    files: int

    def __call__(self, paths: Sequence[str]) -> list[Part]:
        """Write the rows of the files to new ones.

        Raises DamagedFile, NewerFormat, Unreachable, and FileNotFoundError if the table lacks one of the files.
        """
        table = DecodedTable.open(self.location, self.kind, self.topic, self.topic_id)
        there = {file.path: file for file in table.files}
        if not there.keys() >= set(paths):
            raise FileNotFoundError(f"{self.location}: another writer replaced files meanwhile.")
        files = [there[path] for path in paths]
        filesystem = self.location.filesystem()
        ranks = Ranks.of(self._sample(table, files, filesystem), self.files)
        rows = all_rows(table, files, file_schema(table), filesystem)
        parts = []
        for several in distributed(rows, ranks, self.columns):
            part = written_instead(table, files, in_row_groups(ranks.in_order(several, self.columns)))
            parts += [] if part is None else [part]
        return parts

    def _sample(
        self, table: DecodedTable, files: Sequence[DecodedFile], filesystem: pafs.FileSystem
    ) -> pa.Table:
        schema = file_schema(table)
        wanted = pa.schema([schema.field(name) for name in self.columns])
        step = sum(file.count or 0 for file in files) // SAMPLE_ROWS + 1
        some = [
            rows.take(pa.array(np.arange(0, rows.num_rows, step)))
            for rows in all_rows(table, files, wanted, filesystem)
        ]
        return pa.concat_tables(some)


def all_rows(
    table: DecodedTable, files: Iterable[DecodedFile], schema: pa.Schema, filesystem: pafs.FileSystem
) -> Iterator[pa.Table]:
    for file in files:
        yield from conformed_rows(table, file, schema, filesystem)


def distributed(rows: Iterable[pa.Table], ranks: Ranks, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of each file in turn. If there are several files, the rows wait in temporary ones."""
    if not len(ranks.ends):
        yield pa.concat_tables(rows)
        return
    with tempfile.TemporaryDirectory(prefix="korvet-") as folder:
        paths = [Path(folder, str(number)) for number in range(len(ranks.ends) + 1)]
        writers: list[pa.ipc.RecordBatchFileWriter] = []
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for each in rows:
            if not writers:
                writers = [pa.ipc.new_file(path, each.schema, options=options) for path in paths]
            targets = np.searchsorted(ranks.ends, ranks.positions(each.select(columns)), side="right")
            for number, writer in enumerate(writers):
                writer.write_table(each.filter(pa.array(targets == number)).combine_chunks())
        for path, writer in zip(paths, writers, strict=False):
            writer.close()
            with pa.ipc.open_file(path) as reader:
                yield reader.read_all()
            path.unlink()


def in_row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, rows.num_rows, ROW_GROUP_ROWS):
        yield rows.slice(first, ROW_GROUP_ROWS)
