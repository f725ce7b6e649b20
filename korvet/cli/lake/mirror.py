"""`korvet lake mirror`: keep Iceberg tables in step with archives and typed tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from attrs import asdict, define, field

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    no_archive,
    parsed_location,
    storage_options,
)
from korvet.cli.lake.running import ended_by_signals
from korvet.cli.options import as_json, assignments
from korvet.cli.output import print_json
from korvet.cli.times import interval_s

if TYPE_CHECKING:
    from korvet.lake.iceberg.rounds import Outcome
    from korvet.lake.location import Location


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
        lambda: tables(location, topics),
        timedelta(hours=keep_hours),
        skips_others=topics is None,
    )
    display = Display(is_json=as_json, is_repeated=every_s is not None)
    if rebuild:
        display.show(rounds.round(rebuilds=True))
    else:
        with ended_by_signals(rounds):
            rounds.run(every_s, display.show)
    if display.failed:
        raise SystemExit(1)


def tables(location: Location, names: str | None) -> list[str]:
    """Return the comma-separated names, or those of all Delta tables. Raises LakeError, and NoTable without any."""
    from korvet.lake.listing import tables_in

    if names is not None:
        return [name for name in names.split(",") if name]
    found = tables_in(location)
    if not found:
        raise no_archive(location)
    return found


@define
class Display:
    """Prints what rounds did: the first one whole, later ones only if a table changed or has another error."""

    is_json: bool
    is_repeated: bool
    failed: dict[str, str] = field(factory=dict)  # the errors of the last round
    _is_first: bool = True

    def show(self, outcomes: Mapping[str, Outcome]) -> None:
        before, self.failed = (
            self.failed,
            {topic: each.error for topic, each in outcomes.items() if each.error},
        )
        changed = {
            topic: each
            for topic, each in outcomes.items()
            if self._is_first
            or (each.error != before.get(topic) if each.error else each.change != "up to date")
        }
        self._is_first = False
        if self.is_json and (changed or not self.is_repeated):
            print_json({topic: asdict(each) for topic, each in changed.items()})
            return
        for topic, each in changed.items():
            if each.error:
                click.echo(f"korvet: {topic}: {each.error}", err=True)
            else:
                click.echo(f"{topic}: {summary(each)}")


def summary(outcome: Outcome) -> str:
    """Return what a round did, in words."""
    text = f"{outcome.change} at version {outcome.version}"
    if outcome.change != "up to date":
        text += f": {outcome.added_files:,} files added, {outcome.removed_files:,} removed"
    if outcome.expired_snapshots:
        text += f"; {outcome.expired_snapshots:,} snapshots expired"
    return text
