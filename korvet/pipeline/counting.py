"""Count records before reading them, if offsets do not count them.

With korvet's timestamp mapping, the offsets of two records a second apart differ by a million. There, records are
fetched and counted, but only as far as a plan requires: to the end of what a trigger takes. Dense offsets are counted
by subtraction, as in Spark's own source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from attrs import define, field

from korvet.client.model import TopicPartition
from korvet.lake.varints import Int64s
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.offsets import Offsets
from korvet.pipeline.record_columns import decode_offsets

# No dense log has grown to this offset. As a timestamp it is in 1978 (with 10 bits for sequences).
FIRST_TIMESTAMP_OFFSET = 2**48

ROUND_BYTES = 8 * 1024 * 1024
PARTITION_BYTES = 512 * 1024


def is_dense(end: int) -> bool:
    """Return True if a log with this end offset has dense offsets."""
    return end < FIRST_TIMESTAMP_OFFSET


@define
class Count:
    """The number of records after a partition's start, as far as they were counted."""

    start: int
    end: int  # the end offset at the last look
    position: int  # records are counted up to here
    _known: list[Int64s] = field(factory=list)  # offsets of counted records

    @property
    def number(self) -> int:
        if is_dense(self.end):
            return max(self.end - self.start, 0)
        return len(self.offsets())

    @property
    def is_complete(self) -> bool:
        return is_dense(self.end) or self.position >= self.end

    def moved(self, start: int, end: int) -> Count:
        """Return the count of another range, keeping the offsets that are known."""
        if not self.start <= start <= self.position:
            return Count(start, end, start)
        offsets = self._joined()
        return Count(start, end, self.position, [offsets[offsets >= start]])

    def add(self, offsets: Int64s, position: int) -> None:
        if len(offsets):
            self._known.append(offsets)
        self.position = position

    def end_of(self, number: int) -> int:
        """Return the offset after the first `number` records."""
        if is_dense(self.end):
            return min(self.start + number, self.end)
        if number >= self.number and self.is_complete:
            return self.end
        return int(self.offsets()[number - 1]) + 1

    def offsets(self) -> Int64s:
        """Return the known offsets in the range."""
        return self._joined()[: int(np.searchsorted(self._joined(), self.end))]

    def _joined(self) -> Int64s:
        if len(self._known) != 1:
            self._known = [np.concatenate([np.empty(0, np.int64), *self._known])]
        return self._known[0]


@define
class Counts:
    """Counts of several partitions, each from its start; counting continues where it stopped."""

    counts: dict[TopicPartition, Count] = field(factory=dict)

    def begin(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        """Set the ranges to count, keeping the offsets that are known."""
        self.counts = {
            tp: self.counts[tp].moved(start, ends[tp]) if tp in self.counts else Count(start, ends[tp], start)
            for tp, start in starts.items()
        }

    async def at_least(
        self, fetcher: Fetcher, wanted: Mapping[TopicPartition, int], *, rounds: int | None = None
    ) -> None:
        """Count until the wanted number of each partition's records is known, or all, in at most `rounds` rounds."""
        open_tps = [tp for tp, number in wanted.items() if self._lacks(tp, number)]
        while open_tps and rounds != 0:
            rounds = None if rounds is None else rounds - 1
            positions = {tp: self.counts[tp].position for tp in open_tps}
            answers = await fetcher.fetch_all(
                positions, max_bytes=ROUND_BYTES, partition_bytes=PARTITION_BYTES
            )
            moved = {tp for tp, fetched in answers.items() if fetched.next_offset > positions[tp]}
            for tp in moved or open_tps:
                count = self.counts[tp]
                # No partition advanced, and no limit kept batches back: there are no more records up to the end.
                position = answers[tp].next_offset if moved else count.end
                offsets = decode_offsets(answers[tp].batches, start=positions[tp], end=count.end)
                count.add(offsets, min(position, count.end))
            rest = [tp for tp in open_tps if tp not in moved]
            open_tps = [tp for tp in (*rest, *moved) if self._lacks(tp, wanted[tp])]

    async def first(self, fetcher: Fetcher, limit: int) -> Offsets:
        """Return the ends of about `limit` records, shared by all partitions; at least one of each that has any."""
        taken = dict.fromkeys(self.counts, 0)
        open_tps = [tp for tp in self.counts if self._has_more(tp, 0)]
        left = limit
        while open_tps and (left >= len(open_tps) or not any(taken.values())):
            share = max(left // len(open_tps), 1)
            await self.at_least(fetcher, {tp: taken[tp] + share for tp in open_tps})
            for tp in open_tps:
                more = min(share, self.counts[tp].number - taken[tp])
                taken[tp] += more
                left -= more
            open_tps = [tp for tp in open_tps if self._has_more(tp, taken[tp])]
        return {tp: self._end(tp, number) for tp, number in taken.items()}

    def _end(self, tp: TopicPartition, number: int) -> int:
        count = self.counts[tp]
        return count.end_of(number) if number or not self._has_more(tp, 0) else count.start

    def _lacks(self, tp: TopicPartition, number: int) -> bool:
        count = self.counts[tp]
        return not count.is_complete and count.number < number

    def _has_more(self, tp: TopicPartition, taken: int) -> bool:
        count = self.counts[tp]
        return count.number > taken or not count.is_complete


def proportional(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """Return the ends of about `limit` records, shared in proportion to the partitions' lengths."""
    # It requires dense offsets, and works like Spark's own source.
    sizes = {tp: max(end - starts[tp], 0) for tp, end in ends.items()}
    total = sum(sizes.values())
    return {
        tp: starts[tp] + min(size, max(limit * size // total, 1)) if size else ends[tp]
        for tp, size in sizes.items()
    }


def all_dense(ends: Iterable[int]) -> bool:
    return all(map(is_dense, ends))
