"""Checksums of the append-only file, which has none itself: a changed bit would be served as good data.

Beside each file to which the server appends, FILE.crc has lines `START END CRC32`, appended by the broker about what it
finds in the file a moment later. Before a server starts, the files are compared with them. Snapshots end in a checksum,
which the server verifies. The lines are not synced to disk: after a power loss the last ones may be missing.

Redis below 7.0 replaces its only file under the same name, so that one has no checksums.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attrs import define, field, frozen

from korvet.storage.interface import StorageUsageError

CHUNK_BYTES = 1 << 20
# A line is appended for this many new bytes, or after this time, so that the lines stay few.
LINE_BYTES = 1 << 20
LINE_S = 10.0
LINE = re.compile(rb"(\d+) (\d+) ([0-9a-f]{8})\n")


@frozen
class Range:
    """A part of a file, and its checksum."""

    start: int
    end: int
    checksum: int

    @property
    def line(self) -> bytes:
        return b"%d %d %08x\n" % (self.start, self.end, self.checksum)


@define
class Noted:
    """The end of what the lines of a file cover, and when the last one was appended (monotonic seconds)."""

    end: int
    at_s: float


@define(eq=False)
class Checksums:
    """Appends lines about the files of a folder. Blocking; one thread at a time."""

    folder: Path
    _noted: dict[Path, Noted] = field(factory=dict)

    def extend(self, *, finish: bool = False) -> None:
        """Append lines about what is new in the files, with `finish` for any number of bytes."""
        for path in summed_files(self.folder):
            with suppress(FileNotFoundError):  # a rewrite has replaced the file
                self._extend(path, finish=finish)
        for path in (self.folder / "appendonlydir").glob("*.crc"):
            if not path.with_suffix("").exists():
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the checksums, because the server has cut a file. They are computed again."""
        forget(self.folder)
        self._noted.clear()

    def _extend(self, path: Path, *, finish: bool) -> None:
        now_s = time.monotonic()
        size = path.stat().st_size
        if path not in self._noted:
            ranges = ranges_of(path)
            if lines_of(path).exists():  # lines behind a damaged one would never be read
                os.truncate(lines_of(path), sum(len(each.line) for each in ranges))
            self._noted[path] = Noted(ranges[-1].end if ranges else 0, now_s)
        noted = self._noted[path]
        is_due = finish or size - noted.end >= LINE_BYTES or now_s - noted.at_s >= LINE_S
        if size <= noted.end or not is_due:
            return
        line = Range(noted.end, size, checksum(path, noted.end, size)).line
        descriptor = os.open(lines_of(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
        self._noted[path] = Noted(size, now_s)


def changed_range(path: Path) -> Range | None:
    """Return the first part of a file that does not match its checksum, or None. Parts that are missing match."""
    size = path.stat().st_size
    for each in ranges_of(path):
        if each.end <= size and checksum(path, each.start, each.end) != each.checksum:
            return each
    return None


def verify(folder: Path) -> int:
    """Return the bytes that have checksums and are missing at the ends of the files.

    Raise StorageUsageError if a file does not match its checksums.
    """
    missing = 0
    for path in summed_files(folder):
        if (changed := changed_range(path)) is not None:
            raise StorageUsageError(
                f"{path} has changed between the bytes {changed.start:,} and {changed.end:,} since it was written;"
                f" restore a backup, or see korvet repair {folder}"
                f" (if it is you who changed it, remove {lines_of(path)})"
            )
        ranges = ranges_of(path)
        missing += max(0, ranges[-1].end - path.stat().st_size) if ranges else 0
    return missing


def forget(folder: Path) -> None:
    """Remove the checksums of a folder's files."""
    for path in summed_files(folder):
        lines_of(path).unlink(missing_ok=True)


def ranges_of(path: Path) -> list[Range]:
    """Return the parts of a file that have checksums, each behind the one before; ignore a damaged rest."""
    try:
        content = lines_of(path).read_bytes()
    except FileNotFoundError:
        return []
    found: list[Range] = []
    position = 0
    while match := LINE.match(content, position):
        each = Range(int(match[1]), int(match[2]), int(match[3], 16))
        if each.start != (found[-1].end if found else 0) or each.end <= each.start:
            break
        found.append(each)
        position = match.end()
    return found


def summed_files(folder: Path) -> Iterator[Path]:
    """Yield the files that have checksums."""
    yield from sorted((folder / "appendonlydir").glob("*.incr.aof"))


def lines_of(path: Path) -> Path:
    """Return the file with the checksums of a file."""
    return path.with_name(f"{path.name}.crc")


def checksum(path: Path, start: int, end: int) -> int:
    """Return the CRC-32 of a part of a file."""
    found = 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < end and (chunk := file.read(min(CHUNK_BYTES, end - start))):
            found = zlib.crc32(chunk, found)
            start += len(chunk)
    return found
