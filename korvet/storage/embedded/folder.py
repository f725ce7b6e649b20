"""The folder of a private server: its locks, its socket, its log, and who may read it."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from korvet.storage.interface import StorageUsageError

logger = logging.getLogger(__name__)

# Longest path in the kernel's socket address, without the terminating zero.
LONGEST_SOCKET_PATH = 107 if sys.platform == "linux" else 103
# Without this much space, not even the server's log can be written.
FREE_BYTES_TO_START = 1_000_000
# Lines of the server about an incomplete command that it cuts, and about a file that it refuses.
TRUNCATED = re.compile(r"AOF loaded anyway|Truncating the AOF")
DAMAGED = re.compile(
    r"check-aof|reading the append only file|Internal error in RDB|Terminating server after rdb",
    re.IGNORECASE,
)
OTHERS = 0o077  # the mode bits of group and others


def prepare_folder(folder: Path) -> Path:
    """Return the resolved folder; create it for its owner alone if it is missing.

    Remove the rights of other users from data that an earlier version of korvet has left readable.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder.resolve(strict=True)
    except OSError as error:
        raise StorageUsageError(f"embedded:{folder} cannot be used: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StorageUsageError(f"embedded:{folder} cannot be used: it may not be written")
    free = free_bytes(path)
    if free < FREE_BYTES_TO_START:
        raise StorageUsageError(
            f"embedded:{folder} cannot be used: its file system has {free:,} bytes left; make room on it, "
            "or move the folder to a larger one"
        )
    close_to_others(path)
    return path


def free_bytes(folder: Path) -> int:
    """Return the space that is left for this user on the folder's file system."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def close_to_others(folder: Path) -> None:
    """Remove the rights of group and others from the data; log a warning if the folder itself is open to them."""
    mode = folder.stat().st_mode & 0o777
    if mode & OTHERS:
        logger.warning(
            "%(folder)s has mode %(mode)s: other users may list it, but not read its data;"
            " chmod 700 keeps them out",
            {"folder": folder, "mode": f"{mode:03o}"},
        )
    for path in (folder / "appendonlydir", *(folder / "appendonlydir").glob("*"), *folder.glob("*.*")):
        with suppress(OSError):  # another user's file, or one that is gone
            status = path.stat()
            if not path.is_socket() and status.st_mode & OTHERS:
                path.chmod(status.st_mode & 0o700)


@contextmanager
def broker_lock(folder: Path) -> Iterator[None]:
    """Hold broker.lock, which keeps other brokers from using the folder."""
    lock = try_lock(folder / "broker.lock")
    if lock is None:
        holder = holder_of(folder / "broker.lock")
        raise StorageUsageError(f"{folder} is in use by another broker ({holder})")
    try:
        note_holder(lock, os.getpid())
        yield
    finally:
        os.close(lock)


def try_lock(path: Path) -> int | None:
    """Return a file descriptor that holds the lock until it, and all inherited copies, are closed; None if held."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def place_socket(folder: Path) -> Path:
    """Return the path for a new server's socket: in the folder, or, if that is too long, in a private folder."""
    clear_socket(folder)
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    path = Path(tempfile.mkdtemp(prefix="korvet-"), "redis.sock")
    (folder / "socket").write_text(f"{path}\n")
    return path


def socket_of(folder: Path) -> Path:
    """Return the path of the running server's socket."""
    try:
        return Path((folder / "socket").read_text().rstrip("\n"))
    except FileNotFoundError:
        return folder / "redis.sock"


def clear_socket(folder: Path) -> None:
    """Remove the socket of a server that has ended."""
    path = socket_of(folder)
    with suppress(OSError):
        path.unlink()
    if path.parent != folder:
        with suppress(OSError):
            path.parent.rmdir()
        (folder / "socket").unlink(missing_ok=True)


@contextmanager
def private_log(folder: Path) -> Iterator[int]:
    """Open the server's log, empty, which only its owner may read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(folder / "server.log", flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def truncation(folder: Path) -> str | None:
    """Return the line that the server has logged about an append-only file that it has truncated, or None."""
    return next((line for line in log_lines(folder) if TRUNCATED.search(line)), None)


def damage(folder: Path) -> str:
    """Return a clause for a damaged append-only file; none if the server has not logged that."""
    if any(DAMAGED.search(line) for line in log_lines(folder)):
        return f"its append-only file is damaged; korvet repair {shlex.quote(str(folder))} shows where; "
    return ""


def log_lines(folder: Path) -> list[str]:
    """Return the lines of the server's log."""
    try:
        lines = (folder / "server.log").read_text(errors="replace").split("\n")
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()]


def log_end(folder: Path) -> str:
    """Return the last three lines of the server's log, as one line."""
    if lines := log_lines(folder):
        return f"{folder / 'server.log'} ends: " + "; ".join(lines[-3:])
    return "it printed nothing"


def note_holder(lock: int, pid: int) -> None:
    """Write into the file of a lock which process holds it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % pid, 0)


def holder_of(lock: Path) -> str:
    """Return the process that holds the lock, for a message."""
    with suppress(OSError):
        if pid := lock.read_text().strip():
            return f"process {pid}"
    return "process unknown"
