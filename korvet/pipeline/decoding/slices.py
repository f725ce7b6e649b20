"""Decode a slice, which is some files of an archive, to files of the typed table and of its dlq table.

This runs on Spark's workers but does not use Spark. The result lists the written files for the commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define, field, frozen

from korvet.lake.file_reading import checked
from korvet.lake.location import Location
from korvet.lake.schema import FILE_SCHEMA
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.inference import Wanted
from korvet.pipeline.decoding.row_decoding import Decoder, decode, infer_columns
from korvet.pipeline.decoding.tables import Part, Span

BATCH_ROWS = 8192
SHOWN_FAULTS = 3


@frozen
class Job:
    """The parameters that all slices share.

    `known_bad` are the (partition, offset) of rows that the dlq table has already. Rows whose table's location is None
    are only counted. `staged` is a folder of the typed table for its files, if they are to be merged.
    """

    decoder: Decoder
    archive: Location
    spans: tuple[Span, ...]
    typed: Location | None
    dlq: Location | None
    known_bad: frozenset[tuple[int, int]] = frozenset()
    staged: str = ""


@frozen
class Fault:
    """A bad row and the reason."""

    topic: str
    partition: int
    offset: int
    error: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}: {self.error}"


@define
class Outcome:
    """Result of decoding a slice, or the sum of several results."""

    records: int = 0
    typed: int = 0
    bad: int = 0
    tombstones: int = 0
    #: By partition, the number of records that are in neither table.
    skipped: Counter[int] = field(factory=Counter)
    typed_parts: list[Part] = field(factory=list)
    dlq_parts: list[Part] = field(factory=list)
    faults: list[Fault] = field(factory=list)  # the first few
    #: Record types that have no tables yet.
    found: set[str] = field(factory=set)

    def add(self, other: Outcome) -> None:
        self.records += other.records
        self.typed += other.typed
        self.bad += other.bad
        self.tombstones += other.tombstones
        self.skipped.update(other.skipped)
        self.typed_parts += other.typed_parts
        self.dlq_parts += other.dlq_parts
        self.faults = (self.faults + other.faults)[:SHOWN_FAULTS]
        self.found |= other.found


def decode_slice(job: Job, files: Sequence[str]) -> Outcome:
    """Decode the files' rows in the job's spans. Raises OSError, RegistryError."""
    outcome = Outcome()
    typed, dlq = typed_writer(job), dlq_writer(job)
    with typed or nullcontext(), dlq or nullcontext():
        _decode_rows(job, files, typed, dlq, outcome)
    outcome.typed_parts = typed.parts if typed else []
    outcome.dlq_parts = dlq.parts if dlq else []
    return outcome


def typed_writer(job: Job) -> PartWriter | None:
    if job.typed is None:
        return None
    if job.staged:
        return PartWriter(job.typed, folder=job.staged)
    return PartWriter(job.typed, job.decoder.partition_columns())


def dlq_writer(job: Job) -> PartWriter | None:
    return None if job.dlq is None else PartWriter(job.dlq)


def _decode_rows(
    job: Job, files: Sequence[str], typed: PartWriter | None, dlq: PartWriter | None, outcome: Outcome
) -> None:
    for rows in archived_rows(job.archive, files, job.spans):
        decoded = decode(job.decoder, rows, job.known_bad)
        outcome.records += rows.num_rows - decoded.strangers
        outcome.typed += decoded.typed_count
        outcome.bad += decoded.bad.num_rows
        outcome.tombstones += decoded.tombstones
        outcome.skipped.update(decoded.skipped)
        outcome.found |= decoded.found
        if job.decoder.specification.on_error == "skip":
            outcome.skipped.update(decoded.bad.column("partition").to_pylist())
        if len(outcome.faults) < SHOWN_FAULTS and decoded.bad.num_rows:
            outcome.faults = (outcome.faults + faults_of(decoded.bad))[:SHOWN_FAULTS]
            if job.decoder.specification.on_error == "stop":
                return
        if typed:
            typed.write(decoded.typed)
        if dlq:
            dlq.write(decoded.bad)


def faults_of(bad: pa.Table) -> list[Fault]:
    rows = bad.slice(0, SHOWN_FAULTS).select(["topic", "partition", "offset", "error"]).to_pylist()
    return [Fault(**row) for row in rows]


def infer_columns_of_slice(job: Job, files: Sequence[str]) -> Wanted:
    """Count the fields in the files' rows that have no column. Raises OSError."""
    found: Wanted = Counter()
    for rows in archived_rows(job.archive, files, job.spans):
        found.update(infer_columns(job.decoder, rows))
    return found


def archived_rows(location: Location, files: Sequence[str], spans: Sequence[Span]) -> Iterator[pa.Table]:
    """Yield the rows of an archive's files that are in the spans, at most BATCH_ROWS at a time.

    Row groups outside of the spans are not read. Raises OSError.
    """
    filesystem = location.filesystem()
    for path in files:
        with filesystem.open_input_file(f"{location.path}/{path}") as source:
            file = checked(source)
            for group in range(file.num_row_groups):
                if not may_hold(file.metadata.row_group(group), spans):
                    continue
                rows = within(file.read_row_group(group, FILE_SCHEMA.names).cast(FILE_SCHEMA), spans)
                for begin in range(0, rows.num_rows, BATCH_ROWS):
                    yield rows.slice(begin, BATCH_ROWS).combine_chunks()


def may_hold(group: pq.RowGroupMetaData, spans: Sequence[Span]) -> bool:
    """Return True if a row group may have rows of the spans, by its statistics."""
    bounds = {}
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in ("partition", "offset"):
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return True
            bounds[column.path_in_schema] = (statistics.min, statistics.max)
    first, last = bounds["partition"]
    least, greatest = bounds["offset"]
    return any(
        first <= span.partition <= last and span.start <= greatest and least < span.end for span in spans
    )


def within(rows: pa.Table, spans: Sequence[Span]) -> pa.Table:
    """Return the rows that are in the spans."""
    there = set(pc.unique(rows.column("partition")).to_pylist())
    offsets = rows.column("offset")
    mask = None
    for span in spans:
        if span.partition in there:
            inside = pc.and_(
                pc.equal(rows.column("partition"), span.partition),
                pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.end)),
            )
            mask = inside if mask is None else pc.or_(mask, inside)
    if mask is None:
        return rows.slice(0, 0)
    return rows if pc.all(mask).as_py() else rows.filter(mask)
