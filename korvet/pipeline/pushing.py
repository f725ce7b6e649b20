"""Conditions that Spark passes to a batch read, so that the read fetches fewer records.

Conditions on `topic`, `partition` and `offset` restrict the ranges that are read. A lower bound of `timestamp` becomes
an offset, from the broker's index: of all records before that offset, none is as late. (Later offsets may have earlier
timestamps, so an upper bound restricts nothing.) Spark evaluates all conditions again on the rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from korvet.client import Client, TopicPartition
from korvet.pipeline.topic_reading import Range

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)


@frozen
class Interval:
    """Whole numbers of which some may be excluded: those below `least`, above `greatest`, or not in `among`."""

    least: int | None = None
    greatest: int | None = None
    among: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.greatest is None or number <= self.greatest)
            and (self.among is None or number in self.among)
        )

    def with_least(self, number: int) -> Interval:
        return evolve(self, least=number if self.least is None else max(self.least, number))

    def with_greatest(self, number: int) -> Interval:
        return evolve(self, greatest=number if self.greatest is None else min(self.greatest, number))

    def with_among(self, numbers: Iterable[int]) -> Interval:
        chosen = frozenset(numbers)
        return evolve(self, among=chosen if self.among is None else self.among & chosen)


@frozen
class Conditions:
    """The conditions on the records of a read, all of which must hold. Other conditions are left to Spark."""

    topics: frozenset[str] | None = None
    partitions: Interval = Interval()
    offsets: Interval = Interval()
    #: Records with an earlier timestamp, in milliseconds, are not wanted.
    from_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Conditions:
        """Return the conditions that Spark's filters state."""
        found = cls()
        for each in filters:
            found = found._with(each)
        return found

    def _with(self, condition: Filter) -> Conditions:
        column = getattr(condition, "attribute", ())
        value = getattr(condition, "value", None)
        if column == ("topic",):
            names = _equal_to(condition, value, str)
            if names is not None:
                return evolve(self, topics=names if self.topics is None else self.topics & names)
        elif column == ("partition",):
            return evolve(self, partitions=_narrowed(self.partitions, condition, value))
        elif column == ("offset",):
            return evolve(self, offsets=_narrowed(self.offsets, condition, value))
        elif column == ("timestamp",) and isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo):
            first_ms = _milliseconds(value)
            if first_ms is not None:
                return evolve(self, from_ms=max(first_ms, self.from_ms or 0))
        return self

    async def restrict(self, client: Client, ranges: Sequence[Range], isolation_level: int) -> list[Range]:
        """Return the parts of ranges that may have records which are wanted."""
        chosen = [each for each in map(self._within, ranges) if each is not None]
        if self.from_ms is None or not chosen:
            return chosen
        wanted: Mapping[TopicPartition, int] = {each.tp: self.from_ms for each in chosen}
        listed = await client.list_offsets(wanted, isolation_level=isolation_level)
        firsts = {tp: found.offset for tp, found in listed.items()}
        return [
            Range(each.tp, max(each.start, firsts[each.tp]), each.end)
            for each in chosen
            if 0 <= firsts[each.tp] < each.end
        ]

    def _within(self, whole: Range) -> Range | None:
        if self.topics is not None and whole.tp.topic not in self.topics:
            return None
        if whole.tp.partition not in self.partitions:
            return None
        start, end = whole.start, whole.end
        if self.offsets.least is not None:
            start = max(start, self.offsets.least)
        if self.offsets.greatest is not None:
            end = min(end, self.offsets.greatest + 1)
        return Range(whole.tp, start, end) if start < end else None


def _narrowed(interval: Interval, condition: Filter, value: Any) -> Interval:
    numbers = _equal_to(condition, value, int)
    if numbers is not None:
        narrowed = interval.with_among(numbers)
        return narrowed.with_least(min(numbers)).with_greatest(max(numbers)) if numbers else narrowed
    if type(value) is int:
        match condition:
            case GreaterThan():
                return interval.with_least(value + 1)
            case GreaterThanOrEqual():
                return interval.with_least(value)
            case LessThan():
                return interval.with_greatest(value - 1)
            case LessThanOrEqual():
                return interval.with_greatest(value)
    return interval


def _equal_to(condition: Filter, value: Any, kind: type) -> frozenset[Any] | None:
    """Return the values that a column may have, or None if the condition does not list values of this type."""
    if isinstance(condition, EqualTo | EqualNullSafe):
        values = [value]
    elif isinstance(condition, In):
        values = [each for each in value if each is not None]
    else:
        return None
    return frozenset(values) if all(type(each) is kind for each in values) else None


def _milliseconds(value: Any) -> int | None:
    """Return the millisecond that has this moment, or None if the broker cannot look for it."""
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        return None
    found = (value - EPOCH) // MILLISECOND
    return found if found > 0 else None
