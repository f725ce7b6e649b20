"""`korvet lake status`: show how far topics are archived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    no_archive,
    parsed_location,
    storage_options,
)
from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.pipeline.archive_status import PartitionStatus


@click.command(name="status")
@bootstrap_servers
@click.option("-t", "--topics", metavar="TOPICS", help="Names and patterns. [those that have a table]")
@lake_location("--at")
@storage_options
@as_json
@config_file
def command(
    servers: str, topics: str | None, lake: str, storage_texts: tuple[str, ...], as_json: bool
) -> None:
    """Show how far topics are archived.

    For each partition: where its log starts, up to which offset it is archived, where it ends, how many records are
    not archived yet, and for how many seconds the oldest of them has been waiting. Exits with 1 when the archive of a
    topic is of an earlier topic of the same name.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.pipeline.archive_plan import Wanted
        from korvet.pipeline.archive_status import status
    try:
        wanted = None if topics is None else Wanted.parse(topics)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--topics") from None
    found, failures = with_client(servers, lambda client: status(client, location, wanted))
    if wanted is None and not found and not failures:
        raise no_archive(location)
    if as_json:
        print_json([row(each) for each in found])
    else:
        print_table(
            [shown(each) for each in found],
            ["topic", "partition", "log_start", "archived", "latest", "lag", "waiting"],
        )
    for topic, reason in failures.items():
        click.echo(f"{topic}: {reason}", err=True)
    if failures:
        raise SystemExit(1)


def row(status: PartitionStatus) -> dict[str, object]:
    return {
        "topic": status.topic,
        "partition": status.partition,
        "log_start": status.log_start_offset,
        "archived": status.archived_up_to,
        "latest": status.last_stable_offset,
        "lag": status.lag_records,
        "lag_is_at_least": status.more,
        "waiting_s": status.lag_s,
    }


def shown(status: PartitionStatus) -> dict[str, object]:
    """Return a row of the table: a dash for unknown values, a plus if there are more records than were counted."""
    values = {
        **row(status),
        "lag": f"{status.lag_records}+" if status.more else status.lag_records,
        "waiting": None if status.lag_s is None else f"{status.lag_s:.0f} s",
    }
    return {name: "-" if value is None else value for name, value in values.items()}
