"""`korvet lake retain`: drop what is archived for long enough."""

from __future__ import annotations

import re
import time

import click

from korvet.cli.lake_options import (
    archives,
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)

UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


def age_ms(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """A time such as 90d, in milliseconds."""
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z])\s*", text)
    if match is None or match[2] not in UNITS_MS:
        raise click.BadParameter(f"{text!r} is no time; accepted are 90d, 12h, 30m.")
    return int(match[1]) * UNITS_MS[match[2]]


@click.command(name="retain")
@lake_location("--at")
@click.option("-t", "--topics", metavar="TOPICS", help="Names, with commas between. [all that have a table]")
@click.option(
    "--older-than", callback=age_ms, required=True, metavar="TIME", help="How old records may be: 90d."
)
@storage_options
@click.option("--dry-run", is_flag=True, help="Only say what would be dropped.")
@config_file
def command(
    lake: str, topics: str | None, older_than: int, storage_texts: tuple[str, ...], dry_run: bool
) -> None:
    """Drop archived records that are older, by their own timestamps, from the beginning of each partition.

    What was archived together goes together, and only when everything before it goes, too, as with Kafka's segments.
    The files are removed by korvet lake vacuum.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.lake.retention import drop_before, expired_up_to
        from korvet.lake.table import LakeTable
    cutoff_ms = time.time_ns() // 1_000_000 - older_than
    names = archives(location, topics)
    for name in names:
        table = LakeTable.open(location, name)
        starts = expired_up_to(table, cutoff_ms)
        if starts and not dry_run:
            drop_before(table, starts)
        for partition, start in starts.items():
            click.echo(f"{name}-{partition} {'would begin' if dry_run else 'begins'} at offset {start}")
        if not starts:
            click.echo(f"{name}: nothing is that old")
