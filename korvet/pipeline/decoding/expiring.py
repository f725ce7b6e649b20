"""Drop expired rows of typed and dlq tables, by the timestamps of their records."""

from __future__ import annotations

from datetime import UTC, datetime

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import CommitConflict
from korvet.lake.store_errors import first_line, store_errors
from korvet.lake.table_features import refuse_other_features
from korvet.pipeline.decoding.columns import TIMESTAMP
from korvet.pipeline.decoding.tables import DLQ, TYPED, DecodedTable

TIMES = {TYPED: TIMESTAMP, DLQ: "timestamp"}


def drop_before(table: DecodedTable, cutoff_ms: int) -> DecodedTable:
    """Drop rows that are older, in one commit. Return the newest snapshot. Rows without a timestamp stay.

    Files with expired rows only are removed, others written again. Decoded offsets do not change. Raises
    CommitConflict, NewerFormat and Unreachable; then nothing was dropped.
    """
    if cutoff_ms <= 0:
        return table
    refuse_other_features(table.location, table.delta)
    cutoff_s = cutoff_ms // 1000
    cutoff = datetime.fromtimestamp(cutoff_s, UTC).isoformat()
    predicate = f"\"{TIMES[table.kind]}\" < arrow_cast('{cutoff}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    before = table.version
    with store_errors(table.location):
        try:
            # No retry on top of other writers' commits: deltalake does not detect every conflict.
            table = table.reopened()
            dropped = Transaction(table.dropped_id, max(cutoff_s * 1000, table.dropped_ms))
            properties = CommitProperties(max_commit_retries=0, app_transactions=[dropped])
            table.delta.delete(predicate, commit_properties=properties)
        except CommitFailedError as error:
            raise CommitConflict(f"{table.location}: {first_line(error)}") from error
    newer = table.reopened()
    return table if newer.version == before else newer
