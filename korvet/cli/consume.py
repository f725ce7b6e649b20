"""`korvet consume`: print the records of topics."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from korvet.cli.bounds import EMPTY_POLLS_AT_THE_END, bounds_of, last_records
from korvet.cli.options import bootstrap_servers, chosen, partition_numbers, with_client
from korvet.cli.output import Progress
from korvet.cli.times import EXAMPLES

if TYPE_CHECKING:
    import trio

    from korvet.client import Client, ConsumedRecord, Consumer, Topic

# Time after which the user is notified that the broker does not answer. A poll usually takes half a second at most.
AWAY_S = 3.0

Format = Callable[["ConsumedRecord"], bytes]


@click.command()
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True)
@click.option(
    "--from", "start", metavar="WHERE", default="start", show_default=True, help="start, end, or an offset."
)
@click.option("--time", "time_text", metavar="TIME", help=f"From the first record at or after {EXAMPLES}.")
@click.option(
    "--last",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="Only the last COUNT records of all partitions.",
)
@click.option(
    "--until", metavar="OFFSET", type=click.IntRange(min=0), help="To the record before this offset."
)
@click.option("--until-time", metavar="TIME", help="To the record before the first one at or after a time.")
@partition_numbers
@click.option("-f", "--follow", is_flag=True, help="Wait for new records at the end.")
@click.option(
    "-n", "--max", "limit", metavar="COUNT", type=click.IntRange(min=1), help="Maximum number of records."
)
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    default="text",
    show_default=True,
    help="text, json, or a format string.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="In text: separator between key and value, which are both printed.",
)
@click.option(
    "--null",
    metavar="TEXT",
    help="Stands for a key or value that is null. [nothing in text, NULL in a format string]",
)
@bootstrap_servers
def command(
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    last: int | None,
    follow: bool,
    limit: int | None,
    form: str,
    key_separator: str | None,
    null: str | None,
    servers: str,
    **where: Any,
) -> None:
    r"""Read the records of topics.

    Prints the records and ends; with --follow it waits for more. A TOPIC that begins with ^ is a regular expression.

    In text a line is a record's value. In JSON it is an object with topic, partition, offset, timestamp, key, value
    and headers; bytes that are not UTF-8 are {"base64": "…"}. A format string has kcat's tokens: %t topic, %p
    partition, %o offset, %T timestamp, %k key, %s value, %h headers, %K and %S lengths, and \n for a line end.
    """
    bounds = bounds_of(**where)
    if last is not None and (follow or where["start"] != "start" or where["time_text"] is not None):
        raise click.UsageError("--last excludes --from, --time and --follow.")
    if follow and bounds.has_end:
        raise click.UsageError("--follow excludes --until and --until-time.")
    output = formatter(form, key_separator, null)

    async def consume(client: Client) -> None:
        tps = [tp for topic in await matching(client, topics) for tp in chosen(topic, numbers)]
        ends = await bounds.ends(client, tps)
        if last is not None:
            write_all(output.data(await last_records(client, tps, ends, min(last, limit or last))))
            return
        starts = await bounds.starts(client, tps, ends)
        await print_records(client.consume(starts, until=None if follow else ends), output, limit)

    with_client(servers, consume)


async def matching(client: Client, names: tuple[str, ...]) -> list[Topic]:
    """Return the topics of these names and regular expressions. Raises BadParameter if an expression has none."""
    found: dict[str, Topic] = {}
    for name in names:
        if not name.startswith("^"):
            found[name] = await client.topic(name)
            continue
        try:
            pattern = re.compile(name)
        except re.error as error:
            raise click.BadParameter(
                f"{name!r} is not a regular expression: {error}.", param_hint="TOPIC"
            ) from None
        matches = {each: topic for each, topic in (await client.topics()).items() if pattern.match(each)}
        if not matches:
            raise click.BadParameter(f"No topic matches {name!r}.", param_hint="TOPIC")
        found |= matches
    return list(found.values())


@frozen
class Output:
    """Formats records, with `end` after each of them."""

    line_of: Format
    end: bytes = b"\n"

    def data(self, records: Iterable[ConsumedRecord]) -> bytes:
        return b"".join(self.line_of(record) + self.end for record in records)


def formatter(form: str, key_separator: str | None, null: str | None) -> Output:
    """Return the output for the options."""
    from korvet.cli.record_format import NULL, compiled
    from korvet.cli.records import to_json, to_text

    if form != "text" and key_separator is not None:
        raise click.UsageError("--key-separator is for text; other formats have the key where they name it.")
    if form == "json":
        if null is not None:
            raise click.UsageError("--null is for text and format strings; JSON has null.")
        return Output(to_json)
    if form != "text":
        if "%" not in form:
            raise click.BadParameter(
                f"{form!r} is neither text, json nor a format string.", param_hint="--format"
            )
        return Output(compiled(form, NULL if null is None else null.encode()), end=b"")
    separator = None if key_separator is None else key_separator.encode()
    text = b"" if null is None else null.encode()
    return Output(lambda record: to_text(record, separator, text))


async def print_records(consumer: Consumer, output: Output, limit: int | None) -> None:
    """Write records to stdout as they arrive, until all are read or the limit is reached."""
    count = empty_polls = 0
    with Progress("consumed") as progress:
        while consumer.unfinished() and empty_polls < EMPTY_POLLS_AT_THE_END:
            records = await patient_poll(consumer)
            if limit is not None:
                records = records[: limit - count]
            write_all(output.data(records))
            count += len(records)
            if count == limit:
                return
            if consumer.until is not None:
                empty_polls = 0 if records else empty_polls + 1
            if not sys.stdout.isatty():
                progress.show(count)


async def patient_poll(consumer: Consumer) -> list[ConsumedRecord]:
    """Poll, and notify the user if the broker does not answer. With --follow, wait until it does."""
    import trio

    from korvet.protocol.errors import KafkaError

    notified = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notify_of_waiting, notified)
        while True:
            try:
                records = await consumer.poll()
            except KafkaError as error:
                if consumer.until is not None or not error.retriable:
                    raise
            else:
                break
        nursery.cancel_scope.cancel()
    if notified.is_set():
        click.echo("korvet: the broker answers again", err=True)
    return records


async def notify_of_waiting(notified: trio.Event) -> None:
    """Write to stderr unless this is cancelled soon."""
    import trio

    await trio.sleep(AWAY_S)
    click.echo("korvet: the broker does not answer; waiting for it", err=True)
    notified.set()


def write_all(data: bytes) -> None:
    """Write all data to stdout."""
    # If stdout is unbuffered (PYTHONUNBUFFERED), one write may write only a part, without an error.
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()
