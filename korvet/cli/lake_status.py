"""`korvet lake status`: how far topics are archived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.lake_options import (
    config_file,
    lake_location,
    needing_extra,
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
    not archived yet, and for how many seconds the oldest of them has been waiting.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.pipeline.archive_plan import Wanted
        from korvet.pipeline.archive_status import status
    try:
        wanted = None if topics is None else Wanted.parse(topics)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--topics") from None
    found = with_client(servers, lambda client: status(client, location, wanted))
    if as_json:
        print_json([row(each) for each in found])
        return
    print_table(
        [shown(each) for each in found],
        ["topic", "partition", "log_start", "archived", "latest", "lag", "waiting"],
    )


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
    """For people: dashes for what is not there, a plus where there is more."""
    lag: object = f"{status.lag_records}+" if status.more else status.lag_records
    return {
        **row(status),
        "archived": "-" if status.archived_up_to is None else status.archived_up_to,
        "lag": lag,
        "waiting": "-" if status.lag_s is None else f"{status.lag_s:.0f} s",
    }
