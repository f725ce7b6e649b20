"""The broker's access to archived records: RPC to a process that reads the tables.

The process (`korvet.lake.remote_worker`) is started by the first request. If it ends, requests in flight raise
KafkaStorageError, which clients retry, and the next request starts it again. A broker without archived topics never
starts it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from korvet.concurrency.background import background_nursery
from korvet.concurrency.histograms import new_histogram, observe
from korvet.concurrency.rpc import Link, LinkBroken, Question
from korvet.lake.remote_values import ArchivedLog, Failure
from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import OffsetAndTimestamp, Topic

logger = logging.getLogger(__name__)

ANSWER_LIMIT_S = 30.0
# Limit of requests in flight; further requests wait until one is answered.
QUESTIONS_AT_ONCE = 16
GONE = "the process that reads archived records has ended; the next request starts it again"


@define(eq=False)
class RemoteStore:
    """The tables of the lake at `url`. Created by `open_remote_store`."""

    url: str
    _nursery: trio.Nursery
    _link: Link = field(init=False)
    _process: trio.Process | None = None  # the last one
    # For metrics: requests that failed, bytes that were read, and the times of requests.
    errors: int = 0
    read_bytes: int = 0
    times: list[float] = field(factory=new_histogram, repr=False)
    _room: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(QUESTIONS_AT_ONCE))

    def __attrs_post_init__(self) -> None:
        self._link = Link(self.url, self._reading_process, self._nursery, silence_limit_s=ANSWER_LIMIT_S)

    def __repr__(self) -> str:
        return f"<RemoteStore {self.url} {self._link!r}>"

    # --- Verbs: all raise KafkaStorageError when the table cannot be read -----------------------------------

    async def refresh(self, topic: Topic) -> dict[int, ArchivedLog]:
        """Return the archived log of each partition; an empty dict if the topic has no table."""
        logs: dict[int, ArchivedLog] = await self._ask("refresh", topic)
        return logs

    async def read(
        self, topic: Topic, partition: int, offset: int, end: int, max_bytes: int
    ) -> tuple[bytes, int]:
        """Return record batches of [offset, end) and the next offset to read.

        The size is about `max_bytes`, but at least one batch is returned if there is any.
        """
        found: tuple[bytes, int] = await self._ask("read", topic, partition, offset, end, max_bytes)
        self.read_bytes += len(found[0])
        return found

    async def first(self, topic: Topic, partition: int, offset: int, end: int) -> OffsetAndTimestamp | None:
        """Return the first record of [offset, end)."""
        return await self._find("first", topic, partition, offset, end)

    async def seek_ts(
        self, topic: Topic, partition: int, timestamp: int, start: int, end: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record of [start, end), in offset order, whose timestamp (ms) is at least `timestamp`."""
        return await self._find("seek_ts", topic, partition, timestamp, start, end)

    async def seek_max_ts(
        self, topic: Topic, partition: int, start: int, end: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record of [start, end) that has the largest timestamp."""
        return await self._find("seek_max_ts", topic, partition, start, end)

    async def _find(self, verb: str, topic: Topic, *arguments: int) -> OffsetAndTimestamp | None:
        found = await self._ask(verb, topic, *arguments)
        return None if found is None else OffsetAndTimestamp(*found)

    # --- Requests and responses -----------------------------------------------------------------------------

    async def _ask(self, verb: str, topic: Topic, *arguments: int) -> Any:
        began_s = trio.current_time()
        try:
            return await self._answer(verb, topic, *arguments)
        except KafkaStorageError:
            self.errors += 1
            raise
        finally:
            observe(self.times, trio.current_time() - began_s)

    async def _answer(self, verb: str, topic: Topic, *arguments: int) -> Any:
        question = Question(verb, (topic.name, topic.topic_id, *arguments))
        async with self._room:
            try:
                with trio.fail_after(ANSWER_LIMIT_S):
                    answer = await self._link.ask(question)
            except trio.TooSlowError:
                raise KafkaStorageError(f"{self.url}: no answer within {ANSWER_LIMIT_S:.0f} s") from None
            except LinkBroken:
                raise KafkaStorageError(GONE) from None
        if isinstance(answer, Failure):
            raise KafkaStorageError(answer.message)
        return answer

    @asynccontextmanager
    async def _reading_process(self) -> AsyncIterator[trio.SocketStream]:
        """Start the process that reads the tables, and kill it at the end of the block."""
        ours, theirs = trio.socket.socketpair()
        async with trio.SocketStream(ours) as stream:
            with theirs:
                command = [sys.executable, "-m", "korvet.lake.remote_worker", self.url]
                self._process = process = await trio.lowlevel.open_process(command, stdin=theirs.fileno())
            try:
                yield stream
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()
        logger.warning(
            "the process that reads the tables of %(lake)s has ended with status %(status)s",
            {"lake": self.url, "status": process.returncode},
        )


@asynccontextmanager
async def open_remote_store(url: str) -> AsyncIterator[RemoteStore]:
    """Yield the tables at `url`. Kill the process that reads them, if it was started, at the end of the block."""
    async with background_nursery() as nursery:
        yield RemoteStore(url, nursery)
