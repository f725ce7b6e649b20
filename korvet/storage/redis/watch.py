"""Wakes those who wait for streams to grow, whoever writes them: this broker, another one, or redis-cli.

One connection blocks in one XREAD over all streams that somebody waits for, and over the stream of changes to the
catalogue. Growth through this broker wakes its waiters at once, without that detour.

XREAD wants to know where each stream ends, so as to answer only what comes behind. Whoever reads a stream, or
appends to it, tells (`note`, `grew`) the lowest ID that its next entry can have; between two such messages nothing
is asked. Where they contradict each other somebody has read something older than somebody else, and all who watch
that stream are woken: reading once too often does no harm, and once too seldom costs a consumer its whole
max.wait.

A stream stays in the XREAD when its waiters have given up, until it grows without any, or another XREAD is needed and
nobody has come back to it for a while: polls that follow each other cost Redis nothing. A stream that is to be added
while the XREAD blocks has CLIENT UNBLOCK sent for it from the other connection, and all that came up by then is asked
for together.

After a lost connection everybody is woken, since nobody knows what was missed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import cast

import trio
from attrs import define, field

from korvet.storage.redis.client.connection import RedisConnection, RedisUnavailable
from korvet.storage.redis.client.errors import RedisError, ResponseError
from korvet.storage.redis.client.replies import Argument, Command, Reply, as_pairs

logger = logging.getLogger(__name__)

# Every so often the XREAD is answered even if nothing grows, so that a connection which has silently died (a
# firewall forgot it, say) is noticed.
BLOCK_MS = 20_000
ANSWER_LIMIT_S = 10.0
# For a user who may not CLIENT UNBLOCK: how long it takes at most until a new stream is watched, too.
BLOCK_WITHOUT_UNBLOCK_MS = 20
# XREAD fails as a whole when one of its keys is no stream, or not ours to read.
AFTER_REFUSAL_S = 1.0
# CLIENT UNBLOCK may overtake the XREAD, which then blocks all the same.
UNBLOCK_AGAIN_S = 0.001

HIGHEST_SEQUENCE = 2**64 - 1

# After growth, so long for who was woken to read and to wait again: then one XREAD covers them too. Else each wake
# costs two and an UNBLOCK, half a millisecond of Redis' time when a thousand streams are watched.
PAUSE_S = 0.001

# After so long nobody is expected to wait for a stream again.
DESERTED_AFTER_S = 1.0

Change = Mapping[bytes, bytes]


@define(eq=False)
class WatchedStream:
    """A stream that somebody watches, or did."""

    key: bytes
    next_id: bytes = b""  # the lowest ID its next entry can have, as far as anybody told; "" while nobody did
    watches: set[StreamWatch] = field(factory=set)
    is_awaited: bool = False  # to be part of the XREAD
    left_at: float = math.inf  # when the last of the watches went, on Trio's clock

    def wake(self) -> None:
        """Wake everybody who watches it."""
        for watch in self.watches:
            watch.wake(self.key)


@define(eq=False)
class StreamWatch:
    """As `Watch` (see `korvet.storage.interface`), on some streams by their keys."""

    watcher: Watcher
    streams: Sequence[WatchedStream]
    grown: set[bytes] = field(factory=set)
    parked: trio.Event | None = None

    async def wait(self) -> set[bytes]:
        """Return the streams that have grown since the watch was made, or since the last return; one at least."""
        if self.grown:
            await trio.lowlevel.checkpoint()
        else:
            self.watcher.await_growth(self.streams)
            self.parked = trio.Event()
            await self.parked.wait()
        grown, self.grown = self.grown, set()
        return grown

    def wake(self, key: bytes) -> None:
        """That stream has grown."""
        self.grown.add(key)
        if self.parked is not None:
            self.parked.set()
            self.parked = None


@define(eq=False)
class Round:
    """One XREAD, from before it is sent until its reply is there."""

    asked: Mapping[bytes, bytes] = field(factory=dict)  # stream -> the next ID it was known by
    is_under_way: bool = False
    is_lacking: bool = False  # somebody waits for a stream that it does not cover
    is_answered: trio.Event = field(factory=trio.Event)

    def covers(self, stream: WatchedStream) -> bool:
        """Whether growth behind the stream's next ID will be answered; the ID asked for may be lower."""
        asked = self.asked.get(stream.key)
        return asked is not None and stream.next_id != b"" and not is_lower(stream.next_id, asked)


class Watcher:
    """Owns the blocking connection. `run` it in a nursery for as long as watches are made.

    `blocking` is a connection that nobody else uses, `other` any other one. `changed` is called with each entry of
    the stream `changes` as it is added, and with None when some may have been missed.
    """

    def __init__(
        self,
        blocking: RedisConnection,
        other: RedisConnection,
        changes: bytes,
        changed: Callable[[Change | None], None],
    ) -> None:
        self._blocking = blocking
        self._other = other
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

    # --- For those who wait ----------------------------------------------------------------------------

    @contextmanager
    def watch(self, keys: Collection[bytes]) -> Iterator[StreamWatch]:
        """Watch streams by their keys, until the block ends."""
        streams = []
        for key in keys:
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = WatchedStream(key)
            streams.append(stream)
        watch = StreamWatch(self, streams)
        for stream in streams:
            stream.watches.add(watch)
        try:
            yield watch
        finally:
            for stream in streams:
                stream.watches.discard(watch)
                if not stream.watches:
                    stream.left_at = trio.current_time()
                self._drop_unneeded(stream)

    def await_growth(self, streams: Iterable[WatchedStream]) -> None:
        """Have the XREAD cover these streams."""
        for stream in streams:
            stream.is_awaited = True
            if self._round.is_under_way and not self._round.covers(stream):
                self._round.is_lacking = True
                self._lacking.set()

    # --- For those who know ----------------------------------------------------------------------------

    def note(self, key: bytes, next_id: bytes) -> None:
        """Somebody has read the stream: its next entry can have this ID at the lowest."""
        stream = self._streams.get(key)
        if stream is None or stream.next_id == next_id:
            return
        was_known = stream.next_id != b""
        stream.next_id = next_id
        if was_known:
            stream.wake()

    def grew(self, key: bytes, next_id: bytes) -> None:
        """Somebody has appended to the stream, through this broker, up to below this ID."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.next_id = next_id
            stream.wake()

    def forget(self, keys: Iterable[bytes]) -> None:
        """The streams are gone, or were replaced: wake who watches them, and take nothing for known."""
        for key in keys:
            stream = self._streams.get(key)
            if stream is not None:
                stream.next_id = b""
                stream.is_awaited = False
                stream.wake()
                self._drop_unneeded(stream)

    def watched(self) -> list[bytes]:
        """The keys of the streams that are watched, or still part of the XREAD."""
        return list(self._streams)

    # --- The XREAD -------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for growth, through lost connections, until cancelled.

        Has started once no change can be missed any more. Raises NoPermissionError at once, for a user who may
        not read streams.
        """
        for command in (new_entries({self._changes: b"0-0"}), last_entry(self._changes)):
            await self._blocking.execute(*command, repeatable=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._interrupt_rounds)
            while True:
                await self._blocking.wait_connected()
                try:
                    await self._begin()
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    while True:
                        await self._read()
                except RedisUnavailable as error:
                    logger.debug("cannot watch streams for now: %s", error)
                except RedisError as error:
                    logger.warning("Redis refuses to have streams watched: %s; trying again", error)
                    await trio.sleep(AFTER_REFUSAL_S)

    async def _begin(self) -> None:
        """On a new connection: from here on nothing is missed, but whatever came before may have been."""
        self._block_ms = BLOCK_MS if await self._may_unblock() else BLOCK_WITHOUT_UNBLOCK_MS
        (last_change,) = await self._blocking.pipeline([last_entry(self._changes)])
        self._last_change = id_of_last(last_change)
        self._changed(None)
        self.forget(self.watched())

    async def _unblock(self) -> bool:
        """Whether the XREAD was cut short; not if it had not begun to block yet, or was answered anyway."""
        return await self._other.execute(b"CLIENT", b"UNBLOCK", self._client_id, repeatable=True) == 1

    async def _may_unblock(self) -> bool:
        """Try it while the connection does not block."""
        try:
            self._client_id = cast(int, await self._blocking.execute(b"CLIENT", b"ID"))
            await self._unblock()
        except ResponseError as error:
            logger.warning(
                "Redis refuses CLIENT ID or UNBLOCK (%s), so long polls are looked after every %d ms; "
                "ACL SETUSER … +client|id +client|unblock avoids that",
                error,
                BLOCK_WITHOUT_UNBLOCK_MS,
            )
            return False
        return True

    async def _read(self) -> None:
        """One XREAD, over everything that somebody waits for."""
        self._drop_deserted()
        await self._learn_unknown()
        this = self._round
        awaited = [stream for stream in self._streams.values() if stream.is_awaited and stream.next_id]
        this.asked = {stream.key: stream.next_id for stream in awaited}
        this.is_under_way = True
        after = {key: id_before(next_id) for key, next_id in this.asked.items()}
        command = new_entries({self._changes: self._last_change, **after}, block_ms=self._block_ms)
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
            await trio.sleep(PAUSE_S)

    def _take(self, key: bytes, entry_id: bytes, fields: Sequence[bytes]) -> None:
        """An entry was added."""
        if key == self._changes:
            self._last_change = entry_id
            self._changed(dict(zip(fields[::2], fields[1::2], strict=True)))
            return
        stream = self._streams.get(key)
        if stream is None:
            return
        if is_lower(entry_id, stream.next_id):
            # They were told when it was appended; who waits now has seen it.
            stream.is_awaited = any(watch.parked is not None for watch in stream.watches)
        else:
            stream.next_id = b""  # there may be more behind this entry; whoever reads it will know
            stream.is_awaited = False
            stream.wake()
        self._drop_unneeded(stream)

    async def _learn_unknown(self) -> None:
        """Find the end of streams that somebody waits for, and nobody has told of having read.

        Who waits is woken once, since we cannot know what they have seen.
        """
        unknown = [stream for stream in self._streams.values() if stream.is_awaited and not stream.next_id]
        replies = await self._blocking.pipeline([last_entry(stream.key) for stream in unknown])
        for stream, reply in zip(unknown, replies, strict=True):
            if isinstance(reply, RedisError):  # no stream any more; its readers will meet the same error
                stream.is_awaited = False
            elif not stream.next_id:
                stream.next_id = id_after(id_of_last(reply))
            stream.wake()
            self._drop_unneeded(stream)

    async def _interrupt_rounds(self) -> None:
        """Cut short each XREAD that turns out not to cover all that is waited for."""
        while True:
            await self._lacking.wait()
            self._lacking = trio.Event()
            this = self._round
            while this.is_lacking and self._block_ms == BLOCK_MS and not this.is_answered.is_set():
                with trio.move_on_after(math.inf if await self._unblock() else UNBLOCK_AGAIN_S):
                    await this.is_answered.wait()

    def _drop_deserted(self) -> None:
        """Each of a thousand would otherwise cost an XREAD over all the others, when it grows."""
        limit = trio.current_time() - DESERTED_AFTER_S
        for stream in list(self._streams.values()):
            if not stream.watches and stream.left_at < limit:
                stream.is_awaited = False
                self._drop_unneeded(stream)

    def _drop_unneeded(self, stream: WatchedStream) -> None:
        if not stream.watches and not stream.is_awaited:
            self._streams.pop(stream.key, None)


def new_entries(after: Mapping[bytes, bytes], *, block_ms: int = -1) -> Command:
    """The command for the first entry of each stream behind an ID; waits for any, up to that long."""
    block: tuple[Argument, ...] = (b"BLOCK", block_ms) if block_ms >= 0 else ()
    return (b"XREAD", *block, b"COUNT", 1, b"STREAMS", *after, *after.values())


def last_entry(key: bytes) -> Command:
    """The command for a stream's last entry."""
    return (b"XREVRANGE", key, b"+", b"-", b"COUNT", 1)


def id_of_last(reply: Reply) -> bytes:
    """Its ID, from the command's reply; 0-0 where the stream is empty."""
    if isinstance(reply, Exception):
        raise reply
    entries = cast(Sequence[tuple[bytes, Reply]], reply)
    return entries[0][0] if entries else b"0-0"


def is_lower(entry_id: bytes, other: bytes) -> bool:
    """Whether an ID comes before another; the unknown one, "", before all."""
    return numbers(entry_id) < numbers(other)


def numbers(entry_id: bytes) -> tuple[int, int]:
    """The two numbers of an ID."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds or -1), int(sequence or 0)


def id_after(entry_id: bytes) -> bytes:
    """The lowest ID that is higher, but for the last within its millisecond."""
    milliseconds, sequence = numbers(entry_id)
    return b"%d-%d" % (milliseconds, sequence + 1)


# Of a thousand streams in an XREAD few have grown since the last one: the others' IDs are asked for again.
@lru_cache(maxsize=1 << 14)
def id_before(entry_id: bytes) -> bytes:
    """The highest ID that is lower; there is none below 0-0."""
    milliseconds, sequence = numbers(entry_id)
    if sequence:
        return b"%d-%d" % (milliseconds, sequence - 1)
    return b"%d-%d" % (milliseconds - 1, HIGHEST_SEQUENCE) if milliseconds else b"0-0"
