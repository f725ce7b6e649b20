"""The newest leader epoch, which every broker on one Redis returns for all partitions, also for those it never served.

Clients ignore metadata whose leader epoch is lower than one they have seen. A partition's own epoch is in its state,
and rises only when a script finds that the server process has changed or that records are lost. A broker that has not
read the state since then has an older epoch. So clients receive an upper bound of all partitions' epochs, which
is one number in Redis. A partition's epochs, which say where its log may have been cut, never exceed it.

A server process gets a number above it when the first partition begins an epoch there. All partitions begin that same
epoch, so that a restart of Redis raises the number once. A new topic begins at the number, so that a topic that is
created again never has a lower epoch than before.
"""

from __future__ import annotations

import logging
from typing import cast

import trio
from attrs import define, field

from korvet.concurrency.background import start_unless_ended
from korvet.protocol.errors import KafkaError
from korvet.storage.redis.catalogue import CHANGES_KEPT
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.replies import Argument
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.scripts import BEGIN_EPOCH, RAISE_EPOCH

logger = logging.getLogger(__name__)

# Time for which partitions begin no epoch after Redis was full. Meanwhile it refuses appends, and reads go on.
FULL_FOR_S = 0.1


@define(eq=False)
class LeaderEpochs:
    """The newest leader epoch as this broker knows it, and the epochs that partitions begin on server processes."""

    redis: RedisCaller
    keyspace: Keyspace
    nursery: trio.Nursery
    newest: int = 0
    _of_processes: dict[bytes, int] = field(factory=dict)
    _is_full_until: float | None = None

    def argument(self, run_id: bytes) -> bytes:
        """Return the part of a partition script's arguments: run id, epoch of that process, newest epoch.

        The epoch is "-" if it is unknown, and 0 if none can begin, since Redis is full.
        """
        epoch = self._of_processes.get(run_id)
        if epoch is None and self._is_full_until is not None:
            if trio.current_time() < self._is_full_until:
                epoch = 0
            else:
                self._is_full_until = None
        return (
            b"%b - %d" % (run_id, self.newest)
            if epoch is None
            else b"%b %d %d" % (run_id, epoch, self.newest)
        )

    async def begin(self, run_id: bytes) -> None:
        """Agree with the other brokers on the epoch that partitions begin on the server with that `run_id`."""
        epoch, newest = cast(
            list[int],
            await self.redis.run_then(
                BEGIN_EPOCH,
                [self.keyspace.epochs],
                [run_id, self.newest],
                self._announcement(),
                can_do_without=True,
            ),
        )
        if epoch == 0:
            self._is_full_until = trio.current_time() + FULL_FOR_S
        else:
            self._of_processes[run_id] = epoch
        self.newest = max(self.newest, newest)

    def note(self, leader_epoch: int) -> None:
        """Note a partition's leader epoch. If it is above the newest one, raise that in Redis as well."""
        if leader_epoch > self.newest:
            self.newest = leader_epoch
            start_unless_ended(self.nursery, self._raise)

    async def _raise(self) -> None:
        try:
            await self.redis.run_then(
                RAISE_EPOCH, [self.keyspace.epochs], [self.newest], self._announcement(), can_do_without=True
            )
        except KafkaError as error:
            fields = {"epoch": self.newest, "error": error}
            logger.debug("the leader epoch %(epoch)d is not stored: %(error)s", fields)

    def refresh_soon(self) -> None:
        """Read the newest leader epoch, which another broker has raised or may have raised."""
        start_unless_ended(self.nursery, self._refresh_or_report)

    async def _refresh_or_report(self) -> None:
        try:
            await self.refresh()
        except KafkaError as error:
            logger.debug("the newest leader epoch cannot be read: %(error)s", {"error": error})

    async def refresh(self) -> None:
        """Read the newest leader epoch from Redis."""
        stored = await self.redis.execute(b"HGET", self.keyspace.epochs, b"newest", repeatable=True)
        if stored is not None and cast(bytes, stored).isdigit():
            self.newest = max(self.newest, int(cast(bytes, stored)))

    def _announcement(self) -> tuple[Argument, ...]:
        """Return the command that notifies the other brokers."""
        return (b"XADD", self.keyspace.changes, b"MAXLEN", b"~", CHANGES_KEPT, b"*", b"epochs", b"")
