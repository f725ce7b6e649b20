"""`korvet lake widen`: widen columns of a typed table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.output import Counting, Progress

if TYPE_CHECKING:
    from korvet.pipeline.decoding.widening import Widening


@click.command(name="widen")
@click.argument("table")
@lake_location()
@click.option(
    "--column",
    "texts",
    metavar="COLUMN=TYPE",
    multiple=True,
    required=True,
    help="A column with its wider type, such as id=bigint or lines[].price=double; may be repeated.",
)
@storage_options
@config_file
def command(table: str, lake: str, texts: tuple[str, ...], storage_texts: tuple[str, ...]) -> None:
    """Widen columns of the typed TABLE: whole numbers, float to double, and decimals.

    All files are written again, and replaced in one commit; decoding may go on. For a typed table, name the location
    of typed tables with --lake. korvet lake decode --redrive then adds the rows that did not fit.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.lake.errors import LakeError
        from korvet.lake.retrying import retried
        from korvet.pipeline.decoding.tables import DecodedTable
        from korvet.pipeline.decoding.widening import Widen
    several = {each.path: each.kind for each in map(parsed, texts)}
    try:
        widen = Widen(retried(lambda: DecodedTable.found(location.child(table))), several)
        with Progress(f"{table}: written again", unit="bytes") as progress:
            widen.on_progress = Counting(progress)
            files = widen.run()
    except LakeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{table}: {files:,} files were written again" if files else f"{table}: nothing to widen")


def parsed(text: str) -> Widening:
    """Parse the value of --column. Raises BadParameter."""
    from korvet.pipeline.decoding.widening import Widening

    try:
        return Widening.parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--column") from None
