"""The part of the log that `korvet consume` prints: by offset, by time, or the last records."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import click
from attrs import define, frozen

from korvet.cli.times import parse_time

if TYPE_CHECKING:
    from korvet.client import Client, ConsumedRecord, TopicPartition

# A part of the log may have no records any more. This number of consecutive empty polls means the end of the log.
EMPTY_POLLS_AT_THE_END = 2
# Factor by which the part of a log that is searched for the last records grows.
GROWTH = 16


def bounds_of(
    start: str, time_text: str | None, until: int | None, until_time: str | None, isolation_level: int
) -> Bounds:
    """Return the bounds for the options."""
    if time_text is not None and start != "start":
        raise click.UsageError("--from and --time exclude each other.")
    if until is not None and until_time is not None:
        raise click.UsageError("--until and --until-time exclude each other.")
    if start not in ("start", "end") and not start.isdecimal():
        raise click.BadParameter(f"{start!r} is neither start, end nor an offset.", param_hint="--from")
    return Bounds(
        start,
        None if time_text is None else parse_time(time_text),
        until,
        None if until_time is None else parse_time(until_time),
        isolation_level,
    )


@frozen
class Bounds:
    """The part of each partition that is read."""

    start: str  # start, end or an offset
    time: int | None
    until: int | None
    until_time: int | None
    isolation_level: int

    @property
    def has_end(self) -> bool:
        """True if the user has named an end."""
        return self.until is not None or self.until_time is not None

    async def ends(self, client: Client, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition."""
        from korvet.client import LATEST

        ends = await self._bound(client, tps, LATEST)
        if self.until_time is not None:
            return ends | await self._at(client, tps, self.until_time)
        return {tp: end if self.until is None else min(end, self.until) for tp, end in ends.items()}

    async def starts(
        self, client: Client, tps: list[TopicPartition], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the start offset of each partition."""
        from korvet.client import EARLIEST, LATEST

        if self.time is not None:
            return ends | await self._at(client, tps, self.time)
        if self.start in ("start", "end"):
            return await self._bound(client, tps, EARLIEST if self.start == "start" else LATEST)
        return dict.fromkeys(tps, int(self.start))

    async def _bound(
        self, client: Client, tps: list[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return the first or next offset of each partition."""
        found = await client.list_offsets(dict.fromkeys(tps, timestamp), isolation_level=self.isolation_level)
        return {tp: at.offset for tp, at in found.items()}

    async def _at(self, client: Client, tps: list[TopicPartition], time: int) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time, of the partitions that have one."""
        found = await self._bound(client, tps, time)
        return {tp: offset for tp, offset in found.items() if offset >= 0}


async def last_records(
    client: Client,
    tps: list[TopicPartition],
    ends: dict[TopicPartition, int],
    count: int,
    isolation_level: int,
) -> list[ConsumedRecord]:
    """Return the last records of all partitions together, in the order of their timestamps."""
    found: list[ConsumedRecord] = []
    whole = Bounds("start", None, None, None, isolation_level)
    for tp, start in (await whole.starts(client, tps, ends)).items():
        found += await last_of_partition(client, tp, start, ends[tp], count, isolation_level)
    return sorted(found, key=lambda record: record.timestamp)[-count:]


async def last_of_partition(
    client: Client, tp: TopicPartition, start: int, end: int, count: int, isolation_level: int
) -> deque[ConsumedRecord]:
    """Return the last records of a partition.

    Offsets may have gaps, after compaction or because they follow the clock. So the part of the log that is read grows
    until it has enough records.
    """
    offsets = count
    while True:
        first = max(start, end - offsets)
        records: deque[ConsumedRecord] = deque(maxlen=count)
        consumer = client.consume(
            {tp: first}, until={tp: end}, max_wait_ms=0, isolation_level=isolation_level
        )
        async for polled in Rounds(consumer, consumer.poll):
            records.extend(polled)
        if len(records) == count or first == start:
            return records
        offsets *= GROWTH


class RecordSource(Protocol):
    """A consumer of partitions, or a member of a group."""

    @property
    def until(self) -> Mapping[TopicPartition, int] | None:
        """The end of each partition, None if there is no end."""

    def unfinished(self) -> object:
        """Return a true value unless everything was read."""

    async def poll(self) -> list[ConsumedRecord]:
        """Return the records of one round."""


@define
class Rounds:
    """Iterates over the records of each poll, up to the end of the log, which may have none any more."""

    source: RecordSource
    poll: Callable[[], Awaitable[list[ConsumedRecord]]]
    _empty: int = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ConsumedRecord]:
        if self._empty == EMPTY_POLLS_AT_THE_END or not self.source.unfinished():
            raise StopAsyncIteration
        records = await self.poll()
        self._empty = 0 if records or self.source.until is None else self._empty + 1
        return records
