"""Rows and tables for the lake's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa

from korvet.lake.file_writing import RangeWriter
from korvet.lake.files import ArchivedRange
from korvet.lake.location import Location
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.table import LakeTable

TOPIC = "orders"
TOPIC_ID = UUID("6dc1b9d5-0f5a-4a35-8c7e-5f3a2f0c8f11")
NOON = 1_769_860_800_000  # 2026-01-31T12:00:00Z
DAY_MS = 86_400_000


def lake(folder: Path) -> Location:
    return Location.parse(str(folder / "lake"))


def rows(
    offsets: Sequence[int],
    *,
    partition: int = 0,
    timestamps: Sequence[int] | None = None,
    topic: str = TOPIC,
    key: bytes | None = None,
) -> pa.Table:
    """Return records whose values are their offsets."""
    count = len(offsets)
    return archive_table(
        topic,
        partition,
        np.array(offsets, np.int64),
        np.array(timestamps if timestamps is not None else [NOON + offset for offset in offsets], np.int64),
        np.zeros(count, np.int32),
        pa.array([key] * count, pa.binary()),
        pa.array([f"value {offset}".encode() for offset in offsets], pa.binary()),
        pa.nulls(count, HEADERS),
    )


def written(
    table: LakeTable,
    start: int,
    end: int,
    *,
    partition: int = 0,
    offsets: Sequence[int] | None = None,
    timestamps: Sequence[int] | None = None,
    covered: int | None = None,
    key: bytes | None = None,
) -> ArchivedRange:
    """Write a range, to be committed: all offsets in [start, end), or those given."""
    there = range(start, end) if offsets is None else offsets
    covered = table.covered(partition) if covered is None else covered
    writer = RangeWriter(table.location, partition, start if covered is None else covered)
    return writer.write(rows(there, partition=partition, timestamps=timestamps, key=key), start, end)
