"""`korvet consume`: print the records of topics."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from korvet.cli.bounds import Bounds, RecordSource, Rounds, bounds_of, last_records
from korvet.cli.completion import complete_groups, complete_topics
from korvet.cli.options import bootstrap_servers, chosen, partition_numbers, with_client
from korvet.cli.output import Progress
from korvet.cli.times import EXAMPLES

if TYPE_CHECKING:
    import trio

    from korvet.client import Client, ConsumedRecord, Topic

# Time after which the user is notified that the broker does not answer. A poll usually takes half a second at most.
AWAY_S = 3.0
# By their numbers in Fetch and ListOffsets.
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

Format = Callable[["ConsumedRecord"], bytes]
Written = Callable[[Sequence["ConsumedRecord"]], Awaitable[None]]


@click.command()
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True, shell_complete=complete_topics)
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
@click.option(
    "--group",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Read as a member of this consumer group, and commit what was printed.",
)
@click.option(
    "--group-instance-id",
    "instance_id",
    metavar="ID",
    help="Be a static member: stay in the group when the command ends, for the session timeout.",
)
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
@click.option(
    "--isolation",
    type=click.Choice(ISOLATION_LEVELS),
    default=ISOLATION_LEVELS[0],
    show_default=True,
    help="read_committed leaves out the records of transactions that are open or aborted.",
)
@bootstrap_servers
def command(
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    group: str | None,
    instance_id: str | None,
    last: int | None,
    follow: bool,
    limit: int | None,
    form: str,
    key_separator: str | None,
    null: str | None,
    isolation: str,
    servers: str,
    **where: Any,
) -> None:
    r"""Read the records of topics.

    Prints the records and ends; with --follow it waits for more. A TOPIC that begins with ^ is a regular expression.

    With --group the broker assigns partitions to the members of the group. It reads on from the committed offsets, and
    where the group has none, from --from. Each record is printed before its offset is committed. A static member
    (--group-instance-id) keeps its partitions if it is back within 45 seconds, and no other member has to wait for it.

    In text a line is a record's value. In JSON it is an object with topic, partition, offset, timestamp, key, value
    and headers; bytes that are not UTF-8 are {"base64": "…"}. A format string has kcat's tokens: %t topic, %p
    partition, %o offset, %T timestamp, %k key, %s value, %h headers, %K and %S lengths, and \n for a line end.
    """
    level = ISOLATION_LEVELS.index(isolation)
    bounds = bounds_of(**where, isolation_level=level)
    if last is not None and (follow or where["start"] != "start" or where["time_text"] is not None):
        raise click.UsageError("--last excludes --from, --time and --follow.")
    if follow and bounds.has_end:
        raise click.UsageError("--follow excludes --until and --until-time.")
    if group is not None and (numbers or last or bounds.has_end or bounds.time or start_is_offset(bounds)):
        raise click.UsageError(
            "--group excludes --partition, --last, --time, --until, --until-time and an offset in --from."
        )
    if group == "":
        raise click.UsageError("--group is empty.")
    if instance_id is not None and group is None:
        raise click.UsageError("--group-instance-id needs --group.")
    if instance_id == "":
        raise click.UsageError("--group-instance-id is empty.")
    output = formatter(form, key_separator, null)

    async def consume(client: Client) -> None:
        if group is not None:
            names = [topic.name for topic in await matching(client, topics)]
            await consume_as_member(
                client, group, names, bounds, output, limit, follow=follow, instance_id=instance_id
            )
            return
        tps = [tp for topic in await matching(client, topics) for tp in chosen(topic, numbers)]
        ends = await bounds.ends(client, tps)
        if last is not None:
            write_all(output.data(await last_records(client, tps, ends, min(last, limit or last), level)))
            return
        starts = await bounds.starts(client, tps, ends)
        consumer = client.consume(starts, until=None if follow else ends, isolation_level=level)
        await print_records(consumer, output, limit)

    with_client(servers, consume)


def start_is_offset(bounds: Bounds) -> bool:
    return bounds.start not in ("start", "end")


async def consume_as_member(
    client: Client,
    group: str,
    topics: Sequence[str],
    bounds: Bounds,
    output: Output,
    limit: int | None,
    *,
    follow: bool,
    instance_id: str | None,
) -> None:
    """Print records as a member of a group. On Ctrl-C and SIGTERM, commit and, unless it is static, leave the group."""
    import trio

    from korvet.client import EARLIEST, LATEST
    from korvet.client.membership import group_consumer
    from korvet.concurrency.background import background_nursery

    ended_by: list[int] = []

    async def end_on_signals(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                ended_by.append(number)
                scope.cancel()

    start = LATEST if bounds.start == "end" else EARLIEST
    with trio.CancelScope() as scope:
        async with background_nursery() as nursery:
            await nursery.start(end_on_signals, scope)
            async with group_consumer(
                client,
                group,
                topics,
                start=start,
                follows=follow,
                instance_id=instance_id,
                isolation_level=bounds.isolation_level,
            ) as member:
                await print_records(
                    member, output, limit, written=member.processed, is_joining=lambda: member.is_joining
                )
                await member.commit()
    if ended_by:
        raise SystemExit(128 + ended_by[0])


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
    from korvet.cli.record_lines import to_json, to_text

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


async def print_records(
    source: RecordSource,
    output: Output,
    limit: int | None,
    *,
    written: Written | None = None,
    is_joining: Callable[[], bool] = lambda: False,
) -> None:
    """Write records to stdout as they arrive, until all are read or the limit is reached.

    Call `written` after each round, with the records beyond the limit.
    """
    count = 0
    with Progress("consumed") as progress:
        async for polled in Rounds(source, partial(patient_poll, source, is_joining)):
            records = polled if limit is None else polled[: limit - count]
            write_all(output.data(records))
            count += len(records)
            if written is not None:
                await written(polled[len(records) :])
            if count == limit:
                return
            if not sys.stdout.isatty():
                progress.show(count)


async def patient_poll(source: RecordSource, is_joining: Callable[[], bool]) -> list[ConsumedRecord]:
    """Poll, and notify the user if the broker does not answer. With --follow, wait until it does."""
    import trio

    from korvet.protocol.errors import KafkaError

    notified = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notify_of_waiting, notified, is_joining)
        while True:
            try:
                records = await source.poll()
            except KafkaError as error:
                if source.until is not None or not error.retriable:
                    raise
            else:
                break
        nursery.cancel_scope.cancel()
    if notified.is_set() and not is_joining():
        click.echo("korvet: the broker answers again", err=True)
    return records


async def notify_of_waiting(notified: trio.Event, is_joining: Callable[[], bool]) -> None:
    """Write to stderr unless this is cancelled soon. Do not write that a group rebalances, which may take longer."""
    import trio

    await trio.sleep(AWAY_S)
    if is_joining():
        return
    click.echo("korvet: the broker does not answer; waiting for it", err=True)
    notified.set()


def write_all(data: bytes) -> None:
    """Write all data to stdout."""
    # If stdout is unbuffered (PYTHONUNBUFFERED), one write may write only a part, without an error.
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()
