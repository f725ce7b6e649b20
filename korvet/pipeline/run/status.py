"""The state of a run's tables, as /status, /metrics and the summary show it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Self

from attrs import asdict, frozen

from korvet.lake.compacting import CLASS_BYTES
from korvet.pipeline.run.schedule import State

if TYPE_CHECKING:
    from korvet.pipeline.archive import TopicProgress
    from korvet.pipeline.run.tables import Table

#: Names of size classes of files: below these sizes, or of any size.
CLASS_NAMES = (*(f"below_{size // 1_000_000}MB" for size in CLASS_BYTES), "larger")


@frozen
class TypedStatus:
    """One typed table of a topic after a round."""

    path: str
    version: int
    #: Milliseconds since 1970: the table has all records that were appended before. None if unknown.
    fresh_until_ms: int | None
    #: Offsets of the archive that are not decoded yet.
    behind: int
    #: The number of files by size class, and their bytes.
    files: dict[str, int]
    file_bytes: int

    @classmethod
    def of_all(cls, table: Table, fresh_until_ms: int | None) -> tuple[Self, ...]:
        """Return the status of each typed table that exists. `fresh_until_ms` is that of the archive."""
        found = []
        for work in table.typed:
            typed, archive = work.decoding.typed, table.archive
            if typed is None or archive is None:
                continue
            behind = sum(
                max(0, end - typed.decoded_up_to.get(partition, archive.start(partition) or 0))
                for partition, end in archive.archived_up_to.items()
            )
            if not behind:
                work.fresh_until_ms = fresh_until_ms
            sizes = tuple(file.size for file in typed.files)
            found.append(
                cls(
                    str(typed.location),
                    typed.version,
                    work.fresh_until_ms,
                    behind,
                    by_class(sizes),
                    sum(sizes),
                )
            )
        return tuple(found)


@frozen
class TableStatus:
    """One table after a round. Unknown values are None."""

    topic: str
    path: str
    state: State
    error: str | None
    #: Offsets, and about how many records, that wait for a commit.
    lag_offsets: int
    lag_records: int | None
    #: Upper bound of the seconds for which the oldest of them waits.
    lag_s: float
    #: Milliseconds since 1970: the table has all records that were appended before.
    fresh_until_ms: int | None
    partitions: int
    #: Since the start of the run.
    records: int
    row_bytes: int
    decoded: int
    bad: int
    conflicts: int
    commit_s: float | None
    #: The number of files by size class, and their bytes.
    files: dict[str, int]
    file_bytes: int
    version: int | None
    mirrored_version: int | None
    mirror_lag_s: float | None
    typed: tuple[TypedStatus, ...]

    @classmethod
    def of(cls, table: Table, path: str, progress: TopicProgress | None, now: float) -> TableStatus:
        """Return the status of a table. `progress` is that of its archive."""
        schedule = table.schedule
        lag_s = schedule.lag_s(now)
        observed = [waiting for waiting in schedule.partitions.values() if waiting.archived is not None]
        fresh_s = min((each.clear_s if each.offsets else each.observed_s for each in observed), default=None)
        is_known = fresh_s is not None and fresh_s > -math.inf and len(observed) == len(schedule.partitions)
        fresh_until_ms = None
        if is_known and fresh_s is not None:
            fresh_until_ms = round((time.time() - (now - fresh_s)) * 1000)
        rows = None if progress is None else progress.rows
        return cls(
            table.topic,
            path,
            schedule.state(now),
            schedule.error or None,
            schedule.lag_offsets,
            _records(schedule.lag_offsets, None if rows is None else rows.offsets_each, progress),
            lag_s,
            fresh_until_ms,
            len(schedule.partitions),
            0 if progress is None else progress.records,
            0 if progress is None else progress.row_bytes,
            table.decoded.typed,
            table.decoded.bad,
            0 if progress is None else progress.conflicts,
            None if progress is None else progress.commit_s,
            by_class(table.files),
            sum(table.files),
            None if table.archive is None else table.archive.version,
            table.mirrored_version,
            table.mirror_lag_s(now),
            TypedStatus.of_all(table, fresh_until_ms),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {**asdict(self), "state": str(self.state)}


def _records(offsets: int, offsets_each: float | None, progress: TopicProgress | None) -> int | None:
    if not offsets or (progress is not None and progress.counts_records):
        return offsets
    return None if offsets_each is None else round(offsets / offsets_each)


def by_class(sizes: tuple[int, ...]) -> dict[str, int]:
    """Return the number of files by size class."""
    counts = dict.fromkeys(CLASS_NAMES, 0)
    for size in sizes:
        name = next(
            (name for name, limit in zip(CLASS_NAMES, CLASS_BYTES, strict=False) if size < limit), "larger"
        )
        counts[name] += 1
    return counts
