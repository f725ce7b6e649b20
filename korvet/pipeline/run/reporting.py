"""Report the state of a run's tables to every client of the brokers: see `korvet.client.lake_tables`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field

from korvet.client import OffsetAndMetadata, TopicPartition
from korvet.client.lake_tables import ARCHIVE, TYPED, Report, ReportedTable
from korvet.pipeline.group_offsets import GroupOffsets
from korvet.pipeline.run.schedule import State
from korvet.pipeline.run.status import TableStatus
from korvet.pipeline.run.tables import Table

# An unchanged table is reported in this interval, so that readers notice the end of the run.
REPORT_EVERY_S = 10.0


@define
class Reports:
    """Commits archived offsets to the run's group, each topic's with a report."""

    group: GroupOffsets
    #: By topic, the time of the last report, and its facts.
    _reported: dict[str, tuple[float, Any]] = field(factory=dict, init=False)

    async def commit(
        self,
        now: float,
        statuses: Sequence[TableStatus],
        tables: Mapping[str, Table],
        *,
        is_last: bool = False,
    ) -> None:
        """Report the tables that have changed, or have not been reported for REPORT_EVERY_S."""
        due: dict[str, Any] = {}
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for status in statuses:
            table = tables[status.topic]
            # Of two runs, the one that commits to the table reports. A topic that does not exist has no offsets.
            if table.described is None or status.state is State.STANDBY:
                continue
            archived = await self._archived(table)
            facts = (
                archived,
                status.state,
                status.error,
                status.version,
                tuple(each.version for each in status.typed),
            )
            reported_s, before = self._reported.get(status.topic, (0.0, None))
            if facts != before or is_last or now - reported_s >= REPORT_EVERY_S:
                due[status.topic] = facts
                offsets |= committed(status, archived, is_last=is_last)
        if await self.group.commit(offsets):
            self._reported |= {topic: (now, facts) for topic, facts in due.items()}

    async def _archived(self, table: Table) -> Mapping[int, int]:
        """Return the archived offset of each partition, or what the group has if the archive was not read yet."""
        if table.archive is not None and table.archive.archived_up_to:
            return table.archive.archived_up_to
        partitions = [] if table.described is None else table.described.partitions
        tps = [TopicPartition(table.topic, each.partition) for each in partitions]
        found = await self.group.committed(tps[:1])
        return {tp.partition: each.offset for tp, each in found.items()}


def committed(
    status: TableStatus, archived: Mapping[int, int], *, is_last: bool
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit. The first one has the report."""
    text = report_of(status, is_last=is_last).to_text()
    offsets = {
        TopicPartition(status.topic, each): OffsetAndMetadata(archived[each]) for each in sorted(archived)
    }
    return {
        tp: evolve(each, metadata=text) if number == 0 else each
        for number, (tp, each) in enumerate(offsets.items())
    }


def report_of(status: TableStatus, *, is_last: bool) -> Report:
    """Return the report on a topic's tables."""
    files = sum(status.files.values()) if status.version is not None else None
    tables = [ReportedTable(ARCHIVE, status.path, status.fresh_until_ms, files, status.file_bytes)]
    for typed in status.typed:
        files = sum(typed.files.values())
        tables.append(
            ReportedTable(TYPED, typed.path, typed.fresh_until_ms, files, typed.file_bytes, typed.behind)
        )
    return Report(
        time.time_ns() // 1_000_000,
        str(status.state),
        tuple(tables),
        status.error,
        status.lag_records,
        is_last,
    )
