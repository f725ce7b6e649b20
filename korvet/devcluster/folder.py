"""The folder of a development cluster: a temporary one, or one whose data survive a restart. In it:

lock                held by the command and its processes
dev-cluster.json    the ports, which the next start uses again
node-PORT           a server's data, its nodes.conf and its output server.log
broker-NUMBER.log   a broker's output
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio
from attrs import frozen

from korvet.storage.embedded.folder import try_lock
from korvet.storage.interface import StorageUsageError

RECORD = "dev-cluster.json"
LOCK = "lock"
# A killed command's processes end, and release the lock, a moment later.
LOCK_LIMIT_S = 3.0
LOOK_AGAIN_S = 0.05


@frozen
class Record:
    """The ports of an earlier start, written once the nodes have formed their cluster."""

    nodes: Sequence[int]
    brokers: Sequence[int]


@frozen
class Folder:
    """A folder, and its files."""

    path: Path
    is_temporary: bool

    def node(self, port: int) -> Path:
        """Return the folder of a node."""
        return self.path / f"node-{port}"

    def broker_log(self, number: int) -> Path:
        """Return the file of a broker's output."""
        return self.path / f"broker-{number}.log"

    def ready_file(self, number: int) -> Path:
        """Return the file that a broker writes once it serves."""
        return self.path / f"broker-{number}.ready"

    def read(self) -> Record | None:
        """Return the ports of an earlier start, or None. Raise StorageUsageError if the folder is for other data."""
        file = self.path / RECORD
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return Record(
                [int(port) for port in content["nodes"]], [int(port) for port in content["brokers"]]
            )
        except FileNotFoundError:
            self._check_unused()
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StorageUsageError(f"{file} is not as korvet dev-cluster writes it: {error!r}") from error

    def write(self, record: Record) -> None:
        """Write the ports for the next start."""
        new = self.path / f"{RECORD}.new"
        new.write_text(f"{json.dumps(attrs.asdict(record))}\n", encoding="utf-8")
        new.replace(self.path / RECORD)

    def _check_unused(self) -> None:
        """Delete what a start left that did not form a cluster. Raise StorageUsageError for any other file."""
        there = {each.name: each for each in self.path.iterdir() if each.name != LOCK}
        unformed = [each for each in there.values() if (each / "server.log").exists()]
        if len(unformed) < len(there):
            raise StorageUsageError(f"{self.path} is neither empty nor a folder of korvet dev-cluster")
        for each in unformed:
            shutil.rmtree(each)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a private folder, and delete it at the end."""
    path = Path(tempfile.mkdtemp(prefix="korvet-dev-cluster-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def lock_folder(path: Path) -> int:
    """Return a descriptor that holds the folder's lock; create the folder if it is missing.

    Raise StorageUsageError if another command uses the folder, or if it cannot be written.
    """
    with trio.move_on_after(LOCK_LIMIT_S):
        while (lock := try_folder(path)) is None:  # noqa: ASYNC110  a released lock causes no event
            await trio.sleep(LOOK_AGAIN_S)
        return lock
    raise StorageUsageError(f"{path} is in use by another korvet dev-cluster")


def try_folder(path: Path) -> int | None:
    """Return what `lock_folder` returns, or None if the lock is held."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return try_lock(path / LOCK)
    except OSError as error:
        raise StorageUsageError(f"{path} cannot be used: {error.strerror}") from error


@contextmanager
def closing(descriptor: int) -> Iterator[None]:
    """Close the descriptor when the block ends."""
    try:
        yield
    finally:
        os.close(descriptor)
