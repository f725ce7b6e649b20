"""What commits have said of offsets: how many records there are of them, and their checksum.

Every archive commit says that of each range it adds. Later commits may say it anew: of ranges that were joined, or that
records were erased from. What was said last counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, evolve, field, frozen

from korvet.lake.schema import Int64s

# What commits say of themselves, in commitInfo.
RANGES, GAPS, ANEW = "korvet.ranges", "korvet.gaps", "korvet.ranges.anew"
MODULUS = 1 << 64


@frozen(order=True)
class Told:
    """A partition has `count` records from `start` up to, without, `end`; `checksum` is theirs."""

    partition: int
    start: int
    end: int
    count: int
    checksum: int

    def to_list(self) -> list[int | str]:
        """As commits say it; JSON's numbers cannot be trusted with 64 bits."""
        return [self.partition, self.start, self.end, self.count, str(self.checksum)]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Told:
        partition, start, end, count, checksum = values
        return cls(partition, start, end, count, int(checksum))


@define
class Ranges:
    """What is told of one partition, by start; ranges do not overlap."""

    told: list[Told] = field(factory=list)

    def add(self, item: Told) -> None:
        """Take what was said last: it stands for all that was said of the same offsets before."""
        self.told[self._inside(item.start, item.end)] = [item]

    def within(self, start: int, end: int) -> list[Told]:
        """What is told of ranges that lie from `start` up to, without, `end`."""
        return self.told[self._inside(start, end)]

    def _inside(self, start: int, end: int) -> slice:
        first = bisect_left(self.told, start, key=lambda each: each.start)
        return slice(first, bisect_right(self.told, end, lo=first, key=lambda each: each.end))


def told_by(commits: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, Ranges]:
    """By partition, what commits (version and commitInfo, oldest first) have said."""
    found: dict[int, Ranges] = {}
    for _, info in commits:
        for item in _said(info):
            found.setdefault(item.partition, Ranges()).add(item)
    return found


def _said(info: Mapping[str, Any]) -> Iterator[Told]:
    for name in (RANGES, ANEW):
        yield from map(Told.from_list, info.get(name, ()))


def without_records(ranges: Ranges, offsets: Int64s, mixes: npt.NDArray[np.uint64]) -> list[Told]:
    """What is to be told anew of the ranges that have these offsets, when their records, of these mixes, are gone."""
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
    """The same of several ranges as of one."""
    several = list(parts)
    count = sum(each.count for each in several)
    return Told(partition, start, end, count, sum(each.checksum for each in several) % MODULUS)
