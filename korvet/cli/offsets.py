"""`korvet offsets`: the offsets that Kafka's GetOffsetShell prints, in the same format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import as_json, bootstrap_servers, chosen, partition_numbers, with_client
from korvet.cli.output import print_json
from korvet.cli.times import EXAMPLES, NAMED, parse_named_time

if TYPE_CHECKING:
    from korvet.client import Client, ListedOffset, TopicPartition


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--time",
    "time_text",
    metavar="TIME",
    default="latest",
    show_default=True,
    help=f"{', '.join(NAMED)}, or a time such as {EXAMPLES}.",
)
@partition_numbers
@bootstrap_servers
@as_json
def command(
    topic: str,
    time_text: str,
    numbers: tuple[int, ...],
    servers: str,
    as_json: bool,
) -> None:
    """Print the offsets of a topic's partitions: first, next, or at a time.

    One line for each partition, topic:partition:offset. A partition without a record at or after TIME has no line.
    """
    timestamp = parse_named_time(time_text)

    async def listed(client: Client) -> dict[TopicPartition, ListedOffset]:
        tps = chosen(await client.topic(topic), numbers)
        return await client.list_offsets(dict.fromkeys(tps, timestamp))

    found = {tp: offset for tp, offset in with_client(servers, listed).items() if offset.offset >= 0}
    if as_json:
        print_json(
            [{**tp._asdict(), "offset": at.offset, "timestamp": at.timestamp} for tp, at in found.items()]
        )
        return
    for tp, at in found.items():
        click.echo(f"{tp.topic}:{tp.partition}:{at.offset}")
