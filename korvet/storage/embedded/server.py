"""A private Valkey or Redis in a folder: `embedded:PATH`.

The server listens on a Unix socket that only its owner can open, and on no port. It stores all data in an append-only
file, and evicts nothing. The broker stops it at its own end, and restarts it if it ends unexpectedly. In PATH:

    broker.lock      held by the broker that serves the folder; a second broker is refused
    server.lock      held by the server, which inherits it, and by the processes that it forks
    server.json      the server that wrote the data; a server that cannot read them is refused
    server.log       the server's output since its last start
    redis.sock       for the broker, and for redis-cli -s
    socket           if PATH is too long for a socket: the path of one in a private temporary folder
    appendonlydir    the data, and checksums of it

A broker that was killed leaves its server running. The next broker finds the first lock free and the second one held,
and adopts the running server: nothing has to be loaded, nothing can be lost.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import trio

from korvet.concurrency.background import background_nursery
from korvet.storage.embedded.allocator import environment
from korvet.storage.embedded.binary import check_readable, find_binary, has_files, note_writer, version_of
from korvet.storage.embedded.checksums import Checksums, verify
from korvet.storage.embedded.disk import DiskGuard
from korvet.storage.embedded.folder import (
    OTHERS,
    broker_lock,
    clear_socket,
    damage,
    holder_of,
    log_end,
    note_holder,
    place_socket,
    prepare_folder,
    private_log,
    socket_of,
    truncation,
    try_lock,
)
from korvet.storage.embedded.syncing import keep_on_disk
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.link import Link, LinkEnded
from korvet.storage.redis.client.replies import Command, Reply
from korvet.storage.redis.client.transport import open_transport

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.005
# A server that loads a large append-only file may take minutes, and answers LOADING meanwhile; one that does not answer
# for this long is broken.
SILENCE_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
LOG_LOADING_AFTER_S = 2.0
RESTART_AFTER_S = 0.25
RESTART_AFTER_AT_MOST_S = 30.0
ANSWER_LIMIT_S = 1.0
# Interval of checks for an adopted server: it is not a child process, so its end causes no notification.
LOOK_AFTER_ADOPTED_S = 0.5


@asynccontextmanager
async def embedded_server(
    folder: str | Path,
    *,
    appendfsync: str = "everysec",
    fsync: bool = False,
    binary: str | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> AsyncIterator[EmbeddedServer]:
    """Run the server of that folder until the block ends; enter the block when the server is ready.

    `appendfsync` is that of `embedded.appendfsync`; `fsync` means that the broker will send WAITAOF. `meanwhile` is
    called while the server starts. `binary` is the configured program, if any. Raise StorageUsageError if another
    broker serves the folder, if it cannot be used, or if no server can read it. The server is stopped also if the block
    is cancelled.
    """
    path = prepare_folder(Path(folder))
    broker_syncs = appendfsync == "everysec" and not fsync
    with broker_lock(path):
        server = EmbeddedServer(path, "no" if broker_syncs else appendfsync, binary, meanwhile)
        try:
            await server.obtain()
            async with background_nursery() as nursery:
                nursery.start_soon(server.keep_running)
                await nursery.start(DiskGuard(server).run)
                nursery.start_soon(partial(keep_on_disk, server.checksums, syncs=broker_syncs))
                yield server
        finally:
            await server.stop()
            with suppress(OSError):  # without its last checksums the data is as good
                server.checksums.extend(finish=True)


class EmbeddedServer:
    """The server of a folder, which was started or found running."""

    def __init__(
        self,
        folder: Path,
        appendfsync: str,
        configured_binary: str | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.pid = 0
        self.checksums = Checksums(folder)
        self._appendfsync = appendfsync
        self._configured_binary = configured_binary
        self._meanwhile = meanwhile
        self._process: trio.Process | None = None  # None if it was adopted

    def __repr__(self) -> str:
        how = "started" if self._process is not None else "adopted"
        return f"<EmbeddedServer {self.folder} pid={self.pid} {how}>"

    @property
    def address(self) -> RedisAddress:
        """The server's address."""
        return RedisAddress(path=str(self.socket))

    @property
    def url(self) -> str:
        """The server's address as a storage URL."""
        return f"unix://{quote(str(self.socket))}"

    async def obtain(self) -> None:
        """Adopt a running server, or start one."""
        patience_ends = trio.current_time() + SILENCE_LIMIT_S
        while self._is_held():
            if await self._adopt():
                return
            if trio.current_time() > patience_ends:
                raise StorageUsageError(
                    f"{self.folder}: a server ({holder_of(self.folder / 'server.lock')}) holds server.lock and does "
                    f"not answer at {self.socket}; if it is busy, wait and start again, otherwise end it first"
                )
            await trio.sleep(LOOK_AGAIN_S)  # it may be starting or ending
        self.socket = place_socket(self.folder)
        await self._start()

    async def keep_running(self) -> None:
        """Restart the server whenever it ends unexpectedly, until cancelled."""
        delay_s = RESTART_AFTER_S
        while True:
            began = trio.current_time()
            await self._wait_for_end(LOOK_AFTER_ADOPTED_S)
            fields = {"folder": self.folder, "error": log_end(self.folder)}
            logger.error("the server of %(folder)s has ended (%(error)s); starting it again", fields)
            if trio.current_time() > began + RESTART_AFTER_AT_MOST_S:
                delay_s = RESTART_AFTER_S
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_AFTER_AT_MOST_S)
            try:
                await self._start()
            except (StorageUsageError, OSError) as error:
                fields = {"folder": self.folder, "error": error}
                logger.error("%(error)s", fields)  # noqa: TRY400  the message is complete

    async def stop(self) -> None:
        """Stop the server after it has written its data. Not cancellable; after a time limit a child is killed."""
        with trio.CancelScope(shield=True):
            if self.pid:
                with trio.move_on_after(STOP_LIMIT_S) as limit:
                    if self._process is not None:
                        self._process.terminate()
                    else:
                        await self._ask((b"SHUTDOWN",))
                    await self._wait_for_end(LOOK_AGAIN_S)
                if limit.cancelled_caught:
                    logger.error("the server of %(folder)s (process %(pid)d) does not stop", self._fields)
                    if self._process is not None:
                        self._process.kill()
                        await self._process.wait()
            if not self._is_held():  # a server that was not adopted still needs its socket
                clear_socket(self.folder)

    @property
    def _fields(self) -> dict[str, object]:
        """The fields of a log line."""
        return {"folder": self.folder, "pid": self.pid}

    # --- Starting --------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Start a process, and wait until it serves."""
        binary = find_binary(self._configured_binary)
        version = version_of(binary)
        check_readable(self.folder, version)
        missing = await trio.to_thread.run_sync(verify, self.folder)
        server_json = self.folder / "server.json"
        before = server_json.read_bytes() if server_json.exists() else None
        has_data = has_files(self.folder)
        note_writer(self.folder, version, has_data=has_data)
        await self._start_process(self._command(binary))
        self._meanwhile()
        try:
            await self._wait_until_it_serves()
        except StorageUsageError:
            if before is not None:
                server_json.write_bytes(before)
            raise
        if not has_data:
            note_writer(self.folder, version, has_data=True)
        self._report_loading(missing)
        fields = {**self._fields, "version": version}
        logger.debug("started %(version)s (process %(pid)d) in %(folder)s", fields)

    def _report_loading(self, missing: int) -> None:
        """Log that the end of the append-only file was missing, or cut by the server; `missing` bytes had checksums."""
        lost = truncation(self.folder)
        if lost is not None or missing:
            self.checksums.forget()
        if lost is not None:
            logger.warning(
                "%(folder)s: the append-only file ended in an incomplete command, as after a power loss; the server"
                " has cut it (%(error)s)",
                {**self._fields, "error": lost},
            )
        if missing:
            logger.error(
                "%(folder)s: the last %(bytes)d bytes of the append-only file are gone, as after a power loss;"
                " the records in them are lost",
                {**self._fields, "bytes": missing},
            )

    async def _start_process(self, command: Sequence[str]) -> None:
        lock = try_lock(self.folder / "server.lock")
        if lock is None:
            raise StorageUsageError(f"{self.folder}: something else has just taken server.lock")
        try:
            with private_log(self.folder) as log:
                self._process = await trio.lowlevel.open_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=environment(),
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C in the terminal must not end it before the broker
                    umask=OTHERS,
                )
            note_holder(lock, self._process.pid)
        finally:
            os.close(lock)
        self.pid = self._process.pid

    def _command(self, binary: Path) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "save": "",
            # The file consists mostly of batches, which clients have compressed, or left uncompressed on purpose.
            "rdbcompression": "no",
            # Below this size, loading the file costs less than rewriting it each time it has doubled.
            "auto-aof-rewrite-min-size": "256mb",
            "maxmemory-policy": "noeviction",
        }
        return [str(binary), *(argument for name in settings for argument in (f"--{name}", settings[name]))]

    async def _wait_until_it_serves(self) -> None:
        began = answered = trio.current_time()
        has_logged = False
        while True:
            if self._process is not None and self._process.poll() is not None:
                self.pid = 0
                raise StorageUsageError(
                    f"no server starts in {self.folder}: {damage(self.folder)}{log_end(self.folder)}"
                )
            pong = await self._ask((b"PING",))
            if pong == b"PONG":
                return
            now = trio.current_time()
            answered = answered if pong is None else now
            if now > answered + SILENCE_LIMIT_S:
                raise StorageUsageError(f"no server answers in {self.folder}: {log_end(self.folder)}")
            if pong is not None and not has_logged and now > began + LOG_LOADING_AFTER_S:
                has_logged = True
                logger.info("the server of %(folder)s is loading its data", self._fields)
            await trio.sleep(LOOK_AGAIN_S)

    async def _adopt(self) -> bool:
        """Adopt a running server; return False if it does not answer."""
        self.socket = socket_of(self.folder)
        info = await self._ask((b"INFO", b"server"))
        match = re.search(rb"^process_id:(\d+)", info, re.MULTILINE) if isinstance(info, bytes) else None
        if match is None:
            return False
        self.pid = int(match[1])
        await self._wait_until_it_serves()
        await self._ask((b"CONFIG", b"SET", b"appendfsync", self._appendfsync))
        logger.info("went on with the server (process %(pid)d) that was running in %(folder)s", self._fields)
        return True

    async def connect(self) -> Link:
        """Return a new connection to the server. The caller limits the time, and closes the connection."""
        return Link(await open_transport(self.address), ANSWER_LIMIT_S)

    async def _ask(self, command: Command) -> Reply:
        """Return the server's reply, an error as exception, or None if it does not answer."""
        with trio.move_on_after(ANSWER_LIMIT_S), suppress(OSError, trio.BrokenResourceError, LinkEnded):
            transport = await open_transport(self.address)
            try:
                (reply,) = await Link(transport, ANSWER_LIMIT_S).ask([command])
                return reply
            finally:
                await transport.aclose()
        return None

    async def _wait_for_end(self, every_s: float) -> None:
        """Wait until the server, and all processes that it forked, have ended."""
        if self._process is not None:
            await self._process.wait()
        while self._is_held():  # noqa: ASYNC110  a released lock causes no event
            await trio.sleep(every_s)

    def _is_held(self) -> bool:
        """Return True if server.lock is held. While this broker holds broker.lock, no other starts a server."""
        try:
            lock = try_lock(self.folder / "server.lock")
        except FileNotFoundError:  # the folder was deleted; a child has been waited for
            return self._process is None and is_running(self.pid)
        if lock is None:
            return True
        os.close(lock)
        return False


def is_running(pid: int) -> bool:
    """Return True if there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def address_of_server(folder: Path) -> RedisAddress:
    """Return the address of the running server."""
    return RedisAddress(path=str(socket_of(folder.resolve())))
