"""Range checksums: the count and checksum of the records of each range, as recorded in the table's commits.

Every commit of an archive records them for the ranges it adds. Later commits may replace them, for ranges that were
joined or from which records were erased. The latest commit applies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, evolve, field, frozen

from korvet.lake.schema import Int64s

# Keys in commitInfo.
RANGES, GAPS, REPLACED = "korvet.ranges", "korvet.gaps", "korvet.ranges.anew"
# Ranges with records that are not in the table: partition, start, end, records of aborted transactions, markers.
SKIPPED = "korvet.skipped"
MODULUS = 1 << 64


@frozen(order=True)
class RangeChecksum:
    """Count and checksum of a partition's records in [start, end)."""

    partition: int
    start: int
    end: int
    count: int
    checksum: int

    def to_list(self) -> list[int | str]:
        """Return the fields as written to commitInfo."""
        # JSON readers may round integers of 64 bits, so the checksum is text.
        return [self.partition, self.start, self.end, self.count, str(self.checksum)]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> RangeChecksum:
        partition, start, end, count, checksum = values
        return cls(partition, start, end, count, int(checksum))


@define
class Ranges:
    """The range checksums of one partition, by start, without overlaps."""

    items: list[RangeChecksum] = field(factory=list)

    def add(self, item: RangeChecksum) -> None:
        """Add a range checksum; it replaces earlier ones of ranges inside its offsets."""
        self.items[self._inside(item.start, item.end)] = [item]

    def within(self, start: int, end: int) -> list[RangeChecksum]:
        """Return the range checksums of ranges inside [start, end)."""
        return self.items[self._inside(start, end)]

    def _inside(self, start: int, end: int) -> slice:
        first = bisect_left(self.items, start, key=lambda each: each.start)
        return slice(first, bisect_right(self.items, end, lo=first, key=lambda each: each.end))


def range_checksums_of(commits: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, Ranges]:
    """Collect range checksums by partition from commits (version and commitInfo), oldest first."""
    found: dict[int, Ranges] = {}
    for _, info in commits:
        for item in _entries(info):
            found.setdefault(item.partition, Ranges()).add(item)
    return found


def _entries(info: Mapping[str, Any]) -> Iterator[RangeChecksum]:
    for name in (RANGES, REPLACED):
        yield from map(RangeChecksum.from_list, info.get(name, ()))


def without_records(
    ranges: Ranges, offsets: Int64s, checksums: npt.NDArray[np.uint64]
) -> list[RangeChecksum]:
    """Recompute the count and checksum of each range that contains an erased offset, from its records' checksums."""
    places = np.array(
        [bisect_right(ranges.items, offset, key=lambda each: each.start) - 1 for offset in offsets]
    )
    recomputed = []
    for place in np.unique(places[places >= 0]).tolist():
        each = ranges.items[place]
        ours = (places == place) & (offsets < each.end)
        gone = int(np.sum(checksums[ours], dtype=np.uint64))
        if ours.any():
            checksum = (each.checksum - gone) % MODULUS
            recomputed.append(evolve(each, count=each.count - int(ours.sum()), checksum=checksum))
    return recomputed


def summed(partition: int, start: int, end: int, parts: Iterable[RangeChecksum]) -> RangeChecksum:
    """Combine the range checksums of several ranges into one."""
    several = list(parts)
    count = sum(each.count for each in several)
    return RangeChecksum(partition, start, end, count, sum(each.checksum for each in several) % MODULUS)
