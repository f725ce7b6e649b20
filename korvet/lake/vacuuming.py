"""Remove files that a table does not reference: replaced ones, and those that killed writers left behind.

Files of the versions that an Iceberg mirror shows stay, however far the mirror is behind.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from korvet.lake.mirrored import shown_versions
from korvet.lake.snapshots import Snapshot
from korvet.lake.store_errors import store_errors

VACUUMED = "VACUUM END"  # deltalake's operation, as Delta names it


def vacuum(table: Snapshot, retain_hours: int, *, dry_run: bool = False) -> Sequence[str]:
    """Remove files that are older than `retain_hours`. Return their paths. Raises LakeError."""
    shown = shown_versions(table, time.time() * 1000)
    with store_errors(table.location):
        removed: Sequence[str] = table.delta.vacuum(
            retain_hours, dry_run=dry_run, enforce_retention_duration=False, full=True, keep_versions=shown
        )
    return removed


def last_vacuum_ms(table: Snapshot) -> int | None:
    """Return the time of the last vacuum that removed files, None if the log has none. Raises LakeError."""
    times = [info["timestamp"] for _, info in table.commits() if info.get("operation") == VACUUMED]
    return max(times, default=None)
