"""Read slices of a stream, each with the partition's state in one MULTI, and build batches from them.

A slice is small enough that neither Redis nor this process is busy with it for long: some thousand entries, or a
megabyte. While this process builds batches from one slice, Redis reads the next one. The number of entries follows from
their average size. The size of the largest entry ever stored limits the reply if the average is wrong.

A read ends at the state's next ID. If there are entries after it, or the length of the stream differs from the state,
another client has changed the stream: `settle` brings the state up to date before the read is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

import trio
from attrs import define, field

from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.buffers import Buffer, join_small
from korvet.protocol.compression import Codec
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import KafkaError, KafkaStorageError, OffsetOutOfRange
from korvet.protocol.record_batch import empty_batch
from korvet.storage.interface import (
    AbortedTransaction,
    LogOffsets,
    PendingRead,
    ReadRequest,
    ReadResult,
    TopicPartition,
)
from korvet.storage.offsets import is_foreign
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import NotConnected, Pending, RedisUnavailable
from korvet.storage.redis.client.errors import ExecAbortError
from korvet.storage.redis.client.replies import Command, Reply
from korvet.storage.redis.failover.confirmations import Confirmations
from korvet.storage.redis.partition import Known, Partition, PartitionState
from korvet.storage.redis.partitions import ATTEMPTS, Partitions
from korvet.storage.redis.producers import StoredAborted
from korvet.storage.redis.read.entries import Entry
from korvet.storage.redis.read.rebuild import Epoch, Rebuilt, epoch_at
from korvet.storage.redis.time_limits import StartedCall, TimeLimits

logger = logging.getLogger(__name__)

SLICE_ENTRIES = 2000
SLICE_BYTES = 1 << 20
# Entries of a slice if the average size is unknown, or no new entries are expected.
CAUTIOUS_ENTRIES = 16
# Limit of a slice, computed as if all its entries were as large as the largest.
WORST_SLICE_BYTES = 32 << 20
# Limit of the slices that are requested in one write.
WAVE_BYTES = 8 << 20
# Entries made into batches, and bytes compressed, without a checkpoint.
REBUILT_AT_ONCE = 500
COMPRESSED_AT_ONCE = 200_000
# Batches smaller than this are copied into a shared buffer.
SMALL_BATCH_BYTES = 4096
# Aborted transactions that are requested with the first slice, and then at once.
FIRST_ABORTED = 64
ABORTED_AT_ONCE = 1000
# Partitions whose state is requested in one write.
STATES_AT_ONCE = 250
# Calls of `settle` before a read is answered as it stands, since other clients may add entries all the time.
SETTLING_ATTEMPTS = 3


@define(eq=False)
class PartitionRead:
    """The read of one partition, and its progress."""

    partition: Partition
    offset: int
    limit: int
    at_least_one: bool = False
    position: bytes = b""  # where the next slice begins
    # Bytes of an entry: the average of the last slice, or of the whole stream; 0 while it is unknown.
    average: float = 0.0
    asked: int = 0  # entries requested for the last slice
    expected_bytes: float = 0.0  # of these entries
    known: Known | None = None  # `partition.known` when the last slice was requested
    attempts: int = 0
    size: int = 0
    buffers: list[Buffer] = field(factory=list)  # of whole batches
    offsets: LogOffsets | None = None
    taken: bytes = b""  # the ID of the last entry in `buffers`
    end_id: bytes = b""  # the next ID in the state that was read last; empty before that
    is_cut: bool = False
    ahead: Pending | None = None  # a later slice that was requested, and not received yet
    is_committed: bool = field(default=False, kw_only=True)  # `read_committed`
    stable_id: bytes = b""  # where it then ends: the last stable offset when the first slice was read
    aborted: list[StoredAborted] = field(factory=list)  # from the offset on
    last_aborted: bytes = b""  # the ID of the last entry of `$aborted` that was read
    has_more_aborted: bool = False

    def __attrs_post_init__(self) -> None:
        self.position = self.partition.shared.format.mapper.entry_id(max(self.offset, 0))
        self.average = self.partition.entry_bytes

    @property
    def expects_nothing(self) -> bool:
        """True if the read begins at the last known end of what it may return: the consumer has caught up."""
        known, unstable = self.partition.known, self.partition.unstable_offset
        if self.is_committed and unstable is not None and self.offset >= unstable:
            return True
        return known is not None and self.offset >= known.next_offset

    def commands(self) -> list[Command]:
        """Return the commands for the next slice and the state: five, or four if no entries are requested.

        The first slice of a `read_committed` has a sixth one.
        """
        partition = self.partition
        self.known = partition.known
        state, length = partition.state_commands()
        if self.limit <= 0 and not self.at_least_one:
            self.asked, self.expected_bytes = 0, 0.0
            return [(b"MULTI",), state, length, (b"EXEC",)]
        self.asked = self._entries_to_ask_for()
        self.expected_bytes = self.asked * self.average
        entries = (b"XRANGE", partition.keys.stream, self.position, b"+", b"COUNT", self.asked)
        if self.is_committed and self.offsets is None:
            aborted = self._aborted_after(self.position, FIRST_ABORTED)
            return [(b"MULTI",), state, length, entries, aborted, (b"EXEC",)]
        return [(b"MULTI",), state, length, entries, (b"EXEC",)]

    def _aborted_after(self, entry_id: bytes, count: int) -> Command:
        """Return the command that reads aborted transactions whose markers are at that ID or above it."""
        return b"XRANGE", self.partition.keys.aborted, entry_id, b"+", b"COUNT", count

    def take_aborted(self, entries: Sequence[Entry], *, has_more: bool) -> None:
        parsed = map(StoredAborted.parse, entries)
        self.aborted += [each for each in parsed if each is not None]
        self.has_more_aborted = has_more
        if entries:
            self.last_aborted = entries[-1][0]

    @property
    def needs_more_aborted(self) -> bool:
        """True if more aborted transactions may have records among those of the read.

        Transactions that were aborted later begin at the `stable` ID of the last one or above it.
        """
        if not self.has_more_aborted or not self.taken:
            return False
        return not self.aborted or not is_before(self.taken, self.aborted[-1].stable_id)

    def more_aborted(self) -> Command:
        """Return the command that reads more aborted transactions, beginning with the last one that was read."""
        return self._aborted_after(self.last_aborted, ABORTED_AT_ONCE)

    def _entries_to_ask_for(self) -> int:
        """Return how many entries probably fit. Redis would read and send any more of them in vain."""
        if self.average == 0:
            return CAUTIOUS_ENTRIES
        fitting = int(min(self.limit, SLICE_BYTES) / self.average)
        safe = WORST_SLICE_BYTES // max(self.partition.largest_entry, 1)
        expected = CAUTIOUS_ENTRIES if self.expects_nothing and not self.buffers else SLICE_ENTRIES
        return max(1, min(fitting, safe, expected))

    def needs_more(self, behind: int = 0) -> bool:
        """Return True if another entry probably fits after `behind` more entries of average size.

        If `behind` is 0, return True also while the read still needs its first batch.
        """
        room = self.limit - behind * self.average
        return room >= max(self.average, 1) or (self.at_least_one and not behind)

    def entries_at_once(self) -> int:
        """Return how many entries are made into batches without a checkpoint: about half a millisecond's work."""
        partition = self.partition
        if partition.shared.format.codec is Codec.NONE:
            return REBUILT_AT_ONCE
        return max(1, min(REBUILT_AT_ONCE, int(COMPRESSED_AT_ONCE / max(partition.entry_bytes, 1.0))))

    def take(self, rebuilt: Rebuilt, entries: Sequence[Entry]) -> None:
        """Add batches that were built from the first `rebuilt.entries` of these entries."""
        # Tens of thousands of small objects would fragment the interpreter's memory, which could not be released.
        self.buffers += join_small(rebuilt.buffers, SMALL_BATCH_BYTES)
        self.size += rebuilt.size
        self.limit -= rebuilt.size
        if rebuilt.entries:
            self.taken = entries[rebuilt.entries - 1][0]
        if rebuilt.entries > rebuilt.skipped:
            self.average = rebuilt.size / (rebuilt.entries - rebuilt.skipped)
        self.at_least_one = self.at_least_one and not self.buffers

    def end(self, epochs: Sequence[Epoch], *, is_complete: bool) -> None:
        """End the read. If it `is_complete`, there is no further entry below the high watermark.

        Consumers have to reach the high watermark also if its last records are gone, lost in a failover or deleted by
        another client: an empty batch then ends there. A partition that never had a record is only empty.
        """
        offsets = cast(LogOffsets, self.offsets)
        end = offsets.last_stable_offset if self.is_committed else offsets.high_watermark
        last = self.partition.shared.format.mapper.offset(self.taken) if self.taken else None
        is_short = self.offset < end and (last is None or last + 1 < end)
        self.is_cut = is_short and not is_complete
        if is_short and is_complete and end > self.partition.first_offset:
            batch = empty_batch(end - 1, epoch_at(epochs, end - 1))
            self.buffers.append(batch)
            self.size += len(batch)

    def result(self) -> ReadResult:
        offsets = cast(LogOffsets, self.offsets)
        batches = EncodedBatches(self.buffers, self.size)
        if not self.aborted or not self.taken:
            return ReadResult(batches, offsets, self.is_cut)
        bound = self.partition.bound
        aborted = [
            AbortedTransaction(each.producer_id, bound(each.first_id))
            for each in self.aborted
            if not is_before(self.taken, each.first_id)
        ]
        return ReadResult(batches, offsets, self.is_cut, aborted)


@define(eq=False)
class Reader:
    """Implements `Storage.read` and `Storage.sizes`, and reads the state of partitions."""

    redis: RedisCaller
    partitions: Partitions
    confirmations: Confirmations
    ends_at: Callable[[bytes, bytes], None]  # called with a stream's key and next ID
    limits: TimeLimits  # of started reads
    _reported_topics: set[UUID] = field(factory=set)

    async def read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        max_bytes: int,
        *,
        is_committed: bool = False,
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        """See `Storage.read`."""
        results: dict[TopicPartition, ReadResult | KafkaError] = {}
        waiting = []
        for tp, request in requests.items():
            try:
                partition = self.partitions.known(tp) or await self.partitions.find(tp)
            except KafkaError as error:
                results[tp] = error
            else:
                waiting.append(
                    PartitionRead(partition, request.offset, request.max_bytes, is_committed=is_committed)
                )

        left = max_bytes
        while waiting:
            wave, waiting = self._next_wave(waiting, left, is_first=left == max_bytes)
            try:
                slices = await self._first_slices(wave)
            except KafkaError as error:
                # Redis is unavailable: the remaining partitions would only wait again.
                results |= {read.partition.tp: error for read in (*wave, *waiting)}
                break
            left = await self.finish_all(wave, slices, requests, max_bytes, left, results)
        return {tp: results[tp] for tp in requests}

    def begin(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        max_bytes: int,
        *,
        is_committed: bool = False,
    ) -> StartedRead | None:
        """Begin `read` if nothing has to be waited for before the commands are sent, and one write is enough."""
        waiting = []
        for tp, request in requests.items():
            partition = self.partitions.known(tp)
            if partition is None or partition.shared.topic.config.min_insync_replicas > 1:
                return None
            waiting.append(
                PartitionRead(partition, request.offset, request.max_bytes, is_committed=is_committed)
            )
        wave, rest = self._next_wave(waiting, max_bytes, is_first=True)
        if rest:
            return None
        commands, ends, size = commands_of(wave)
        started = StartedRead(self.limits, self, requests, max_bytes, wave, ends)
        return started if started.send(commands, size) else None

    async def finish_all(
        self,
        wave: Sequence[PartitionRead],
        slices: Sequence[Reply],
        requests: Mapping[TopicPartition, ReadRequest],
        max_bytes: int,
        left: int,
        results: dict[TopicPartition, ReadResult | KafkaError],
    ) -> int:
        """Finish reads of which the first slices were received. Return how many bytes are left."""
        for read, first in zip(wave, slices, strict=True):
            tp = read.partition.tp
            if tp in results:
                continue
            if read.ahead is None:
                read.limit = min(read.limit, left)
                read.at_least_one = left == max_bytes
            try:
                await self._finish(read, first)
                done = read
                if read.has_more_aborted and not await self._has_read_aborted(read):
                    limit = min(requests[tp].max_bytes, left)
                    done = await self._repeated(read, limit, at_least_one=left == max_bytes)
                results[tp] = done.result()
                left -= done.size
            except KafkaError as error:
                results[tp] = error
                left -= read.size
        return left

    def finish_now(
        self,
        wave: Sequence[PartitionRead],
        slices: Sequence[Reply],
        max_bytes: int,
        results: dict[TopicPartition, ReadResult | KafkaError],
    ) -> int:
        """Finish reads in their order, up to the first one that needs a wait. Return how many bytes are left."""
        left = max_bytes
        for read, first in zip(wave, slices, strict=True):
            read.limit = min(read.limit, left)
            read.at_least_one = left == max_bytes
            try:
                if not self._finishes_now(read, first):
                    break
                results[read.partition.tp] = read.result()
            except KafkaError as error:
                results[read.partition.tp] = error
            left -= read.size
        return left

    @staticmethod
    def _next_wave(
        waiting: list[PartitionRead], left: int, *, is_first: bool
    ) -> tuple[list[PartitionRead], list[PartitionRead]]:
        """Return the reads of the next write, limited by WAVE_BYTES and STATES_AT_ONCE, and the remaining reads."""
        size = 0
        for index, read in enumerate(waiting):
            read.limit = min(read.limit, left)
            read.at_least_one = is_first
            size += 0 if read.expects_nothing else min(max(read.limit, 0), SLICE_BYTES)
            if (size > WAVE_BYTES and index) or index == STATES_AT_ONCE:
                return waiting[:index], waiting[index:]
        return waiting, []

    async def _first_slices(self, wave: Sequence[PartitionRead]) -> list[Reply]:
        """Request the next slice of each read in one write; return the replies to their EXECs."""
        commands, ends, size = commands_of(wave)
        replies = await self.redis.pipeline(commands, repeatable=True, size=size)
        return executed_of(replies, ends)

    # --- One partition ----------------------------------------------------------------------------------

    async def _finish(self, read: PartitionRead, first: Reply) -> None:
        """Build batches from the first slice, then from later slices until the limit is reached."""
        executed: Reply | None = first if read.ahead is None else await self._executed(read)
        if executed is None:
            read.end((), is_complete=False)
        while executed is not None:
            state, entries = self._accepted(read, executed) or await self._checked(read, executed)
            if read.partition.shared.topic.config.min_insync_replicas > 1:
                if read.offsets is None:
                    self._check_bounds(read, state)
                state = await self._visible(read.partition, state, read.offset)
                entries = before_end(state.visible_id, entries)
            entries = self._bounded(read, state, entries)
            if not entries:
                read.end(state.epochs, is_complete=read.asked > 0)
                return
            may_have_more = len(entries) >= read.asked
            if may_have_more and read.needs_more(behind=len(entries)):
                self._send_next(read, entries)
            has_room = await self._rebuild(read, entries, state)
            if may_have_more and has_room and read.ahead is None and read.needs_more():
                self._send_next(read, entries)
            executed = await self._executed(read) if has_room and read.ahead is not None else None
            if executed is None:
                read.end(state.epochs, is_complete=has_room and not may_have_more)
                await trio.lowlevel.checkpoint()

    def _finishes_now(self, read: PartitionRead, first: Reply) -> bool:
        """Do what `_finish` does if the first slice is the whole read. Otherwise return False, for `_finish`."""
        accepted = self._accepted(read, first)
        if (
            accepted is None
            or read.has_more_aborted
            or read.partition.shared.topic.config.min_insync_replicas > 1
        ):
            return False
        state, entries = accepted
        entries = self._bounded(read, state, entries)
        if not entries:
            read.end(state.epochs, is_complete=read.asked > 0)
            return True
        may_have_more = len(entries) >= read.asked
        if (may_have_more and read.needs_more(behind=len(entries))) or len(entries) > read.entries_at_once():
            return False
        has_room = self._add(read, entries, state)
        if may_have_more and has_room and read.needs_more():
            self._send_next(read, entries)
            if read.ahead is not None:
                return False
        read.end(state.epochs, is_complete=has_room and not may_have_more)
        return True

    def _bounded(
        self, read: PartitionRead, state: PartitionState, entries: Sequence[Entry]
    ) -> Sequence[Entry]:
        """Return the entries of a slice that the consumer may read. Note what the first slice says about the log."""
        is_first = read.offsets is None
        if is_first:
            self._check_bounds(read, state)
            read.average = read.average or read.partition.entry_bytes
        if read.is_committed:
            if is_first:
                read.stable_id = state.stable_id
                read.partition.note_unstable(state)
            entries = before_end(read.stable_id, entries)
        if is_first or not read.is_committed:
            read.offsets = state.offsets
        return entries

    async def _has_read_aborted(self, read: PartitionRead) -> bool:
        """Read the rest of a read's aborted transactions; return False if some of them were removed meanwhile."""
        while read.needs_more_aborted:
            last = read.last_aborted
            reply = await self.redis.execute(*read.more_aborted(), repeatable=True)
            entries = cast(Sequence[Entry], reply)
            if not entries or entries[0][0] != last:
                return False
            read.take_aborted(entries[1:], has_more=len(entries) == ABORTED_AT_ONCE)
        return True

    async def _repeated(self, read: PartitionRead, limit: int, *, at_least_one: bool) -> PartitionRead:
        """Read again from the beginning, after a compaction or retention has removed some of the records."""
        for _ in range(ATTEMPTS):
            again = PartitionRead(read.partition, read.offset, limit, is_committed=True)
            again.at_least_one = at_least_one
            (first,) = await self._first_slices([again])
            await self._finish(again, first)
            if await self._has_read_aborted(again):
                return again
        raise KafkaStorageError(f"{read.partition.tp} does not come to rest")

    async def _rebuild(self, read: PartitionRead, entries: Sequence[Entry], state: PartitionState) -> bool:
        """Build batches from a slice, some entries at a time; return True if there is room for more."""
        step = read.entries_at_once()
        time_slices = TimeSlices()
        for at in range(0, len(entries), step):
            if not self._add(read, entries[at : at + step], state):
                return False
            await time_slices.next()
        return True

    def _add(self, read: PartitionRead, entries: Sequence[Entry], state: PartitionState) -> bool:
        """Build batches from some entries; return True if there is room for more."""
        rebuilt = read.partition.shared.format.rebuild(
            entries, epochs=state.epochs, limit=read.limit, at_least_one=read.at_least_one
        )
        if rebuilt.skipped:
            self._note_skipped(read.partition)
        read.take(rebuilt, entries)
        return rebuilt.entries == len(entries) and (read.limit > 0 or read.at_least_one)

    def _send_next(self, read: PartitionRead, entries: Sequence[Entry]) -> None:
        """Request the slice after this one, unless Redis is unavailable."""
        read.position = b"(" + entries[-1][0]
        with suppress(RedisUnavailable):
            commands = read.commands()
            server = self.redis.server_of(read.partition.keys.stream)
            read.ahead = server.for_size(read.expected_bytes).send_all(commands)

    async def _executed(self, read: PartitionRead) -> Reply | None:
        """Return a later slice, or None if it cannot be read: then the read ends with the batches it has."""
        pending, read.ahead = cast(Pending, read.ahead), None
        try:
            executed = cast(list[Reply], await pending.wait())[-1]
        except RedisUnavailable as error:
            if read.buffers:
                return None
            raise self.redis.absence() from error
        return None if isinstance(executed, Exception) and read.buffers else executed

    def _accepted(
        self, read: PartitionRead, executed: Reply
    ) -> tuple[PartitionState, Sequence[Entry]] | None:
        """Return state and entries, or None if `_checked` has to do something first, or to raise an error."""
        if type(executed) is not list:
            return None
        fields, length, *rest = executed
        for each in executed:
            if isinstance(each, Exception):
                return None
        partition = read.partition
        try:
            state = partition.state(cast(Sequence[bytes | None], fields), cast(int, length))
        except ValueError:
            return None
        entries = cast(Sequence[Entry], rest[0]) if rest else ()
        if state is None or not (
            self._is_settled(read, state, entries) or read.attempts >= SETTLING_ATTEMPTS
        ):
            return None
        read.end_id = state.next_id
        partition.note(state.leader_epoch, state.next_id)
        self.ends_at(partition.keys.stream, state.next_id)
        if len(rest) > 1:
            read.aborted = []
            aborted = cast(Sequence[Entry], rest[1])
            read.take_aborted(aborted, has_more=len(aborted) == FIRST_ABORTED)
        return state, before_end(state.next_id, entries)

    async def _checked(self, read: PartitionRead, executed: Reply) -> tuple[PartitionState, Sequence[Entry]]:
        """Return state and entries, after `settle` if other clients have changed the stream."""
        while (accepted := self._accepted(read, executed)) is None:
            if isinstance(executed, ExecAbortError):
                executed = await self._without_multi(read)
                if self._accepted(read, executed) is not None:
                    continue
            if isinstance(executed, Exception):
                raise self.redis.failure(executed)
            fields, length, *rest = cast(list[Reply], executed)
            for each in (fields, length, *rest):
                if isinstance(each, Exception):
                    raise self.redis.failure(each)
            partition = read.partition
            try:
                state = partition.state(cast(Sequence[bytes | None], fields), cast(int, length))
            except ValueError:
                raise self.partitions.damaged(partition) from None
            if state is None:
                await self.partitions.revive(partition)
            else:
                await self.partitions.settle(partition)
            read.attempts += 1
            if read.attempts > ATTEMPTS:
                raise KafkaStorageError(f"{partition.tp} does not come to rest")
            (executed,) = await self._first_slices([read])
        return accepted

    async def _without_multi(self, read: PartitionRead) -> Reply:
        """Read the slice again without MULTI, which Redis 6.2 and 7.0 refuse if they are full.

        Read the state before and after the entries, to detect changes in between.
        """
        _multi, state, *others, _exec = read.commands()
        for _ in range(ATTEMPTS):
            *executed, state_again = await self.redis.pipeline([state, *others, state], repeatable=True)
            if isinstance(state_again, Exception):
                return state_again
            if state_again == executed[0]:
                return executed
        raise KafkaStorageError(f"{read.partition.tp} does not come to rest")

    def _is_settled(self, read: PartitionRead, state: PartitionState, entries: Sequence[Entry]) -> bool:
        run_id = self.redis.run_id(read.partition.keys.stream)
        if not state.is_settled or Partition.may_have_lost(state, run_id, read.known):
            return False
        return not entries or is_before(entries[-1][0], state.next_id)

    @staticmethod
    def _check_bounds(read: PartitionRead, state: PartitionState) -> None:
        # Between `trimmed_before` and the log start there are no records to miss: other clients removed them, or there
        # never were any. A read from there returns the first record, unless the offset is another topic's.
        shared = read.partition.shared
        mapper, start = shared.format.mapper, state.log_start_offset
        is_of_another = read.offset < start and is_foreign(read.offset, mapper, shared.created_ms, start)
        if is_of_another or not state.trimmed_before <= read.offset <= state.next_offset:
            raise OffsetOutOfRange(
                f"offset {read.offset} is outside the log, which goes from {state.log_start_offset} to "
                f"{state.next_offset}"
            )

    def _note_skipped(self, partition: Partition) -> None:
        topic = partition.topic
        if topic.topic_id not in self._reported_topics:
            self._reported_topics.add(topic.topic_id)
            logger.warning(
                "topic %(topic)s has entries that were added by hand under IDs that have no offset, the first of them"
                " in partition %(partition)d; consumers do not see them",
                {"topic": topic.name, "partition": partition.tp.partition},
            )

    # --- Bounds -----------------------------------------------------------------------------------------

    async def state(self, tp: TopicPartition) -> PartitionState:
        """Return a partition's state, after `settle` if other clients have changed the stream."""
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        read = PartitionRead(partition, 0, 0)
        (executed,) = await self._first_slices([read])
        state, _ = await self._checked(read, executed)
        return state

    async def latest(self, tp: TopicPartition) -> LogOffsets:
        """Return the log's bounds, with the high watermark that replicas have confirmed."""
        return (await self.visible_state(tp)).offsets

    async def visible_state(self, tp: TopicPartition) -> PartitionState:
        """Return a partition's state with the high watermark that replicas have confirmed."""
        state = await self.state(tp)
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        if partition.config.min_insync_replicas > 1:
            state = await self._visible(partition, state, state.next_offset)
        return state

    async def _visible(self, partition: Partition, state: PartitionState, offset: int) -> PartitionState:
        """Return the state with the end of what consumers may read; wait for a round if `offset` is beyond it."""
        visible = await self.confirmations.visible_end(partition, state, offset)
        return state._replace(visible=visible)

    async def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        """See `Storage.sizes`. Request the state of up to STATES_AT_ONCE partitions in one write."""
        results: dict[TopicPartition, int | KafkaError] = dict.fromkeys(tps, 0)
        reads = []
        for tp in results:
            try:
                reads.append(PartitionRead(self.partitions.known(tp) or await self.partitions.find(tp), 0, 0))
            except KafkaError as error:
                results[tp] = error
        for first in range(0, len(reads), STATES_AT_ONCE):
            wave = reads[first : first + STATES_AT_ONCE]
            try:
                slices = await self._first_slices(wave)
            except KafkaError as error:
                return results | {read.partition.tp: error for read in reads[first:]}
            for read, executed in zip(wave, slices, strict=True):
                results[read.partition.tp] = await self._size(read, executed)
        return results

    async def _size(self, read: PartitionRead, executed: Reply) -> int | KafkaError:
        if is_unused(executed):
            return 0
        try:
            state, _ = await self._checked(read, executed)
        except KafkaError as error:
            return error
        return state.size


def commands_of(wave: Sequence[PartitionRead]) -> tuple[list[Command], list[int], float]:
    """Return the commands for the next slice of each read, where each read's end, and the bytes that are expected."""
    commands: list[Command] = []
    ends = []
    size = 0.0
    for read in wave:
        commands += read.commands()
        ends.append(len(commands))
        size += read.expected_bytes
    return commands, ends, size


def executed_of(replies: Sequence[Reply], ends: Sequence[int]) -> list[Reply]:
    """Return the replies to the EXECs of several reads, whose commands end there."""
    executed = []
    first = 0
    for end in ends:
        last = replies[end - 1]
        if isinstance(last, Exception) and not isinstance(last, ExecAbortError):
            # If Redis refused MULTI itself, EXEC fails only with "EXEC without MULTI".
            last = next(reply for reply in replies[first:end] if isinstance(reply, Exception))
        executed.append(last)
        first = end
    return executed


@define(eq=False)
class StartedRead(StartedCall, PendingRead):
    """A read whose commands were sent in one write."""

    reader: Reader
    requests: Mapping[TopicPartition, ReadRequest]
    max_bytes: int
    wave: Sequence[PartitionRead]
    ends: Sequence[int]  # of the commands of each read
    _slices: Sequence[Reply] = ()
    _left: int = 0  # bytes for the reads that are not finished
    _results: dict[TopicPartition, ReadResult | KafkaError] = field(factory=dict)

    def send(self, commands: Sequence[Command], size: float) -> bool:
        """Send the commands. Return False if they go to several servers, or there is no connection."""
        redis = self.reader.redis
        try:
            server = redis.server_of(self.wave[0].partition.keys.stream)
            for read in self.wave[1:]:
                if redis.server_of(read.partition.keys.stream) is not server:
                    return False
            server.for_size(size).send_all(commands, notify=self.answer)
        except NotConnected:
            return False
        return self.limits.add(self.expire, trio.current_time() + redis.patience_s)

    def expire(self) -> None:
        self._results = dict.fromkeys(self.requests, self.reader.redis.absence())
        self.answer()

    def known_results(self) -> dict[TopicPartition, ReadResult | KafkaError] | None:
        if self._results or not isinstance(self._replies, list):
            return self._results or None
        slices = executed_of(self._replies, self.ends)
        self._replies = ()
        for each in slices:
            if isinstance(each, Exception):
                return None
        self._slices = slices
        self._left = self.reader.finish_now(self.wave, slices, self.max_bytes, self._results)
        return self._results if len(self._results) == len(self.requests) else None

    async def wait(self) -> dict[TopicPartition, ReadResult | KafkaError]:
        await self.answered()
        if not self._slices and (results := self.known_results()) is not None:
            return results
        if not self._slices:
            committed = self.wave[0].is_committed
            return await self.reader.read(self.requests, self.max_bytes, is_committed=committed)
        await self.reader.finish_all(
            self.wave, self._slices, self.requests, self.max_bytes, self._left, self._results
        )
        return {tp: self._results[tp] for tp in self.requests}

    def report_ends(self) -> None:
        for read in self.wave:
            if read.end_id:
                self.reader.ends_at(read.partition.keys.stream, read.end_id)


def is_unused(executed: Reply) -> bool:
    """Return True if the partition has neither a state nor entries."""
    if not isinstance(executed, list):
        return False
    fields, length, *_ = executed
    return length == 0 and isinstance(fields, list) and not any(fields)


def is_before(entry_id: bytes, next_id: bytes) -> bool:
    ms, _, sequence = entry_id.partition(b"-")
    next_ms, _, next_sequence = next_id.partition(b"-")
    if ms == next_ms:
        return int(sequence) < int(next_sequence)
    return int(ms) < int(next_ms)


def before_end(end: bytes, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries below the ID at which consumers' reads end."""
    if not entries or is_before(entries[-1][0], end):
        return entries
    return [entry for entry in entries if is_before(entry[0], end)]
