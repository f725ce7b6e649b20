"""Find records by time: first a chunk in the index, then the record in it.

The index has the exact largest timestamp of every chunk of about 64 kB. The first chunk whose largest timestamp is at
or after the target contains the record, unless another client deleted it, or it lies before the log start. Then the
search continues after the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from attrs import define, evolve

from korvet.concurrency.time_slices import run_in_slices
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import RawRecord
from korvet.protocol.record_batch import LOG_APPEND_TIME_BIT, RecordBatch, decode_in_steps, first_offset_at
from korvet.protocol.steps import Steps
from korvet.storage.interface import OffsetAndTimestamp, TopicPartition
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.partitions import Answer, Partitions
from korvet.storage.redis.read.entries import (
    Entry,
    Fields,
    log_append_time,
    milliseconds_of,
    parse,
    timestamp_of,
    whole_batch,
)
from korvet.storage.redis.read.reader import WORST_SLICE_BYTES
from korvet.storage.redis.read.rebuild import epoch_at
from korvet.storage.redis.scripts import EARLIEST, SEEK

BEGINNING = b"0-0"
CHUNK_BYTES = 65_536
SLICE_ENTRIES = 2000
ANY_TIME = -(2**63)

Found = OffsetAndTimestamp | None


class Chunk(NamedTuple):
    """Consecutive entries that one index entry covers: those after one ID, up to another (or `+`)."""

    before: bytes
    last: bytes
    max_timestamp: int


@define(eq=False)
class Seeker:
    """Implements `Storage.earliest`, `seek_ts` and `seek_max_ts`."""

    redis: RedisCaller
    partitions: Partitions

    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        """See `Storage.earliest`."""
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        status, entry_id = b"skipped", b""
        while status == b"skipped":
            status, start, epochs, *rest = await self.partitions.call(partition, EARLIEST, entry_id)
            entry_id = rest[0] if rest else b""
        offset = partition.bound(start)
        time = -1 if status == b"empty" else await self._earliest_time(partition, offset, rest)
        return OffsetAndTimestamp(offset, time, epoch_at(partition.epochs(epochs), offset))

    async def _earliest_time(self, partition: Partition, log_start_offset: int, answer: Answer) -> int:
        """Return the timestamp of the first record of the entry that the script found."""
        entry_id, time, *header = answer
        if not header:
            return int(time)
        batch = RecordBatch(header[0])
        base_offset = cast(int, partition.mapper.offset(entry_id)) - batch.last_offset_delta
        if base_offset >= log_start_offset:
            return int(time) if time else batch.base_timestamp
        # The batch begins before the log start, so its first readable record has to be found in the batch.
        reply = await self.redis.execute(
            b"XRANGE", partition.keys.stream, entry_id, entry_id, repeatable=True
        )
        entries = cast(Sequence[Entry], reply)
        found = await run_in_slices(first_in(partition, entries, log_start_offset, ANY_TIME))
        return found.timestamp if found else batch.max_timestamp

    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> Found:
        """See `Storage.seek_ts`."""
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        before = BEGINNING
        while True:
            status, *answer = await self.partitions.call(partition, SEEK, timestamp, before)
            if status == b"none":
                return None
            found = await self._first_in(partition, answer, timestamp)
            before = answer[1]
            if found is not None or before == b"+":
                return found

    async def _first_in(self, partition: Partition, answer: Answer, timestamp: int) -> Found:
        """Return the first record at or after the timestamp in the chunk that the script returned."""
        before, last, start, _, epochs = answer
        slices = Slices(self.redis, partition, before, last)
        while (entries := await slices.next()) is not None:
            found = await run_in_slices(first_in(partition, entries, partition.bound(start), timestamp))
            if found is not None:
                return evolve(found, leader_epoch=epoch_at(partition.epochs(epochs), found.offset))
        return None

    async def seek_max_ts(self, tp: TopicPartition) -> Found:
        """See `Storage.seek_max_ts`."""
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        status, *answer = await self.partitions.call(partition, SEEK, b"max", BEGINNING)
        if status == b"none":
            return None
        found = await self._first_in(partition, answer, int(answer[3]))
        if found is not None:
            return found
        # That record was deleted, so the timestamps in the index are only upper bounds.
        _, _, start, _, epochs = answer
        found = await self._largest(partition, partition.bound(start))
        return found and evolve(found, leader_epoch=epoch_at(partition.epochs(epochs), found.offset))

    async def _largest(self, partition: Partition, log_start_offset: int) -> Found:
        """Return the record with the largest timestamp.

        Search chunks by descending upper bound, until the remaining bounds are below the timestamp found.
        """
        chunks = await self._chunks(partition)
        best: Found = None
        for chunk in sorted(chunks, key=lambda each: each.max_timestamp, reverse=True):
            if best is not None and chunk.max_timestamp < best.timestamp:
                break
            slices = Slices(self.redis, partition, chunk.before, chunk.last)
            while (entries := await slices.next()) is not None:
                found = await run_in_slices(largest_in(partition, entries, log_start_offset))
                if found is not None and (best is None or is_better(found, best)):
                    best = found
        return best

    async def _chunks(self, partition: Partition) -> list[Chunk]:
        """Return all chunks of the index, and last the chunk that is still open."""
        chunks = []
        before = BEGINNING
        entries: Sequence[Entry] | None = None
        while entries is None or entries:
            reply = await self.redis.execute(
                b"XRANGE", partition.keys.index, b"(" + before, b"+", b"COUNT", SLICE_ENTRIES, repeatable=True
            )
            entries = cast(Sequence[Entry], reply)
            for entry_id, fields in entries:
                # Another client added an index entry without a timestamp: its chunk must be searched.
                time = timestamp_of(fields[1])
                chunks.append(Chunk(before, entry_id, 2**63 if time is None else time))
                before = entry_id
        # The open chunk has no index entry yet, so it must be searched.
        return [*chunks, Chunk(before, b"+", 2**63)]


@define
class Slices:
    """The entries after one ID, up to another, a slice at a time."""

    redis: RedisCaller
    partition: Partition
    before: bytes
    last: bytes
    _is_at_end: bool = False

    async def next(self) -> Sequence[Entry] | None:
        """Return the next slice, or None after the last one."""
        if self._is_at_end:
            return None
        average = self.partition.entry_bytes or 1000.0
        largest = self.partition.largest_entry or 1 << 20
        count = max(1, min(SLICE_ENTRIES, int(1.2 * CHUNK_BYTES / average) + 1, WORST_SLICE_BYTES // largest))
        stream = self.partition.keys.stream
        command = (b"XRANGE", stream, b"(" + self.before, self.last, b"COUNT", count)
        entries = cast(Sequence[Entry], await self.redis.execute(*command, repeatable=True))
        if len(entries) < count:
            self._is_at_end = True
        else:
            self.before = entries[-1][0]
        return entries


def is_better(found: OffsetAndTimestamp, best: OffsetAndTimestamp) -> bool:
    """Return True if `found` has a larger timestamp, or the same timestamp at a lower offset."""
    return (found.timestamp, -found.offset) > (best.timestamp, -best.offset)


def first_in(
    partition: Partition, entries: Sequence[Entry], log_start_offset: int, timestamp: int
) -> Steps[Found]:
    """Return offset and timestamp of the first readable record with at least that timestamp."""
    mapper = partition.mapper
    is_batch_layout = partition.is_batch_layout
    too_early: set[bytes] = set()  # texts of timestamps; most records have the same one as their predecessor
    for entry_id, fields in entries:
        text = time_text(fields)
        if text in too_early:
            continue
        if is_batch_layout and (data := whole_batch(fields)) is not None:
            offset = mapper.offset(entry_id)
            if offset is not None and max_timestamp_of(data, fields) >= timestamp:
                found = yield from first_of(batch_at(data, fields, offset), log_start_offset, timestamp)
                if found is not None:
                    return found
            continue
        time = time_of(entry_id, fields)
        if time >= timestamp:
            offset = mapper.offset(entry_id)
            if offset is not None and offset >= log_start_offset:
                return OffsetAndTimestamp(offset, time)
        elif timestamp_of(text) is not None:
            too_early.add(text)
    return None


def largest_in(partition: Partition, entries: Sequence[Entry], log_start_offset: int) -> Steps[Found]:
    """Return offset and timestamp of the first readable record with the largest timestamp."""
    best: Found = None
    for entry_id, fields in entries:
        offset = partition.mapper.offset(entry_id)
        if offset is None:
            continue
        data = whole_batch(fields) if partition.is_batch_layout else None
        if data is not None:
            records = yield from readable_of(batch_at(data, fields, offset), log_start_offset)
        else:
            records = [OffsetAndTimestamp(offset, time_of(entry_id, fields))]
        for each in records:
            if each.offset >= log_start_offset and (best is None or is_better(each, best)):
                best = each
    return best


def time_text(fields: Fields) -> bytes:
    """Return the text of the `timestamp` field at its usual place, or "" if it is not there."""
    at = -4 if fields[-2] == b"$producer" and len(fields) > 4 else -2
    if at == -4 and fields[-4] == b"$transactional" and len(fields) > 6:
        at = -6
    return fields[at + 1] if fields[at] == b"timestamp" else b""


def time_of(entry_id: bytes, fields: Fields) -> int:
    """Return the timestamp of the record in an entry."""
    time = timestamp_of(time_text(fields))
    return parse(fields, milliseconds_of(entry_id)).timestamp if time is None else time


def max_timestamp_of(data: bytes, fields: Fields) -> int:
    time = log_append_time(fields)
    return RecordBatch(data).max_timestamp if time is None else time


def batch_at(data: bytes, fields: Fields, last_offset: int) -> RecordBatch:
    """Return the batch of an entry with its own offsets and times, without copying its bytes."""
    batch = RecordBatch(data)
    batch.base_offset = last_offset - batch.last_offset_delta
    time = log_append_time(fields)
    if time is not None:
        batch.attributes |= LOG_APPEND_TIME_BIT
        batch.max_timestamp = time
    return batch


def first_of(batch: RecordBatch, log_start_offset: int, timestamp: int) -> Steps[Found]:
    """Return offset and timestamp of a batch's first readable record with at least that timestamp."""
    if batch.base_offset < log_start_offset:
        records = yield from readable_of(batch, log_start_offset)
        return next((each for each in records if each.timestamp >= timestamp), None)
    try:
        found = yield from first_offset_at(batch, timestamp)
    except KafkaError:
        return unreadable(batch, log_start_offset)
    return None if found is None else OffsetAndTimestamp(*found)


def readable_of(batch: RecordBatch, log_start_offset: int) -> Steps[list[OffsetAndTimestamp]]:
    """Return offset and timestamp of the readable records of a batch."""
    found: list[OffsetAndTimestamp] = []
    first_delta = log_start_offset - batch.base_offset

    def note(part: list[RawRecord]) -> None:
        found.extend(
            OffsetAndTimestamp(batch.base_offset + delta, time)
            for delta, time, *_ in part
            if delta >= first_delta
        )

    try:
        yield from decode_in_steps(batch, note)
    except KafkaError:
        return [unreadable(batch, log_start_offset)]
    return found


def unreadable(batch: RecordBatch, log_start_offset: int) -> OffsetAndTimestamp:
    """Return offset and timestamp from the header of a batch whose records cannot be decoded.

    The broker does not decode records on append, so it may have stored such a batch.
    """
    return OffsetAndTimestamp(max(batch.base_offset, log_start_offset), batch.max_timestamp)
