"""`korvet lake mirror`: keep Iceberg tables in step with archives and typed tables."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.lake.outcomes import run_and_print, tables
from korvet.cli.options import as_json, assignments
from korvet.cli.times import interval_s

if TYPE_CHECKING:
    from korvet.lake.iceberg.rounds import Outcome


@click.command(name="mirror")
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@lake_location("--at")
@storage_options
@click.option(
    "--catalog", metavar="NAME",
    help="A catalogue of PyIceberg's configuration (~/.pyiceberg.yaml). [none: tables are opened by their paths]",
)  # fmt: skip
@click.option(
    "--catalog-option", "catalog_texts", metavar="NAME=VALUE", multiple=True,
    help="Property of the catalogue in PyIceberg's words, such as type=rest or uri=…; may be repeated.",
)  # fmt: skip
@click.option(
    "--namespace",
    default="korvet",
    show_default=True,
    metavar="NAME",
    help="Namespace of the tables in the catalogue.",
)
@click.option("--every", "every_s", callback=interval_s, metavar="TIME", help="Repeat at this interval: 30s.")
@click.option(
    "--keep-hours", type=click.IntRange(min=1), default=24, show_default=True, metavar="HOURS",
    help="Expire older snapshots; at least the newest one is kept.",
)  # fmt: skip
@click.option(
    "--rebuild", is_flag=True,
    help="Remove the tables from the catalogue, which deletes no data, and make them again.",
)  # fmt: skip
@as_json
@config_file
def command(
    topics: str | None,
    lake: str,
    storage_texts: tuple[str, ...],
    catalog: str | None,
    catalog_texts: tuple[str, ...],
    namespace: str,
    every_s: float | None,
    keep_hours: int,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Keep Iceberg tables in step with archives and typed tables, once or continuously.

    An Iceberg table has the files of the Delta table, of which none is copied: its metadata is in URL/<topic>/_iceberg.
    Without a catalogue, DuckDB and Spark open that folder. Exits with 1 when a topic failed in the last round.
    """
    if rebuild and every_s is not None:
        raise click.UsageError("--rebuild does not go with --every.")
    location = parsed_location(lake, storage_texts)
    properties = assignments(catalog_texts, "--catalog-option")
    logging.basicConfig(format="korvet: %(message)s")
    with needing_extra("iceberg"):
        from korvet.lake.iceberg.catalogs import open_catalogue
        from korvet.lake.iceberg.mirror import Mirror
        from korvet.lake.iceberg.rounds import Rounds
    mirror = Mirror(open_catalogue(location, catalog, properties), namespace)
    rounds = Rounds(
        mirror,
        location,
        timedelta(hours=keep_hours),
        rebuilds=rebuild,
        tables=lambda: tables(location, topics),
        skips_others=topics is None,
    )
    run_and_print(rounds, every_s, summary, is_json=as_json)


def summary(outcome: Outcome) -> str:
    """Return what a round did, in words."""
    text = f"{outcome.change} at version {outcome.version}"
    if outcome.change != "up to date":
        text += f": {outcome.added_files:,} files added, {outcome.removed_files:,} removed"
    if outcome.expired_snapshots:
        text += f"; {outcome.expired_snapshots:,} snapshots expired"
    return text
