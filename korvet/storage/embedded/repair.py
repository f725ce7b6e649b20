"""Find the damage in the data files of a private server that does not run, and cut it off.

Only the end of the last append-only file can be cut: a server writes it command by command, so that what is before the
damage is a state that it has had. A damaged snapshot, or a damaged file before the last one, needs a backup.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from korvet.storage.embedded.binary import MANIFEST, SINGLE_FILE, find_binary, version_of
from korvet.storage.embedded.checksums import changed_range, forget
from korvet.storage.embedded.folder import broker_lock, try_lock
from korvet.storage.interface import StorageUsageError

SHOWN_BYTES = 60
CHUNK_BYTES = 1 << 20
LONGEST_LINE = 32
SNAPSHOT_ERROR = re.compile(
    r"(?im)^\[(?:offset \d+|additional info)\] *(.*(?:error|wrong|invalid|unexpected).*)$"
)


@frozen
class Damage:
    """The damage in a file. The first `intact` of its `size` bytes are whole commands and transactions."""

    path: Path
    size: int
    intact: int
    reason: str

    @property
    def lost(self) -> int:
        """Bytes that a cut removes."""
        return self.size - self.intact

    def content(self) -> str:
        """Return a description of the bytes from the damage on."""
        with self.path.open("rb") as file:
            file.seek(self.intact)
            first = file.read(SHOWN_BYTES)
            is_zero = not any(first) and all(not any(chunk) for chunk in chunks(file))
        return "zero bytes, as a power loss leaves them" if is_zero else repr(first)[1:]


@frozen
class Found:
    """The data files of a folder, in their order, and the first damage in them."""

    files: list[Path]
    damage: Damage | None = None
    can_cut: bool = False


def examine(folder: Path, configured_binary: str | None = None) -> Found:
    """Check the data files of a folder. Raise StorageUsageError if a server uses it, or if it has no data."""
    if not folder.is_dir():
        raise StorageUsageError(f"{folder} is not a folder of embedded storage: it does not exist")
    with broker_lock(folder):
        lock = try_lock(folder / "server.lock")
        if lock is None:
            raise StorageUsageError(f"{folder} is in use by a server; end it first")
        os.close(lock)
        files = data_files(folder)
        for path in files:
            if damage := damage_in(path, configured_binary):
                return Found(files, damage, can_cut=path == files[-1] and not is_snapshot(path))
    return Found(files)


def cut(folder: Path, damage: Damage) -> Path:
    """Remove the bytes from the damage on, and return the copy of the whole file that was made before."""
    with broker_lock(folder):
        kept = folder / f"before-repair-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        kept.mkdir(mode=0o700)
        copy = kept / damage.path.name
        shutil.copy2(damage.path, copy)
        forget(folder)
        with damage.path.open("r+b") as file:
            file.truncate(damage.intact)
            os.fsync(file.fileno())
    return copy


def data_files(folder: Path) -> list[Path]:
    """Return the files that a server loads, in their order. Raise StorageUsageError if one is missing."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        if (folder / SINGLE_FILE).exists():
            return [folder / SINGLE_FILE]
        raise StorageUsageError(f"{manifest} is missing; korvet repair cannot replace it, only a backup can")
    found = []
    for line in manifest.read_text(errors="replace").splitlines():
        words = line.split()
        if (
            not line.startswith("#")
            and words[:1] == ["file"]
            and words[4:5] == ["type"]
            and words[5:] != ["h"]
        ):
            found.append(manifest.parent / words[1])
    missing = [str(path) for path in found if not path.exists()]
    if missing or not found:
        raise StorageUsageError(
            f"{', '.join(missing)} is missing; only a backup can replace it"
            if missing
            else f"{manifest} names no file; only a backup can replace it"
        )
    return found


def is_snapshot(path: Path) -> bool:
    """Return True for a file, or the beginning of one, in the format of snapshots."""
    with path.open("rb") as file:
        return file.read(5) in (b"REDIS", b"VALKE")


def damage_in(path: Path, configured_binary: str | None) -> Damage | None:
    """Return the damage in a file, or None."""
    size = path.stat().st_size
    if path.suffix == ".rdb":
        return damage_in_snapshot(path, size, configured_binary)
    if is_snapshot(path):
        raise StorageUsageError(
            f"{path} begins with a snapshot, as Redis below 7.0 writes it; use its redis-check-aof --fix"
        )
    changed = changed_range(path)
    with path.open("rb") as file:
        intact, reason = scan(file, size if changed is None else changed.start)
    if changed is not None:
        reason = f"bytes from {changed.start:,} to {changed.end:,} have changed since they were written"
    return None if reason is None else Damage(path, size, intact, reason)


def damage_in_snapshot(path: Path, size: int, configured_binary: str | None) -> Damage | None:
    """Let the server's own program check a snapshot, which ends in a checksum."""
    binary = find_binary(configured_binary)
    program = f"{version_of(binary).server}-check-rdb"  # a server that has this name is that program
    done = subprocess.run(
        [program, str(path)], executable=binary, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0:
        return None
    reasons = [match[1] for match in SNAPSHOT_ERROR.finditer(done.stdout)]
    return Damage(path, size, 0, reasons[0] if reasons else f"{program} ended with status {done.returncode}")


def scan(file: BinaryIO, limit: int) -> tuple[int, str | None]:
    """Return how many of the first `limit` bytes of an append-only file are whole commands.

    Also return why the next ones are not, or None.
    """
    intact = position = 0
    in_transaction = False
    try:
        for position, command in commands(file):
            if position > limit:
                break
            name = command.upper()
            in_transaction = name == b"MULTI" or (in_transaction and name != b"EXEC")
            if not in_transaction:
                intact = position
    except ValueError as error:
        return intact, str(error)
    return intact, "a transaction has no end" if in_transaction else None


def commands(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the position behind each command, and its name. Raise ValueError for what is not a command."""
    while head := file.readline(LONGEST_LINE):
        if head.startswith(b"#"):  # an annotation, such as a timestamp
            while head and not head.endswith(b"\n"):
                head = file.readline(CHUNK_BYTES)
            yield file.tell(), b""
            continue
        name = b""
        for index in range(number(head, b"*")):
            length = number(file.readline(LONGEST_LINE), b"$")
            if index == 0:
                name = file.read(min(length, LONGEST_LINE))
                file.seek(length - len(name), os.SEEK_CUR)
            else:
                file.seek(length, os.SEEK_CUR)
            if file.read(2) != b"\r\n":
                raise ValueError("a command ends before its length, or is longer")
        yield file.tell(), name


def number(line: bytes, mark: bytes) -> int:
    """Return the number in a line such as `*3` or `$10`."""
    text = line[1:-2]
    if line[:1] != mark or not line.endswith(b"\r\n") or not text.isdigit():
        raise ValueError(f"a command or an argument of one should begin, with {mark.decode()!r} and a number")
    return int(text)


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
