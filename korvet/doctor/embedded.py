"""Checks of `embedded:FOLDER`: the folder, its data, and the server if a broker runs it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from korvet.config import Config
from korvet.doctor.findings import Finding, error, ok, warning
from korvet.doctor.redis import server_findings
from korvet.storage.embedded.binary import check_readable, find_binary, version_of
from korvet.storage.embedded.disk import lack_of_room
from korvet.storage.embedded.folder import OTHERS, holder_of, try_lock
from korvet.storage.embedded.repair import examine
from korvet.storage.embedded.server import address_of_server
from korvet.storage.embedded.syncing import DURABILITY
from korvet.storage.interface import StorageUsageError
from korvet.storage.open import embedded_folder

# Above this size the data files are not read; korvet repair does that.
READ_BYTES = 256 << 20


async def embedded_findings(config: Config) -> AsyncIterator[Finding]:
    """Yield the findings about a folder, and about its server if that runs."""
    folder = embedded_folder(config.storage)
    try:
        version = version_of(find_binary(config.embedded_server))
    except StorageUsageError as refusal:
        yield error("storage", str(refusal), "embedded.server, or pip install 'korvet[embedded]'")
        return
    if not folder.exists():
        yield ok("storage", f"{folder} does not exist; korvet serve creates it")
        return
    for found in folder_findings(folder):
        yield found
    if (folder / "server.lock").exists() and is_held(folder / "server.lock"):
        yield ok("storage", f"{folder} is served by {version.server} ({holder_of(folder / 'server.lock')})")
        durability = (
            DURABILITY if config.embedded_appendfsync == "everysec" and not config.acks_all_fsync else None
        )
        async for found in server_findings(address_of_server(folder), config, durability):
            yield found
        return
    try:
        check_readable(folder, version)
    except StorageUsageError as refusal:
        yield error("storage", str(refusal), 'see docs/damage.md, "Damaged data"')
        return
    yield data_finding(folder, config.embedded_server)


def folder_findings(folder: Path) -> list[Finding]:
    """Judge who may use the folder, and how much room there is."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return [error("storage", f"{folder} may not be written", "run korvet as its owner, or chown it")]
    found = []
    if (mode := folder.stat().st_mode & 0o777) & OTHERS:
        found.append(
            warning(
                "storage", f"{folder} has mode {mode:03o}: other users may list it", f"chmod 700 {folder}"
            )
        )
    if lack := lack_of_room(folder):
        found.append(error("storage", f"{folder}: {lack}", "until then the server refuses writes"))
    return found


def data_finding(folder: Path, binary: str | None) -> Finding:
    """Look for damage in the data of a server that does not run."""
    size = sum(path.stat().st_size for path in (folder / "appendonlydir").glob("*"))
    if not size:
        return ok("storage", f"{folder} has no data yet")
    if size > READ_BYTES:
        return ok("storage", f"{folder} has {size:,} bytes of data; korvet repair looks for damage")
    try:
        damage = examine(folder, binary).damage
    except StorageUsageError as refusal:
        return error("storage", str(refusal), "restore a backup")
    if damage is not None:
        return error(
            "storage", f"{damage.path} is damaged from byte {damage.intact:,} on", f"korvet repair {folder}"
        )
    return ok("storage", f"{folder} has {size:,} bytes of intact data, and no server runs")


def is_held(lock: Path) -> bool:
    """Return True if a process holds the lock."""
    descriptor = try_lock(lock)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
