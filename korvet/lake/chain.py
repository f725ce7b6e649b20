"""Check that a snapshot's files still hold every record below the archived offset.

RESTORE, or a DELETE by another writer, keeps the archived offset and loses rows. File names state the range of offsets
of each file (see `files`), and these ranges must be contiguous from the archive's start to the archived offset.
A topic may only be trimmed up to the first offset that is missing.

Files that another writer rewrote (OPTIMIZE) have names without offsets. There, offsets are counted. A range is complete
if the snapshot has as many offsets in it as its commit recorded. If the log no longer has that commit, a range is
complete only where offsets are consecutive.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from korvet.lake.table import LakeTable


@frozen(order=True)
class Stretch:
    """Offsets of a partition in [start, end)."""

    start: int
    end: int


def chained_up_to(table: LakeTable, partition: int) -> int | None:
    """Return the first offset that is neither in the table nor in an accepted gap; the topic may be trimmed up to it.

    Return None for a partition that was never archived.
    """
    missing = missing_stretches(table, partition)
    if missing:
        return missing[0].start
    return table.archived_up_to.get(partition)


def missing_stretches(table: LakeTable, partition: int) -> list[Stretch]:
    """Return the offsets between the archive's start and its covered offset that are in no file and no accepted gap."""
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
    """Return the ranges that the snapshot's file names claim for a partition, merged and sorted.

    A range counts only if all of its pieces are in the snapshot.
    """
    pieces: dict[tuple[int, int, int], set[int]] = {}
    for file in table.index.named(partition):
        if file.held is not None:
            pieces.setdefault((file.held.start, file.held.end, file.held.pieces), set()).add(file.held.piece)
    return merged(Stretch(start, end) for (start, end, count), found in pieces.items() if len(found) == count)


def counted_stretches(table: LakeTable, partition: int, missing: Stretch) -> list[Stretch]:
    """Return the parts of `missing` that the files hold although no file name claims them.

    Reads offsets only if the snapshot has files with names of other writers. A range whose records were all erased has
    no offsets to find, and needs no file: another writer's OPTIMIZE drops empty files.
    """
    items = table.ranges_of(partition).items
    ranges = [each for each in items if each.start < missing.end and missing.start < each.end]
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
    """Merge overlapping and adjacent stretches, sorted by start."""
    result: list[Stretch] = []
    for stretch in sorted(stretches):
        if result and stretch.start <= result[-1].end:
            result[-1] = Stretch(result[-1].start, max(result[-1].end, stretch.end))
        else:
            result.append(stretch)
    return result


def without(whole: Stretch, held: Iterable[Stretch]) -> list[Stretch]:
    """Return the parts of `whole` that none of `held` covers."""
    missing = []
    position = whole.start
    for stretch in merged(held):
        if stretch.start > position and position < whole.end:
            missing.append(Stretch(position, min(stretch.start, whole.end)))
        position = max(position, stretch.end)
    if position < whole.end:
        missing.append(Stretch(position, whole.end))
    return missing
