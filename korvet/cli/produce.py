"""`korvet produce`: write the lines of a file or of stdin as records.

A thread prefetches a bounded number of pieces of the file. All lines that were read by the time a batch is acknowledged
form the next batch. So typed lines are sent immediately, and a large file in large batches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import bootstrap_servers, with_client
from korvet.cli.output import Progress
from korvet.cli.times import parse_duration
from korvet.config.units import DURATION_EXAMPLES

if TYPE_CHECKING:
    import trio

    from korvet.client import Client, Record, Transaction
    from korvet.protocol.errors import KafkaError

PIECE_BYTES = 256 * 1024
PIECES_AHEAD = 16
BATCH_LINES = 20_000
LONGEST_TIMEOUT_MS = 24 * 86_400_000  # it has 32 bits; brokers have a smaller maximum
ACKS = {"all": -1, "1": 1, "0": 0}

Parse = Callable[[bytes], "Record"]


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", type=click.File("rb"), default="-", required=False)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--key-separator", metavar="TEXT", help="In text: separator between key and value.")
@click.option("-k", "--key", metavar="TEXT", help="In text: the key of all records.")
@click.option(
    "-H", "--header", "headers", metavar="NAME=VALUE", multiple=True,
    help="In text: a header of all records; may be repeated.",
)  # fmt: skip
@click.option(
    "-p",
    "--partition",
    metavar="NUMBER",
    type=click.IntRange(min=0),
    help="In text: the partition of all records.",
)
@click.option(
    "--null",
    metavar="TEXT",
    help="In text: a value that is TEXT is null, a tombstone for its key. May be empty.",
)
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Write all lines in one transaction: consumers at read_committed see all or none.",
)
@click.option(
    "--transaction-timeout",
    metavar="TIME",
    help=f"The broker aborts the transaction after this time: {DURATION_EXAMPLES}.  [default: 1m]",
)
@bootstrap_servers
def command(
    topic: str,
    file: BinaryIO,
    form: str,
    acks: str,
    compression: str,
    transactional_id: str | None,
    transaction_timeout: str | None,
    servers: str,
    **of_text: Any,
) -> None:
    """Write records to a topic, from lines or JSON lines.

    Reads FILE, or stdin. In text, a line is a value. In JSON it is an object with value, and as you like key,
    headers, timestamp and partition:

    \b
    {"key": "UA", "value": "text", "headers": [["trace", "1"]],
     "timestamp": "2026-03-01T12:00:00Z", "partition": 0}

    null is null, {"base64": "…"} is bytes that are not text, and any other JSON as value is written as JSON. The
    command also reads the output of `korvet consume --format json`. The default timestamp is now. Without partition,
    the key determines it, as in Kafka's own clients. The topic is created if the broker creates topics automatically.

    With --transactional-id, a line that cannot be written aborts the transaction. So do an interrupt, and the next
    producer with the same ID.
    """  # noqa: D301  click does not rewrap a paragraph after a backspace
    from korvet.protocol.compression import Codec

    parse = parser(form, **of_text)
    timeout_ms = transaction_timeout_ms(transactional_id, acks, transaction_timeout)
    descriptor = file.fileno()
    if os.isatty(descriptor) and sys.stderr.isatty():
        click.echo("One record a line; Ctrl-D ends.", err=True)

    async def produce(client: Client) -> int:
        codec = Codec[compression.upper()]
        if transactional_id is None:
            return await produce_lines(client, topic, descriptor, parse, acks=ACKS[acks], codec=codec)
        async with client.transaction(transactional_id, timeout_ms=timeout_ms) as transaction:
            return await produce_lines(
                client, topic, descriptor, parse, acks=ACKS[acks], codec=codec, transaction=transaction
            )

    count = with_client(servers, produce)
    if sys.stderr.isatty():
        click.echo(f"{count:,} record{'' if count == 1 else 's'} written to {topic}.", err=True)


def transaction_timeout_ms(transactional_id: str | None, acks: str, timeout: str | None) -> int:
    """Return the timeout of the transaction. Raises UsageError for options that exclude each other."""
    if transactional_id is None and timeout is not None:
        raise click.UsageError("--transaction-timeout needs --transactional-id.")
    if transactional_id is not None and acks != "all":
        raise click.UsageError("--transactional-id needs --acks all.")
    timeout_ms = parse_duration(timeout or "1m")
    if not 0 < timeout_ms <= LONGEST_TIMEOUT_MS:
        raise click.UsageError("--transaction-timeout is above 0, and at most 24d.")
    return timeout_ms


def parser(
    form: str,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    null: str | None,
) -> Parse:
    """Return the function that parses a line into a record."""
    from korvet.cli.options import assignments
    from korvet.cli.record_lines import TextLines, from_json

    if form == "json":
        if (
            key_separator is not None
            or key is not None
            or headers
            or partition is not None
            or null is not None
        ):
            raise click.UsageError(
                "--key-separator, --key, --header, --partition and --null are for text; JSON has fields for them."
            )
        return from_json
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other.")
    pairs = [assignments((header,), "--header") for header in headers]
    return TextLines(
        None if key_separator is None else key_separator.encode(),
        None if key is None else key.encode(),
        tuple((name, value.encode()) for pair in pairs for name, value in pair.items()),
        partition,
        None if null is None else null.encode(),
    ).record


async def produce_lines(
    client: Client,
    topic: str,
    descriptor: int,
    parse: Parse,
    *,
    acks: int,
    codec: int,
    transaction: Transaction | None = None,
) -> int:
    """Produce all lines, and return their number. Raises BadLine after all lines before the bad one are written."""
    import trio

    from korvet.protocol.compression import Codec
    from korvet.protocol.errors import KafkaError

    count = 0
    send_channel, receive_channel = trio.open_memory_channel[list[bytes]](PIECES_AHEAD)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_lines, descriptor, send_channel)
        with Progress("produced") as progress:
            async for lines in receive_channel:
                for batch in batches([*lines, *waiting(receive_channel)]):
                    records, bad = parse_lines(batch, parse, first_number=count + 1)
                    if records:
                        try:
                            await client.produce(
                                topic,
                                records,
                                acks=acks,
                                codec=Codec(codec),
                                create_topic=True,
                                transaction=transaction,
                            )
                        except KafkaError as error:
                            raise not_produced(error, count, len(batch), transaction) from error
                    if bad is not None:
                        raise bad
                    count += len(batch)
                    progress.show(count)
    return count


def not_produced(
    error: KafkaError, before: int, failed: int, transaction: Transaction | None
) -> click.ClickException:
    """Return the error for lines that were refused, after `before` lines that were written."""
    if transaction is not None:
        return click.ClickException(
            f"no line is written, the transaction is aborted: {error} ({error.error_code.name})"
        )
    written = f"; lines 1 to {before:,} are written" if before else ""
    return click.ClickException(
        f"lines {before + 1:,} to {before + failed:,} are not written, or only in part: {error} "
        f"({error.error_code.name}){written}"
    )


async def read_lines(descriptor: int, send_channel: trio.MemorySendChannel[list[bytes]]) -> None:
    """Send the lines of a file to the channel as they arrive, without their line ends, as a list for each read."""
    # This reads the descriptor directly. Python's buffered reader holds a lock while it waits, and the interpreter
    # fails at its exit if a thread holds that lock.
    import trio

    rest = b""
    async with send_channel:
        while piece := await trio.to_thread.run_sync(
            os.read, descriptor, PIECE_BYTES, abandon_on_cancel=True
        ):
            *lines, rest = (rest + piece).split(b"\n")
            if lines:
                await send_channel.send(lines)
        if rest:
            await send_channel.send([rest])


def waiting(receive_channel: trio.MemoryReceiveChannel[list[bytes]]) -> Iterator[bytes]:
    """Yield the lines that are already in the channel."""
    import trio

    while True:
        try:
            yield from receive_channel.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return


def batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(lines), BATCH_LINES):
        yield lines[start : start + BATCH_LINES]


def parse_lines(
    lines: list[bytes], parse: Parse, *, first_number: int
) -> tuple[list[Record], click.ClickException | None]:
    """Return the records before the first bad line, and the error of that line or None. Skip empty JSON lines."""
    from korvet.cli.record_lines import BadLine, from_json

    records = []
    for number, line in enumerate(lines, first_number):
        if parse is from_json and not line.strip():
            continue
        try:
            records.append(parse(line))
        except BadLine as bad:
            before = "; what stands before it is written" if number > 1 else ""
            return records, BadLine(f"line {number}: {bad.message}{before}")
    return records, None
