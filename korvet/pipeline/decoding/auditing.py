"""Audit a typed or a dlq table: what its commits have added is in its files.

Of the table alone, an audit finds lost files, damaged files and repeated rows. `compared` compares its rows with the
archive: each archived record must have a row in the typed or the dlq table, unless the tables' log states that it was
skipped or dropped. Erased records are in neither. Rows of upserts are replaced on purpose, so there only rows without
a record are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from attrs import define, field

from korvet.lake.chain import Stretch, without
from korvet.lake.column_reading import read_columns
from korvet.lake.errors import AbsentFile, DamagedFile
from korvet.lake.schema import Int64s
from korvet.lake.store_errors import store_errors
from korvet.lake.table import LakeTable
from korvet.lake.verification import stored_otherwise
from korvet.pipeline.archive_status import Finding
from korvet.pipeline.decoding.rewriting import conformed_rows, file_schema
from korvet.pipeline.decoding.tables import RANGES, DecodedFile, DecodedTable


def audit_decoded(
    table: DecodedTable,
    name: str,
    *,
    checksums: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[Finding]:
    """Return the faults of a table: gaps between its commits, and files that are not as they were written.

    With `checksums`, read all files, and call `on_progress` with the bytes of each file. Then 8 bytes of memory are
    needed for each row. Raises Unreachable.
    """
    findings = [*_unrecorded(table, name)]
    findings += [_of_file(table, name, file, what) for file, what in stored_otherwise(table, table.files)]
    if checksums:
        findings += Rows(table, name).findings(on_progress)
    return findings


def compared(
    table: DecodedTable, dlq: DecodedTable | None, archive: LakeTable, name: str
) -> Iterator[Finding]:
    """Yield the records of the archive that have no row, and the rows that have no record. Raises Unreachable."""
    several = [table] if dlq is None else [table, dlq]
    offsets = [each.offsets() for each in several]
    dropped_ms = max(each.dropped_ms for each in several)
    for partition, end in table.decoded_up_to.items():
        start = max(table.start(partition), archive.start(partition) or 0)
        there = np.concatenate([each.get(partition, np.empty(0, np.int64)) for each in offsets])
        archived = archive.offsets_of(partition, start, end)
        strange = np.setdiff1d(there[(there >= start) & (there < end)], archived)
        if len(strange):
            what = f"{len(strange):,} rows are of records that the archive does not have"
            yield Finding(name, partition, int(strange[0]), int(strange[-1]) + 1, what)
        first, skipped = table.skipped(partition)
        if first is None:
            continue
        missing = np.setdiff1d(archived[archived >= first], there)
        if len(missing) > skipped and dropped_ms:
            missing = np.setdiff1d(missing, _older(archive, partition, missing, dropped_ms))
        if len(missing) > skipped:
            what = f"{len(missing):,} archived records have no row, and {skipped:,} were skipped"
            yield Finding(name, partition, int(missing[0]), int(missing[-1]) + 1, what)


def _older(archive: LakeTable, partition: int, offsets: Int64s, before_ms: int) -> Int64s:
    """Return those of the offsets whose records are older. Raises Unreachable."""
    filesystem = archive.location.filesystem()
    found = [np.empty(0, np.int64)]
    with store_errors(archive.location):
        for file in archive.files_of(partition, int(offsets[0]), int(offsets[-1]) + 1):
            columns = ["partition", "offset", "timestamp_ms"]
            rows = read_columns(filesystem, archive.absolute(file), columns)
            partitions, numbers, times = (column.to_numpy() for column in rows.columns)
            chosen = (partitions == partition) & (times < before_ms) & np.isin(numbers, offsets)
            found.append(numbers[chosen])
    return np.concatenate(found)


def _unrecorded(table: DecodedTable, name: str) -> Iterator[Finding]:
    """Yield offsets below the decoded offset that no commit of the log has, as far back as the log reaches."""
    spans: dict[int, list[Stretch]] = {}
    for _, info in table.commits():
        for partition, start, end in info.get(RANGES, ()):
            spans.setdefault(partition, []).append(Stretch(start, end))
    for partition, number in table.decoded_up_to.items():
        recorded = spans.get(partition, [])
        oldest = min((stretch.start for stretch in recorded), default=number)
        for stretch in without(Stretch(max(table.start(partition), oldest), number), recorded):
            yield Finding(name, partition, stretch.start, stretch.end, "no commit contains them")


def _of_file(table: DecodedTable, name: str, file: DecodedFile, what: str) -> Finding:
    """Return a fault of all offsets of a file."""
    first, offset = table.place
    partition = file.least.get(first, -1)
    if partition != file.greatest.get(first) or offset not in file.least:
        return Finding(name, -1, 0, 0, what)
    return Finding(name, partition, file.least[offset], file.greatest[offset] + 1, what)


@define
class Rows:
    """The places of all rows of a table, read from its files."""

    table: DecodedTable
    name: str
    #: By partition, the offsets of rows.
    _offsets: dict[int, list[Int64s]] = field(factory=dict, init=False)

    def findings(self, on_progress: Callable[[int], None]) -> Iterator[Finding]:
        """Read all files. Yield those that are damaged, and the offsets of rows that must not be there."""
        table = self.table
        schema, filesystem = file_schema(table), table.location.filesystem()
        if not {*table.place} <= {*schema.names}:
            return  # the place is in partition columns
        for file in table.files:
            try:
                for rows in conformed_rows(table, file, schema, filesystem):
                    self._add(file, rows)
            except (AbsentFile, FileNotFoundError):
                pass  # found by its absence
            except DamagedFile as error:
                yield _of_file(table, self.name, file, str(error))
            on_progress(file.size)
        for partition, several in sorted(self._offsets.items()):
            yield from self._misplaced(partition, np.sort(np.concatenate(several)))

    def _add(self, file: DecodedFile, rows: pa.Table) -> None:
        """Note the places of a file's rows. Raises DamagedFile if they are not those that the log states."""
        for column in self.table.place:
            least, greatest = file.least.get(column), file.greatest.get(column)
            values: Int64s = rows[column].to_numpy()
            if not len(values) or least is None or greatest is None:
                continue
            if values.min() < least or values.max() > greatest:
                raise DamagedFile(
                    f"{self.table.location}/{file.path} is damaged: its statistics are not those of its rows."
                )
        partitions, offsets = (rows[column].to_numpy() for column in self.table.place)
        for partition in np.unique(partitions).tolist():
            self._offsets.setdefault(partition, []).append(offsets[partitions == partition].astype(np.int64))

    def _misplaced(self, partition: int, offsets: Int64s) -> Iterator[Finding]:
        repeated = offsets[1:][np.diff(offsets) == 0]
        start, end = self.table.start(partition), self.table.decoded_up_to.get(partition, 0)
        outside = offsets[(offsets < start) | (offsets >= end)]
        for found, what in (
            (repeated, "are in the table more than once"),
            (outside, f"are not of the decoded offsets, {start} to {end - 1}"),
        ):
            if len(found):
                text = f"{len(found):,} rows {what}"
                yield Finding(self.name, partition, int(found[0]), int(found[-1]) + 1, text)
