"""Bound what a mirror keeps: each commit rewrites a list of all snapshots, and leaves files that no snapshot needs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from korvet.lake.location import Location

KEPT = 100  # snapshots
# A round expires many snapshots at once, since that is a commit as well.
SLACK = 20
# A manifest without a snapshot may belong to a commit that is under way.
ORPHAN_AGE = timedelta(days=1)


def expire(table: Table, keep: timedelta, now: datetime) -> int:
    """Expire snapshots older than `keep`, and all but the newest KEPT. Return their number.

    Does nothing until SLACK snapshots can be expired.
    """
    snapshots = sorted(table.snapshots(), key=lambda each: each.timestamp_ms)[:-1]
    oldest_ms = (now - keep).timestamp() * 1000
    too_many = len(snapshots) + 1 - KEPT
    due = [
        each.snapshot_id
        for place, each in enumerate(snapshots)
        if place < too_many or each.timestamp_ms < oldest_ms
    ]
    if len(due) < SLACK:
        return 0
    table.maintenance.expire_snapshots().by_ids(due).commit()
    return len(due)


def remove_orphans(table: Table, location: Location, now: datetime) -> int:
    """Remove manifests and lists of manifests that no snapshot needs. Return their number. Raises OSError.

    `location` is that of the Iceberg table.
    """
    folder = location.child("metadata")
    filesystem = folder.filesystem()
    needed = set(_names(table.refresh()))
    orphans = [
        info.base_name
        for info in filesystem.get_file_info(pafs.FileSelector(folder.path, allow_not_found=True))
        if info.type is pafs.FileType.File
        and info.base_name.endswith(".avro")
        and info.base_name not in needed
        and now - info.mtime.astimezone(UTC) > ORPHAN_AGE
    ]
    folder.delete_files(orphans)
    return len(orphans)


def _names(table: Table) -> Iterable[str]:
    for snapshot in table.snapshots():
        yield _name(snapshot.manifest_list)
        yield from _manifests(table, snapshot)


def _manifests(table: Table, snapshot: Snapshot) -> Iterable[str]:
    return (_name(manifest.manifest_path) for manifest in snapshot.manifests(table.io))


def _name(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]
