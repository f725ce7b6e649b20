"""Whether all that a table's numbers promise is still in its files.

RESTORE, or a DELETE by somebody else, keeps the numbers and loses rows. What files a snapshot has, their names tell
(see `files`): the ranges in them must follow each other from the archive's start up to its number. What may be
trimmed from a topic ends at the first place where they do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from korvet.lake.files import FileRange
from korvet.lake.table import LakeTable


@frozen(order=True)
class Stretch:
    """Offsets of a partition from `start` up to, without, `end`."""

    start: int
    end: int


def chained_up_to(table: LakeTable, partition: int) -> int | None:
    """The offset up to which, without it, everything is in the table or in an accepted gap; what may be trimmed.

    None for a partition that was never archived.
    """
    missing = missing_stretches(table, partition)
    if missing:
        return missing[0].start
    return table.archived_up_to.get(partition)


def missing_stretches(table: LakeTable, partition: int) -> list[Stretch]:
    """What is below a partition's number, and neither in the snapshot's files nor in an accepted gap."""
    start, covered = table.start(partition), table.covered(partition)
    if start is None or covered is None:
        return []
    held = held_stretches(table, partition)
    held += [Stretch(gap.start, gap.end) for gap in table.gaps if gap.partition == partition]
    return without(Stretch(start, covered), held)


def held_stretches(table: LakeTable, partition: int) -> list[Stretch]:
    """What the snapshot's files hold of a partition, merged and sorted.

    A range whose files are not all there any more is not held. Of files that somebody else has written, only
    those without any holes count here.
    """
    pieces: dict[tuple[int, int, int], set[int]] = {}
    held = []
    for file in table.files:
        if file.held is not None:
            if file.held.partition == partition:
                pieces.setdefault(_range_of(file.held), set()).add(file.held.piece)
        elif file.first_partition == file.last_partition == partition:
            first, last = file.first_offset, file.last_offset
            if first is not None and last is not None and file.count == last + 1 - first:
                held.append(Stretch(first, last + 1))
    held += [Stretch(start, end) for (start, end, count), found in pieces.items() if len(found) == count]
    return merged(held)


def _range_of(held: FileRange) -> tuple[int, int, int]:
    return held.start, held.end, held.pieces


def merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same offsets, in as few stretches as possible, sorted."""
    result: list[Stretch] = []
    for stretch in sorted(stretches):
        if result and stretch.start <= result[-1].end:
            result[-1] = Stretch(result[-1].start, max(result[-1].end, stretch.end))
        else:
            result.append(stretch)
    return result


def without(whole: Stretch, held: Iterable[Stretch]) -> list[Stretch]:
    """What of `whole` is in none of `held`."""
    missing = []
    position = whole.start
    for stretch in merged(held):
        if stretch.start > position and position < whole.end:
            missing.append(Stretch(position, min(stretch.start, whole.end)))
        position = max(position, stretch.end)
    if position < whole.end:
        missing.append(Stretch(position, whole.end))
    return missing
