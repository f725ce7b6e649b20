"""Helpers for tests of decoding: write records to an archive, and read the decoded tables."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from attrs import frozen
from deltalake import DeltaTable

from korvet.lake.file_writing import RangeWriter
from korvet.lake.location import Location
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.table import LakeTable
from korvet.pipeline.decoding.distributing import Here
from korvet.pipeline.decoding.rounds import Decoding, RoundResult
from korvet.pipeline.decoding.specification import specifications

TOPIC_ID = UUID(int=7)
DAY_MS = 86_400_000
Headers = Sequence[tuple[str, bytes | None]]
START_MS = 1_767_225_600_000  # 2026-01-01


@frozen
class Lake:
    """An archive of one topic, and the tables decoded from it, in a separate folder."""

    folder: Path
    topic: str = "orders"

    def archive(
        self,
        values: Sequence[object],
        *,
        partition: int = 0,
        keys: Sequence[str | bytes | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Append records to the archive: bytes unchanged, None as null, all other values as JSON."""
        first = self.next_offset(partition)
        rows = archived(self.topic, values, partition, first, keys, timestamps_ms, headers)
        table = LakeTable.open_or_create(self.location("raw"), self.topic, TOPIC_ID)
        start = table.archived_up_to.get(partition, 0)
        covered = table.covered(partition) or 0
        written = RangeWriter(table.location, partition, covered).write(rows, start, start + len(values))
        table.commit([written])

    def next_offset(self, partition: int = 0) -> int:
        table = LakeTable.open_or_create(self.location("raw"), self.topic, TOPIC_ID)
        return table.archived_up_to.get(partition, 0)

    def location(self, name: str) -> Location:
        return Location.parse(str(self.folder / name))

    def decoding(self, **settings: Any) -> Decoding:
        """Return a decoding with the settings of a specification. It runs in this process."""
        specification = specifications((self.topic,), None, settings)[self.topic]
        return Decoding(specification, self.location("raw"), self.location("typed"), Here())

    def decode(self, **settings: Any) -> list[RoundResult]:
        """Run rounds until everything is decoded, and return their results."""
        decoding = self.decoding(**settings)
        result: list[RoundResult] = []
        while (one := decoding.round()) is not None:
            result.append(one)
            assert len(result) < 20, "rounds do not come to an end"
        return result

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a typed table, sorted by partition and offset."""
        found = self.table(table).to_pylist()
        return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))

    def table(self, name: str | None = None) -> pa.Table:
        delta = DeltaTable(str(self.folder / "typed" / (name or self.topic)))
        return delta.to_pyarrow_table()

    def values(self, *columns: str) -> list[Any]:
        """Return the values of one column, or tuples of several, sorted by partition and offset."""
        rows = [tuple(row[column] for column in columns) for row in self.rows()]
        return [row[0] for row in rows] if len(columns) == 1 else rows

    def bad(self) -> dict[int, str]:
        """Return the errors of bad rows, by offset."""
        if not (self.folder / "typed" / f"{self.topic}~dlq").exists():
            return {}
        rows = self.table(f"{self.topic}~dlq").to_pylist()
        errors = {row["offset"]: row["error"] for row in rows}
        assert len(errors) == len(rows), "a bad row is there twice"
        return dict(sorted(errors.items()))


def die_at(step: str, lake: Lake) -> None:
    """Run a round that kills this process (SIGKILL) at one of its steps. Call it in a separate process."""
    decoding = lake.decoding()
    decoding.on_step = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == step else None
    decoding.round()


def archived(
    topic: str,
    values: Sequence[object],
    partition: int = 0,
    first_offset: int = 0,
    keys: Sequence[str | bytes | None] | None = None,
    timestamps_ms: Sequence[int] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> pa.Table:
    """Rows as archives have them."""
    count = len(values)
    offsets = np.arange(first_offset, first_offset + count, dtype=np.int64)
    timestamps = START_MS + offsets if timestamps_ms is None else np.array(timestamps_ms, dtype=np.int64)
    texts = [key.encode() if isinstance(key, str) else key for key in keys or [None] * count]
    return archive_table(
        topic,
        partition,
        offsets,
        timestamps,
        np.zeros(count, dtype=np.int32),
        pa.array(texts, pa.binary()),
        pa.array([encoded(value) for value in values], pa.binary()),
        pa.array([pairs(each) for each in headers or [None] * count], HEADERS),
    )


def pairs(headers: Headers | None) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


def encoded(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
