"""Sync the append-only file of the private server to disk once a second.

The server's own `appendfsync everysec` is unsuitable: while a sync is under way, the server postpones writing the file
for up to two seconds, and executes and answers commands all the same. If the server is killed then, acknowledged
records are lost. Under `appendfsync no` it writes the file before it answers, without exception, so that a killed
server loses nothing. The broker therefore starts the server with `no`, and this task limits what a power loss costs.

WAITAOF (`acks.all.fsync`) counts the syncs of the server only, so there the server syncs by itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import trio

from korvet.storage.embedded.checksums import Checksums

logger = logging.getLogger(__name__)

SYNC_EVERY_S = 1.0
DURABILITY = (
    "records of about the last second can be lost if the machine loses power, none if only the broker or its server"
    " ends (embedded.appendfsync everysec)"
)

Sizes = dict[int, int]  # bytes of each file, by inode


async def keep_on_disk(checksums: Checksums, *, syncs: bool) -> None:
    """Note checksums of the append-only files of a server, and sync them if `syncs`, until cancelled.

    Log when the disk refuses, and when it does not any more. A sync that takes longer than a second is followed by the
    next one.
    """
    folder = checksums.folder
    limiter = trio.CapacityLimiter(1)
    synced: Sizes = {}
    is_failing = False
    while True:
        next_s = trio.current_time() + SYNC_EVERY_S
        try:
            if any(synced.get(inode) != size for inode, size in sizes(folder).items()):
                synced = await trio.to_thread.run_sync(sync, checksums, syncs, limiter=limiter)
        except OSError as error:
            if not is_failing:
                logger.error(  # noqa: TRY400  the message is complete
                    "%(folder)s: the append-only file cannot be synced to disk (%(error)s);"
                    " records acknowledged from now on may be lost if the machine loses power",
                    {"folder": folder, "error": error.strerror},
                )
            is_failing = True
        else:
            if is_failing:
                logger.warning("%(folder)s: the append-only file is synced again", {"folder": folder})
            is_failing = False
        await trio.sleep_until(next_s)


def sync(checksums: Checksums, syncs: bool) -> Sizes:  # noqa: FBT001  called by position, in a thread
    """Sync the files to disk if `syncs`, and note their checksums. Return their sizes before."""
    before: Sizes = {}
    for path in append_only_files(checksums.folder):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a rewrite has replaced the file, which the server has synced
        try:
            status = os.fstat(descriptor)
            if syncs:
                os.fdatasync(descriptor)
            before[status.st_ino] = status.st_size
        finally:
            os.close(descriptor)
    checksums.extend()
    return before


def sizes(folder: Path) -> Sizes:
    """Return the present sizes of the files. They only grow, so that an equal size means that nothing was written."""
    found: Sizes = {}
    for path in append_only_files(folder):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[status.st_ino] = status.st_size
    return found


def append_only_files(folder: Path) -> Iterator[Path]:
    """Yield the files to which a server appends; one of Redis below 7.0 has a single file.

    During a rewrite there are two: the earlier one, which the server syncs when it begins the later one, and the later.
    """
    yield from (folder / "appendonlydir").glob("*.incr.aof")
    yield folder / "appendonly.aof"
