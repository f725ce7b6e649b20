"""Committed offsets: a hash per group, and the Redis consumer groups that follow it.

A committed offset in `korvet:$group:<group>`, field `offset:<topic>:<partition>`:

    "1264197008485889 0 1763666000123 0f7c4a3e-… processed batch 123"

The value has the next offset to read, its leader epoch (or -1), the commit time (ms), the topic's id, and the client's
metadata. An offset with another topic id belongs to a topic that was deleted. Two fields fence: commits of members of a
generation before `generation` are refused, and commits by a broker that coordinated the group before the epoch
`coordinator`, which a broker increments when it takes over the group.

Each commit also sets the last-delivered ID of the Redis consumer group of the same name on each stream to the last
entry before the committed offset, so that `XINFO GROUPS` shows the progress of a Kafka group, and acknowledges entries
before the offset that plain Redis consumers had pending. Conversely, a group without a committed offset continues at
its Redis consumer group's lowest pending entry, or after its last-delivered ID. Deleting a committed offset therefore
deletes the Redis consumer group first.

`korvet.storage.redis.staged_offsets` adds the offsets that transactions have staged to the hash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import cast

import trio
from attrs import define, field

from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import IllegalGeneration, KafkaError, NotCoordinator, UnknownTopicOrPartition
from korvet.storage.interface import OffsetAndMetadata, PendingAck, Topic, TopicPartition
from korvet.storage.offsets import MAX_OFFSET, OffsetMapper
from korvet.storage.redis.catalogue import partitions_of
from korvet.storage.redis.client.caller import Answered, RedisCaller
from korvet.storage.redis.client.connection import NotConnected, Script, ScriptCall
from korvet.storage.redis.client.replies import Argument, Command, Reply, as_map
from korvet.storage.redis.failover.confirmations import Confirmations
from korvet.storage.redis.keys import STATE_EARLIEST, STATE_START, STATE_TOPIC, Keyspace
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.partitions import Partitions
from korvet.storage.redis.read.entries import last_offset_delta, whole_batch
from korvet.storage.redis.scripts import joined, partition_script
from korvet.storage.redis.time_limits import StartedCall, TimeLimits

COMMIT = joined("staged", "commit")
FOLLOW = partition_script("follow")
DROP_OFFSETS = joined("staged", "drop_offsets")
FORGET_OFFSETS = joined("staged", "forget_offsets")

SCRIPTS = (COMMIT, FOLLOW, DROP_OFFSETS, FORGET_OFFSETS)

LOG_START_FIELDS = (STATE_TOPIC, STATE_START, STATE_EARLIEST)
POSITIONS_AT_ONCE = 1000  # a few milliseconds
GROUPS_AT_ONCE = 100  # script calls in one write
DERIVED_AT_ONCE = 200  # partitions whose Redis consumer groups are read in one write


@define(eq=False)
class Groups:
    """Implements `Storage.ack`, `committed` and `forget`.

    With Sentinels, and in a Redis Cluster, commits wait for the replicas that the broker's `min.insync.replicas`
    requires.
    """

    redis: RedisCaller
    keyspace: Keyspace
    partitions: Partitions
    confirmations: Confirmations | None = None
    limits: TimeLimits | None = None  # of started commits

    # --- Commit -----------------------------------------------------------------------------------------

    async def ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        """See `Storage.ack`. Store the offsets in one write, then update the Redis consumer groups in another."""
        found, results = await self.find_each(offsets)
        if found:
            try:
                arguments = (generation_id, coordinator_epoch, *arguments_of(found, field_of))
                await self.run_fenced(group_id, COMMIT, arguments, generation_id)
            except KafkaError as error:
                return results | dict.fromkeys((partition.tp for partition in found), error)
            await self.follow(group_id, found, results)
        return results

    def begin_ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int,
        coordinator_epoch: int,
    ) -> StartedAck | None:
        """Begin `ack` if the partitions are known, the servers are connected, and have no replica to wait for."""
        found: dict[Partition, OffsetAndMetadata] = {}
        for tp, offset in offsets.items():
            partition = self.partitions.known(tp)
            if partition is None:
                return None
            found[partition] = offset
        if not found or self.limits is None or self._waits_for_replicas:
            return None
        started = StartedAck(self.limits, self, group_id, found, generation_id, coordinator_epoch)
        return started if started.send() else None

    async def find_each(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> tuple[dict[Partition, OffsetAndMetadata], dict[TopicPartition, KafkaError | None]]:
        """Return the offsets of partitions that exist, and None or the error for each of all partitions."""
        results: dict[TopicPartition, KafkaError | None] = {}
        found: dict[Partition, OffsetAndMetadata] = {}
        for tp, offset in offsets.items():
            results[tp] = None
            try:
                found[self.partitions.known(tp) or await self.partitions.find(tp)] = offset
            except KafkaError as error:
                results[tp] = error
        return found, results

    async def run_fenced(
        self, group_id: str, script: Script, arguments: Sequence[Argument], generation_id: int
    ) -> Sequence[bytes]:
        """Run a script that stores offsets, wait for replicas, and return its answer.

        Raises NotCoordinator and IllegalGeneration if the script refuses the coordinator or the generation.
        """
        key = self.keyspace.group(group_id)
        run_id = self.redis.run_id(key)
        commands = self.fenced_commands(group_id, script, arguments)
        replies = await self.redis.pipeline(commands, repeatable=True, scripts=(script,))
        answer = self.fenced_answer(group_id, replies, generation_id)
        await self.wait_replicated(key, run_id)
        return answer

    def fenced_commands(
        self, group_id: str, script: Script, arguments: Sequence[Argument]
    ) -> tuple[Command, Command]:
        """Return the commands of `run_fenced`."""
        return (
            script.command([self.keyspace.group(group_id)], arguments),
            (b"SADD", self.keyspace.groups, group_id),
        )

    def fenced_answer(self, group_id: str, replies: Sequence[Reply], generation_id: int) -> Sequence[bytes]:
        """Return the script's answer in the replies to `fenced_commands`. Raises as `run_fenced` does."""
        answer, _ = map(self.checked, replies)
        status, *details = cast(Sequence[bytes], answer)
        if status == b"replaced":
            raise NotCoordinator(f"group {group_id} has had another coordinator since")
        if status == b"fenced":
            raise IllegalGeneration(
                f"group {group_id} is in generation {int(details[0])}, and this is of {generation_id}"
            )
        return status, *details

    @property
    def _waits_for_replicas(self) -> bool:
        """True if `wait_replicated` may wait."""
        needed = self.partitions.defaults.topic_config.min_insync_replicas - 1
        return self.confirmations is not None and self.confirmations.waits_for(needed)

    async def wait_replicated(self, key: bytes, run_id: bytes) -> None:
        """Wait until as many replicas have what was written as the broker's `min.insync.replicas` requires."""
        if self.confirmations is not None:
            needed = self.partitions.defaults.topic_config.min_insync_replicas - 1
            await self.confirmations.wait_replicated(key, run_id, needed)

    async def follow(
        self,
        group_id: str,
        offsets: Mapping[Partition, OffsetAndMetadata],
        results: dict[TopicPartition, KafkaError | None],
    ) -> None:
        """Let the Redis consumer groups follow. Note errors in `results`."""
        async with trio.open_nursery() as nursery:  # what its tasks send leaves together
            for partition, offset in offsets.items():
                nursery.start_soon(self._follow, group_id, partition, offset.offset, results)

    async def _follow(
        self,
        group_id: str,
        partition: Partition,
        offset: int,
        results: dict[TopicPartition, KafkaError | None],
    ) -> None:
        id_before = partition.mapper.entry_id_before(offset)
        more_keys = partition.keys.followed
        status = b"more"
        try:
            while status == b"more":
                (status,) = await self.partitions.call(
                    partition, FOLLOW, group_id, id_before, more_keys=more_keys
                )
        except KafkaError as error:
            results[partition.tp] = error

    @staticmethod
    def follow_command(run_id: bytes, group_id: str, partition: Partition, offset: int) -> Command:
        """Return the call that lets a Redis consumer group follow."""
        own = (group_id, partition.mapper.entry_id_before(offset))
        keys = (*partition.keys.log, *partition.keys.followed)
        return FOLLOW.command(keys, partition.arguments(run_id, *own))

    # --- Committed --------------------------------------------------------------------------------------

    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `Storage.committed`. Without a stored offset, derive it from the Redis consumer group."""
        if tps is None:
            stored, others = await self._all_stored(group_id)
            return stored | await self._derived(group_id.encode(), await self._find(others))
        partitions = await self._find(tps)
        if not partitions:
            return {}
        fields = [field_of(partition.tp) for partition in partitions]
        values = await self.redis.execute(b"HMGET", self.keyspace.group(group_id), *fields, repeatable=True)
        found = {}
        without = []
        for partition, value in zip(partitions, cast(Sequence[bytes | None], values), strict=True):
            position = None if value is None else parse_position(value, partition.topic_id)
            if position is None:
                without.append(partition)
            else:
                found[partition.tp] = position
        return found | await self._derived(group_id.encode(), without)

    async def _all_stored(
        self, group_id: str
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[TopicPartition]]:
        """Return all stored offsets, and all partitions without one; work in steps of some milliseconds."""
        topics = await self.partitions.catalogue.all()
        key = self.keyspace.group(group_id)
        fields = as_map(await self.redis.execute(b"HGETALL", key, repeatable=True))
        found = {}
        without = []
        for topic in topics.values():
            prefix = prefix_of(topic.name)
            topic_id = str(topic.topic_id).encode()
            for first in range(0, topic.partitions, POSITIONS_AT_ONCE):
                await trio.lowlevel.checkpoint()
                for number in range(first, min(first + POSITIONS_AT_ONCE, topic.partitions)):
                    tp = TopicPartition(topic.name, number)
                    value = fields.get(b"%b%d" % (prefix, number))
                    position = None if value is None else parse_position(cast(bytes, value), topic_id)
                    if position is None:
                        without.append(tp)
                    else:
                        found[tp] = position
        return found, without

    async def _find(self, tps: Collection[TopicPartition]) -> list[Partition]:
        """Return the partitions that exist."""
        found = []
        time_slices = TimeSlices()
        for tp in tps:
            await time_slices.next()
            with suppress(UnknownTopicOrPartition):
                found.append(self.partitions.known(tp) or await self.partitions.find(tp))
        return found

    async def _derived(
        self, group: bytes, partitions: Sequence[Partition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the Redis consumer group has, some partitions at a time."""
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for first in range(0, len(partitions), DERIVED_AT_ONCE):
            offsets |= await self._derived_together(group, partitions[first : first + DERIVED_AT_ONCE])
        return offsets

    async def _derived_together(
        self, group: bytes, partitions: Sequence[Partition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset of the Redis consumer group's lowest pending entry, else the one after its last delivered.

        XPENDING finds a missing group in constant time. XINFO GROUPS, which lists every group of the stream, is
        sent only for a group that exists.
        """
        commands: list[Command] = []
        for partition in partitions:
            commands.append((b"HMGET", partition.keys.state, *LOG_START_FIELDS))
            commands.append((b"XPENDING", partition.keys.stream, group))
        replies = await self.redis.pipeline(commands, repeatable=True)

        offsets = {}
        for partition, state, pending in zip(partitions, replies[::2], replies[1::2], strict=True):
            fields = cast(Sequence[bytes | None], self.checked(state))
            summary = cast(Sequence[bytes | None], self.checked(pending, but="NOGROUP"))
            offset = await self._offset_of(partition, group, summary[1]) if summary else None
            if offset is not None:
                with suppress(UnknownTopicOrPartition):
                    log_start = await self._log_start(partition, fields)
                    offsets[partition.tp] = OffsetAndMetadata(max(offset, log_start))
        return offsets

    async def _log_start(self, partition: Partition, fields: Sequence[bytes | None]) -> int:
        """Return the log start offset from fields of the state; create the state first if it is missing."""
        topic_id, start, earliest = fields
        if topic_id != partition.topic_id or start is None:
            await self.partitions.revive(partition)
            reply = await self.redis.execute(
                b"HMGET", partition.keys.state, *LOG_START_FIELDS, repeatable=True
            )
            _, start, earliest = cast(Sequence[bytes | None], reply)
        return 0 if start is None else partition.log_start(start, earliest)

    async def _offset_of(
        self, partition: Partition, group: bytes, lowest_pending: bytes | None
    ) -> int | None:
        """Return the next offset for a Redis consumer group to read, 0 if it has read nothing.

        Return None if the group was destroyed meanwhile.
        """
        mapper = partition.mapper
        if lowest_pending is not None:
            return offset_from(mapper, lowest_pending) - await self._records_before(partition, lowest_pending)
        (groups,) = await self.redis.pipeline([(b"XINFO", b"GROUPS", partition.keys.stream)], repeatable=True)
        info = find_group(self.checked(groups, but="no such key"), group)
        if info is None:
            return None
        last_delivered = cast(bytes, info[b"last-delivered-id"])
        if last_delivered == b"0-0":
            return 0
        milliseconds, _, sequence = last_delivered.partition(b"-")
        return offset_from(mapper, b"%b-%d" % (milliseconds, int(sequence) + 1))

    async def _records_before(self, partition: Partition, entry_id: bytes) -> int:
        """Return the number of records in an entry before its last one, whose ID is the entry's."""
        if not partition.is_batch_layout:
            return 0
        key = partition.keys.stream
        entries = await self.redis.execute(b"XRANGE", key, entry_id, entry_id, repeatable=True)
        for _, fields in cast(Sequence[tuple[bytes, Sequence[bytes]]], entries):
            if (data := whole_batch(list(fields))) is not None:
                return last_offset_delta(data)
        return 0

    def checked(self, reply: Reply, but: str = "") -> Reply:
        """Return the reply; raise an error reply, but return an empty list for one that contains the text `but`."""
        if isinstance(reply, Exception):
            if but and but in str(reply):
                return []
            raise self.redis.failure(reply)
        return reply

    # --- Forget -----------------------------------------------------------------------------------------

    async def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        """See `Storage.forget`. Delete Redis consumer groups first, from which offsets could be derived again."""
        key = self.keyspace.group(group_id)
        if tps is None:
            topics = await self.partitions.catalogue.all()
            streams = [self.keyspace.stream(tp) for topic in topics.values() for tp in partitions_of(topic)]
            last: list[Command] = [(b"UNLINK", key), (b"SREM", self.keyspace.groups, group_id)]
        else:
            streams = [self.keyspace.stream(tp) for tp in tps]
            last = [FORGET_OFFSETS.command([key], [name_of(tp) for tp in tps])]
        if not streams and tps is not None:
            return
        destroy: list[Command] = [(b"XGROUP", b"DESTROY", stream, group_id) for stream in streams]
        commands = [*destroy, *last]
        for reply in await self.redis.pipeline(commands, repeatable=True, scripts=(FORGET_OFFSETS,)):
            self.checked(reply, but="requires the key")

    async def forget_topic(self, topic: Topic) -> None:
        """Delete all groups' committed offsets in a deleted topic; a later topic of that name keeps its own.

        Readers ignore the offsets of a topic that is gone, so the caller need not wait for this.
        """
        members = await self.redis.execute(b"SMEMBERS", self.keyspace.groups, repeatable=True)
        groups = list(cast(Iterable[bytes], members))
        arguments = (str(topic.topic_id), prefix_of(topic.name), topic.partitions)
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            calls = [
                ScriptCall(DROP_OFFSETS, [self.keyspace.group(group_id.decode())], arguments)
                for group_id in groups[first : first + GROUPS_AT_ONCE]
            ]
            for reply in await self.redis.run_all(calls):
                self.checked(reply)


@define(eq=False)
class StartedAck(StartedCall, PendingAck):
    """A commit of which the first commands were sent. The task that reads their replies sends the others."""

    groups: Groups
    group_id: str
    offsets: Mapping[Partition, OffsetAndMetadata]
    generation_id: int
    coordinator_epoch: int
    _results: dict[TopicPartition, KafkaError | None] | None = None  # None if the commit has to be repeated
    _unfollowed: list[Partition] = field(factory=list)  # of which the Redis consumer group has not followed

    def send(self) -> bool:
        """Send the first commands. Return False if a server is not connected."""
        groups = self.groups
        arguments = (self.generation_id, self.coordinator_epoch, *arguments_of(self.offsets, field_of))
        commands = groups.fenced_commands(self.group_id, COMMIT, arguments)
        try:
            groups.redis.begin(commands, self._committed, scripts=(COMMIT,))
        except NotConnected:
            return False
        return self.limits.add(self.expire, trio.current_time() + groups.redis.patience_s)

    def _committed(self, answered: Answered) -> None:
        replies = answered.reply
        if self._is_answered or not isinstance(replies, list):
            self.answer()
            return
        try:
            self.groups.fenced_answer(self.group_id, replies, self.generation_id)
        except KafkaError as error:
            self._end_with(error)
            return
        self._results = {}
        redis = self.groups.redis
        commands = []
        for partition, offset in self.offsets.items():
            self._results[partition.tp] = None
            run_id = redis.run_id(partition.keys.stream)
            commands.append(self.groups.follow_command(run_id, self.group_id, partition, offset.offset))
        try:
            redis.begin(commands, self._followed, scripts=(FOLLOW,))
        except NotConnected:
            self._unfollowed = [*self.offsets]
            self.answer()

    def _followed(self, answered: Answered) -> None:
        if self._is_answered:
            return
        replies = answered.reply
        if isinstance(replies, list):
            for partition, reply in zip(self.offsets, replies, strict=True):
                if reply != [b"ok"]:
                    self._unfollowed.append(partition)
        else:
            self._unfollowed = [*self.offsets]
        self.answer()

    def expire(self) -> None:
        self._end_with(self.groups.redis.absence())

    def _end_with(self, error: KafkaError) -> None:
        self._results = dict.fromkeys([partition.tp for partition in self.offsets], error)
        self.answer()

    def known_results(self) -> dict[TopicPartition, KafkaError | None] | None:
        return None if self._unfollowed else self._results

    async def wait(self) -> dict[TopicPartition, KafkaError | None]:
        await self.answered()
        if self._results is None:
            return await self.groups.ack(
                self.group_id,
                {partition.tp: offset for partition, offset in self.offsets.items()},
                generation_id=self.generation_id,
                coordinator_epoch=self.coordinator_epoch,
            )
        unfollowed = {partition: self.offsets[partition] for partition in self._unfollowed}
        if unfollowed:
            await self.groups.follow(self.group_id, unfollowed, self._results)
        return self._results


def arguments_of(
    offsets: Mapping[Partition, OffsetAndMetadata], name: Callable[[TopicPartition], bytes]
) -> list[Argument]:
    """Return what scripts store of offsets: name, offset and leader epoch, topic id and metadata, and so on."""
    arguments: list[Argument] = []
    for partition, offset in offsets.items():
        arguments += (
            name(partition.tp),
            b"%d %d" % (offset.offset, offset.leader_epoch),
            b"%b %b" % (partition.topic_id, offset.metadata.encode()),
        )
    return arguments


def prefix_of(topic: str) -> bytes:
    """Return the prefix of the fields of a topic's committed offsets; the partition's number follows it."""
    return f"offset:{topic}:".encode()


def field_of(tp: TopicPartition) -> bytes:
    """Return the field of a partition's committed offset."""
    return b"%b%d" % (prefix_of(tp.topic), tp.partition)


def name_of(tp: TopicPartition) -> bytes:
    """Return the name of a partition among staged offsets."""
    return b"%b:%d" % (tp.topic.encode(), tp.partition)


def parse_position(value: bytes, topic_id: bytes) -> OffsetAndMetadata | None:
    """Parse a committed offset; return None if it belongs to another topic id or is invalid."""
    parts = value.split(b" ", 4)
    if len(parts) != 5 or parts[3] != topic_id:
        return None
    offset, leader_epoch, committed_ms, _, metadata = parts
    try:
        position = OffsetAndMetadata(
            int(offset),
            int(leader_epoch),
            metadata.decode(errors="replace") if metadata else "",
            int(committed_ms),
        )
    except ValueError:
        return None
    # Another client may have written numbers that no answer can carry.
    fits = abs(position.offset) < 2**63 and abs(position.leader_epoch) < 2**31
    return position if fits and abs(position.commit_timestamp_ms) < 2**63 else None


def find_group(reply: Reply, group: bytes) -> Mapping[bytes, Reply] | None:
    """Return one group's fields in the reply to XINFO GROUPS, or None."""
    infos = map(as_map, cast(Iterable[Reply], reply))
    return next((info for info in infos if info[b"name"] == group), None)


def offset_from(mapper: OffsetMapper, entry_id: bytes) -> int:
    """Return the offset of that ID, or of the next ID that has an offset."""
    offset = mapper.offset(entry_id)
    if offset is None:
        offset = mapper.offset_of_pair(int(entry_id.partition(b"-")[0]) + 1, 0)
    return MAX_OFFSET if offset is None else offset
