"""Compaction in memory: rebuild segments, some at a time, and replace the old ones.

While a segment is rebuilt the broker appends to a later one, since compaction seals the present segments, and reads the
old ones. If DeleteRecords or retention removes a segment meanwhile, compaction does not restore it: the call ends, and
the next one compacts the rest.
"""

from __future__ import annotations

from bisect import bisect_left

from attrs import define, field

from korvet.concurrency.time_slices import TimeSlices, run_in_slices
from korvet.protocol.buffers import Buffer
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.compaction import Round, compacted, is_due, lag_limit, note_all
from korvet.storage.interface import Compacted
from korvet.storage.memory_log import BATCH_COST, SEGMENT_BYTES, PartitionLog, Segment, kept_bytes, own_buffer


@define(eq=False)
class MemoryCompaction:
    """One compaction of one partition."""

    log: PartitionLog
    now_ms: int
    max_keys: int
    _time_slices: TimeSlices = field(factory=TimeSlices)

    async def run(self) -> Compacted | None:
        """See `Storage.compact`."""
        log = self.log
        target = self._target()
        if not log.config.is_compacted or not self._is_due(target):
            return None
        size = log.size
        log.seal()
        while log.cleaned.end < target:
            round_ = await self._noted(target)
            if not await self._clean(round_):
                break
            log.drop_aborted_before(round_.end)
            log.cleaned = log.cleaned.after(round_.end, self.now_ms, log.config.delete_retention_ms)
        return Compacted(log.cleaned.end, size, log.size)

    def _target(self) -> int:
        """Return the end of the stable records that are older than min.compaction.lag.ms."""
        limit = lag_limit(self.log.config, self.now_ms)
        end = self.log.cleaned.end
        stable = self.log.bounds.last_stable_offset
        if limit is None:
            return stable
        for segment in self.log.segments[bisect_left(self.log.segment_ends, end) :]:
            for last_offset, timestamp in zip(segment.last_offsets, segment.max_timestamps, strict=True):
                if last_offset >= end and (timestamp > limit or last_offset >= stable):
                    return end
                end = max(end, last_offset + 1)
        return end

    def _is_due(self, target: int) -> bool:
        end = self.log.cleaned.end
        clean_bytes = self._bytes_below(end)
        number = bisect_left(self.log.segment_ends, end)
        oldest_ms = -1
        if number < len(self.log.segments):
            segment = self.log.segments[number]
            oldest_ms = RecordBatch(segment.batch(bisect_left(segment.last_offsets, end))).base_timestamp
        return is_due(
            self.log.config,
            clean_bytes=clean_bytes,
            dirty_bytes=self._bytes_below(target) - clean_bytes,
            oldest_dirty_ms=oldest_ms,
            now_ms=self.now_ms,
        )

    def _bytes_below(self, offset: int) -> int:
        number = bisect_left(self.log.segment_ends, offset)
        size = sum(segment.size for segment in self.log.segments[:number])
        if number < len(self.log.segments):
            segment = self.log.segments[number]
            batches = bisect_left(segment.last_offsets, offset)
            size += segment.ends[batches - 1] if batches else 0
        return size

    async def _noted(self, target: int) -> Round:
        """Return the next round, with the keys of the dirty part, up to its limit of keys."""
        log = self.log
        round_ = Round(
            self.max_keys,
            start=log.log_start_offset,
            newest=log.next_offset - 1,
            tombstones_end=log.cleaned.tombstones_end(self.now_ms, log.config.delete_retention_ms),
            end=log.cleaned.end,
            transactions=log.decided_transactions(),
        )
        for segment in log.segments[bisect_left(log.segment_ends, round_.end) :]:
            for index, last_offset in enumerate(list(segment.last_offsets)):
                if last_offset >= target or round_.is_full:
                    return self._ended(round_, target)
                if last_offset >= round_.end:
                    await run_in_slices(
                        note_all(RecordBatch(segment.batch(index)), round_), self._time_slices
                    )
                    round_.end = last_offset + 1
                await self._time_slices.next()
        return self._ended(round_, target)

    @staticmethod
    def _ended(round_: Round, target: int) -> Round:
        if not round_.is_full:
            round_.end = target
        return round_

    async def _clean(self, round_: Round) -> bool:
        """Rebuild the segments below the round's end; return False if some of them were removed meanwhile."""
        sources: list[Segment] = []
        new = Segment()
        begin = 0
        for segment, last_offset in list(zip(self.log.segments, self.log.segment_ends, strict=True)):
            if begin >= round_.end:
                break
            begin = last_offset + 1
            sources.append(segment)
            await self._add_rest_of(segment, new, round_)
            if new.count and new.size >= SEGMENT_BYTES:
                if not self._replace(sources, new):
                    return False
                sources, new = [], Segment()
        return not sources or self._replace(sources, new)

    def _replace(self, sources: list[Segment], new: Segment) -> bool:
        new.close()
        return self.log.replace(sources, new)

    async def _add_rest_of(self, segment: Segment, new: Segment, round_: Round) -> None:
        for index in range(segment.count):
            last_offset, max_timestamp = segment.last_offsets[index], segment.max_timestamps[index]
            buffer = segment.batch(index)
            left: Buffer | None = buffer
            if last_offset < round_.end:
                batch = RecordBatch(buffer)
                left = await run_in_slices(compacted(batch, round_), self._time_slices)
                if left is batch.buffer:
                    left = buffer
                elif left is not None:
                    max_timestamp = RecordBatch(left).max_timestamp
            if left is not None:
                left = own_buffer(left)
                cost = kept_bytes(left) + BATCH_COST
                new.append(left, last_offset, max_timestamp, segment.last_append_ms, cost)
            await self._time_slices.next()
