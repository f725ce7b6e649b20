"""Reports of `korvet lake run`: the state of each topic's tables, in the metadata of a committed offset.

The run commits archived offsets to its group, and beside one offset of each topic a report as JSON. So every client of
every broker of the cluster reads the same reports, as far as ACLs permit, and no broker caches them. A report states
when it was made, so that the report of a killed run is recognized by its age.

The lag of an archive is the difference of the committed offsets and the current end offsets. It grows without a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import attrs
from attrs import asdict, evolve, field, frozen
from attrs.validators import deep_iterable, instance_of, optional

from korvet.client.client import Client
from korvet.client.groups import list_groups
from korvet.client.model import OffsetAndMetadata, TopicPartition
from korvet.protocol.errors import KafkaError

T = TypeVar("T")

MARK, VERSION = "korvet.lake", 1
ARCHIVE, TYPED = "archive", "typed"
# Kafka limits metadata to 4096 bytes by default (offset.metadata.max.bytes).
LONGEST_REPORT = 4096
LONGEST_TEXT = 500
#: Age of a report after which its run is shown as lost. A run reports every 10 seconds, and after long rounds later.
STALE_S = 60.0
# Limit of the groups without members whose committed offsets are searched for reports.
MOST_GROUPS = 100

TEXT = instance_of(str)
NUMBER = instance_of(int)


@frozen
class ReportedTable:
    """One table of a topic. Unknown values are None."""

    kind: str = field(validator=TEXT)  # ARCHIVE or TYPED
    path: str = field(validator=TEXT)
    #: Milliseconds since 1970: the table has all records that were appended before.
    fresh_until_ms: int | None = field(default=None, validator=optional(NUMBER))
    files: int | None = field(default=None, validator=optional(NUMBER))
    bytes: int | None = field(default=None, validator=optional(NUMBER))
    #: Offsets of the archive that a typed table does not have yet.
    behind: int | None = field(default=None, validator=optional(NUMBER))


@frozen
class Report:
    """The report on one topic, made at `at_ms` on the clock of the run."""

    at_ms: int = field(validator=NUMBER)
    state: str = field(validator=TEXT)
    tables: tuple[ReportedTable, ...] = field(validator=deep_iterable(instance_of(ReportedTable)))
    error: str | None = field(default=None, validator=optional(TEXT))
    #: Records that wait for a commit, about; None if unknown.
    lag_records: int | None = field(default=None, validator=optional(NUMBER))
    #: True if the run ended in order after this report.
    is_last: bool = field(default=False, validator=instance_of(bool))

    def to_text(self) -> str:
        """Return the report as metadata of a committed offset, without the last tables if it would be too long."""
        tables = [asdict(evolve(each, path=each.path[:LONGEST_TEXT])) for each in self.tables]
        values = asdict(evolve(self, tables=(), error=self.error and self.error[:LONGEST_TEXT]))
        while True:
            text = json.dumps(
                {MARK: VERSION, **values, "tables": tables}, ensure_ascii=False, separators=(",", ":")
            )
            if len(text.encode()) <= LONGEST_REPORT or not tables:
                return text
            tables.pop()

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the report in the metadata of a commit, None if the metadata is something else."""
        try:
            values = json.loads(text)
            if values[MARK] != VERSION:
                return None
            tables = tuple(_made(ReportedTable, each) for each in values["tables"])
            return _made(cls, {**values, "tables": tables})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of an attrs class. Fields that a newer version has added are ignored."""
    names = {each.name for each in attrs.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


@frozen
class ShownTable:
    """One table of a topic as the page and `korvet top` show it. Unknown values are None."""

    topic: str
    kind: str
    path: str
    #: The state of the topic's tables, or LOST or ENDED.
    state: str
    error: str | None
    fresh_until_ms: int | None
    lag_records: int | None
    #: Seconds for which the oldest record that the table does not have has been waiting, at most.
    lag_s: float | None
    files: int | None
    bytes: int | None
    #: Seconds since the run made its report.
    age_s: float


#: States of tables whose run does not report any more: it was lost, or ended in order.
LOST, ENDED = "no report", "ended"


def reports_in(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, Report]:
    """Return the newest report on each topic among a group's committed offsets."""
    found: dict[str, Report] = {}
    for tp, at in committed.items():
        report = Report.parse(at.metadata) if at.metadata else None
        if report is not None and (tp.topic not in found or found[tp.topic].at_ms < report.at_ms):
            found[tp.topic] = report
    return found


async def reporting_groups(client: Client) -> list[dict[TopicPartition, OffsetAndMetadata]]:
    """Return the committed offsets of each group with a report. Raises KafkaError."""
    listed = [each for each in await list_groups(client) if not each.protocol_type]
    found = []
    for each in listed[:MOST_GROUPS]:
        try:
            committed = await client.committed(each.group_id)
        except KafkaError:
            continue  # deleted meanwhile, or the client is not authorized
        if reports_in(committed):
            found.append(committed)
    return found


def lake_tables(
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    bounds: Mapping[str, Mapping[int, tuple[int, int]]],
    clocked: Iterable[str],
    now_ms: float,
) -> list[ShownTable]:
    """Return the tables in a group's reports, of the topics in `bounds`: the start and end of each partition.

    The offsets of the topics in `clocked` do not count records.
    """
    found: list[ShownTable] = []
    uncounted = set(clocked)
    for topic, report in sorted(reports_in(committed).items()):
        if topic not in bounds:
            continue
        archived = {tp.partition: at.offset for tp, at in committed.items() if tp.topic == topic}
        waiting = sum(
            max(0, end - max(start, archived.get(partition, start)))
            for partition, (start, end) in bounds[topic].items()
        )
        for table in report.tables:
            shown = _shown(topic, report, table, waiting, now_ms)
            if topic in uncounted and shown.lag_records:
                # The report's number is of its time; without newer reports it says nothing of now.
                is_live = shown.state not in (LOST, ENDED)
                shown = evolve(shown, lag_records=(report.lag_records or None) if is_live else None)
            found.append(shown)
    return found


def _shown(topic: str, report: Report, table: ReportedTable, waiting: int, now_ms: float) -> ShownTable:
    """Return a table. `waiting` is the number of offsets that the archive does not have."""
    age_s = max(0.0, (now_ms - report.at_ms) / 1000)
    state = ENDED if report.is_last else LOST if age_s > STALE_S else report.state
    behind = 0 if table.kind == ARCHIVE else table.behind
    lag_records = None if behind is None else waiting + behind
    lag_s = None
    if lag_records == 0:
        lag_s = 0.0
    elif table.fresh_until_ms is not None:
        lag_s = max(0.0, (now_ms - table.fresh_until_ms) / 1000)
    return ShownTable(
        topic,
        table.kind,
        table.path,
        state,
        report.error,
        table.fresh_until_ms,
        lag_records,
        lag_s,
        table.files,
        table.bytes,
        age_s,
    )
