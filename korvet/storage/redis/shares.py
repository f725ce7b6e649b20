"""Share groups in the record layout: a share partition is the Redis consumer group of that name on the stream.

An acquired record is pending under a consumer that is named like the member; its lock ends when it has been idle for
the lock's duration on Redis's clock. A released record is pending under `$released`. A finished record is acknowledged,
and no record of a share group's state is stored elsewhere: plain Redis clients of the same Redis group take turns with
the members. The hash `$shares` of the partition names its share groups.

All calls are repeatable. Acquiring and acknowledging carry a number, with which `$shares` has the last call of each
member, so that a call whose answer was lost is not executed twice. If replicas do not confirm such a call in time, it
fails, and the member's next one repeats it: otherwise an absence of replicas would use up deliveries that no member
gets.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from math import inf
from typing import cast

from attrs import define, field

from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.buffers import Buffer
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import (
    InvalidRecordState,
    InvalidRequest,
    KafkaError,
    NonEmptyGroup,
    NotEnoughReplicasAfterAppend,
    UnknownTopicOrPartition,
    detached,
)
from korvet.storage.interface import IsolationLevel, Topic, TopicPartition
from korvet.storage.redis.append.layouts import StorageLayout
from korvet.storage.redis.catalogue import partitions_of
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import Script
from korvet.storage.redis.client.replies import Argument, Command, error_code
from korvet.storage.redis.failover.confirmations import Confirmations
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.partitions import Answer, Partitions
from korvet.storage.redis.read.columns import are_in_a_row
from korvet.storage.redis.read.entries import Entry
from korvet.storage.redis.read.reader import Reader
from korvet.storage.redis.scripts import settled_script
from korvet.storage.shares import (
    AVAILABLE,
    HIGHEST_COUNT,
    Acknowledged,
    AckType,
    Acquired,
    Acquisition,
    Holding,
    InFlight,
    Run,
    ShareLimits,
    ShareOffsets,
    SharePartitionKey,
)


def share_script(name: str) -> Script:
    return settled_script("compact_counts", "share", name)


SHARE_OPEN = share_script("share_open")
SHARE_ACQUIRE = share_script("share_acquire")
SHARE_ACKNOWLEDGE = share_script("share_acknowledge")
SHARE_RELEASE = share_script("share_release")
SHARE_RESET = share_script("share_reset")
SHARE_FORGET = share_script("share_forget")
SHARE_OFFSETS = share_script("share_offsets")

SCRIPTS = (
    SHARE_OPEN,
    SHARE_ACQUIRE,
    SHARE_ACKNOWLEDGE,
    SHARE_RELEASE,
    SHARE_RESET,
    SHARE_FORGET,
    SHARE_OFFSETS,
)

# Bytes of one answer, which keeps Redis busy for some milliseconds.
MOST_BYTES = 1 << 20
# No group has more records in flight.
MOST_BATCHES = 10_000
PARTITIONS_AT_ONCE = 200
# Entries that are made into batches without a checkpoint.
REBUILT_AT_ONCE = 500
NO_LIMIT = 1 << 40  # bytes

# Entries that an administrator sees: the others are counted.
PENDING_AT_ONCE = 1000
ONE_DELIVERY_MS = 100  # between entries of one XREADGROUP
RELEASED = b"$released"
#: An entry of XPENDING: its ID, consumer, idle time (ms), and delivery count.
Pending = tuple[bytes, bytes, int, int]


@define(eq=False)
class Shares:
    """Implements `korvet.storage.shares.ShareLog`."""

    redis: RedisCaller
    partitions: Partitions
    reader: Reader
    confirmations: Confirmations
    #: The task and number of a member's failed call, until the member calls again or its session ends.
    _failed: dict[tuple[SharePartitionKey, str, Script], tuple[object, str]] = field(factory=dict)

    def keeps_shares(self, topic: Topic) -> bool:
        """See `ShareLog.keeps_shares`."""
        return self.partitions.layout_of(topic) is StorageLayout.RECORD

    async def open_share(self, key: SharePartitionKey, offset: int) -> None:
        """See `ShareLog.open_share`."""
        partition = await self._find(key)
        await self._write(
            partition, SHARE_OPEN, key.group_id, b"", partition.mapper.entry_id_before(max(offset, 0))
        )

    async def acquire_share(self, key: SharePartitionKey, acquisition: Acquisition) -> Acquired | None:
        """See `ShareLog.acquire_share`."""
        partition = await self._find(key)
        limits = acquisition.limits
        is_committed = acquisition.isolation_level is IsolationLevel.READ_COMMITTED
        bound = await self._bound(partition, is_committed=is_committed)
        arguments: tuple[Argument, ...] = (
            limits.lock_ms,
            limits.max_deliveries,
            limits.max_locks,
            acquisition.max_records,
            min(acquisition.max_bytes, MOST_BYTES),
            min(acquisition.min_bytes, acquisition.max_bytes, MOST_BYTES),
            bound,
            int(is_committed),
            *(limits.together(count, acquisition.max_records) for count in range(1, limits.max_deliveries)),
        )
        status: bytes = b"more"
        rest: Sequence[object] = ()
        while status == b"more":
            status, *rest = await self._once(
                partition, SHARE_ACQUIRE, key, acquisition.member_id, None, *arguments
            )
        if status == b"closed":
            return None
        next_id, epochs, wait_ms, entries, counts = rest
        partition.note(partition.epochs(cast(bytes, epochs))[-1].leader_epoch, cast(bytes, next_id))
        found = cast(Sequence[Entry], entries)
        wait = cast(int, wait_ms)
        return Acquired(
            await self._rebuilt(partition, found, cast(bytes, epochs)),
            runs_of(partition, found, cast(Sequence[int], counts)),
            inf if wait < 0 else wait,
        )

    async def acknowledge_share(
        self, key: SharePartitionKey, member_id: str, batches: Sequence[Acknowledged], limits: ShareLimits
    ) -> None:
        """See `ShareLog.acknowledge_share`."""
        if len(batches) > MOST_BATCHES:
            raise InvalidRecordState("The member has not acquired as many records.")
        if not limits.can_renew and any(batch.kind is AckType.RENEW for batch in batches):
            raise InvalidRecordState("The group does not renew acquisition locks.")
        partition = await self._find(key)
        entry_id = partition.mapper.entry_id
        arguments: list[Argument] = [limits.lock_ms, limits.max_deliveries]
        for first, last, kind in batches:
            arguments += (entry_id(first), entry_id(last), int(kind), last - first + 1)
        status, *rest = await self._once(
            partition, SHARE_ACKNOWLEDGE, key, member_id, tuple(batches), *arguments
        )
        if status == b"closed":
            raise InvalidRecordState("The group has acquired no record of the partition.")
        if status == b"beyond":
            raise InvalidRequest("The acknowledged records were not acquired.")
        if status == b"state":
            offset = partition.mapper.offset(rest[0])
            raise InvalidRecordState(f"The member has not acquired the record at offset {offset}.")

    async def release_share(self, key: SharePartitionKey, member_id: str, limits: ShareLimits) -> None:
        """See `ShareLog.release_share`."""
        for script in (SHARE_ACQUIRE, SHARE_ACKNOWLEDGE):
            self._failed.pop((key, member_id, script), None)
        partition = await self._find(key)
        await self._write(partition, SHARE_RELEASE, key.group_id, member_id, limits.max_deliveries)

    async def share_offsets(
        self, group_id: str, topics: Collection[Topic]
    ) -> dict[SharePartitionKey, ShareOffsets | KafkaError]:
        """See `ShareLog.share_offsets`."""
        opened, failed = await self._opened(group_id, topics)
        offsets = await in_parallel(partial(self._offsets, group_id), opened)
        if failed and not opened:
            raise next(iter(failed.values()))
        found = dict(zip(opened, offsets, strict=True)) | failed
        return {
            SharePartitionKey(partition.tp, partition.topic.topic_id, group_id): each
            for partition, each in found.items()
            if each is not None
        }

    async def _offsets(self, group_id: str, partition: Partition) -> ShareOffsets | KafkaError | None:
        """Return where a group is in a partition, an error, or None if it has no state there."""
        try:
            status, *rest = await self._call(partition, SHARE_OFFSETS, group_id, b"")
        except UnknownTopicOrPartition:
            return None
        except KafkaError as error:
            return detached(error)
        if status != b"ok":
            return None
        start, lag = rest
        offset = partition.mapper.offset(start)
        return ShareOffsets(partition.bound(start) if offset is None else offset, int(lag))

    async def share_in_flight(self, key: SharePartitionKey, limits: ShareLimits, most: int) -> InFlight:
        """See `ShareLog.share_in_flight`. These are the pending entries of the Redis group."""
        partition = await self._find(key)
        stream = partition.keys.stream
        commands: list[Command] = [
            (b"XPENDING", stream, key.group_id),
            (b"XPENDING", stream, key.group_id, b"-", b"+", PENDING_AT_ONCE),
        ]
        replies = await self.redis.pipeline(commands, repeatable=True)
        for reply in replies:
            if isinstance(reply, Exception):
                if error_code(reply) == "NOGROUP":
                    return InFlight(0, [])
                raise self.redis.failure(reply)
        summary, pending = cast(tuple[list[int], list[Pending]], replies)
        return InFlight(summary[0], holdings_of(partition, pending, limits)[:most])

    async def reset_share(self, key: SharePartitionKey, offset: int, limits: ShareLimits) -> None:
        """See `ShareLog.reset_share`."""
        partition = await self._find(key)
        id_before = partition.mapper.entry_id_before(max(offset, 0))
        status, *rest = await self._write(
            partition, SHARE_RESET, key.group_id, b"", id_before, limits.lock_ms
        )
        if status == b"busy":
            consumer = rest[0].decode(errors="replace")
            raise NonEmptyGroup(f"The consumer {consumer} of Redis has locked records of {key.tp}.")

    async def forget_shares(self, group_id: str, topics: Collection[Topic]) -> None:
        """See `ShareLog.forget_shares`."""
        opened, failed = await self._opened(group_id, topics)
        for error in failed.values():
            raise error
        for partition in opened:
            with suppress(UnknownTopicOrPartition):
                await self._write(partition, SHARE_FORGET, group_id, b"")

    # --- Partitions -------------------------------------------------------------------------------------

    async def _find(self, key: SharePartitionKey) -> Partition:
        partition = await self._partition(key.tp)
        if partition.topic.topic_id != key.topic_id:
            raise UnknownTopicOrPartition
        return partition

    async def _partition(self, tp: TopicPartition) -> Partition:
        return self.partitions.known(tp) or await self.partitions.find(tp)

    async def _opened(
        self, group_id: str, topics: Collection[Topic]
    ) -> tuple[list[Partition], dict[Partition, KafkaError]]:
        """Return the partitions with a state of the group, and the errors of those that may have one."""
        tps = [tp for topic in topics if self.keeps_shares(topic) for tp in partitions_of(topic)]
        opened, failed = [], {}
        time_slices = TimeSlices()
        for at in range(0, len(tps), PARTITIONS_AT_ONCE):
            some = []
            for tp in tps[at : at + PARTITIONS_AT_ONCE]:
                with suppress(UnknownTopicOrPartition):  # the topic was deleted meanwhile
                    some.append(await self._partition(tp))
            commands: list[Command] = [(b"HGET", each.keys.shares, f"group:{group_id}") for each in some]
            replies = await self.redis.pipeline(commands, repeatable=True)
            for partition, reply in zip(some, replies, strict=True):
                if isinstance(reply, Exception):
                    failed[partition] = detached(self.redis.failure(reply))
                elif reply is not None:
                    opened.append(partition)
            await time_slices.next()
        return opened, failed

    async def _bound(self, partition: Partition, *, is_committed: bool) -> bytes:
        """Return the ID at which the records end that members may get; b"" for the end of the log."""
        if not is_committed and partition.config.min_insync_replicas == 1:
            return b""
        state = await self.reader.visible_state(partition.tp)
        return state.stable_id if is_committed else state.visible_id

    async def _call(self, partition: Partition, script: Script, *own: Argument) -> Answer:
        return await self.partitions.call(partition, script, *own, more_keys=[partition.keys.shares])

    async def _once(
        self,
        partition: Partition,
        script: Script,
        key: SharePartitionKey,
        member_id: str,
        task: object,
        *own: Argument,
    ) -> Answer:
        """Call a script that has a number. If the member's last call had the same task and failed, repeat that one."""
        call = (key, member_id, script)
        last_task, number = self._failed.pop(call, (None, ""))
        if not number or last_task != task:
            number = secrets.token_hex(8)
        try:
            return await self._write(partition, script, key.group_id, member_id, number, *own)
        except BaseException:
            self._failed[call] = (task, number)
            raise

    async def _write(self, partition: Partition, script: Script, *own: Argument) -> Answer:
        """Call a script, and wait until no failover loses what it has written.

        If another server has the partition by then, call the script once more: it may have lost the first call, and
        otherwise answers the same. Raises NotEnoughReplicasAfterAppend if replicas do not confirm it in time.
        """
        replicas = partition.config.min_insync_replicas - 1
        for is_last in (False, True):
            run_id = self.redis.run_id(partition.keys.stream)
            answer = await self._call(partition, script, *own)
            try:
                await self.confirmations.wait_replicated(partition.keys.stream, run_id, replicas)
            except NotEnoughReplicasAfterAppend:
                if is_last:
                    raise
            else:
                break
        return answer

    # --- Records ----------------------------------------------------------------------------------------

    async def _rebuilt(self, partition: Partition, entries: Sequence[Entry], epochs: bytes) -> EncodedBatches:
        """Return the batches of all entries, some of which are made without a checkpoint."""
        buffers: list[Buffer] = []
        rebuild = partition.shared.format.rebuild
        time_slices = TimeSlices()
        for at in range(0, len(entries), REBUILT_AT_ONCE):
            part = entries[at : at + REBUILT_AT_ONCE]
            buffers += rebuild(
                part, epochs=partition.epochs(epochs), limit=NO_LIMIT, at_least_one=True
            ).buffers
            await time_slices.next()
        return EncodedBatches(buffers, sum(map(len, buffers)))


def holdings_of(partition: Partition, pending: Sequence[Pending], limits: ShareLimits) -> list[Holding]:
    """Return pending entries, with neighbours in the same state joined."""
    holdings: list[Holding] = []
    for entry_id, consumer, idle_ms, count in pending:
        offset = partition.mapper.offset(entry_id)
        if offset is None:  # an entry of another client, which the next acquisition finishes
            continue
        is_released = consumer == RELEASED
        found = Holding(
            offset,
            offset,
            1,
            min(count, HIGHEST_COUNT),
            AVAILABLE if is_released else consumer.decode(errors="replace"),
            0 if is_released else idle_ms,
            0 if is_released else max(limits.lock_ms - idle_ms, 0),
        )
        if holdings and is_alike(holdings[-1], found):
            holdings[-1] = holdings[-1]._replace(last=offset, records=holdings[-1].records + 1)
        else:
            holdings.append(found)
    return holdings


def is_alike(one: Holding, other: Holding) -> bool:
    """Return True if records are in the same state. Redis 6.2 takes a time for each entry of a delivery."""
    return (one.member, one.deliveries, one.lock_ms > 0) == (
        other.member,
        other.deliveries,
        other.lock_ms > 0,
    ) and abs(one.held_ms - other.held_ms) < ONE_DELIVERY_MS


def new_run_of(partition: Partition, entries: Sequence[Entry]) -> Run | None:
    """Return the run of entries that were delivered once, or None if their offsets are not consecutive."""
    ids = [entry_id for entry_id, _ in entries]
    first = partition.mapper.offset(ids[0]) if ids else None
    if first is None or not are_in_a_row(ids, first, partition.mapper):
        return None
    return Run(first, first + len(ids) - 1, 1)


def runs_of(partition: Partition, entries: Sequence[Entry], counts: Sequence[int]) -> list[Run]:
    """Return the runs of consecutive offsets with the same delivery count.

    `counts` has the delivery counts of the first entries; the others were delivered once.
    """
    if not counts and (run := new_run_of(partition, entries)):
        return [run]
    runs: list[Run] = []
    offset_of = partition.mapper.offset
    first, last, deliveries = -1, -2, 0
    for (entry_id, _), number in zip(entries, chain(counts, repeat(1)), strict=False):
        offset, count = offset_of(entry_id), min(number, HIGHEST_COUNT)
        if offset is None:  # the script leaves these out
            continue
        if offset == last + 1 and count == deliveries:
            last = offset
            continue
        if deliveries:
            runs.append(Run(first, last, deliveries))
        first, last, deliveries = offset, offset, count
    if deliveries:
        runs.append(Run(first, last, deliveries))
    return runs
