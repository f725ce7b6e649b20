"""Whether all that a table's numbers promise is still in its files.

RESTORE, or a DELETE by somebody else, keeps the numbers and loses rows. What files a snapshot has, their names tell
(see `files`): the ranges in them must follow each other from the archive's start up to its number. What may be
trimmed from a topic ends at the first place where they do not.

Where somebody else has written files anew (OPTIMIZE), names tell nothing. There the rows are counted: a range is held
when the snapshot has as many offsets of it as its commit said, for as long as the log remembers that commit, and
otherwise where offsets follow each other without holes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

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
    missing = without(Stretch(start, covered), held)
    for stretch in missing:
        held += counted_stretches(table, partition, stretch)
    return without(Stretch(start, covered), held)


def held_stretches(table: LakeTable, partition: int) -> list[Stretch]:
    """What the names of the snapshot's files say that they hold of a partition, merged and sorted.

    A range whose files are not all there any more is not held.
    """
    pieces: dict[tuple[int, int, int], set[int]] = {}
    for file in table.index.named(partition):
        if file.held is not None:
            pieces.setdefault((file.held.start, file.held.end, file.held.pieces), set()).add(file.held.piece)
    return merged(Stretch(start, end) for (start, end, count), found in pieces.items() if len(found) == count)


def counted_stretches(table: LakeTable, partition: int, missing: Stretch) -> list[Stretch]:
    """What of a stretch that names do not account for is in the files all the same, by counting.

    Nothing is read where all files are named by us. Of a range that was erased to the last record, no file has any,
    nor need there be one: files without rows, joined by somebody else, are none.
    """
    told = table.ranges_of(partition).told
    ranges = [each for each in told if each.start < missing.end and missing.start < each.end]
    if not table.index.foreign:
        return [Stretch(each.start, each.end) for each in ranges if each.count == 0]
    first = min([missing.start, *(each.start for each in ranges)])
    last = max([missing.end, *(each.end for each in ranges)])
    offsets = table.offsets_of(partition, first, last)
    held = [
        Stretch(each.start, each.end)
        for each in ranges
        if np.searchsorted(offsets, each.end) - np.searchsorted(offsets, each.start) == each.count
    ]
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    held += [Stretch(int(run[0]), int(run[-1]) + 1) for run in np.split(offsets, breaks) if len(run)]
    return held


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
