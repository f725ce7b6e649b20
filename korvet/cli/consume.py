"""`korvet consume`: print the records of a topic as lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from korvet.cli.options import bootstrap_servers, chosen, partition_numbers, with_client
from korvet.cli.output import Progress
from korvet.cli.times import EXAMPLES, parse_time

if TYPE_CHECKING:
    from korvet.client import Client, ConsumedRecord, Consumer, TopicPartition

# A part of the log may have no records any more. This number of consecutive empty polls means the end of the log.
EMPTY_POLLS_AT_THE_END = 2

Format = Callable[["ConsumedRecord"], bytes]


@click.command()
@click.argument("topic")
@click.option(
    "--from", "start", metavar="WHERE", default="start", show_default=True, help="start, end, or an offset."
)
@click.option("--time", "time_text", metavar="TIME", help=f"From the first record at or after {EXAMPLES}.")
@partition_numbers
@click.option("-f", "--follow", is_flag=True, help="Wait for new records at the end.")
@click.option(
    "-n", "--max", "limit", metavar="COUNT", type=click.IntRange(min=1), help="Maximum number of records."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="In text: separator between key and value, which are both printed.",
)
@bootstrap_servers
def command(
    topic: str,
    start: str,
    time_text: str | None,
    numbers: tuple[int, ...],
    follow: bool,
    limit: int | None,
    form: str,
    key_separator: str | None,
    servers: str,
) -> None:
    """Read the records of a topic.

    Prints the records of the topic and ends; with --follow it waits for more. In text a line is a record's value. In
    JSON it is an object with topic, partition, offset, timestamp, key, value and headers; bytes that are not UTF-8
    are {"base64": "…"}.
    """
    if time_text is not None and start != "start":
        raise click.UsageError("--from and --time exclude each other.")
    if start not in ("start", "end") and not start.isdecimal():
        raise click.BadParameter(f"{start!r} is neither start, end nor an offset.", param_hint="--from")
    timestamp = None if time_text is None else parse_time(time_text)
    line_of = formatter(form, key_separator)

    async def consume(client: Client) -> None:
        tps = chosen(await client.topic(topic), numbers)
        positions, ends = await bounds(client, tps, start, timestamp)
        until = None if follow else ends
        await print_records(client.consume(positions, until=until), line_of, limit)

    with_client(servers, consume)


def formatter(form: str, key_separator: str | None) -> Format:
    """Return the function that formats a record as a line."""
    from korvet.cli.records import to_json, to_text

    if form == "json":
        if key_separator is not None:
            raise click.UsageError("--key-separator is for text; in JSON the key is a field of its own.")
        return to_json
    separator = None if key_separator is None else key_separator.encode()
    return lambda record: to_text(record, separator)


async def bounds(
    client: Client, tps: list[TopicPartition], start: str, timestamp: int | None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the start offset of each partition, and its current end offset."""
    from korvet.client import EARLIEST, LATEST

    ends = {tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}
    if timestamp is not None:
        found = await client.list_offsets(dict.fromkeys(tps, timestamp))
        return {tp: at.offset if at.offset >= 0 else ends[tp] for tp, at in found.items()}, ends
    if start == "end":
        return ends, ends
    if start == "start":
        firsts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
        return {tp: at.offset for tp, at in firsts.items()}, ends
    return dict.fromkeys(tps, int(start)), ends


async def print_records(consumer: Consumer, line_of: Format, limit: int | None) -> None:
    """Write records to stdout as they arrive, until all are read or the limit is reached."""
    count = empty_polls = 0
    with Progress("consumed") as progress:
        while consumer.unfinished() and empty_polls < EMPTY_POLLS_AT_THE_END:
            records = await consumer.poll()
            if limit is not None:
                records = records[: limit - count]
            write_all(b"".join(line_of(record) + b"\n" for record in records))
            count += len(records)
            if count == limit:
                return
            if consumer.until is not None:
                empty_polls = 0 if records else empty_polls + 1
            if not sys.stdout.isatty():
                progress.show(count)


def write_all(data: bytes) -> None:
    """Write all data to stdout."""
    # If stdout is unbuffered (PYTHONUNBUFFERED), one write may write only a part, without an error.
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()
