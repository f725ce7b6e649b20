"""One partition in memory: whole batches in segments, found by bisection.

A segment has some 256 kB of batches. Retention drops whole segments. The largest timestamp of each segment is the first
level of the time index, that of each batch the second. Neither is a running maximum, so a record with a timestamp in
the year 2100 does not affect later segments and batches.

A batch keeps the bytes of its request. It stays in the request's buffer, base offset stamped in place, unless it is a
small part of that buffer: then it is copied, so that one partition's retention frees the memory that it drops.
The cost of appending and reading depends on batches, never on records. Records are decoded only to find a timestamp,
and to find the first one of a batch whose beginning was cut off by `truncate_before`.

No function here waits or reads the clock: callers pass limits and the time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from typing import NamedTuple, cast

from attrs import define, field

from korvet.protocol.buffers import Buffer
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import KafkaError, KafkaStorageError, OffsetOutOfRange
from korvet.protocol.record_batch import (
    MAX_UNPACKED_BYTES,
    ControlType,
    RecordBatch,
    build_marker,
    decode_records,
    empty_batch,
    first_offset_at,
    parse_batches,
    stamp,
    stamp_log_append_time,
)
from korvet.protocol.steps import Steps
from korvet.storage.compaction import Cleaned, DecidedTransactions
from korvet.storage.interface import (
    AbortedTransaction,
    ActiveProducer,
    AppendResult,
    LogOffsets,
    Marker,
    OffsetAndTimestamp,
    TimestampType,
    TopicConfig,
    TransactionNumber,
)
from korvet.storage.offsets import OffsetMapper, is_foreign, offset_mapper
from korvet.storage.producer_state import PRODUCER_COST, AppendedBatch, Producer, ProducerStates
from korvet.storage.transaction_state import PartitionTransaction, TransactionStates

SEGMENT_BYTES = 256 * 1024
# Lower than every timestamp, also than -1, which stands for a record without one.
ANY_TIME = -(2**63)
# Bytes that a batch occupies besides its content: the headers of its buffer and view, and its array items in a segment.
BATCH_COST = 400
# Bytes that a small batch occupies in a closed segment: its array items alone.
JOINED_BATCH_COST = 32
SMALL_BATCH_BYTES = 32 * 1024
# Batches up to this size are copied from their request's buffer.
COPIED_BYTES = 1024
LOG_COST = 2000
# The log lives as long as its broker, and loses no acknowledged record meanwhile, so the epoch never changes.
LEADER_EPOCH = 0


def nothing_to_reclaim() -> None:
    """Do nothing: the `reclaim` of a budget without a storage."""


@define
class MemoryBudget:
    """The limit of memory for all partitions, and its approximate use: payloads exactly, Python's overhead by averages.

    Dropped segments are no longer counted, and are freed one at a time.
    """

    limit: int
    used: int = 0
    reclaim: Callable[[], None] = nothing_to_reclaim
    _dropped: deque[Segment] = field(factory=deque)

    def take(self, cost: int) -> None:
        """Count `cost` bytes, or raise KafkaStorageError if they do not fit even after retention."""
        if self.used + cost > self.limit:
            self.reclaim()
            if self.used + cost > self.limit:
                raise KafkaStorageError(
                    f"the memory backend is full: it holds {self.used:,} of {self.limit:,} bytes, {cost:,} more "
                    "do not fit, and retention frees nothing; give it more (memory://?max_bytes=…) or keep less "
                    "(retention.ms, retention.bytes)"
                )
        self.used += cost

    def give_back(self, cost: int) -> None:
        self.used -= cost

    def drop(self, segments: Sequence[Segment]) -> None:
        """Subtract the cost of segments; `free` releases them later."""
        self.used -= sum(segment.cost for segment in segments)
        self._dropped.extend(segments)

    def free(self) -> bool:
        """Free one dropped segment; return False if there is none."""
        if self._dropped:
            self._dropped.popleft()
            return True
        return False


class Slice(NamedTuple):
    """Batches that a read found."""

    batches: EncodedBatches
    is_cut: bool = False
    aborted: Sequence[AbortedTransaction] = ()


class Segment:
    """Consecutive batches, by columns: bisected values are contiguous, and a small batch costs little.

    While the segment grows, each batch has a separate buffer. `close` joins small ones into one buffer: thousands of
    small objects would be slow to read, slow to free, and would fragment the memory that they release.
    """

    __slots__ = (
        "_buffers",
        "_joined",
        "cost",
        "ends",
        "last_append_ms",
        "last_offsets",
        "max_timestamp",
        "max_timestamps",
    )

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._joined: memoryview | None = None
        self.last_offsets = array("q")
        self.ends = array("q")  # where each batch ends, in bytes from the segment's beginning
        self.max_timestamps = array("q")
        self.max_timestamp = ANY_TIME
        self.last_append_ms = 0
        self.cost = 0

    @property
    def size(self) -> int:
        return self.ends[-1]

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.ends)

    def append(self, buffer: Buffer, last_offset: int, max_timestamp: int, now_ms: int, cost: int) -> None:
        ends = self.ends
        ends.append((ends[-1] if ends else 0) + len(buffer))
        self._buffers.append(buffer)
        self.last_offsets.append(last_offset)
        self.max_timestamps.append(max_timestamp)
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.last_append_ms = now_ms
        self.cost += cost

    def close(self) -> int:
        """Join small batches, since none will be appended; return the bytes by which the cost has decreased."""
        if self._joined is not None or self.count < 2 or self.size > self.count * SMALL_BATCH_BYTES:
            return 0
        self._joined = memoryview(b"".join(self._buffers))
        self._buffers = []
        before, self.cost = self.cost, self.size + self.count * JOINED_BATCH_COST
        return before - self.cost

    def batch(self, index: int) -> Buffer:
        """Return one batch. If it has to outlive the segment, the caller copies it (`own_buffer`)."""
        if self._joined is None:
            return self._buffers[index]
        return self._joined[self._start(index) : self.ends[index]]

    def buffers(self, first: int, end: int) -> list[Buffer]:
        """Return consecutive batches: as one buffer if the segment is joined, else a buffer for each."""
        if self._joined is None:
            return self._buffers[first:end]
        return [self._joined[self._start(first) : self._start(end)]]

    def _start(self, index: int) -> int:
        return self.ends[index - 1] if index else 0

    def expired(self, now_ms: int, retention_ms: int, kept_at_least_ms: int) -> bool:
        """Return True if the largest timestamp is past retention; without timestamps, if the last append is."""
        newest = self.max_timestamp if self.max_timestamp >= 0 else self.last_append_ms
        return now_ms - newest > retention_ms and now_ms - self.last_append_ms >= kept_at_least_ms

    def without_first(self, count: int) -> Segment:
        """Return the segment without its first batches."""
        rest = Segment()
        for index in range(count, self.count):
            buffer = own_buffer(self.batch(index))
            rest.append(
                buffer,
                self.last_offsets[index],
                self.max_timestamps[index],
                self.last_append_ms,
                kept_bytes(buffer) + BATCH_COST,
            )
        if self._joined is not None:
            rest.close()
        return rest


@define(eq=False)
class PartitionLog:
    """The batches of one partition, its bounds, its idempotent producers, and its transactions."""

    config: TopicConfig
    budget: MemoryBudget
    producers: ProducerStates
    retention_check_interval_ms: int
    created_ms: int = 0
    mapper: OffsetMapper = field(init=False)
    log_start_offset: int = field(init=False)
    next_offset: int = field(init=False)
    trimmed_before: int = 0  # retention and DeleteRecords removed everything below
    size: int = 0
    segments: list[Segment] = field(factory=list)
    segment_ends: list[int] = field(factory=list)  # the last offset of each segment
    cleaned: Cleaned = field(factory=Cleaned)
    transactions: TransactionStates = field(factory=TransactionStates)
    _is_sealed: bool = False  # the next append begins a new segment
    _bounds: LogOffsets | None = None

    def __attrs_post_init__(self) -> None:
        self.mapper = offset_mapper(self.config)
        self.log_start_offset = self.next_offset = self.mapper.base_offset(0, self.created_ms)

    @property
    def bounds(self) -> LogOffsets:
        """Log start, high watermark, and last stable offset."""
        bounds = self._bounds
        if bounds is None:
            first_open = self.transactions.first_open
            stable = self.next_offset if first_open is None else max(self.log_start_offset, first_open)
            bounds = self._bounds = LogOffsets(
                self.log_start_offset, self.next_offset, stable, trimmed_before=self.trimmed_before
            )
        return bounds

    # --- Appending --------------------------------------------------------------------------------------

    def append(
        self, batch: RecordBatch, now_ms: int, transaction: TransactionNumber | None = None
    ) -> AppendResult:
        """Append the batch, or return the result of the first append of a duplicate. An error changes nothing."""
        idempotent = batch.producer_id >= 0
        if idempotent and (duplicate := self._duplicate_of(batch, now_ms)) is not None:
            return AppendResult(
                duplicate.base_offset, duplicate.log_append_time_ms, self.log_start_offset, duplicate=True
            )
        if transaction is not None:
            self.transactions.check_batch(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, transaction
            )
        elif self.transactions.open:
            self.transactions.check_plain_batch(batch.producer_id)

        base_offset, log_append_time_ms = self._write(batch, now_ms)
        if idempotent:
            self._remember(batch, base_offset, log_append_time_ms, now_ms)
        if transaction is not None:
            with self._counting_transactions() as states:
                states.note_batch(
                    batch.producer_id, batch.producer_epoch, transaction.number, base_offset, now_ms
                )
        self.enforce_retention(now_ms)
        # Frees more than an append adds, so dropped segments never accumulate, however many are dropped together.
        if self.budget.free():
            self.budget.free()
        return AppendResult(base_offset, log_append_time_ms, self.log_start_offset)

    def write_marker(self, marker: Marker, now_ms: int) -> AppendResult:
        """End a transaction; return the log's end if it has ended already. An error changes nothing."""
        if self.transactions.has_ended(marker):
            return AppendResult(self.next_offset, -1, self.log_start_offset, duplicate=True)
        producer_id, epoch = marker.producer_id, marker.producer_epoch
        known_epoch = self.producers.epoch_of(producer_id, now_ms)
        self.transactions.check_marker(marker, known_epoch)

        kind = ControlType(marker.result)
        batch = RecordBatch(build_marker(kind, producer_id, epoch, marker.coordinator_epoch, now_ms))
        base_offset, log_append_time_ms = self._write(batch, now_ms)
        with self._counting_transactions() as states:
            states.note_marker(marker, base_offset, now_ms)
        if is_epoch_raised(
            marker, known_epoch, may_be_forgotten=self.producers.may_have_forgotten(producer_id)
        ):
            before = len(self.producers)
            self.producers.raise_epoch(producer_id, epoch, now_ms=now_ms)
            self.budget.used += (len(self.producers) - before) * PRODUCER_COST
        return AppendResult(base_offset, log_append_time_ms, self.log_start_offset)

    @contextmanager
    def _counting_transactions(self) -> Iterator[TransactionStates]:
        """Count the memory of transactions that the block adds or removes, and compute the bounds again."""
        before = self.transactions.cost
        yield self.transactions
        self.budget.used += self.transactions.cost - before
        self._bounds = None

    def active_producers(self) -> list[ActiveProducer]:
        """Return all producers that the partition remembers."""
        transactions = self.transactions.transactions
        return [
            active_producer(
                producer_id, self.producers.producers.get(producer_id), transactions.get(producer_id)
            )
            for producer_id in sorted({*self.producers.producers, *transactions})
        ]

    def _write(self, batch: RecordBatch, now_ms: int) -> tuple[int, int]:
        """Add the batch to the end of the log; return its base offset and its log append time, or -1."""
        buffer = own_buffer(batch.buffer)
        cost = kept_bytes(buffer) + BATCH_COST
        self.budget.take(cost)
        batch.buffer = memoryview(buffer)
        base_offset = self.mapper.base_offset(self.next_offset, now_ms)
        log_append_time_ms = self._stamp(batch, base_offset, now_ms)
        self._store(buffer, batch, now_ms, cost)
        return base_offset, log_append_time_ms

    def _duplicate_of(self, batch: RecordBatch, now_ms: int) -> AppendedBatch | None:
        return self.producers.check(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence, now_ms=now_ms
        )

    def _stamp(self, batch: RecordBatch, base_offset: int, now_ms: int) -> int:
        """Write the fields that the broker sets into the batch; return the log append time, or -1."""
        stamp(batch, base_offset, LEADER_EPOCH)
        if self.config.timestamp_type is TimestampType.CREATE_TIME:
            return -1
        stamp_log_append_time(batch, now_ms)
        return now_ms

    def _store(self, buffer: Buffer, batch: RecordBatch, now_ms: int, cost: int) -> None:
        last_offset = batch.last_offset
        segments = self.segments
        if self._is_sealed or not segments or segments[-1].ends[-1] >= SEGMENT_BYTES:
            self._is_sealed = False
            if segments:
                self.budget.give_back(segments[-1].close())
            segments.append(Segment())
            self.segment_ends.append(last_offset)
        segments[-1].append(buffer, last_offset, batch.max_timestamp, now_ms, cost)
        self.segment_ends[-1] = last_offset
        self.size += len(buffer)
        self.next_offset = last_offset + 1
        self._bounds = None

    def _remember(self, batch: RecordBatch, base_offset: int, log_append_time_ms: int, now_ms: int) -> None:
        before = len(self.producers)
        appended = AppendedBatch(batch.base_sequence, batch.last_sequence, base_offset, log_append_time_ms)
        self.producers.remember(batch.producer_id, batch.producer_epoch, appended, now_ms=now_ms)
        # Counted after the append: exceeding the limit by a few hundred bytes is better than half an append.
        self.budget.used += (len(self.producers) - before) * PRODUCER_COST
        self.expire_producers(now_ms)

    # --- Reading ----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool, is_committed: bool = False) -> Slice:
        """Return whole batches, beginning with the one that contains `offset` or follows it.

        With `at_least_one`, return the first one even if it exceeds `max_bytes`. With `is_committed`, end at the last
        stable offset.
        """
        if offset == self.next_offset:
            return Slice(EncodedBatches())
        is_of_another = is_foreign(offset, self.mapper, self.created_ms, self.log_start_offset)
        if is_of_another or not self.trimmed_before <= offset < self.next_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is outside the log, which goes from {self.log_start_offset} to {self.next_offset}"
            )

        number = bisect_left(self.segment_ends, offset)
        if number == len(self.segments):
            return Slice(EncodedBatches())  # everything up to the end was dropped
        index = bisect_left(self.segments[number].last_offsets, offset)
        if is_committed:
            return self._collect_committed(number, index, max_bytes, at_least_one=at_least_one, offset=offset)
        return self._collect(number, index, max_bytes, at_least_one=at_least_one)

    def _collect(
        self, number: int, index: int, max_bytes: int, *, at_least_one: bool, before: int | None = None
    ) -> Slice:
        """Return batches from that segment and index on; with `before`, those that end below that offset."""
        buffers: list[Buffer] = []
        size = 0
        while number < len(self.segments):
            segment = self.segments[number]
            count = segment.count if before is None else bisect_left(segment.last_offsets, before, index)
            begin = segment.ends[index - 1] if index else 0
            end = bisect_right(segment.ends, begin + max_bytes - size, index, count)
            if end == index and end < count and at_least_one and not buffers:
                end += 1
            if end > index:
                buffers += segment.buffers(index, end)
                size += segment.ends[end - 1] - begin
            if end < count:
                return Slice(EncodedBatches(buffers, size), is_cut=True)
            if count < segment.count:
                break
            number, index = number + 1, 0
        return Slice(EncodedBatches(buffers, size))

    def _collect_committed(
        self, number: int, index: int, max_bytes: int, *, at_least_one: bool, offset: int
    ) -> Slice:
        """Return batches below the last stable offset, with the aborted transactions among them."""
        stable = self.bounds.last_stable_offset
        before = stable if stable < self.next_offset else None
        found = self._collect(number, index, max_bytes, at_least_one=at_least_one, before=before)
        if before is None and not self.transactions.aborted:
            return found
        end = max((header.last_offset for header in found.batches.headers()), default=offset - 1) + 1
        has_aborted = end > offset and self.transactions.aborted
        aborted = self.transactions.aborted_between(offset, end) if has_aborted else ()
        if before is not None and not found.is_cut and end < before:
            # There are no records up to there. Consumers compare their position with the last stable offset.
            filler = empty_batch(before - 1, LEADER_EPOCH)
            batches = EncodedBatches([*found.batches.buffers, filler], found.batches.size + len(filler))
            found = Slice(batches)
        return found._replace(aborted=aborted)

    # --- By time ----------------------------------------------------------------------------------------

    def earliest(self) -> Steps[OffsetAndTimestamp]:
        """Return the log start, with the timestamp of the first record; -1 without a record."""
        first = yield from self.seek_ts(ANY_TIME)
        return OffsetAndTimestamp(self.log_start_offset, -1 if first is None else first.timestamp)

    def seek_ts(self, timestamp: int) -> Steps[OffsetAndTimestamp | None]:
        """Return the first record whose timestamp is at or after `timestamp`."""
        for segment in list(self.segments):  # a copy, since segments may be dropped between two steps
            if segment.max_timestamp < timestamp:
                continue
            for index, largest in enumerate(segment.max_timestamps):
                if largest >= timestamp:
                    found = yield from self._first_at(segment.batch(index), timestamp)
                    if found:
                        return found
        return None

    def seek_max_ts(self) -> Steps[OffsetAndTimestamp | None]:
        """Return the first record with the largest timestamp."""
        if not self.segments:
            return None
        segment = max(self.segments, key=lambda each: each.max_timestamp)
        index = segment.max_timestamps.index(segment.max_timestamp)
        return (yield from self._first_at(segment.batch(index), segment.max_timestamp))

    def _first_at(self, buffer: Buffer, timestamp: int) -> Steps[OffsetAndTimestamp | None]:
        (batch,) = parse_batches(buffer)
        try:
            if batch.base_offset >= self.log_start_offset:
                found = yield from first_offset_at(batch, timestamp)
            else:
                found = next((each for each in self._visible(batch) if each[1] >= timestamp), None)
        except KafkaError:
            # An append does not decode records, so the log may have a batch that cannot be decoded: use its header.
            found = max(batch.base_offset, self.log_start_offset), batch.max_timestamp
        return None if found is None else OffsetAndTimestamp(*found)

    def _visible(self, batch: RecordBatch) -> Iterator[tuple[int, int]]:
        """Yield offset and timestamp of the records of a batch at or above the log start."""
        for delta, timestamp, *_ in decode_records(batch, max_bytes=MAX_UNPACKED_BYTES):
            if batch.base_offset + delta >= self.log_start_offset:
                yield batch.base_offset + delta, timestamp

    # --- Dropping ---------------------------------------------------------------------------------------

    def enforce_retention(self, now_ms: int, up_to: int | None = None) -> None:
        """Drop leading segments that retention.ms or retention.bytes require to drop, and none beyond `up_to`.

        A tiered topic drops nothing without `up_to`.
        """
        if self.config.is_tiered and up_to is None:
            return
        retention_ms, retention_bytes = self.config.retention_ms, self.config.retention_bytes
        size = self.size
        count = 0
        for segment in self.segments:
            expired = retention_ms >= 0 and segment.expired(
                now_ms, retention_ms, self.retention_check_interval_ms
            )
            if not expired and not 0 <= retention_bytes <= size - segment.size:
                break
            if up_to is not None and segment.last_offsets[-1] >= up_to:
                break
            size -= segment.size
            count += 1
        if count:
            self._drop_segments(count)

    def expire_producers(self, now_ms: int) -> None:
        self.budget.give_back(self.producers.expire(now_ms) * PRODUCER_COST)
        if self.transactions.transactions:
            with self._counting_transactions() as states:
                states.expire(now_ms, self.producers.expiration_ms)

    def truncate_before(self, offset: int) -> int:
        """Delete the records below `offset`. The batch that contains it stays whole; only the log start moves."""
        if offset > self.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the log's end at {self.next_offset}")
        if offset <= self.log_start_offset:
            return self.log_start_offset

        self._drop_segments(bisect_left(self.segment_ends, offset))
        self.log_start_offset = self.trimmed_before = offset
        self._drop_aborted()
        if self.segments:
            self._cut_first_segment()
        return offset

    # --- Compacting: see memory_compaction ----------------------------------------------------------------

    def seal(self) -> None:
        """End the present segments: the next append begins a new one."""
        self._is_sealed = True

    def replace(self, old: Sequence[Segment], new: Segment) -> bool:
        """Replace consecutive segments by their compacted one; return False if some of them are gone."""
        first = next((at for at, each in enumerate(self.segments) if each is old[0]), -1)
        after = first + len(old)
        present = self.segments[first:after] if first >= 0 else []
        if len(present) != len(old) or any(a is not b for a, b in zip(present, old, strict=True)):
            return False
        left = [new] if new.count else []
        self.segments[first:after] = left
        self.segment_ends[first:after] = [each.last_offsets[-1] for each in left]
        self.size += sum(each.size for each in left) - sum(each.size for each in old)
        self.budget.give_back(sum(each.cost for each in old) - sum(each.cost for each in left))
        return True

    def decided_transactions(self) -> DecidedTransactions:
        """Return the aborted transactions that may have records left."""
        decided = DecidedTransactions()
        for each in self.transactions.aborted:
            decided.add_aborted(each.producer_id, each.first_offset, each.marker_offset)
        return decided

    def drop_aborted_before(self, offset: int) -> None:
        """Drop the aborted transactions whose markers are below the offset: compaction has removed their records."""
        if self.transactions.aborted:
            with self._counting_transactions() as states:
                states.drop_before(offset)

    def clear(self) -> None:
        """Drop all segments, producers and transactions, since the topic was deleted."""
        self._drop_segments(len(self.segments))
        self.budget.give_back(len(self.producers) * PRODUCER_COST + self.transactions.cost)

    def _drop_segments(self, count: int) -> None:
        """Drop leading segments. The log then starts at the next offset, so a consumer that has read them continues."""
        if count == 0:
            return
        dropped = self.segments[:count]
        self.size -= sum(segment.size for segment in dropped)
        self.budget.drop(dropped)
        self.log_start_offset = max(self.log_start_offset, self.segment_ends[count - 1] + 1)
        self.trimmed_before = self.log_start_offset
        self._drop_aborted()
        del self.segments[:count], self.segment_ends[:count]

    def _drop_aborted(self) -> None:
        """Drop the aborted transactions below the log start, and compute the bounds again."""
        self._bounds = None
        self.drop_aborted_before(self.log_start_offset)

    def _cut_first_segment(self) -> None:
        """Drop the batches of the first segment before the log start.

        Recompute the timestamps of the first remaining batch from its records at or above the log start.
        """
        first = self.segments[0]
        rest = first.without_first(bisect_left(first.last_offsets, self.log_start_offset))
        (batch,) = parse_batches(rest.batch(0))
        if batch.base_offset < self.log_start_offset:
            with suppress(KafkaError):  # the batch cannot be decoded: keep the header's timestamp
                rest.max_timestamps[0] = max(timestamp for _, timestamp in self._visible(batch))
                rest.max_timestamp = max(rest.max_timestamps)
        self.segments[0] = rest
        self.size -= first.size - rest.size
        self.budget.give_back(first.cost - rest.cost)


def is_epoch_raised(marker: Marker, known_epoch: int, *, may_be_forgotten: bool) -> bool:
    """Return True if the producer's batches begin with sequence 0 again after a marker, under the marker's epoch."""
    if known_epoch >= 0:
        return marker.producer_epoch > known_epoch
    # A producer with transaction.version 1 that was forgotten goes on with any sequence.
    return marker.version >= 2 or not may_be_forgotten


def active_producer(
    producer_id: int, producer: Producer | None, transaction: PartitionTransaction | None
) -> ActiveProducer:
    """Return the state of a producer, of which the partition remembers batches, a transaction, or both."""
    epochs = [-1 if producer is None else producer.epoch]
    times = [-1 if producer is None else producer.last_append_ms]
    if transaction is not None:
        epochs.append(transaction.producer_epoch)
        times.append(transaction.changed_ms)
    is_open = transaction is not None and transaction.is_open
    return ActiveProducer(
        producer_id,
        max(epochs),
        -1 if producer is None else producer.last_sequence,
        max(times),
        -1 if transaction is None else transaction.coordinator_epoch,
        transaction.first_offset if transaction is not None and is_open else -1,
    )


def own_buffer(buffer: Buffer) -> Buffer:
    """Return the buffer in which a batch is kept: its part of the request's buffer, or a copy.

    It is copied if the request's buffer is more than twice as large, or read-only, or if the batch is small: a view and
    what it refers to take more memory than the copy, and the garbage collector visits them.
    """
    if not isinstance(buffer, memoryview):
        return buffer
    is_copied = len(buffer) <= COPIED_BYTES or buffer.readonly or 2 * len(buffer) < kept_bytes(buffer)
    return bytearray(buffer) if is_copied else buffer


def kept_bytes(buffer: Buffer) -> int:
    """Return the number of bytes that a stored buffer keeps allocated."""
    return len(cast("Sized", buffer.obj)) if isinstance(buffer, memoryview) else len(buffer)
