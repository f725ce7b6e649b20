"""`korvet lake changes`: print the changes of a typed table, commit by commit."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import click
from attrs import define, field

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.lake.rows import plain
from korvet.cli.lake.running import ended_by_signals
from korvet.cli.times import interval_s

if TYPE_CHECKING:
    from korvet.pipeline.decoding.tables import DecodedTable


@click.command(name="changes", epilog="korvet lake changes orders --lake typed --from-version 40 --every 5s")
@click.argument("name", metavar="TABLE")
@lake_location()
@storage_options
@click.option(
    "--from-version",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The first version whose changes are printed.",
)
@click.option(
    "--until-version", "last", type=click.IntRange(min=0), help="The last one. [the table's newest version]"
)
@click.option("--every", "every_s", callback=interval_s, metavar="TIME", help="Repeat at this interval: 30s.")
@config_file
def command(
    name: str,
    lake: str,
    storage_texts: tuple[str, ...],
    first: int,
    last: int | None,
    every_s: float | None,
) -> None:
    """Print the rows that each commit of a typed or a dlq table inserted, updated and deleted, as lines of JSON.

    A row has the columns of the table, and _change_type (insert, delete, update_preimage, update_postimage),
    _commit_version and _commit_timestamp, as in Delta's change data feed. Deleted rows are there until korvet lake
    vacuum removes their files.
    """
    if last is not None and every_s is not None:
        raise click.UsageError("Only one of --until-version and --every.")
    if last is not None and last < first:
        raise click.BadParameter(f"{last} is before --from-version {first}.", param_hint="--until-version")
    location = parsed_location(lake, storage_texts).child(name)
    with needing_extra():
        from korvet.pipeline.decoding.tables import DecodedTable
    table = DecodedTable.found(location)
    for option, number in (("--until-version", last), ("--from-version", first)):
        if number is not None and number > table.version + (option == "--from-version"):
            raise click.BadParameter(f"the newest version of {name} is {table.version}.", param_hint=option)
    feed = Feed(table, first)
    with ended_by_signals(feed):
        feed.run(last, every_s)


@define
class Feed:
    """Prints the changes from a version on. `stop` ends it after the commit in hand."""

    table: DecodedTable
    first: int
    stopping: threading.Event = field(factory=threading.Event)

    def stop(self) -> None:
        self.stopping.set()

    def run(self, last: int | None, every_s: float | None) -> None:
        """Print the changes up to a version, or at each interval those up to the newest version."""
        from korvet.pipeline.decoding.changes import COMMIT_VERSION, changes

        version = self.first
        while True:
            for rows in changes(self.table, self.first, last):
                for row in rows.to_pylist():
                    if row[COMMIT_VERSION] != version and self.stopping.is_set():
                        return
                    version = row[COMMIT_VERSION]
                    click.echo(
                        json.dumps({key: plain(value) for key, value in row.items()}, ensure_ascii=False)
                    )
            if every_s is None or self.stopping.wait(every_s):
                return
            self.first = self.table.version + 1
            self.table = self.table.reopened()
