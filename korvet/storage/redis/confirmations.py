"""The high watermark of partitions with `min.insync.replicas` above 1: the end that enough replicas have confirmed.

A broker caches the confirmed end of each partition in its memory. An append with acks=all moves it when its own WAIT is
answered. For all other records (acks=1, another broker's, plain XADD) there are rounds: a write of a small key followed
by WAIT over one connection to the server that has them. If enough replicas confirm that write, they have everything
that Redis executed before it, so one round confirms the ends of any number of partitions. Rounds run only while there
are unconfirmed records.

A confirmed end belongs to its leader epoch, since a promoted replica may have less; the epoch rises with every change
of the server process. After a restart of the broker, and after each change of the epoch, the first read waits for a
round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError, NotEnoughReplicas, OffsetNotAvailable
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import RedisUnavailable
from korvet.storage.redis.client.server import ServerConnections
from korvet.storage.redis.partition import Known, Partition, PartitionState

logger = logging.getLogger(__name__)

# Time between the starts of two rounds, so that a stream of single records costs at most 200 rounds a second.
ROUND_EVERY_S = 0.005
# Time after which a round without enough replicas is repeated.
ROUND_LIMIT_S = 1.0

# The server and the number of replicas that have to confirm a round.
Kind = tuple[ServerConnections, int]
NEVER = trio.Event()


@define(eq=False)
class Round:
    """The ends that one round confirms. `done` is set after it, with or without success."""

    ends: dict[Partition, Known] = field(factory=dict)
    done: trio.Event = field(factory=trio.Event)


@define(eq=False)
class Confirmations:
    """The confirmed ends of all partitions, and the rounds: at most one at a time for a server and number of replicas.

    `confirmed` is called with the key of each stream whose confirmed end has moved.
    """

    redis: RedisCaller
    nursery: trio.Nursery
    key: bytes
    confirmed: Callable[[bytes], None]
    _next: dict[Kind, Round] = field(factory=dict)
    _failing: set[Kind] = field(factory=set)
    _may_wait: bool = True  # False if the Redis user or the service has no WAIT

    def note(self, partition: Partition, end: Known) -> None:
        """Note that replicas have all records before that end."""
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
        wanted = self._next.get(kind)
        if wanted is None:
            wanted = self._next[kind] = Round()
            self.nursery.start_soon(self._run, kind)
        if is_later(end, wanted.ends.get(partition)):
            wanted.ends[partition] = end
        return wanted.done

    async def visible_end(self, partition: Partition, state: PartitionState, offset: int) -> Known | None:
        """Return the end of what consumers may read. None stands for the log's end, also if Redis has no WAIT.

        If the records below `offset` are not confirmed yet, wait for one round.
        Raise OffsetNotAvailable if no end of the present leader epoch is confirmed.
        """
        end = Known(state.leader_epoch, state.next_offset, state.next_id)
        if partition.config.min_insync_replicas <= 1 or end.next_offset <= state.log_start_offset:
            return None
        confirmed = confirmed_end(partition, end)
        if confirmed is None or confirmed.next_offset < end.next_offset:
            done = self.want(partition, end)
            is_failing = self._kind(partition) in self._failing
            if (confirmed is None or confirmed.next_offset < offset) and not is_failing:
                with trio.move_on_after(ROUND_LIMIT_S):
                    await done.wait()
                confirmed = confirmed_end(partition, end)
            if not self._may_wait:
                return None
        if confirmed is None:
            raise OffsetNotAvailable("too few replicas are connected to confirm the end of the log")
        return confirmed if confirmed.next_offset < end.next_offset else None

    def _kind(self, partition: Partition) -> Kind | None:
        """Return which rounds confirm the partition's ends; None if no server has the partition at present."""
        with suppress(RedisUnavailable):
            server = self.redis.server_of(partition.keys.stream)
            return server, partition.config.min_insync_replicas - 1
        return None

    async def _run(self, kind: Kind) -> None:
        """Run rounds until no end is unconfirmed."""
        while ends := self._next[kind].ends:
            started = trio.current_time()
            this, self._next[kind] = self._next[kind], Round()
            if await self._is_confirmed(*kind):
                self._failing.discard(kind)
                for partition, end in ends.items():
                    self.note(partition, end)
                pause_s = ROUND_EVERY_S
            else:
                self._failing.add(kind)
                for partition, end in ends.items():
                    self.want(partition, end)  # at the server that has the partition now
                pause_s = ROUND_LIMIT_S
            this.done.set()
            await trio.sleep_until(started + pause_s)
        del self._next[kind]
        self._failing.discard(kind)

    async def _is_confirmed(self, server: ServerConnections, replicas: int) -> bool:
        """Write the key and wait for the replicas; return True if enough of them have confirmed it in time."""
        try:
            await server.waiting.open()
            self._may_wait = True
            connection = server.waiting.choose()
            # During a failover one connection may lead to the new primary, and another one still to the old primary.
            run_id = server.connection.run_id
            if connection.run_id != run_id:
                return False
            limit_ms = int(ROUND_LIMIT_S * 1000)
            server.waiting.started(connection)
            try:
                written, count = await connection.pipeline(
                    [(b"SET", self.redis.key_on(server, self.key), b""), (b"WAIT", replicas, limit_ms)],
                    limit_s=ROUND_LIMIT_S + connection.address.answer_limit_s,
                )
            finally:
                server.waiting.ended(connection)
        except NotEnoughReplicas as error:
            if self._may_wait:
                logger.warning("%s; consumers also read records that no replica has confirmed", error)
            self._may_wait = False
            return False
        except (KafkaError, RedisUnavailable) as error:
            logger.debug("cannot confirm records: %s", error)
            return False
        is_written = not isinstance(written, Exception) and run_id == server.connection.run_id
        return is_written and isinstance(count, int) and count >= replicas


def is_later(end: Known, other: Known | None) -> bool:
    """Return True if `other` is None or an earlier end."""
    return other is None or end[:2] > other[:2]


def confirmed_end(partition: Partition, end: Known) -> Known | None:
    """Return the partition's confirmed end if it is of the same leader epoch as `end`, but not beyond it."""
    confirmed = partition.confirmed
    if confirmed is None or confirmed.leader_epoch != end.leader_epoch:
        return None
    return confirmed if is_later(end, confirmed) else end
