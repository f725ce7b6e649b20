"""`korvet records`: delete records from the start of partitions, as kafka-delete-records does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import as_json, bootstrap_servers, chosen, partition_numbers, with_client
from korvet.cli.output import print_json, print_table
from korvet.cli.times import EXAMPLES, parse_time

if TYPE_CHECKING:
    from korvet.client import Client, TopicPartition

COLUMNS = ["topic", "partition", "first-offset", "new-first-offset"]


@click.group(name="records")
def command() -> None:
    """Delete records from the start of partitions."""


@command.command("delete")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--before-offset", type=click.IntRange(min=0), metavar="OFFSET", help="Records with a smaller offset."
)
@click.option(
    "--before-time", "time_text", metavar="TIME", help=f"Records before the first one at or after {EXAMPLES}."
)
@click.option("--all", "everything", is_flag=True, help="All records.")
@partition_numbers
@click.option("--dry-run", is_flag=True, help="Only show the new first offsets.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_servers
@as_json
def delete(
    topic: str,
    before_offset: int | None,
    time_text: str | None,
    everything: bool,
    numbers: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    servers: str,
    as_json: bool,
) -> None:
    """Delete the first records of a topic's partitions. They cannot be restored.

    A partition without a record at or after --before-time loses all its records.
    """
    if [before_offset is not None, time_text is not None, everything].count(True) != 1:
        raise click.UsageError("Name one of --before-offset, --before-time and --all.")
    before_time = None if time_text is None else parse_time(time_text)
    if not (yes or dry_run) and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(f"Delete records of {topic}?", abort=True)

    async def delete_them(client: Client) -> list[dict[str, Any]]:
        from korvet.client import EARLIEST

        tps = chosen(await client.topic(topic), numbers)
        first = {
            tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, EARLIEST))).items()
        }
        ends = await new_starts(client, tps, before_offset, before_time)
        # An offset below the log's start deletes nothing.
        starts = {tp: max(first[tp], end) for tp, end in ends.items()}
        if not dry_run:
            starts = await client.delete_records(starts)
        return [
            {**tp._asdict(), "first-offset": first[tp], "new-first-offset": start}
            for tp, start in sorted(starts.items())
        ]

    rows = with_client(servers, delete_them)
    if as_json:
        print_json(rows)
    else:
        print_table(rows, COLUMNS)
    if dry_run:
        click.echo("Nothing was deleted, because of --dry-run.", err=True)


async def new_starts(
    client: Client, tps: list[TopicPartition], before_offset: int | None, before_time: int | None
) -> dict[TopicPartition, int]:
    """Return the offset of each partition below which its records are to be deleted."""
    from korvet.client import LATEST

    if before_offset is not None:
        return dict.fromkeys(tps, before_offset)
    ends = {tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}
    if before_time is None:
        return ends
    found = await client.list_offsets(dict.fromkeys(tps, before_time))
    return ends | {tp: at.offset for tp, at in found.items() if at.offset >= 0}
