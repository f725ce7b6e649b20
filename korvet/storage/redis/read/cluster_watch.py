"""Watches for growth in a Redis Cluster: a watcher, and a blocking connection, for each slot with watched streams.

XREAD names streams of one slot only. A slot usually has one partition, so each watched partition takes a connection, up
to CONNECTIONS_AT_MOST of them. The streams of further slots are looked at every LOOK_EVERY_S, all in one write to each
node. Another connection waits for the stream of changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import trio

from korvet.protocol.errors import KafkaError
from korvet.storage.redis.client.cluster import Cluster
from korvet.storage.redis.client.connection import RedisConnection, open_connection
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.replies import Reply
from korvet.storage.redis.client.topology import slot_of
from korvet.storage.redis.read.watch import (
    DESERTED_AFTER_S,
    Change,
    StreamWatch,
    WatchConnections,
    WatchedStream,
    Watcher,
    id_after,
    id_of_last,
    last_entry,
)

# Each takes some 20 kB here and as much in Redis, which accepts 10,000 clients by default.
CONNECTIONS_AT_MOST = 500
LOOK_EVERY_S = 0.1
# A node that does not accept a connection in this time may have been replaced.
OPEN_LIMIT_S = 5.0


class KeyConnections(WatchConnections):
    """Connections to the node that has a key: a new one that may block, and that for commands."""

    def __init__(self, cluster: Cluster, key: bytes) -> None:
        self.cluster = cluster
        self.key = key

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[RedisConnection, RedisConnection]]:
        await self.cluster.wait_connected(self.key)
        server = self.cluster.server_of(self.key)
        address = server.connection.address
        async with open_connection(address, name="watch", announce=False, limit_s=OPEN_LIMIT_S) as blocking:
            server.watching.add(blocking)
            try:
                yield blocking, server.connection
            finally:
                server.watching.discard(blocking)

    async def refused(self, error: RedisError) -> None:
        try:
            await self.cluster.redirected(error)
        except RedisError:
            self.cluster.failure(error)
            await trio.sleep(OPEN_LIMIT_S)


class SlotWatcher(Watcher):
    """The watcher of one slot, which runs while its streams are watched."""

    def __init__(self, cluster: Cluster, key: bytes, start: Callable[[SlotWatcher], None]) -> None:
        super().__init__(KeyConnections(cluster, key), None, lambda _: None)
        self.slot = slot_of(key)
        self.is_running = False
        self._start = start
        self._awaited = trio.Event()

    def await_growth(self, stream: WatchedStream) -> None:
        super().await_growth(stream)
        self._awaited.set()
        if not self.is_running:
            self._start(self)

    def is_needed(self) -> bool:
        return bool(self._streams)

    async def read_once(self) -> None:
        self._awaited = trio.Event()
        if not any(stream.is_awaited for stream in self._streams.values()):
            with trio.move_on_after(DESERTED_AFTER_S):
                await self._awaited.wait()
            self.drop_deserted()
        else:
            await super().read_once()

    def awaited(self) -> Sequence[WatchedStream]:
        """Return the streams that tasks wait for."""
        return [stream for stream in self._streams.values() if stream.is_awaited]

    def look(self, stream: WatchedStream, reply: Reply) -> None:
        """Process a reply to `last_entry`: wake the stream's watches if it has grown, or its end was unknown."""
        if isinstance(reply, RedisError):
            return
        next_id = id_after(id_of_last(reply))
        if stream.next_id != next_id:
            stream.next_id = next_id
            stream.wake()


class ClusterWatcher:
    """The watchers of all slots, with the methods of `Watcher`; its `run` has to be active while watches are made."""

    def __init__(self, cluster: Cluster, changes: bytes, changed: Callable[[Change | None], None]) -> None:
        self._cluster = cluster
        self._changes = Watcher(KeyConnections(cluster, changes), changes, changed)
        self._slots: dict[int, SlotWatcher] = {}
        self._connected = trio.CapacityLimiter(CONNECTIONS_AT_MOST)
        self._without: set[SlotWatcher] = set()  # those that have no connection
        self._lacking = trio.Event()
        self._nursery: trio.Nursery | None = None

    def watch(self, keys: Collection[bytes]) -> StreamWatch:
        """See `Watcher.watch`."""
        return StreamWatch([self._watcher(key).stream(key) for key in keys])

    def note(self, key: bytes, next_id: bytes) -> None:
        """See `Watcher.note`."""
        if (watcher := self._slots.get(slot_of(key))) is not None:
            watcher.note(key, next_id)

    def grew(self, key: bytes, next_id: bytes, *, is_visible: bool = True) -> None:
        """See `Watcher.grew`."""
        if (watcher := self._slots.get(slot_of(key))) is not None:
            watcher.grew(key, next_id, is_visible=is_visible)

    def confirmed(self, key: bytes) -> None:
        """See `Watcher.confirmed`."""
        if (watcher := self._slots.get(slot_of(key))) is not None:
            watcher.confirmed(key)

    def forget(self, keys: Iterable[bytes]) -> None:
        """See `Watcher.forget`."""
        for key in keys:
            if (watcher := self._slots.get(slot_of(key))) is not None:
                watcher.forget([key])

    def watched(self) -> list[bytes]:
        """See `Watcher.watched`."""
        return [key for watcher in self._slots.values() for key in watcher.watched()]

    def _watcher(self, key: bytes) -> SlotWatcher:
        slot = slot_of(key)
        watcher = self._slots.get(slot)
        if watcher is None:
            watcher = self._slots[slot] = SlotWatcher(self._cluster, key, self._start)
        return watcher

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for growth and changes until cancelled. See `Watcher.run`."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._look_at_others)
            await self._nursery.start(self._changes.run)
            task_status.started()

    def _start(self, watcher: SlotWatcher) -> None:
        if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
            watcher.is_running = True
            self._nursery.start_soon(self._run, watcher)

    async def _run(self, watcher: SlotWatcher) -> None:
        """Run a slot's watcher until its streams are not watched any more, once there is a connection left for it."""
        self._without.add(watcher)
        self._lacking.set()
        async with self._connected:
            self._without.discard(watcher)
            await watcher.run()
        watcher.is_running = False
        if watcher.is_needed():
            self._start(watcher)
        else:
            self._slots.pop(watcher.slot, None)

    async def _look_at_others(self) -> None:
        """Look at the streams of slots without a connection, again and again."""
        while True:
            await self._lacking.wait()
            await trio.sleep(LOOK_EVERY_S)
            if not self._without:
                self._lacking = trio.Event()
                continue
            for watcher in self._without:
                watcher.drop_deserted()
            streams = [stream for watcher in self._without for stream in watcher.awaited()]
            if not streams:
                continue
            try:
                replies = await self._cluster.pipeline(
                    [last_entry(stream.key) for stream in streams], repeatable=True
                )
            except KafkaError:
                continue
            for stream, reply in zip(streams, replies, strict=True):
                cast(SlotWatcher, stream.watcher).look(stream, reply)
