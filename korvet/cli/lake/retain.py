"""`korvet lake retain`: drop old archived records."""

from __future__ import annotations

import sys
import time

import click

from korvet.cli.lake.options import (
    archives,
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.times import duration_ms


@click.command(name="retain")
@lake_location("--at")
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@click.option(
    "--older-than", callback=duration_ms, required=True, metavar="TIME", help="Maximum age of records: 90d."
)
@storage_options
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@config_file
def command(
    lake: str, topics: str | None, older_than: int, storage_texts: tuple[str, ...], dry_run: bool, yes: bool
) -> None:
    """Remove archived records that are older, by their own timestamps, from the start of each partition.

    Records that were archived together are dropped together, and only if everything before them is dropped as well, as
    with Kafka's segments. korvet lake vacuum removes the files. At a terminal, the command asks for confirmation;
    elsewhere an age of 0 needs --yes, since it empties the tables.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.lake.retention import retain
    cutoff_ms = time.time_ns() // 1_000_000 - older_than
    names = archives(location, topics)
    if not (yes or dry_run):
        confirm(names, older_than)
    for name in names:
        starts = retain(location, name, cutoff_ms, dry_run=dry_run)
        for partition, start in starts.items():
            click.echo(f"{name}-{partition} {'would begin' if dry_run else 'begins'} at offset {start}")
        if not starts:
            click.echo(f"{name}: nothing is that old")


def confirm(names: list[str], older_than: int) -> None:
    """Ask for confirmation at a terminal. Raises UsageError elsewhere if all records would be dropped."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        age = f"{older_than / 1000:,g} s" if older_than else "0, which is all of them"
        click.confirm(f"Drop archived records older than {age} from {', '.join(names)}?", abort=True)
    elif not older_than:
        raise click.UsageError("--older-than 0 drops all archived records; confirm this with --yes.")
