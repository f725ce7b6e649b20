"""A library that is preloaded into servers, notes each fsync and may delay it. It is built with the C compiler."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from attrs import define

SOURCE = Path(__file__).with_name("syncs.c")
LIMIT_S = 60.0
LOOK_AGAIN_S = 0.01


@define
class Syncs:
    """The library, and what it has noted in `notes`."""

    library: Path
    notes: Path

    def environment(self, *, delay_ms: int = 0) -> Mapping[str, str]:
        """Return the environment variables that load the library; each sync takes `delay_ms` longer."""
        return {
            "LD_PRELOAD": str(self.library),
            "SYNCS": str(self.notes),
            "SYNC_DELAY_MS": str(delay_ms),
        }

    def synced(self) -> Mapping[int, int]:
        """Return the bytes of each file that are on disk, by inode."""
        return {inode: size for what, inode, size in self._noted() if what == "end"}

    def wait_for_another(self) -> None:
        """Return once another sync has begun."""
        self._wait_for_more("begin", 1)

    def wait_for_a_whole_one(self) -> None:
        """Return once a sync that began after the call has ended."""
        self._wait_for_more("end", 2)  # one may be under way at the call

    def _wait_for_more(self, what: str, count: int) -> None:
        target, ends = self._count(what) + count, time.monotonic() + LIMIT_S
        while self._count(what) < target:
            assert time.monotonic() < ends, f"no sync after {target}"
            time.sleep(LOOK_AGAIN_S)  # a sync of another process causes no event

    def _count(self, wanted: str) -> int:
        return sum(what == wanted for what, *_ in self._noted())

    def _noted(self) -> list[tuple[str, int, int]]:
        if not self.notes.exists():
            return []
        lines = (line.split() for line in self.notes.read_text().splitlines())
        return [(what, int(inode), int(size)) for what, inode, size in lines]


def build_syncs(folder: Path) -> Syncs:
    """Build the library in that folder."""
    library = folder / "syncs.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return Syncs(library, folder / "syncs")


def cut_power(folder: Path, syncs: Syncs) -> None:
    """Truncate the files of a server that has ended to what was synced: the worst case of a power loss."""
    synced = syncs.synced()
    for path in folder.rglob("*"):
        if path.suffix in (".aof", ".rdb", ".manifest"):
            status = path.stat()
            with path.open("r+b") as file:
                file.truncate(min(synced.get(status.st_ino, 0), status.st_size))
