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
RANGES, GAPS, ANEW = "korvet.ranges", "korvet.gaps", "korvet.ranges.anew"
MODULUS = 1 << 64


@frozen(order=True)
class Told:
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
    def from_list(cls, values: Sequence[Any]) -> Told:
        partition, start, end, count, checksum = values
        return cls(partition, start, end, count, int(checksum))


@define
class Ranges:
    """The range checksums of one partition, by start, without overlaps."""

    told: list[Told] = field(factory=list)

    def add(self, item: Told) -> None:
        """Add a range checksum; it replaces earlier ones of ranges inside its offsets."""
        self.told[self._inside(item.start, item.end)] = [item]

    def within(self, start: int, end: int) -> list[Told]:
        """Return the range checksums of ranges inside [start, end)."""
        return self.told[self._inside(start, end)]

    def _inside(self, start: int, end: int) -> slice:
        first = bisect_left(self.told, start, key=lambda each: each.start)
        return slice(first, bisect_right(self.told, end, lo=first, key=lambda each: each.end))


def told_by(commits: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, Ranges]:
    """Collect range checksums by partition from commits (version and commitInfo), oldest first."""
    found: dict[int, Ranges] = {}
    for _, info in commits:
        for item in _said(info):
            found.setdefault(item.partition, Ranges()).add(item)
    return found


def _said(info: Mapping[str, Any]) -> Iterator[Told]:
    for name in (RANGES, ANEW):
        yield from map(Told.from_list, info.get(name, ()))


def without_records(ranges: Ranges, offsets: Int64s, mixes: npt.NDArray[np.uint64]) -> list[Told]:
    """Recompute the count and checksum of each range that contains an erased offset; `mixes` are record checksums."""
    places = np.array(
        [bisect_right(ranges.told, offset, key=lambda each: each.start) - 1 for offset in offsets]
    )
    anew = []
    for place in np.unique(places[places >= 0]).tolist():
        each = ranges.told[place]
        ours = (places == place) & (offsets < each.end)
        gone = int(np.sum(mixes[ours], dtype=np.uint64))
        if ours.any():
            checksum = (each.checksum - gone) % MODULUS
            anew.append(evolve(each, count=each.count - int(ours.sum()), checksum=checksum))
    return anew


def summed(partition: int, start: int, end: int, parts: Iterable[Told]) -> Told:
    """Combine the range checksums of several ranges into one."""
    several = list(parts)
    count = sum(each.count for each in several)
    return Told(partition, start, end, count, sum(each.checksum for each in several) % MODULUS)
