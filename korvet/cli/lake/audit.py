"""`korvet lake audit`: check that everything that was archived is still in the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from attrs import frozen

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    opened_tables,
    parsed_location,
    split_names,
    storage_options,
)
from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import Counting, Progress, print_json

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.lake.table import LakeTable
    from korvet.pipeline.archive_status import Finding
    from korvet.pipeline.decoding.tables import DecodedTable

Result = tuple["dict[str, LakeTable]", "list[Finding]", dict[str, str]]


@click.command(name="audit")
@bootstrap_servers
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@lake_location("--at")
@storage_options
@click.option(
    "--archive", metavar="URL",
    help="Location of the archives: compare typed tables with them, offset by offset.",
)  # fmt: skip
@click.option("--offline", is_flag=True, help="Audit only the tables; do not compare them with the broker.")
@click.option("--checksums", is_flag=True, help="Read all files and verify their checksums.")
@as_json
@config_file
def command(
    servers: str,
    topics: str | None,
    lake: str,
    storage_texts: tuple[str, ...],
    archive: str | None,
    offline: bool,
    checksums: bool,
    as_json: bool,
) -> None:
    """Verify that all archived records are in the tables, and list missing ones.

    Typed tables, in their location, are audited for lost and damaged files, and repeated rows. With --archive, each
    record of their archives must have a row in the typed or the dlq table, unless it was skipped, dropped or erased.

    Each table's commits must follow each other without a gap, its files must hold what the commits added, and what
    the broker still has must be in them, offset by offset. With --checksums, the records must be those that were
    committed, byte by byte. Erased records are not missing. Gaps that --accept-gap has passed over are listed. Exits
    with 1 if anything is missing.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        import trio

        from korvet.lake.errors import LakeError, NoTable
        from korvet.lake.table import LakeTable
        from korvet.pipeline.archive_status import audit
        from korvet.pipeline.decoding.auditing import audit_decoded, compared
        from korvet.pipeline.decoding.specification import DLQ_SUFFIX
        from korvet.pipeline.decoding.tables import TYPED, DecodedTable, open_table
    archives = None if archive is None else parsed_location(archive, storage_texts)
    there: dict[str, LakeTable | DecodedTable] = {}
    if topics is None:
        there = opened_tables(location)
        names = list(there)
    else:
        names = split_names(topics)
        for name in names:
            with suppress(LakeError):  # the audit reports it
                there[name] = open_table(location, name)
    decoded = {name: table for name, table in there.items() if isinstance(table, DecodedTable)}
    opened = {name: table for name, table in there.items() if not isinstance(table, DecodedTable)}
    archived = [name for name in names if name not in decoded]

    with Progress("proved", unit="bytes") as progress:
        counting = Counting(progress)

        async def audited(client: Client | None) -> Result:
            return await audit(client, location, archived, opened, checksums=checksums, on_progress=counting)

        needs_broker = archived and not offline
        result: Result = with_client(servers, audited) if needs_broker else trio.run(audited, None)
        tables, findings, failures = result
        for name, typed in decoded.items():
            try:
                findings += audit_decoded(typed, name, checksums=checksums, on_progress=counting)
                if archives is not None and typed.kind == TYPED:
                    whole = LakeTable.open(archives, typed.topic, typed.topic_id)
                    dlq = None
                    with suppress(NoTable):
                        dlq = DecodedTable.found(location.child(f"{name}{DLQ_SUFFIX}"))
                    findings += compared(typed, dlq, whole, name)
            except LakeError as error:
                failures[name] = str(error)
    decoded = {name: table for name, table in decoded.items() if name not in failures}
    report = Report(tables, decoded, tuple(findings), failures)
    if as_json:
        print_json(report.to_json())
    else:
        for line in report.lines():
            click.echo(line)
    if findings or failures:
        raise SystemExit(1)


@frozen
class Report:
    """The result of an audit: the tables that could be read, what is missing, and the errors of other topics."""

    tables: dict[str, LakeTable]
    decoded: dict[str, DecodedTable]
    findings: tuple[Finding, ...]
    failures: dict[str, str]

    def to_json(self) -> dict[str, object]:
        from korvet.lake.erasing import erased_count, record_count

        return {
            "topics": {topic: table.offset_count for topic, table in self.tables.items()},
            "records": {topic: record_count(table) for topic, table in self.tables.items()},
            "rows": {name: table.row_count for name, table in self.decoded.items()},
            "erased": {topic: erased_count(table) for topic, table in self.tables.items()},
            "accepted_gaps": [
                {"topic": topic, "partition": gap.partition, "start": gap.start, "end": gap.end}
                for topic, table in self.tables.items()
                for gap in table.gaps
            ],
            "missing": [
                {name: getattr(finding, name) for name in ("topic", "partition", "start", "end", "what")}
                for finding in self.findings
            ],
            "failed": self.failures,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines for a reader: findings, a summary of each topic, and errors."""
        yield from map(str, self.findings)
        for topic, table in self.tables.items():
            yield self._summary(topic, table)
            for gap in table.gaps:
                offsets = f"offsets {gap.start} to {gap.end - 1}"
                yield f"{topic}-{gap.partition} {offsets}: not archived, the gap was accepted"
        for name, decoded in self.decoded.items():
            count = sum(finding.topic == name for finding in self.findings)
            result = f"{count} findings" if count else f"as written, in {len(decoded.files):,} files"
            yield f"{name}: {decoded.row_count:,} rows, {result}"
        for topic, error in self.failures.items():
            yield f"{topic}: {error}"

    def _summary(self, topic: str, table: LakeTable) -> str:
        from korvet.lake.erasing import erased_count, record_count

        count, erased = sum(finding.topic == topic for finding in self.findings), erased_count(table)
        return (
            f"{topic}: {record_count(table):,} records, "
            + (f"{count} findings" if count else "all accounted for")
            + (f"; {erased:,} more were erased" if erased else "")
            + (f"; {len(table.gaps)} accepted gaps" if table.gaps else "")
        )
