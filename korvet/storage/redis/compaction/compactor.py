"""Compaction in Redis: build a new stream beside the old one, then replace the old one.

Redis cannot change an entry under its ID, and deleting entries frees almost no memory as long as others remain in their
node. Compaction therefore copies the retained entries to a new stream, under their IDs, in steps of some milliseconds:

    begin     write the run's token into the state; remove what an earlier run left
    copy      a list of entries at a time: IDs of those that stay unchanged, and, in the batch layout, batches
              that have become smaller
    copy      then the tail: all entries after the part that is compacted, unchanged
    groups    create the consumer groups, some at a time
    finish    in one script: the last of the tail, the stream's last ID, the groups that changed meanwhile, pending
              entries, the state's counters; rename the new stream to the old one's name

Every step names the topic's id and the run's token. Redis refuses it if the topic was deleted, if another run has
begun, or if another client has removed entries, which copies would restore. Until `finish` all other readers and
writers use the old stream; `finish` is atomic. A step whose connection was lost is repeated with its number.

The index is rebuilt with the stream: its counters begin with the entries that compaction retained.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from itertools import chain
from time import monotonic
from typing import cast

import trio
from attrs import define, field

from korvet.concurrency.time_slices import TimeSlices, run_in_slices
from korvet.protocol.errors import KafkaError, KafkaStorageError
from korvet.storage.compaction import Cleaned, DecidedTransactions, Round, is_due, lag_limit
from korvet.storage.interface import Compacted, TopicConfig, TopicPartition
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import Script
from korvet.storage.redis.client.replies import Argument, Reply, as_map
from korvet.storage.redis.compaction.entries import EntryReader
from korvet.storage.redis.compaction.groups import CopiedGroups
from korvet.storage.redis.groups import offset_from
from korvet.storage.redis.keys import (
    STATE_BYTES,
    STATE_CLEANED,
    STATE_CLEANED_BYTES,
    STATE_COMPACTION,
    STATE_LARGEST,
    STATE_LENGTH,
    STATE_NEXT,
    STATE_SKIPPED,
    STATE_START,
    STATE_TRIMMED,
    STATE_UNSTABLE,
)
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.partitions import Answer, Partitions
from korvet.storage.redis.producers import StoredAborted
from korvet.storage.redis.read.entries import Entry
from korvet.storage.redis.scripts import (
    COMPACT_BEGIN,
    COMPACT_COPY,
    COMPACT_END,
    COMPACT_FINISH,
    COMPACT_GROUPS,
    SETTLE,
)

logger = logging.getLogger(__name__)

# Limits of one read, and of one copy step.
SLICE_ENTRIES = 1000
SLICE_BYTES = 1 << 19
WORST_SLICE_BYTES = 32 << 20
STEP_ENTRIES = 200  # a script takes some 25 us for each
STEP_BYTES = 1 << 18
GROUPS_AT_ONCE = 500  # a script takes some 3 us for each
# Limits of the tail and of changed groups for the last step, some milliseconds' work, and of one copy step before it.
# The limits grow while clients append and commit faster than the rest shrinks.
FINISH_ENTRIES = 200
FINISH_BYTES = 1 << 18
FINISH_GROUPS = 2000
FAST_ATTEMPTS = 3  # to end without a comparison of all groups
MOST_AT_ONCE = 2  # the factor up to which they grow
# With several producers the tail may not shrink even then. After this time the factor has no upper limit.
PATIENCE_S = 30.0
END_LIMIT_S = 1.0


@define
class Plan:
    """The state of a partition when a round of compaction begins."""

    partition: Partition
    cleaned: Cleaned
    now_ms: int
    start: int
    next_offset: int
    stable: int  # the last stable offset, where the compacted part ends at the latest
    length: int
    size: int
    clean_size: int  # of these bytes, those that are compacted
    largest: int  # bytes of the largest entry
    skips: bool  # whether some entries have IDs without offset

    @property
    def config(self) -> TopicConfig:
        return self.partition.config

    @property
    def reader(self) -> EntryReader:
        return EntryReader(self.partition.mapper, self.partition.is_batch_layout, self.skips)

    def next_round(self, max_keys: int, transactions: DecidedTransactions) -> Round:
        """Return a round without keys."""
        return Round(
            max_keys,
            start=self.start,
            newest=self.next_offset - 1,
            tombstones_end=self.cleaned.tombstones_end(self.now_ms, self.config.delete_retention_ms),
            end=self.cleaned.end,
            transactions=transactions,
        )

    def first_offset(self, entry: Entry) -> int:
        """Return the entry's first offset, or the next possible offset if its ID has none."""
        keyed = self.reader.keyed(entry)
        return offset_from(self.partition.mapper, entry[0]) if keyed is None else keyed.first_offset

    def before(self, entries: Sequence[Entry], offset: int) -> Sequence[Entry]:
        """Return the entries that end below an offset."""
        mapper = self.partition.mapper
        return [entry for entry in entries if offset_from(mapper, entry[0]) < offset]

    def is_due(self, dirty_size: int, oldest_dirty_ms: int) -> bool:
        """Return True if the dirty bytes or the age of the oldest dirty record require compaction."""
        return is_due(
            self.config,
            clean_bytes=self.clean_size,
            dirty_bytes=dirty_size,
            oldest_dirty_ms=oldest_dirty_ms,
            now_ms=self.now_ms,
        )

    def entries_at_once(self) -> int:
        """Return how many entries to read at once, given their average and largest size."""
        average = self.size / max(1, self.length)
        safe = WORST_SLICE_BYTES // max(1, self.largest)
        return max(1, min(SLICE_ENTRIES, int(SLICE_BYTES / max(1.0, average)) + 1, safe))


@define
class Slices:
    """The entries of a partition from one offset up to another, which is excluded, a slice at a time."""

    redis: RedisCaller
    plan: Plan
    position: bytes
    last: bytes
    _is_at_end: bool = False

    async def next(self) -> Sequence[Entry]:
        """Return the next slice, which is empty at the end."""
        if self._is_at_end:
            return ()
        count = self.plan.entries_at_once()
        stream = self.plan.partition.keys.stream
        command = (b"XRANGE", stream, self.position, self.last, b"COUNT", count)
        entries = cast(Sequence[Entry], await self.redis.execute(*command, repeatable=True))
        self._is_at_end = len(entries) < count
        if entries:
            self.position = b"(" + entries[-1][0]
        return entries


@define(eq=False)
class Run:
    """One attempt to build a new stream, with its token and the number of its last step."""

    partition: Partition
    token: bytes = field(factory=lambda: secrets.token_hex(8).encode())
    step: int = 0
    groups: CopiedGroups = field(factory=CopiedGroups)


@define(eq=False)
class Compactor:
    """Implements `Storage.compact`."""

    redis: RedisCaller
    partitions: Partitions

    async def compact(self, tp: TopicPartition) -> Compacted | None:
        """See `Storage.compact`."""
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        if not await self.partitions.has_stream(partition):
            return None
        plan = await self._plan(partition)
        if not partition.config.is_compacted or plan.length == 0:
            return None
        oldest_ms = await self._oldest_dirty_ms(plan)
        if not plan.is_due(plan.size - plan.clean_size, oldest_ms):
            return None

        result = None
        while True:
            round_, dirty_size = await self._noted(plan)
            is_limited = lag_limit(plan.config, plan.now_ms) is not None or plan.stable < plan.next_offset
            if round_.end <= plan.cleaned.end or (is_limited and not plan.is_due(dirty_size, oldest_ms)):
                return result
            size_after = await self._rebuild(plan, round_)
            size_before = plan.size if result is None else result.size_before
            result = Compacted(round_.end, size_before, size_after)
            if not round_.is_full:
                return result
            plan = await self._plan(partition)

    # --- The partition's state --------------------------------------------------------------------------

    async def _plan(self, partition: Partition) -> Plan:
        """Return the partition's state, after settling it and removing what another run left."""
        await self.partitions.call(partition, SETTLE)
        state, time, has_leavings = await self.redis.pipeline(
            [
                (
                    b"HMGET",
                    partition.keys.state,
                    STATE_NEXT,
                    STATE_START,
                    STATE_LENGTH,
                    STATE_BYTES,
                    STATE_TRIMMED,
                    STATE_LARGEST,
                    STATE_SKIPPED,
                    STATE_CLEANED,
                    STATE_CLEANED_BYTES,
                    STATE_COMPACTION,
                    STATE_UNSTABLE,
                ),
                (b"TIME",),
                (b"EXISTS", partition.keys.compaction[1]),
            ],
            repeatable=True,
        )
        for reply in (state, time, has_leavings):
            if isinstance(reply, Exception):
                raise self.redis.failure(reply)
        next_id, start, length, size, trimmed, largest, skipped, cleaned, clean_size, token, unstable = cast(
            Sequence[bytes | None], state
        )
        if next_id is None or start is None:
            raise KafkaStorageError(f"{partition.tp} has lost its state just now")
        if has_leavings:
            await self._end(Run(partition, token or b""))
        seconds, microseconds = cast(Sequence[bytes], time)
        gone = int(trimmed or 0)
        first, end = partition.bound(start), partition.bound(next_id)
        stable = min(end, max(first, partition.bound(unstable))) if unstable else end
        return Plan(
            partition,
            Cleaned.parse(cleaned or b""),
            int(seconds) * 1000 + int(microseconds) // 1000,
            first,
            end,
            stable,
            int(length or 0),
            int(size or 0) - gone,
            max(0, int(clean_size or 0) - gone),
            int(largest or 0),
            skips=skipped != b"0",
        )

    async def _decided(self, partition: Partition) -> DecidedTransactions:
        """Return the aborted transactions that may have records left."""
        decided = DecidedTransactions()
        bound = partition.bound
        position = b"-"
        while True:
            command = (b"XRANGE", partition.keys.aborted, position, b"+", b"COUNT", SLICE_ENTRIES)
            entries = cast(Sequence[Entry], await self.redis.execute(*command, repeatable=True))
            for each in map(StoredAborted.parse, entries):
                if each is not None:
                    decided.add_aborted(each.producer_id, bound(each.first_id), bound(each.marker_id))
            if len(entries) < SLICE_ENTRIES:
                return decided
            position = b"(" + entries[-1][0]

    async def _oldest_dirty_ms(self, plan: Plan) -> int:
        """Return the timestamp of the first dirty record, or -1 if there is none or max.compaction.lag.ms is unset."""
        partition = plan.partition
        if plan.config.max_compaction_lag_ms >= plan.now_ms:
            return -1
        position = partition.mapper.entry_id(plan.cleaned.end)
        reply = await self.redis.execute(
            b"XRANGE", partition.keys.stream, position, b"+", b"COUNT", 1, repeatable=True
        )
        for entry in cast(Sequence[Entry], reply):
            keyed = plan.reader.keyed(entry)
            return -1 if keyed is None else keyed.max_timestamp
        return -1

    def _slices(self, plan: Plan, first: int, end: int) -> Slices:
        mapper = plan.partition.mapper
        return Slices(self.redis, plan, mapper.entry_id(first), mapper.entry_id_before(end))

    # --- One round --------------------------------------------------------------------------------------

    async def _noted(self, plan: Plan) -> tuple[Round, int]:
        """Return a round with the keys of the dirty part, up to its limit of keys, and the bytes of that part."""
        limit = lag_limit(plan.config, plan.now_ms)
        decided = await self._decided(plan.partition)
        round_ = plan.next_round(self.partitions.defaults.compaction_max_keys, decided)
        reader = plan.reader
        slices = self._slices(plan, round_.end, plan.stable)
        time_slices = TimeSlices()
        size = 0
        while entries := await slices.next():
            for part in reader.parts(entries):
                if round_.is_full:
                    round_.end = plan.first_offset(part[0])
                    return round_, size
                young = await run_in_slices(reader.note(part, round_, limit), time_slices)
                if young is not None:
                    round_.end = max(round_.end, young)
                    return round_, size + size_of(plan.before(part, young))
                size += size_of(part)
                await time_slices.next()
        round_.end = max(round_.end, plan.stable)
        return round_, size

    async def _rebuild(self, plan: Plan, round_: Round) -> int:
        """Replace the stream by a new one with the retained entries; return its size in bytes."""
        run = Run(plan.partition)
        try:
            await self._call(run, COMPACT_BEGIN)
            await self._copy(run, plan, round_)
            cleaned = plan.cleaned.after(round_.end, plan.now_ms, plan.config.delete_retention_ms)
            return await self._finish(run, plan.partition.mapper.entry_id(round_.end), cleaned)
        except BaseException:
            with trio.move_on_after(END_LIMIT_S, shield=True):
                await self._try_to_end(run)
            raise

    async def _copy(self, run: Run, plan: Plan, round_: Round) -> None:
        """Copy the retained entries of the part that is compacted."""
        reader = plan.reader
        slices = self._slices(plan, plan.start, round_.end)
        time_slices = TimeSlices()
        items: list[Argument] = []
        count = size = 0
        while entries := await slices.next():
            for part in reader.parts(entries):
                for left in await run_in_slices(reader.left(part, round_), time_slices):
                    if left.fields is None:
                        items += (left.entry_id, 0)
                    else:
                        items += (left.entry_id, len(left.fields), *left.fields)
                    count += 1
                    size += left.size
                if count >= STEP_ENTRIES or size >= STEP_BYTES:
                    await self._copy_step(run, b"list", *items)
                    items = []
                    count = size = 0
                await time_slices.next()
        if items:
            await self._copy_step(run, b"list", *items)

    async def _copy_step(self, run: Run, *arguments: Argument) -> tuple[bytes, bool]:
        """Call the copy script; return where the tail continues, and True if more of it is left."""
        run.step += 1
        position, *more = await self._call(run, COMPACT_COPY, run.step, *arguments)
        return position, more == [b"1"]

    async def _finish(self, run: Run, position: bytes, cleaned: Cleaned) -> int:
        """Copy the tail until the rest fits into the last step; return the size of the new stream in bytes."""
        factor = 1.0
        began_s = monotonic()
        attempts = 0
        end = position
        while (size := await self._try_to_finish(run, position, end, cleaned, factor, attempts)) is None:
            attempts += 1
            has_more = True
            while has_more:
                limits = tail_limits(factor)
                position, has_more = await self._copy_step(run, b"tail", position, *limits)
                factor *= 1.25
                if monotonic() < began_s + PATIENCE_S:
                    factor = min(factor, MOST_AT_ONCE)
        return size

    async def _try_to_finish(
        self, run: Run, position: bytes, end: bytes, cleaned: Cleaned, factor: float, attempts: int
    ) -> int | None:
        """Copy the groups and call the last script; return the new size in bytes, or None if too much is left."""
        await self._copy_groups(run, position)
        answer = await self._call(
            run,
            COMPACT_FINISH,
            position,
            *tail_limits(factor),
            int(factor * FINISH_GROUPS),
            str(cleaned),
            int(run.groups.have_consumers or attempts >= FAST_ATTEMPTS),
            end,
            *chain.from_iterable(run.groups.at_tail),
        )
        if not answer:
            return None
        size, gone = map(int, answer)
        if gone:
            logger.info(
                "compaction: %(topic)s-%(partition)d: removed %(entries)d entries that were pending for Redis"
                " consumers",
                {"topic": run.partition.tp.topic, "partition": run.partition.tp.partition, "entries": gone},
            )
        return size

    async def _copy_groups(self, run: Run, position: bytes) -> None:
        """Give the new stream the groups of the old one that have read nothing of the tail, which begins there."""
        keys = run.partition.keys
        commands = [
            (b"UNLINK", keys.moved_groups),
            (b"XINFO", b"GROUPS", keys.stream),
            (b"XINFO", b"STREAM", keys.stream),
        ]
        _, groups, info = await self.redis.pipeline(commands, repeatable=True)
        if isinstance(info, Exception):
            return  # the stream is gone; the next script refuses
        end = cast(bytes, as_map(info)[b"last-generated-id"])
        changes = await run_in_slices(run.groups.compare(cast(Iterable[Reply], groups), position, end))
        while changes:
            some = changes[:GROUPS_AT_ONCE]
            (number,) = await self._call(run, COMPACT_GROUPS, *chain.from_iterable(some))
            run.groups.note(some[: int(number)])
            changes = changes[int(number) :]

    async def _call(self, run: Run, script: Script, *own: Argument) -> Answer:
        """Call a step's script; return its answer without the status. Raise KafkaStorageError if the run must end."""
        status, *answer = await self.partitions.call(
            run.partition, script, run.token, *own, more_keys=run.partition.keys.compaction
        )
        topic, number = run.partition.tp
        if status == b"superseded":
            raise KafkaStorageError(
                f"compaction of {topic}-{number} lost a race with another compaction, or entries were removed by hand"
            )
        if status == b"large":
            raise KafkaStorageError(
                f"{topic}-{number} cannot be compacted: entry {answer[0].decode()} has more fields than a script copies"
            )
        if status == b"pending":
            raise KafkaStorageError(
                f"{topic}-{number} cannot be compacted as long as {int(answer[0]):,} of its entries are pending in"
                " Redis groups; XACK processed entries, or XGROUP DESTROY unused groups"
            )
        return answer

    async def _try_to_end(self, run: Run) -> None:
        """Remove the unfinished new stream. If Redis is unavailable, the next run removes it."""
        try:
            await self._end(run)
        except KafkaError as error:
            logger.debug("compaction: %(error)s", {"error": error.message})

    async def _end(self, run: Run) -> None:
        await self._call(run, COMPACT_END)


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes of the entries' fields and values."""
    return sum(sum(map(len, fields)) for _, fields in entries)


def tail_limits(factor: float) -> tuple[int, int]:
    """Return the number of entries and of bytes of the tail that one script may copy."""
    return int(factor * FINISH_ENTRIES), int(factor * FINISH_BYTES)
