"""`korvet lake register`: register archives and typed tables in a catalogue, where other programs find them by name."""

from __future__ import annotations

import logging
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
    from korvet.lake.registration.rounds import Outcome


@click.command(name="register")
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@lake_location()
@storage_options
@click.option(
    "--catalog-option", "catalog_texts", metavar="NAME=VALUE", multiple=True, required=True,
    help="The catalogue: type=hive, glue or unity, and its settings, such as uri=…; may be repeated.",
)  # fmt: skip
@click.option(
    "--namespace",
    default="korvet",
    show_default=True,
    metavar="NAME",
    help="Database, or Unity's schema, of the tables in the catalogue.",
)
@click.option("--every", "every_s", callback=interval_s, metavar="TIME", help="Repeat at this interval: 30s.")
@as_json
@config_file
def command(
    topics: str | None,
    lake: str,
    storage_texts: tuple[str, ...],
    catalog_texts: tuple[str, ...],
    namespace: str,
    every_s: float | None,
    as_json: bool,
) -> None:
    """Register the Delta tables of a lake in a Hive metastore, in AWS Glue or in Unity Catalog, by their names.

    An entry has the location and the columns of its table, and is updated when the table gains columns. Exits with 1
    when a table failed in the last round.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.lake.registration.rounds import Rounds
        from korvet.lake.registration.target import InvalidTarget, Target
    try:
        target = Target.of(assignments(catalog_texts, "--catalog-option"))
    except InvalidTarget as error:
        raise click.BadParameter(str(error), param_hint="--catalog-option") from None
    logging.basicConfig(format="korvet: %(message)s")
    rounds = Rounds(
        target, namespace, location, tables=lambda: tables(location, topics), skips_others=topics is None
    )
    run_and_print(rounds, every_s, summary, is_json=as_json)


def summary(outcome: Outcome) -> str:
    """Return what a round did, in words."""
    return f"{outcome.change} as {outcome.name}"
