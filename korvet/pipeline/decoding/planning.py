"""Plan a round: which offsets to decode, from which files, in how many slices.

A typed table and its dlq table record their progress separately. If a round was killed between their commits, they
differ. Then the next round first decodes just the offsets in between, for the table that is behind. Rows that the dlq
table has already stay bad rows, however they decode now. So every row is in exactly one of the tables, even if the
specification has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import frozen

from korvet.lake.chain import missing_stretches
from korvet.lake.errors import LakeError
from korvet.lake.table import LakeTable
from korvet.lake.table_files import TableFile
from korvet.pipeline.decoding.distributing import Files
from korvet.pipeline.decoding.tables import Span

SLICE_BYTES = 64 * 1024 * 1024
Behind = Literal["typed", "dlq"]


class MissingRows(LakeError):  # noqa: N818  the name states the fault
    """Offsets to decode are missing from the archive."""


@frozen
class Plan:
    """The spans of a round. `behind` is the table that catches up with the other; None if both advance together."""

    spans: tuple[Span, ...]
    behind: Behind | None = None


def plan_of(
    archive: LakeTable,
    typed: Mapping[int, int],
    dlq: Mapping[int, int] | None,
    *,
    ends: Mapping[int, int] | None = None,
    accept_gap: bool = False,
    max_bytes: int,
) -> Plan:
    """Return the next plan for the decoded offsets of both tables; `dlq` is None if bad rows are not kept.

    `ends` limits each partition to offsets below its entry; partitions without an entry are skipped. Raises
    MissingRows.
    """
    starts = {partition: archive.start(partition) or 0 for partition in archive.archived_up_to}
    numbers = {partition: typed.get(partition, start) for partition, start in starts.items()}
    if dlq is not None:
        other = {partition: dlq.get(partition, start) for partition, start in starts.items()}
        ahead = [Span(p, numbers[p], other[p]) for p in starts if numbers[p] < other[p]]
        if ahead:
            return Plan(tuple(ahead), "typed")
        back = [Span(p, other[p], numbers[p]) for p in starts if other[p] < numbers[p]]
        if back:
            return Plan(tuple(back), "dlq")
    spans = []
    for partition, number in numbers.items():
        end = archive.archived_up_to[partition]
        if ends is not None:
            end = min(end, ends.get(partition, 0))
        if number < end and not accept_gap:
            end = before_missing(archive, partition, number, end)
        if number < end:
            spans.append(Span(partition, number, end))
    share = max_bytes // max(1, len(spans))
    return Plan(tuple(shortened(archive, span, share) for span in spans))


def before_missing(archive: LakeTable, partition: int, start: int, end: int) -> int:
    """Return the start of the first gap after `start`, or `end`. Raises MissingRows if a gap includes `start`."""
    for stretch in missing_stretches(archive, partition):
        if stretch.end <= start:
            continue
        if stretch.start > start:
            return min(end, stretch.start)
        raise MissingRows(
            f"{archive.topic}-{partition}: offsets {start} to {min(end, stretch.end) - 1} are not in the archive as "
            "they were written: rows were deleted, or an older version was restored "
            "(korvet lake audit reports details); --accept-gap continues with the existing rows."
        )
    return end


def shortened(archive: LakeTable, span: Span, max_bytes: int) -> Span:
    """Return the part of a span that about `max_bytes` of files hold; at least the range of one file.

    If another writer rewrote files, their offsets may overlap, and the whole span is returned.
    """
    total = 0
    files = archive.files_of(span.partition, span.start, span.end)
    if any(file.held is None for file in files):
        return span
    end = span.end
    for held, size in sorted((file.held.end, file.size) for file in files if file.held):
        if total and total + size > max_bytes and held > end:
            break
        total += size
        end = held
        if total > max_bytes:
            break
    return Span(span.partition, span.start, min(span.end, max(end, span.start)))


def slices_of(archive: LakeTable, spans: Sequence[Span], parallelism: int) -> list[Files]:
    """Return the files that hold the spans, in order, in slices of about the same size."""
    chosen: dict[str, TableFile] = {}
    for span in spans:
        for file in archive.files_of(span.partition, span.start, span.end):
            chosen.setdefault(file.path, file)
    total = sum(file.size for file in chosen.values())
    wanted = min(SLICE_BYTES, total // max(1, parallelism) + 1)
    slices: list[list[str]] = []
    filled = wanted
    for path, file in chosen.items():
        if filled >= wanted:
            slices.append([])
            filled = 0
        slices[-1].append(path)
        filled += file.size
    return [tuple(paths) for paths in slices]
