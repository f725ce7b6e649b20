"""`korvet lake audit`: check that everything that was archived is still in the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.lake.options import (
    archives,
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import Counting, Progress, print_json

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.pipeline.archive_status import Finding

Result = tuple[dict[str, int], "list[Finding]", dict[str, str]]


@click.command(name="audit")
@bootstrap_servers
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@lake_location("--at")
@storage_options
@click.option("--offline", is_flag=True, help="Audit only the tables; do not compare them with the broker.")
@click.option("--checksums", is_flag=True, help="Read all files and verify their checksums.")
@as_json
@config_file
def command(
    servers: str,
    topics: str | None,
    lake: str,
    storage_texts: tuple[str, ...],
    offline: bool,
    checksums: bool,
    as_json: bool,
) -> None:
    """Verify that all archived records are in the tables, and list missing ones.

    Each table's commits must follow each other without a gap, its files must hold what the commits added, and what
    the broker still has must be in them, offset by offset. With --checksums, the records must be those that were
    committed, byte by byte. Erased records are not missing. Gaps that --accept-gap has passed over are listed. Exits
    with 1 if anything is missing.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        import trio

        from korvet.lake.erasing import erased_count, record_count
        from korvet.lake.table import LakeTable
        from korvet.pipeline.archive_status import audit
    names = archives(location, topics)

    with Progress("proved", unit="bytes") as progress:
        counting = Counting(progress)

        async def audited(client: Client | None) -> Result:
            return await audit(client, location, names, checksums=checksums, on_progress=counting)

        result: Result = trio.run(audited, None) if offline else with_client(servers, audited)
    sound, findings, failures = result
    tables = {topic: LakeTable.open(location, topic) for topic in sound}
    erased = {topic: erased_count(table) for topic, table in tables.items()}
    gaps = {topic: table.gaps for topic, table in tables.items()}
    records = {topic: record_count(table) for topic, table in tables.items()}
    if as_json:
        print_json(
            {
                "topics": sound,
                "records": records,
                "erased": erased,
                "accepted_gaps": [
                    {"topic": topic, "partition": gap.partition, "start": gap.start, "end": gap.end}
                    for topic, several in gaps.items()
                    for gap in several
                ],
                "missing": [
                    {
                        "topic": finding.topic,
                        "partition": finding.partition,
                        "start": finding.start,
                        "end": finding.end,
                        "what": finding.what,
                    }
                    for finding in findings
                ],
                "failed": failures,
            }
        )
    else:
        for finding in findings:
            click.echo(str(finding))
        for topic in sound:
            wrong = sum(finding.topic == topic for finding in findings)
            click.echo(
                f"{topic}: {records[topic]:,} records, "
                + (f"{wrong} findings" if wrong else "all accounted for")
                + (f"; {erased[topic]:,} more were erased" if erased.get(topic) else "")
                + (f"; {len(gaps[topic])} accepted gaps" if gaps[topic] else "")
            )
            for gap in gaps[topic]:
                click.echo(
                    f"{topic}-{gap.partition} offsets {gap.start} to {gap.end - 1}: not archived, the gap was accepted"
                )
        for topic, error in failures.items():
            click.echo(f"{topic}: {error}")
    if findings or failures:
        raise SystemExit(1)
