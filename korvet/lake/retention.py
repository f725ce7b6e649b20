"""What of an archive is old enough to go: whole ranges at its beginning, as Kafka drops whole segments.

A range goes when every record of it, and of all ranges before it, is older than wanted by its own timestamp. So the
archive begins later afterwards, and has no holes. The files stay on the disk until a vacuum.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import CommitConflict
from korvet.lake.files import file_range
from korvet.lake.table import LakeTable, store_errors


def expired_up_to(table: LakeTable, cutoff_ms: int) -> dict[int, int]:
    """For each partition that has something to drop: the offset its archive is to begin with.

    Records without a timestamp do not grow old, and files that somebody else has written say too little to be dropped.
    """
    ends: dict[int, list[int]] = {partition: [] for partition in table.archived_up_to}
    stays = dict(table.archived_up_to)  # the first offset that has to stay
    for row in pa.table(table.delta.get_add_actions(flatten=True)).to_pylist():
        held, newest = file_range(row["path"]), row.get("max.timestamp_ms")
        if held is None:
            first = row.get("min.offset") or 0
            stays = {partition: min(first, offset) for partition, offset in stays.items()}
        elif newest is not None and 0 <= newest < cutoff_ms:
            ends[held.partition].append(held.end)
        else:
            stays[held.partition] = min(held.start, stays[held.partition])
    starts = {
        partition: max((end for end in found if end <= stays[partition]), default=0)
        for partition, found in ends.items()
    }
    return {partition: start for partition, start in starts.items() if start > (table.start(partition) or 0)}


def drop_before(table: LakeTable, starts: Mapping[int, int]) -> LakeTable:
    """Drop what these partitions have before these offsets, in one commit; the snapshot that lacks it.

    Raises CommitConflict when somebody else has committed meanwhile, and Unreachable.
    """
    predicate = " OR ".join(
        f"(partition = {partition} AND offset < {start})" for partition, start in starts.items()
    )
    moved = [Transaction(f"{table.app_id}/{partition}/start", start) for partition, start in starts.items()]
    with store_errors(table.location):
        try:
            table.delta.delete(predicate, commit_properties=CommitProperties(app_transactions=moved))
        except CommitFailedError as error:
            raise CommitConflict(f"{table.location}: {error}") from error
    return table.reopened()
