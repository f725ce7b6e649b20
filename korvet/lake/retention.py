"""Retention of an archive: drop whole ranges from its beginning, as Kafka drops whole segments.

A range is dropped when every record in it and in all earlier ranges is older than the limit, by its own timestamp. So
afterwards the archive begins later, without holes. The files stay on disk until a vacuum.
"""

from __future__ import annotations

from collections.abc import Mapping

from korvet.lake.errors import CommitConflict
from korvet.lake.location import Location
from korvet.lake.replacing import replace
from korvet.lake.table import LakeTable

# Limit of conflicts with concurrent compactions.
ATTEMPTS = 10


def expired_up_to(table: LakeTable, cutoff_ms: int) -> dict[int, int]:
    """Return the new start offset of each partition that has something to drop.

    Records without a timestamp never expire. Files that another writer named do not state their range and are kept.
    """
    ends: dict[int, list[int]] = {partition: [] for partition in table.archived_up_to}
    stays = dict(table.archived_up_to)  # the first offset to keep
    for file in table.files:
        if file.held is None:
            first = file.first_offset or 0
            stays = {partition: min(first, offset) for partition, offset in stays.items()}
        elif file.count == 0 or (file.last_ms is not None and 0 <= file.last_ms < cutoff_ms):
            ends[file.held.partition].append(file.held.end)
        else:
            stays[file.held.partition] = min(file.held.start, stays[file.held.partition])
    starts = {
        partition: max((end for end in found if end <= stays[partition]), default=0)
        for partition, found in ends.items()
    }
    return {partition: start for partition, start in starts.items() if start > (table.start(partition) or 0)}


def drop_before(table: LakeTable, starts: Mapping[int, int]) -> LakeTable:
    """Drop what these partitions have below these offsets in one commit. Return the snapshot with this commit.

    Raises CommitConflict if another writer replaced some of the files meanwhile, and Unreachable.
    """
    gone = [
        file
        for partition, start in starts.items()
        for file in table.index.named(partition)
        if file.held is not None and file.held.end <= start
    ]
    moved = {f"{table.app_id}/{partition}/start": start for partition, start in starts.items()}
    return replace(table, gone, [], data_change=True, transactions=moved)


def retain(lake: Location, topic: str, cutoff_ms: int, *, dry_run: bool = False) -> dict[int, int]:
    """Drop a topic's records that are older. Return the new start offsets of the partitions that lost some.

    Raises LakeError.
    """
    for attempt in range(ATTEMPTS):
        table = LakeTable.open(lake, topic)
        starts = expired_up_to(table, cutoff_ms)
        if not starts or dry_run:
            return starts
        try:
            drop_before(table, starts)
        except CommitConflict:  # a compaction joined its files in the meantime
            if attempt + 1 == ATTEMPTS:
                raise
        else:
            return starts
    return {}
