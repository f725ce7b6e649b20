"""Read records for a page: forward from positions, or the newest ones before positions, within a budget.

The page shares its event loop with the broker. So each fetch is small, and a request ends after a number of records,
bytes or seconds, whichever is reached first. The result has the positions at which a further request continues.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter

import trio
from attrs import define, field, frozen

from korvet.client import EARLIEST, Client, ConsumedRecord, TopicPartition
from korvet.protocol.errors import OffsetOutOfRange

FETCH_BYTES = 256 * 1024
PARTITION_BYTES = 128 * 1024
EMPTY_POLLS_AT_THE_END = 2
# Windows of the search for the newest records grow while they have few records: their offsets may have gaps.
FEW_RECORDS = 300
MANY_RECORDS = 5_000
GROWTH = 16

Positions = Mapping[TopicPartition, int]
Match = Callable[[ConsumedRecord], bool]


@define
class Budget:
    """Limits of one request: records and bytes to be scanned, and seconds."""

    records: int = 50_000
    bytes: int = 64 * 1024 * 1024
    seconds: float = 8.0
    scanned: int = 0
    scanned_bytes: int = 0
    _ends_at: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ends_at = trio.current_time() + self.seconds

    @property
    def is_used_up(self) -> bool:
        return self.scanned >= self.records or self.scanned_bytes >= self.bytes

    @property
    def is_over(self) -> bool:
        return self.is_used_up or trio.current_time() >= self._ends_at

    def take(self, record: ConsumedRecord) -> None:
        self.scanned += 1
        self.scanned_bytes += len(record.key or b"") + len(record.value or b"")

    def share(self, parts: int) -> Budget:
        """Return a budget for one of `parts` equal parts of the remaining work."""
        parts = max(parts, 1)
        return Budget(
            max((self.records - self.scanned) // parts, 1),
            max((self.bytes - self.scanned_bytes) // parts, 1),
            max((self._ends_at - trio.current_time()) / parts, 0.05),
        )

    def add(self, part: Budget) -> None:
        self.scanned += part.scanned
        self.scanned_bytes += part.scanned_bytes


@frozen
class Found:
    """Records that were found. `positions` is where to continue; it is empty if everything has been read."""

    records: list[ConsumedRecord]
    positions: Positions
    is_cut_short: bool  # the budget ended before enough records were found


def everything(_record: ConsumedRecord) -> bool:
    return True


async def forward(
    client: Client, starts: Positions, ends: Positions, want: int, match: Match, budget: Budget
) -> Found:
    """Return up to `want` matching records from `starts` on, in the order of their timestamps."""
    at = {tp: start for tp, start in starts.items() if start < ends[tp]}
    found: list[ConsumedRecord] = []
    empty_polls = 0
    while at and len(found) < want and not budget.is_over and empty_polls < EMPTY_POLLS_AT_THE_END:
        consumer = client.consume(at, until=ends, max_wait_ms=0)
        consumer.max_bytes, consumer.max_partition_bytes = FETCH_BYTES, PARTITION_BYTES
        try:
            polled = await consumer.poll()
        except OffsetOutOfRange:
            # Retention has removed the start of a partition meanwhile.
            at = await _within_log(client, at)
            empty_polls += 1
            continue
        empty_polls = 0 if polled else empty_polls + 1
        if _scan(polled, at, found, want, match, budget):
            at = consumer.positions
        at = {tp: position for tp, position in at.items() if position < ends[tp]}
        await trio.lowlevel.checkpoint()
    found.sort(key=attrgetter("timestamp"))
    if empty_polls >= EMPTY_POLLS_AT_THE_END:
        at = {}
    return Found(found, at, bool(at) and len(found) < want)


def _scan(
    polled: list[ConsumedRecord],
    at: dict[TopicPartition, int],
    found: list[ConsumedRecord],
    want: int,
    match: Match,
    budget: Budget,
) -> bool:
    """Append the matching records to `found`, advancing `at`. Return True if all records were scanned."""
    by_partition: dict[int, list[tuple[int, int, ConsumedRecord]]] = {}
    for timestamp, rank, record in _ranked(polled):
        by_partition.setdefault(record.partition, []).append((timestamp, rank, record))
    for _, _, record in heapq.merge(*by_partition.values(), key=itemgetter(0, 1)):
        if len(found) >= want or budget.is_used_up:
            return False
        budget.take(record)
        at[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if match(record):
            found.append(record)
    return True


def _ranked(records: Iterable[ConsumedRecord]) -> Iterator[tuple[int, int, ConsumedRecord]]:
    """Yield the timestamp, the rank within its partition and millisecond, and the record.

    Sorting by both takes the partitions in turn within a millisecond. Offsets of two partitions cannot be compared:
    by offset, the records of one partition could fill a page and hide those of the others.
    """
    ranks: Counter[tuple[int, int]] = Counter()
    for record in records:
        at = record.partition, record.timestamp
        yield record.timestamp, ranks[at], record
        ranks[at] += 1


async def _within_log(client: Client, at: Positions) -> dict[TopicPartition, int]:
    starts = await client.list_offsets(dict.fromkeys(at, EARLIEST))
    return {tp: max(position, starts[tp].offset) for tp, position in at.items()}


async def backward(
    client: Client, starts: Positions, ends: Positions, want: int, match: Match, budget: Budget
) -> Found:
    """Return the last `want` matching records before `ends`, the newest first, by timestamp."""
    tps = [tp for tp in ends if starts[tp] < ends[tp]]
    found: list[ConsumedRecord] = []
    rests: dict[TopicPartition, int] = {}
    for index, tp in enumerate(tps):
        part = budget.share(len(tps) - index)
        records, rest = await _last_of(client, tp, starts[tp], ends[tp], want, match, part)
        budget.add(part)
        found += records
        rests[tp] = rest
    found = _newest_first(found)
    for record in found[want:]:
        # Records that are not returned remain to be read.
        tp = TopicPartition(record.topic, record.partition)
        rests[tp] = max(rests[tp], record.offset + 1)
    shown = found[:want]
    remaining = {tp: rest for tp, rest in rests.items() if rest > starts[tp]}
    return Found(shown, remaining, bool(remaining) and len(shown) < want)


def _newest_first(records: list[ConsumedRecord]) -> list[ConsumedRecord]:
    by_offset = sorted(records, key=attrgetter("offset"), reverse=True)
    newest = sorted(_ranked(by_offset), key=lambda ranked: (-ranked[0], ranked[1]))
    return [record for _, _, record in newest]


async def _last_of(
    client: Client, tp: TopicPartition, start: int, end: int, want: int, match: Match, budget: Budget
) -> tuple[list[ConsumedRecord], int]:
    """Return the last matching records of a partition before `end`, and the offset before which nothing was read."""
    found: list[ConsumedRecord] = []
    span = want
    while end > start and len(found) < want and not budget.is_over:
        lower = max(start, end - span)
        before = budget.scanned
        window = await forward(client, {tp: lower}, {tp: end}, budget.records, match, budget)
        if window.positions:
            # The budget ended within the window, whose newest records are missing.
            break
        found = window.records + found
        end = lower
        scanned = budget.scanned - before
        span *= GROWTH if scanned < FEW_RECORDS else 2 if scanned < MANY_RECORDS else 1
    if len(found) > want:
        found = found[-want:]
        end = min(record.offset for record in found)
    return found, end
