"""The high watermark of partitions with `min.insync.replicas` above 1: the end that enough replicas have confirmed.

The confirmed end of a partition is in its state, so that all brokers return the same one, and it never decreases. An
append with acks=all raises it when its own WAIT is answered. For all other records (acks=1, another broker's, plain
XADD) there are rounds: a write of a small key followed by WAIT over one connection to the server that has them. If
enough replicas confirm that write, they have everything that Redis executed before it, so one round confirms the ends
of any number of partitions. Rounds run only while there are unconfirmed records.
With Sentinels, a round also finds out whether a failover could lose these writes (`quorum`); appends with acks=all then
wait for a round unless all replicas have confirmed them.

A promoted replica may lack the last raises, and records as well. Brokers therefore also cache the end that they have
stored. It is valid up to the offset where the next leader epoch began, which is where the log may have been cut.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

import trio
from attrs import define, field, frozen

from korvet.concurrency.background import start_unless_ended
from korvet.protocol.errors import KafkaError, NotEnoughReplicas, NotEnoughReplicasAfterAppend
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import (
    NotConnected,
    Pending,
    RedisConnection,
    RedisUnavailable,
    ScriptCall,
)
from korvet.storage.redis.client.errors import OutOfMemoryError
from korvet.storage.redis.client.server import ServerConnections
from korvet.storage.redis.failover.quorum import COMPLETE_LIMIT_S, Quorum
from korvet.storage.redis.partition import Known, Partition, PartitionState, earlier
from korvet.storage.redis.scripts import CONFIRM

logger = logging.getLogger(__name__)

# Time between the starts of two rounds, so that a stream of single records costs at most 200 rounds a second.
ROUND_EVERY_S = 0.005
# Time after which a round without enough replicas is repeated.
ROUND_LIMIT_S = 1.0
# The same with Sentinels, where rounds wait for the end of a failover, and time between rounds that ask Sentinels.
QUORUM_AGAIN_S = 0.1
QUORUM_EVERY_S = 0.02
# As Kafka's offsets.commit.timeout.ms.
REPLICATED_LIMIT_S = 5.0

# The server, and the number of replicas that have to confirm a round.
Kind = tuple[ServerConnections, int]
NEVER = trio.Event()


@frozen(eq=False)
class Write:
    """An append that some replicas have confirmed, and that waits for a round."""

    run_id: bytes  # of the server process that executed it
    checked: Callable[[bool], None]  # called with False if the write may be lost
    is_waited_for: Callable[[], bool]


@define(eq=False)
class Round:
    """The ends and writes that one round confirms. `done` is set after it, with or without success."""

    run_id: bytes = b""  # of the server process in which the ends are
    ends: dict[Partition, Known] = field(factory=dict)
    writes: list[Write] = field(factory=list)
    done: trio.Event = field(factory=trio.Event)

    def add(self, run_id: bytes, ends: Mapping[Partition, Known]) -> None:
        """Add ends in a server process, and drop those in another one, which a promoted replica may not have."""
        if run_id != self.run_id:
            self.run_id, self.ends = run_id, {}
        for partition, end in ends.items():
            if is_later(end, self.ends.get(partition)):
                self.ends[partition] = end


@define(eq=False)
class Confirmations:
    """The confirmed ends of all partitions, and the rounds: at most one at a time for a server and number of replicas.

    `confirmed` is called with the key of each stream whose confirmed end has moved.
    """

    redis: RedisCaller
    nursery: trio.Nursery
    key: bytes
    confirmed: Callable[[bytes], None]
    quorum: Quorum | None = None  # with Sentinels
    _next: dict[Kind, Round] = field(factory=dict)
    _failing: set[Kind] = field(factory=set)
    _may_wait: bool = True  # False if the Redis user or the service has no WAIT

    def note(self, partition: Partition, end: Known) -> None:
        """Store that replicas have all records before that end, before any command that is sent later."""

        def answered(pending: Pending) -> None:
            if isinstance(pending.reply, Exception):
                start_unless_ended(self.nursery, self._store, {partition: end})
            else:
                self._stored(partition, end)

        try:
            connection = self.redis.server_of(partition.keys.stream).connection
            call = confirm_call(partition, end)
            connection.send(call.command, notify=answered, scripts=(call.script,))
        except NotConnected:
            pass  # a later read lets a round confirm it again

    async def _store(self, ends: Mapping[Partition, Known]) -> None:
        """Store the ends in one write."""
        try:
            calls = [confirm_call(partition, end) for partition, end in ends.items()]
            replies = await self.redis.run_all(calls)
        except KafkaError as error:
            logger.debug("cannot store confirmed ends: %(error)s", {"error": error})
            return
        for (partition, end), reply in zip(ends.items(), replies, strict=True):
            # A full Redis cannot store it. Consumers have to read on, since that can make room.
            if not isinstance(reply, Exception) or isinstance(reply, OutOfMemoryError):
                self._stored(partition, end)

    def _stored(self, partition: Partition, end: Known) -> None:
        if is_later(end, partition.confirmed):
            partition.confirmed = end
            self.confirmed(partition.keys.stream)

    def want(self, partition: Partition, end: Known) -> trio.Event:
        """Let a round confirm that end; return the event of its completion.

        If no server has the partition at present, a later read has to want it again.
        """
        kind = self._kind(partition)
        if kind is None:
            return NEVER
        wanted = self._next_round(kind)
        wanted.add(kind[0].connection.run_id, {partition: end})
        return wanted.done

    def _kind(self, partition: Partition) -> Kind | None:
        """Return which rounds confirm the partition's ends; None if no server has the partition at present."""
        with suppress(RedisUnavailable):
            server = self.redis.server_of(partition.keys.stream)
            return server, partition.config.min_insync_replicas - 1
        return None

    def check(self, server: ServerConnections, replicas: int, write: Write) -> None:
        """Let rounds decide whether a write is replicated, until one does or no task waits for the write."""
        self._next_round((server, replicas)).writes.append(write)

    def waits_for(self, replicas: int) -> bool:
        """Return True if `wait_replicated` waits for so many replicas."""
        return replicas > 0 and (self.quorum is not None or bool(self.redis.address.nodes))

    async def wait_replicated(self, key: bytes, run_id: bytes, replicas: int) -> None:
        """Wait until no failover loses what the server process with that `run_id` has written to the key.

        Return at once without Sentinels or a Redis Cluster, which would fail over. Raise NotEnoughReplicasAfterAppend
        after REPLICATED_LIMIT_S, or if another process has the key by now, and KafkaStorageError if none has.
        """
        if not self.waits_for(replicas):
            return
        is_replicated = False
        checked = trio.Event()
        is_waiting = True

        def check(found: bool) -> None:  # noqa: FBT001  a callback
            nonlocal is_replicated
            is_replicated = found
            checked.set()

        try:
            server = self.redis.server_of(key)
        except RedisUnavailable as error:
            raise self.redis.absence() from error
        self.check(server, replicas, Write(run_id, check, lambda: is_waiting))
        try:
            with trio.move_on_after(REPLICATED_LIMIT_S):
                await checked.wait()
        finally:
            is_waiting = False
        if not is_replicated:
            raise NotEnoughReplicasAfterAppend("too few replicas confirmed it in time")

    def _next_round(self, kind: Kind) -> Round:
        """Return the round that begins next."""
        wanted = self._next.get(kind)
        if wanted is None:
            wanted = self._next[kind] = Round()
            start_unless_ended(self.nursery, self._run, kind)
        return wanted

    async def visible_end(self, partition: Partition, state: PartitionState, offset: int) -> Known | None:
        """Return the end of what consumers may read. None stands for the log's end, also if Redis has no WAIT.

        If the records below `offset` are not confirmed yet, wait for one round.
        """
        end = Known(state.leader_epoch, state.next_offset, state.next_id, state.first_open)
        if state.stored_visible is None or end.next_offset <= state.log_start_offset:
            return None
        confirmed = self._confirmed_end(partition, state)
        if confirmed.next_offset < end.next_offset:
            done = self.want(partition, end)
            if confirmed.next_offset < offset and self._kind(partition) not in self._failing:
                with trio.move_on_after(ROUND_LIMIT_S):
                    await done.wait()
                confirmed = self._confirmed_end(partition, state)
            if not self._may_wait:
                return None
        return confirmed if confirmed.next_offset < end.next_offset else None

    def _confirmed_end(self, partition: Partition, state: PartitionState) -> Known:
        """Return the later one of the stored end and the cached one, as far as that is valid in the present epoch."""
        stored_id = cast(bytes, state.stored_visible)
        stored = Known(state.leader_epoch, partition.bound(stored_id), stored_id, state.stored_stable)
        cached = partition.confirmed
        if cached is None:
            return stored
        cuts = (each.start_offset for each in state.epochs if each.leader_epoch > cached.leader_epoch)
        cut = next(cuts, state.next_offset)
        if cut < cached.next_offset:
            first_open = earlier(cached.first_open, state.first_open)
            cached = Known(cached.leader_epoch, cut, partition.mapper.entry_id(cut), first_open)
        if cached.next_offset <= stored.next_offset:
            return stored
        if cached.leader_epoch < state.leader_epoch:
            self.note(partition, Known(state.leader_epoch, *cached[1:]))  # the failover has lost it
        return cached

    async def _run(self, kind: Kind) -> None:
        """Run rounds until no end and no write is unconfirmed."""
        server, replicas = kind
        while self._next[kind].ends or self._next[kind].writes:
            started = trio.current_time()
            this, self._next[kind] = self._next[kind], Round()
            run_id = server.connection.run_id
            if await self._is_confirmed(server, replicas):
                self._failing.discard(kind)
                if this.ends and this.run_id == run_id:
                    await self._store(this.ends)
                for write in this.writes:
                    write.checked(write.run_id == run_id)
                pause_s = self._pause_s(run_id)
            else:
                self._failing.add(kind)
                later = self._next[kind]
                # A partition that another server has by now is wanted again by its next read.
                ends = {
                    partition: end for partition, end in this.ends.items() if self._kind(partition) == kind
                }
                if ends and later.run_id in (b"", this.run_id):
                    later.add(this.run_id, ends)
                later.writes[:0] = [write for write in this.writes if write.is_waited_for()]
                pause_s = ROUND_LIMIT_S if self.quorum is None else QUORUM_AGAIN_S
            this.done.set()
            await trio.sleep_until(started + pause_s)
        del self._next[kind]
        self._failing.discard(kind)

    def _pause_s(self, run_id: bytes) -> float:
        """Return the time between the starts of two rounds that succeed."""
        is_cheap = self.quorum is None or self.quorum.all_replicas(run_id) is not None
        return ROUND_EVERY_S if is_cheap else QUORUM_EVERY_S

    async def _is_confirmed(self, server: ServerConnections, replicas: int) -> bool:
        """Write the key and wait for the replicas; return True if enough of them have confirmed it in time."""
        try:
            await server.confirming.open()
            self._may_wait = True
            connection = server.confirming.choose()
            # During a failover one connection may lead to the new primary, and another one still to the old primary.
            run_id = server.connection.run_id
            if connection.run_id != run_id:
                return False
            server.confirming.started(connection)
            try:
                is_covered = await self._is_covered(server, connection, replicas)
            finally:
                server.confirming.ended(connection)
        except NotEnoughReplicas as error:
            if self._may_wait:
                logger.warning(
                    "%(error)s; consumers also read records that no replica has confirmed", {"error": error}
                )
            self._may_wait = False
            return False
        except (KafkaError, RedisUnavailable) as error:
            logger.debug("cannot confirm records: %(error)s", {"error": error})
            return False
        return is_covered and run_id == server.connection.run_id

    async def _is_covered(
        self, server: ServerConnections, connection: RedisConnection, replicas: int
    ) -> bool:
        """Write the key over the connection, and wait for the replicas; with Sentinels, ask these as well."""
        if self.quorum is None:
            key = self.redis.key_on(server, self.key)
            return await self._is_on(connection, key, replicas, ROUND_LIMIT_S)
        everything = self.quorum.all_replicas(connection.run_id)
        if everything is not None:
            if await self._is_on(connection, self.key, max(everything, replicas), COMPLETE_LIMIT_S):
                return True
            self.quorum.miss()
        return await self.quorum.confirm(connection, self.key, replicas, COMPLETE_LIMIT_S)

    @staticmethod
    async def _is_on(connection: RedisConnection, key: bytes, replicas: int, limit_s: float) -> bool:
        """Write the key, and return True if so many replicas confirm it in time."""
        written, count = await connection.pipeline(
            [(b"SET", key, b""), (b"WAIT", replicas, int(limit_s * 1000))],
            limit_s=limit_s + connection.address.answer_limit_s,
        )
        is_written = not isinstance(written, Exception)
        return is_written and isinstance(count, int) and count >= replicas


def is_later(end: Known, other: Known | None) -> bool:
    """Return True if `other` is None or an earlier end."""
    return other is None or end[:2] > other[:2]


def confirm_call(partition: Partition, end: Known) -> ScriptCall:
    """Return the call that stores a confirmed end."""
    stable = b"" if end.first_open is None else end.first_open.entry_id
    return ScriptCall(CONFIRM, [partition.keys.state], [partition.topic_id, end.next_id, stable])
