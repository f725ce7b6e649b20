"""Wake tasks that wait for streams to grow, whether this broker, another broker or redis-cli appends to them.

One connection blocks in one XREAD over all streams that tasks wait for, and over the stream of changes to the
catalogue. An append through this broker wakes its waiters immediately, without waiting for the XREAD's reply.

XREAD requires the last ID of each stream, and returns only later entries. Readers and appenders report (`note`,
`grew`) the lowest ID that a stream's next entry can have; between two reports the watcher sends no command for it. Two
different reports mean that one reader has seen an older state than another. The watcher then wakes all watches of that
stream: a needless read does no harm, and a missed one costs a consumer its whole max.wait.

A stream stays in the XREAD after its waiters have given up. It is removed when it grows without a waiter, or when a new
XREAD is sent and no task has watched the stream for a while. Successive polls therefore cost Redis nothing. To add a
stream while the XREAD blocks, the watcher sends CLIENT UNBLOCK over the other connection; the next XREAD covers all
streams that were added by then.

After a lost connection the watcher wakes all watches, since it cannot determine which entries it missed.

In a Redis Cluster an XREAD names streams of one slot only; `cluster_watch` has a watcher for each slot.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from types import TracebackType
from typing import Self, cast

import trio
from attrs import define, field, frozen

from korvet.storage.redis.client.connection import RedisConnection, RedisUnavailable
from korvet.storage.redis.client.errors import RedisError, ResponseError
from korvet.storage.redis.client.replies import Argument, Command, Reply, as_pairs

logger = logging.getLogger(__name__)

# Redis answers the XREAD after this time even if no stream grows, so that the broker detects a connection that was
# dropped silently (by a firewall, for example).
BLOCK_MS = 20_000
ANSWER_LIMIT_S = 10.0
# Longest delay before a new stream is part of the XREAD, if the Redis user has no permission for CLIENT UNBLOCK.
BLOCK_WITHOUT_UNBLOCK_MS = 20
# XREAD fails as a whole if one of its keys is not a stream, or the Redis user may not read it.
AFTER_REFUSAL_S = 1.0
# CLIENT UNBLOCK may arrive before the XREAD, which then blocks; it is sent again after this time.
UNBLOCK_AGAIN_S = 0.001

HIGHEST_SEQUENCE = 2**64 - 1

# Pause after growth, in which the woken tasks read and wait again, so that one XREAD covers them too. Without it each
# wake costs two XREADs and an UNBLOCK: half a millisecond of Redis's time if a thousand streams are watched.
PAUSE_S = 0.001
# A longer pause for many streams bounds the share of processor time that XREADs take: with 1,000 streams, one takes
# some milliseconds of this process and of Redis together. Appends through this broker do not wait for it.
PAUSE_PER_STREAM_S = 0.000_005
LONGEST_PAUSE_S = 0.01

# A stream that had no watch for this long leaves the XREAD.
DESERTED_AFTER_S = 1.0

Change = Mapping[bytes, bytes]


@define(eq=False)
class WatchedStream:
    """A stream that is watched, or was until a short time ago."""

    key: bytes
    watcher: Watcher
    next_id: bytes = b""  # the lowest ID its next entry can have, as last reported; "" if unknown
    watches: set[StreamWatch] = field(factory=set)
    is_awaited: bool = False  # the next XREAD includes it
    left_at: float = math.inf  # when the last watch ended, on Trio's clock

    def wake(self) -> None:
        """Wake all watches of the stream."""
        for watch in self.watches:
            watch.wake(self)

    def set_aside(self) -> None:
        """Leave the stream out of the next XREAD, unless a watch that waits includes it again."""
        self.is_awaited = False
        for watch in self.watches:
            watch.unawaited.add(self)


@define(eq=False)
class StreamWatch:
    """A `Watch` (see `korvet.storage.interface`) of streams by their keys, and the context manager that ends it."""

    streams: Sequence[WatchedStream]
    grown: set[bytes] = field(factory=set)
    parked: trio.Event | None = None
    waits: int = 0  # how often a task has waited
    # The streams that the next wait has to include in the XREAD. A watch may outlive many waits, for many streams.
    unawaited: set[WatchedStream] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.unawaited = set(self.streams)

    def __enter__(self) -> Self:
        for stream in self.streams:
            stream.watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in self.streams:
            stream.watches.discard(self)
            stream.watcher.left(stream)

    async def wait(self) -> set[bytes]:
        """Wait for growth; return the keys that have grown since the watch began or last returned, at least one."""
        if self.grown:
            await trio.lowlevel.checkpoint()
        else:
            self.expect()
            self.parked = trio.Event()
            await self.parked.wait()
        return self.take()

    def expect(self) -> None:
        """Include the streams in the XREAD, unless one of them has grown."""
        if not self.grown:
            for stream in self.unawaited:
                stream.watcher.await_growth(stream)
            self.unawaited.clear()
            self.waits += 1

    def take(self) -> set[bytes]:
        """Return the keys that `wait` would return immediately, and count them as returned."""
        grown, self.grown = self.grown, set()
        return grown

    @property
    def goes_on(self) -> bool:
        """True if a task waits, or has waited several times and so probably waits again."""
        return self.parked is not None or self.waits > 1

    def wake(self, stream: WatchedStream) -> None:
        """Note that the stream has grown, and wake the waiting task."""
        self.grown.add(stream.key)
        self.unawaited.add(stream)
        if self.parked is not None:
            self.parked.set()
            self.parked = None


class WatchConnections(ABC):
    """The source of a watcher's connections."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[tuple[RedisConnection, RedisConnection]]:
        """Yield a connection that may block, and any other one to the same server, once both are connected.

        Raise RedisUnavailable if there are none at present.
        """

    @abstractmethod
    async def refused(self, error: RedisError) -> None:
        """Wait until the watcher may try again after an error reply."""


@frozen
class FixedConnections(WatchConnections):
    """Two connections to one server, which reconnect by themselves."""

    blocking: RedisConnection
    other: RedisConnection

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[RedisConnection, RedisConnection]]:
        await self.blocking.wait_connected()
        yield self.blocking, self.other

    async def refused(self, error: RedisError) -> None:
        logger.warning("Redis refuses to have streams watched: %(error)s; trying again", {"error": error})
        await trio.sleep(AFTER_REFUSAL_S)


@define(eq=False)
class Round:
    """One XREAD, from before it is sent until its reply arrives."""

    asked: Mapping[bytes, bytes] = field(factory=dict)  # stream -> its next ID when the XREAD was sent
    is_under_way: bool = False
    is_lacking: bool = False  # a task waits for a stream that this XREAD does not cover
    is_answered: trio.Event = field(factory=trio.Event)

    def covers(self, stream: WatchedStream) -> bool:
        """Return True if the XREAD returns on growth at the stream's next ID; its own ID may be lower."""
        asked = self.asked.get(stream.key)
        return asked is not None and stream.next_id != b"" and not is_lower(stream.next_id, asked)


class Watcher:
    """Owner of the blocking connection; its `run` has to be active as long as watches are made.

    The watcher calls `changed` with each new entry of the stream `changes`, and with None if it may have missed some.
    Without `changes` it watches only the streams of its watches.
    """

    _blocking: RedisConnection  # the connections at present
    _other: RedisConnection

    def __init__(
        self,
        connections: WatchConnections,
        changes: bytes | None,
        changed: Callable[[Change | None], None],
    ) -> None:
        self._connections = connections
        self._changes = changes
        self._changed = changed
        self._last_change = b"0-0"
        self._streams: dict[bytes, WatchedStream] = {}
        self._round = Round()
        self._lacking = trio.Event()
        self._client_id = 0
        self._block_ms = BLOCK_MS

    def __repr__(self) -> str:
        return f"<Watcher watched={len(self._streams)} asked={len(self._round.asked)}>"

    # --- For tasks that wait ---------------------------------------------------------------------------

    def watch(self, keys: Collection[bytes]) -> StreamWatch:
        """Return a watch of streams by their keys, which begins and ends with its block."""
        return StreamWatch([self.stream(key) for key in keys])

    def stream(self, key: bytes) -> WatchedStream:
        """Return the stream of that key, a new one if it is not watched yet."""
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = WatchedStream(key, self)
        return stream

    def left(self, stream: WatchedStream) -> None:
        """Note that a watch of the stream has ended."""
        if not stream.watches:
            stream.left_at = trio.current_time()
        self._drop_unneeded(stream)

    def await_growth(self, stream: WatchedStream) -> None:
        """Include the stream in the XREAD; interrupt the present one if it does not cover it."""
        stream.is_awaited = True
        if self._round.is_under_way and not self._round.covers(stream):
            self._round.is_lacking = True
            self._lacking.set()

    # --- For readers and appenders ---------------------------------------------------------------------

    def note(self, key: bytes, next_id: bytes) -> None:
        """Note the lowest ID that the stream's next entry can have, as a reader has found it.

        Wake the stream's watches if an earlier report differs.
        """
        stream = self._streams.get(key)
        if stream is None or stream.next_id == next_id:
            return
        was_known = stream.next_id != b""
        stream.next_id = next_id
        if was_known:
            stream.wake()

    def grew(self, key: bytes, next_id: bytes, *, is_visible: bool = True) -> None:
        """Note an append to the stream through this broker, which ends before this ID.

        Wake the stream's watches, unless consumers cannot read the records before `confirmed` is called.
        """
        stream = self._streams.get(key)
        if stream is not None:
            stream.next_id = next_id
            if is_visible:
                stream.wake()

    def confirmed(self, key: bytes) -> None:
        """Wake the watches of a stream of which replicas have confirmed records."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.wake()

    def forget(self, keys: Iterable[bytes]) -> None:
        """Wake the watches of streams that were deleted or replaced, and discard their next IDs."""
        for key in keys:
            stream = self._streams.get(key)
            if stream is not None:
                stream.next_id = b""
                stream.is_awaited = False
                stream.wake()
                self._drop_unneeded(stream)

    def watched(self) -> list[bytes]:
        """Return the keys of the streams that are watched, or still part of the XREAD."""
        return list(self._streams)

    # --- The XREAD -------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for growth while the watcher is needed, and reconnect after lost connections.

        Call `task_status.started()` when no later change can be missed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._interrupt_rounds)
            while self.is_needed():
                try:
                    async with self._connections.open() as (self._blocking, self._other):
                        await self._begin()
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
                        while self.is_needed():
                            await self.read_once()
                except RedisUnavailable as error:
                    logger.debug("cannot watch streams for now: %(error)s", {"error": error})
                except RedisError as error:
                    await self._connections.refused(error)
            nursery.cancel_scope.cancel()

    def is_needed(self) -> bool:
        """Return True if `run` has to go on."""
        return True

    async def _begin(self) -> None:
        """Prepare a new connection, and wake all watches.

        No later entry is missed. Earlier ones may have been, so `changed` is called with None.
        """
        self._block_ms = BLOCK_MS if await self._may_unblock() else BLOCK_WITHOUT_UNBLOCK_MS
        if self._changes is not None:
            (last_change,) = await self._blocking.pipeline([last_entry(self._changes)])
            self._last_change = id_of_last(last_change)
            self._changed(None)
        self.forget(self.watched())

    async def _unblock(self) -> bool:
        """Send CLIENT UNBLOCK; return True if it ended the XREAD.

        Return False if the XREAD did not block yet, or Redis had answered it already.
        """
        return await self._other.execute(b"CLIENT", b"UNBLOCK", self._client_id, repeatable=True) == 1

    async def _may_unblock(self) -> bool:
        """Return True if the Redis user may send CLIENT ID and CLIENT UNBLOCK; try both while nothing blocks."""
        try:
            self._client_id = cast(int, await self._blocking.execute(b"CLIENT", b"ID"))
            await self._unblock()
        except ResponseError as error:
            logger.warning(
                "Redis refuses CLIENT ID or UNBLOCK (%(error)s), so long polls are checked every %(_interval)d ms; "
                "ACL SETUSER … +client|id +client|unblock avoids that",
                {"error": error, "_interval": BLOCK_WITHOUT_UNBLOCK_MS},
            )
            return False
        return True

    async def read_once(self) -> None:
        """Send one XREAD over all awaited streams, and process its reply."""
        self.drop_deserted()
        await self._learn_unknown()
        this = self._round
        awaited = [stream for stream in self._streams.values() if stream.is_awaited and stream.next_id]
        this.asked = {stream.key: stream.next_id for stream in awaited}
        this.is_under_way = True
        after = {key: id_before(next_id) for key, next_id in this.asked.items()}
        if self._changes is not None:
            after = {self._changes: self._last_change, **after}
        if not after:
            this.is_under_way = False
            return
        command = new_entries(after, block_ms=self._block_ms)
        try:
            reply = await self._blocking.execute(*command, limit_s=self._block_ms / 1000 + ANSWER_LIMIT_S)
        finally:
            this.is_answered.set()
            self._round = Round()
        grown = as_pairs(reply)
        for key, entries in grown:
            for entry_id, fields in cast(Sequence[tuple[bytes, Sequence[bytes]]], entries):
                self._take(key, entry_id, fields)
        if grown:
            await trio.sleep(min(max(PAUSE_S, len(after) * PAUSE_PER_STREAM_S), LONGEST_PAUSE_S))

    def _take(self, key: bytes, entry_id: bytes, fields: Sequence[bytes]) -> None:
        """Process one entry of the XREAD's reply: wake its stream's watches, or call `changed`."""
        if key == self._changes:
            self._last_change = entry_id
            self._changed(dict(zip(fields[::2], fields[1::2], strict=True)))
            return
        stream = self._streams.get(key)
        if stream is None:
            return
        if is_lower(entry_id, stream.next_id):
            # An append through this broker: `grew` has woken its watches, and tasks that wait now have read it.
            if not any(watch.goes_on for watch in stream.watches):
                stream.set_aside()
        else:
            stream.next_id = b""  # more entries may follow this one; the next reader reports the end
            stream.is_awaited = False
            stream.wake()
        self._drop_unneeded(stream)

    async def _learn_unknown(self) -> None:
        """Read the last ID of every awaited stream whose end no reader has reported yet.

        Wake the watches of these streams once, since what their tasks have read is unknown.
        """
        unknown = [stream for stream in self._streams.values() if stream.is_awaited and not stream.next_id]
        replies = await self._blocking.pipeline([last_entry(stream.key) for stream in unknown])
        for stream, reply in zip(unknown, replies, strict=True):
            if isinstance(reply, RedisError):  # not a stream any more; its readers get the same error
                stream.is_awaited = False
            elif not stream.next_id:
                stream.next_id = id_after(id_of_last(reply))
            stream.wake()
            self._drop_unneeded(stream)

    async def _interrupt_rounds(self) -> None:
        """Interrupt each XREAD that does not cover all awaited streams."""
        while True:
            await self._lacking.wait()
            self._lacking = trio.Event()
            this = self._round
            while this.is_lacking and self._block_ms == BLOCK_MS and not this.is_answered.is_set():
                with trio.move_on_after(math.inf if await self._unblock() else UNBLOCK_AGAIN_S):
                    await this.is_answered.wait()

    def drop_deserted(self) -> None:
        """Remove streams without watches from the XREAD after a while.

        Otherwise growth of each such stream would end an XREAD over all the others.
        """
        limit = trio.current_time() - DESERTED_AFTER_S
        for stream in list(self._streams.values()):
            if not stream.watches and stream.left_at < limit:
                stream.is_awaited = False
                self._drop_unneeded(stream)

    def _drop_unneeded(self, stream: WatchedStream) -> None:
        if not stream.watches and not stream.is_awaited:
            self._streams.pop(stream.key, None)


def new_entries(after: Mapping[bytes, bytes], *, block_ms: int = -1) -> Command:
    """Return an XREAD for the first entry of each stream after an ID, which blocks up to `block_ms` if that is set."""
    block: tuple[Argument, ...] = (b"BLOCK", block_ms) if block_ms >= 0 else ()
    return (b"XREAD", *block, b"COUNT", 1, b"STREAMS", *after, *after.values())


def last_entry(key: bytes) -> Command:
    """Return the command for a stream's last entry."""
    return (b"XREVRANGE", key, b"+", b"-", b"COUNT", 1)


def id_of_last(reply: Reply) -> bytes:
    """Return the ID in the reply to `last_entry`, or 0-0 if the stream is empty."""
    if isinstance(reply, Exception):
        raise reply
    entries = cast(Sequence[tuple[bytes, Reply]], reply)
    return entries[0][0] if entries else b"0-0"


def is_lower(entry_id: bytes, other: bytes) -> bool:
    """Return True if an ID is lower than another; the unknown ID, "", is lower than all others."""
    return numbers(entry_id) < numbers(other)


def numbers(entry_id: bytes) -> tuple[int, int]:
    """Return milliseconds and sequence of an ID."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds or -1), int(sequence or 0)


def id_after(entry_id: bytes) -> bytes:
    """Return the ID with the next sequence; it is not valid after the last sequence of a millisecond."""
    milliseconds, sequence = numbers(entry_id)
    return b"%d-%d" % (milliseconds, sequence + 1)


# Of a thousand streams in an XREAD few have grown since the last one; the others repeat their IDs.
@lru_cache(maxsize=1 << 14)
def id_before(entry_id: bytes) -> bytes:
    """Return the highest ID that is lower; 0-0 for 0-0."""
    milliseconds, sequence = numbers(entry_id)
    if sequence:
        return b"%d-%d" % (milliseconds, sequence - 1)
    return b"%d-%d" % (milliseconds - 1, HIGHEST_SEQUENCE) if milliseconds else b"0-0"
