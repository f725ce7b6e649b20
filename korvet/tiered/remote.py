"""The broker's access to archived records: RPC to a process that reads the tables.

The process (`korvet.lake.remote_worker`) is started by the first request. If it ends, requests in flight raise
KafkaStorageError, which clients retry, and the next request starts it again. A broker without archived topics never
starts it.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import trio
from attrs import define, field

from korvet.concurrency.background import background_nursery
from korvet.lake.remote_frames import HEAD, ArchivedLog, frame
from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import OffsetAndTimestamp, Topic

logger = logging.getLogger(__name__)

ANSWER_LIMIT_S = 30.0
# Limit of requests in flight; further requests wait until one is answered.
QUESTIONS_AT_ONCE = 16
RECEIVE_BYTES = 1 << 20
GONE = "the process that reads archived records has ended; the next request starts it again"


@define(eq=False)
class Question:
    """A request in flight, and then its response."""

    answered: trio.Event = field(factory=trio.Event)
    result: Any = None
    data: bytes = b""
    error: str = ""


@define(eq=False)
class ColdStore:
    """The tables of the lake at `url`. Created by `open_cold_store`."""

    url: str
    _nursery: trio.Nursery
    _process: trio.Process | None = None
    _waiting: dict[int, Question] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=count)
    _writing: trio.Lock = field(factory=trio.Lock)
    _room: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(QUESTIONS_AT_ONCE))

    def __repr__(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"<ColdStore {self.url} process={pid} questions={len(self._waiting)}>"

    # --- Verbs: all raise KafkaStorageError when the table cannot be read -----------------------------------

    async def refresh(self, topic: Topic) -> dict[int, ArchivedLog]:
        """Return the archived log of each partition; an empty dict if the topic has no table."""
        rows, _ = await self._ask("refresh", topic.name, str(topic.topic_id))
        return {partition: ArchivedLog(start, end, chained) for partition, start, end, chained in rows}

    async def read(
        self, topic: Topic, partition: int, offset: int, end: int, max_bytes: int
    ) -> tuple[bytes, int]:
        """Return record batches of [offset, end) and the next offset to read.

        The size is about `max_bytes`, but at least one batch is returned if there is any.
        """
        next_offset, data = await self._ask("read", *_address(topic, partition), offset, end, max_bytes)
        return data, next_offset

    async def first(self, topic: Topic, partition: int, offset: int, end: int) -> OffsetAndTimestamp | None:
        """Return the first record of [offset, end)."""
        return await self._find("first", *_address(topic, partition), offset, end)

    async def seek_ts(
        self, topic: Topic, partition: int, timestamp: int, start: int, end: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record of [start, end), in offset order, whose timestamp (ms) is at least `timestamp`."""
        return await self._find("seek_ts", *_address(topic, partition), timestamp, start, end)

    async def seek_max_ts(
        self, topic: Topic, partition: int, start: int, end: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record of [start, end) that has the largest timestamp."""
        return await self._find("seek_max_ts", *_address(topic, partition), start, end)

    async def _find(self, verb: str, *arguments: str | int) -> OffsetAndTimestamp | None:
        found, _ = await self._ask(verb, *arguments)
        return None if found is None else OffsetAndTimestamp(*found)

    # --- Requests and responses -----------------------------------------------------------------------------

    async def _ask(self, verb: str, *arguments: str | int) -> tuple[Any, bytes]:
        async with self._room:
            number, question = next(self._numbers), Question()
            self._waiting[number] = question
            try:
                with trio.fail_after(ANSWER_LIMIT_S):
                    await self._send(frame({"id": number, "verb": verb, "arguments": arguments}))
                    await question.answered.wait()
            except trio.TooSlowError:
                raise KafkaStorageError(f"{self.url}: no answer within {ANSWER_LIMIT_S:.0f} s") from None
            finally:
                del self._waiting[number]
        if question.error:
            raise KafkaStorageError(question.error)
        return question.result, question.data

    async def _send(self, message: bytes) -> None:
        """Send a whole frame, even if the caller is cancelled."""
        # An incomplete frame would make all later frames unreadable.
        async with self._writing:
            with trio.move_on_after(ANSWER_LIMIT_S, shield=True) as limit:
                if self._process is None:
                    self._process = await self._start()
                assert self._process.stdin is not None  # noqa: S101  `_start` requests a pipe
                try:
                    await self._process.stdin.send_all(message)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise KafkaStorageError(GONE) from None
            if limit.cancelled_caught and self._process is not None:
                self._process.kill()
                raise KafkaStorageError(GONE)

    async def _start(self) -> trio.Process:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "korvet.lake.remote_worker", self.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._nursery.start_soon(self._serve, process)
        return process

    async def _serve(self, process: trio.Process) -> None:
        """Receive a process's responses until it ends. If cancelled, kill it."""
        try:
            await self._receive(process)
        finally:
            self._process = None
            for question in self._waiting.values():
                question.error = question.error or GONE
                question.answered.set()
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
        logger.warning(
            "the process that reads the tables of %s has ended with status %s", self.url, process.returncode
        )

    async def _receive(self, process: trio.Process) -> None:
        assert process.stdout is not None  # noqa: S101  `_start` requests a pipe
        received = bytearray()
        while chunk := await process.stdout.receive_some(RECEIVE_BYTES):
            received += chunk
            while (size := _frame_bytes(received)) <= len(received):
                self._take(bytes(received[:size]))
                del received[:size]

    def _take(self, message: bytes) -> None:
        body_bytes, _ = HEAD.unpack_from(message)
        answer = json.loads(message[HEAD.size : HEAD.size + body_bytes])
        question = self._waiting.get(answer["id"])
        if question is None:  # its caller was cancelled
            return
        question.error = answer.get("message", "")
        question.result = answer.get("result")
        question.data = message[HEAD.size + body_bytes :]
        question.answered.set()


def _frame_bytes(received: bytearray) -> int:
    """Return the size of the first frame, or more than was received while its head is incomplete."""
    if len(received) < HEAD.size:
        return len(received) + 1
    body_bytes, data_bytes = HEAD.unpack_from(received)
    return HEAD.size + int(body_bytes) + int(data_bytes)


def _address(topic: Topic, partition: int) -> tuple[str, str, int]:
    return topic.name, str(topic.topic_id), partition


@asynccontextmanager
async def open_cold_store(url: str) -> AsyncIterator[ColdStore]:
    """Yield the tables at `url`. Kill the process that reads them, if it was started, at the end of the block."""
    async with background_nursery() as nursery:
        yield ColdStore(url, nursery)
