"""Let the private server refuse writes while the disk cannot keep them: it is nearly full, or the folder is gone.

Redis notices a full disk only when it writes its append-only file, and the answers of that moment leave all the same;
killed before there is room again, it has lost these records. A server whose folder was deleted appends to a file that
has no name any more. So the broker looks at the disk by itself, and sets `maxmemory` to 1: the server then refuses
writes (OOM) and still accepts reads and deletions, as a server that is full.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, field

from korvet.storage.embedded.binary import has_files
from korvet.storage.redis.client.link import Link, LinkEnded
from korvet.storage.redis.client.replies import as_map

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
ANSWER_LIMIT_S = 5.0
# Space that stays free: more than a server writes between two looks. On a small file system it is a part of it.
RESERVE_BYTES = 64 << 20
RESERVE_PART = 20
# The multiple of the reserve above which writes are accepted again: else each deletion could change the state.
ROOM_AGAIN = 1.25
REFUSE = b"1"
GONE = (
    "the folder or its append-only file was deleted, and what the server holds is lost when it ends; copy it now"
    " (korvet consume, or redis-cli --rdb over a connection that is open)"
)


class Served(Protocol):
    """The server that is guarded."""

    folder: Path
    pid: int  # changes when the server was started again

    async def connect(self) -> Link:
        """Return a new connection, which the caller closes."""


@define(eq=False)
class DiskGuard:
    """Task that looks at the disk."""

    server: Served
    danger: str | None = None
    _link: Link | None = None
    _pid: int = 0  # of the server that `_link` leads to
    _is_refusing: bool = False
    _maxmemory: bytes = field(default=b"0")  # to restore

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the disk ten times a second until cancelled. Report the first look."""
        async with self._closing():
            while True:
                with trio.move_on_after(ANSWER_LIMIT_S) as limit:
                    try:
                        self._judge()
                        await self._instruct()
                    except (OSError, trio.BrokenResourceError, LinkEnded):
                        await self._leave()  # the server has ended; the next look connects again
                if limit.cancelled_caught:
                    await self._leave()  # an answer may still come on that connection
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await trio.sleep(LOOK_EVERY_S)

    def _judge(self) -> None:
        """Find out whether the disk keeps what is written, and log each change."""
        folder = self.server.folder
        danger = GONE if not has_files(folder) else lack_of_room(folder, ROOM_AGAIN if self.danger else 1.0)
        if danger is not None and self.danger is None:
            logger.error("%(folder)s: %(error)s; writes are refused", {"folder": folder, "error": danger})
        elif danger is None and self.danger is not None:
            logger.warning("%(folder)s: there is room again; writes are accepted", {"folder": folder})
        self.danger = danger

    async def _instruct(self) -> None:
        """Let the server refuse or accept writes, as `danger` requires."""
        if self._link is None or self._pid != self.server.pid:
            await self._connect()
        if (self.danger is not None) == self._is_refusing or self._link is None:
            return
        await self._link.ask([(b"CONFIG", b"SET", b"maxmemory", REFUSE if self.danger else self._maxmemory)])
        self._is_refusing = self.danger is not None

    async def _connect(self) -> None:
        """Connect to the present server, and read whether it refuses writes since a broker that was killed."""
        await self._leave()
        pid = self.server.pid
        if not pid:
            return
        self._link = link = await self.server.connect()
        (reply,) = await link.ask([(b"CONFIG", b"GET", b"maxmemory")])
        found = reply if isinstance(reply, Exception) else as_map(reply)[b"maxmemory"]
        self._is_refusing = found == REFUSE
        self._maxmemory = found if isinstance(found, bytes) and found != REFUSE else b"0"
        self._pid = pid

    async def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.transport.aclose()

    @asynccontextmanager
    async def _closing(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()


def lack_of_room(folder: Path, factor: float = 1.0) -> str | None:
    """Return that less than the reserve, or a multiple of it, is left on the file system; None if there is more."""
    status = os.statvfs(folder)
    wanted = int(factor * min(RESERVE_BYTES, status.f_blocks * status.f_frsize // RESERVE_PART))
    if status.f_bavail * status.f_frsize >= wanted:
        return None
    return f"its file system has less than {wanted >> 20:,} MB left: make room on it"
