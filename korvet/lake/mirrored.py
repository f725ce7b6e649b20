"""Versions of a Delta table that its Iceberg table still shows, read from Iceberg's metadata without PyIceberg.

The snapshots of a mirror (`korvet.lake.iceberg`) name the Delta version that they show. Metadata has a number, and is
written before the catalogue accepts it. So the accepted one is among those of the greatest number and of the number
before it, whatever the catalogue is.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from korvet.lake.errors import LakeError
from korvet.lake.snapshots import Snapshot
from korvet.lake.store_errors import store_errors

#: The folder of the Iceberg table in that of the Delta table.
FOLDER = "_iceberg"
#: The property, and the entry of a snapshot's summary: `<id of the Delta table>:<version>`.
MIRRORED = "korvet.delta"
METADATA = re.compile(r"v?(\d+)(?:-[^/]*)?(?:\.gz)?\.metadata\.json")
# Readers may have opened the snapshot that was the newest one this long ago.
READ_MS = 24 * 3600 * 1000


class MirrorUnknown(LakeError):  # noqa: N818  the name states the fault
    """The files that the table's Iceberg table needs cannot be determined."""


def shown_versions(table: Snapshot, now_ms: float) -> list[int]:
    """Return the Delta versions that the Iceberg table shows, or has shown within READ_MS; none without a mirror.

    Raises MirrorUnknown if the log no longer has one of them, and Unreachable.
    """
    with store_errors(table.location):
        owner = str(table.delta.metadata().id)
        metadata = list(_newest_metadata(table))
    versions = {version for each in metadata for version in _versions(each, owner, now_ms)}
    for version in versions - {table.version}:
        try:
            DeltaTable(table.location.url, version, storage_options=table.location.storage_options())
        except DeltaError as error:
            raise MirrorUnknown(
                f"{table.location}: the log has no version {version}, which the Iceberg table shows; "
                "run korvet lake mirror first."
            ) from error
    return sorted(versions)


def is_mirrored(table: Snapshot) -> bool:
    """Return True if the table has a folder of an Iceberg table. Raises Unreachable."""
    with store_errors(table.location):
        info = table.location.filesystem().get_file_info(f"{table.location.path}/{FOLDER}")
    return bool(info.type is not pafs.FileType.NotFound)


def _newest_metadata(table: Snapshot) -> Iterable[Mapping[str, Any]]:
    filesystem = table.location.filesystem()
    selector = pafs.FileSelector(f"{table.location.path}/{FOLDER}", recursive=True, allow_not_found=True)
    infos = [info for info in filesystem.get_file_info(selector) if info.type is pafs.FileType.File]
    numbers = {info.path: int(match[1]) for info in infos if (match := METADATA.fullmatch(info.base_name))}
    if infos and not numbers:
        raise MirrorUnknown(
            f"{table.location}/{FOLDER} has no metadata of an Iceberg table; run korvet lake mirror, "
            "or remove the folder if there is no Iceberg table any more."
        )
    newest = max(numbers.values(), default=0)
    for path, number in numbers.items():
        if number >= newest - 1:
            with filesystem.open_input_stream(path, compression=None) as stream:
                content = stream.read()
            yield json.loads(gzip.decompress(content) if ".gz." in path else content)


def _versions(metadata: Mapping[str, Any], owner: str, now_ms: float) -> Iterable[int]:
    """Yield the versions of the newest snapshot, and of those that were the newest within READ_MS."""
    snapshots = sorted(metadata.get("snapshots", ()), key=lambda each: each["sequence-number"])
    for snapshot, following in pairwise([*snapshots, {"timestamp-ms": now_ms}]):
        mirrored, _, version = snapshot.get("summary", {}).get(MIRRORED, "").rpartition(":")
        if mirrored == owner and now_ms - following["timestamp-ms"] < READ_MS:
            yield int(version)
