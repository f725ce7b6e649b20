"""Upsert: the typed table keeps the latest row of each key, and no row of a deleted key.

Keys are compared by their bytes. If the registry has a schema for the topic's keys, they are compared without their
framing, since the same key has another schema id after the schema has changed.

Rows are staged as files in a hidden folder of the table. deltalake merges them in this process, in one commit with the
decoded offsets. Among rows of one partition, the greatest offset wins. If a key moved to another partition (partitions
were added), the later timestamp wins.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import CommitConflict
from korvet.lake.location import Location
from korvet.lake.snapshots import committing
from korvet.lake.store_errors import store_errors
from korvet.lake.table_features import refuse_column_mapping
from korvet.pipeline.decoding.columns import DELETED, KEY, OFFSET, PARTITION, TIMESTAMP
from korvet.pipeline.decoding.confluent import HEADER_BYTES
from korvet.pipeline.decoding.tables import DecodedTable, Part, Span, commit_info

STAGING = "_korvet_staging"
FOLDER = re.compile(r"(\d+)-[0-9a-f]{32}")
# Later rounds delete what killed rounds have staged, after this time.
STALE_MS = 24 * 3600 * 1000
NEWER = (
    f's."{PARTITION}" = t."{PARTITION}" AND s."{OFFSET}" > t."{OFFSET}" OR s."{PARTITION}" <> t."{PARTITION}" AND '
    f'(s."{TIMESTAMP}" IS NULL OR t."{TIMESTAMP}" IS NULL OR s."{TIMESTAMP}" >= t."{TIMESTAMP}")'
)


# Hexadecimal digits, because SQL's substr is for text.
SAME_PAYLOAD = " = ".join(f"substr(encode({each}.\"{KEY}\", 'hex'), {2 * HEADER_BYTES + 1})" for each in "ts")


def new_folder() -> str:
    """Return a new folder for staged files."""
    return f"{STAGING}/{time.time_ns() // 1_000_000}-{uuid4().hex}"


def sweep(location: Location, folder: str | None = None) -> None:
    """Delete a folder of staged files, and folders older than STALE_MS."""
    filesystem = location.filesystem()
    selector = pafs.FileSelector(f"{location.path}/{STAGING}", allow_not_found=True)
    oldest_ms = time.time_ns() // 1_000_000 - STALE_MS
    with store_errors(location):
        for info in filesystem.get_file_info(selector):
            match = FOLDER.fullmatch(info.base_name)
            ours = folder is not None and info.path.endswith(folder)
            if ours or (match is not None and int(match[1]) < oldest_ms):
                location.delete_folder(f"{STAGING}/{info.base_name}")


def merge(
    table: DecodedTable, spans: Sequence[Span], parts: Sequence[Part], *, has_framed_keys: bool = False
) -> DecodedTable:
    """Merge staged rows and advance the decoded offsets in one commit. Return the snapshot with this commit.

    Raises OutOfOrder, CommitConflict, Unreachable. Then nothing was committed, as far as can be determined.
    """
    rows = latest(staged(table.location, parts), has_framed_keys=has_framed_keys) if parts else None
    if rows is None or not rows.num_rows:
        return table.commit(spans, ())
    refuse_column_mapping(table.location, table.delta)
    # No retry on top of other writers' commits: deltalake does not detect every conflict.
    properties, commit_id = committing(commit_info(spans), table.next_numbers(spans), 0)
    values = {quoted(name): f"s.{quoted(name)}" for name in rows.column_names if name != DELETED}
    merger = (
        table.delta.merge(
            rows,
            SAME_PAYLOAD if has_framed_keys else f't."{KEY}" = s."{KEY}"',
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        .when_matched_delete(f's."{DELETED}" AND ({NEWER})')
        .when_matched_update(values, f'NOT s."{DELETED}" AND ({NEWER})')
        .when_not_matched_insert(values, f'NOT s."{DELETED}"')
    )
    first = table.delta.version() + 1
    with store_errors(table.location):
        try:
            merger.execute()
        except CommitFailedError as error:
            newer = table.reopened()
            if not newer.has_commit(commit_id, first):
                raise CommitConflict(f"{table.location}: {error}") from error
            return newer
    if (
        table.delta.version() < first
    ):  # no row changed, so deltalake has not committed the decoded offsets either
        return table.commit(spans, ())
    return table.reopened()


def quoted(name: str) -> str:
    """Return a column name as a case-sensitive SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def staged(location: Location, parts: Sequence[Part]) -> pa.Table:
    """Return the staged rows. Raises OSError."""
    filesystem = location.filesystem()
    paths = [f"{location.path}/{part.path}" for part in parts]
    return pa.concat_tables([pq.read_table(path, filesystem=filesystem, partitioning=None) for path in paths])


def latest(rows: pa.Table, *, has_framed_keys: bool = False) -> pa.Table:
    """Return the last row of each key: within a partition by offset, between partitions by timestamp."""
    order = rows.select([KEY, PARTITION, OFFSET, TIMESTAMP]).to_pandas()
    if has_framed_keys:
        order[KEY] = order[KEY].str[HEADER_BYTES:]
    order = order.sort_values([PARTITION, OFFSET]).drop_duplicates([KEY, PARTITION], keep="last")
    order = order.sort_values([TIMESTAMP, PARTITION], na_position="first").drop_duplicates([KEY], keep="last")
    return rows.take(pa.array(order.index.sort_values().to_numpy(), pa.int64()))
