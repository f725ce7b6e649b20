"""`korvet transactions`: list, describe, find hanging ones and abort them, as kafka-transactions does (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import as_json, bootstrap_servers, chosen, only_states, with_client
from korvet.cli.output import DASH, print_json, print_table
from korvet.cli.times import duration_ms, now_ms, parse_duration
from korvet.config.units import DURATION_EXAMPLES

if TYPE_CHECKING:
    from korvet.client import Client, TopicPartition
    from korvet.client.transactions import OpenTransaction

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
LIST_COLUMNS = ["transactional-id", "coordinator", "producer-id", "state"]
DESCRIBE_COLUMNS = [
    "transactional-id", "coordinator", "producer-id", "epoch", "state", "timeout-ms", "open-for-ms", "partitions"
]  # fmt: skip
HANGING_COLUMNS = [
    "topic",
    "partition",
    "producer-id",
    "epoch",
    "coordinator-epoch",
    "start-offset",
    "idle-ms",
]


@click.group(name="transactions")
def command() -> None:
    """List and describe transactions, and find and abort those that hang."""


@command.command("list")
@only_states(STATES, "transactional ids")
@click.option(
    "--producer-id",
    "producer_ids",
    metavar="ID",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this producer id; may be repeated.",
)
@click.option(
    "--longer-than", metavar="TIME", help=f"Only transactions that are open for longer: {DURATION_EXAMPLES}."
)
@click.option("--matching", "pattern", metavar="REGEX", help="Only transactional ids that match.")
@bootstrap_servers
@as_json
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: str | None,
    pattern: str | None,
    servers: str,
    as_json: bool,
) -> None:
    """List the transactional ids of all brokers."""
    from korvet.client import transactions

    duration = None if longer_than is None else parse_duration(longer_than)
    found = with_client(
        servers,
        lambda client: transactions.list_transactions(
            client, states=states, producer_ids=producer_ids, duration_ms=duration, pattern=pattern
        ),
    )
    rows = [
        {
            "transactional-id": each.transactional_id,
            "coordinator": each.coordinator_id,
            "producer-id": each.producer_id,
            "state": each.state,
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, LIST_COLUMNS)


@command.command("describe")
@click.argument("ids", metavar="TRANSACTIONAL-ID…", nargs=-1, required=True)
@bootstrap_servers
@as_json
def describe(ids: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Show the state of transactional ids, and the partitions of their open transactions."""

    async def rows_of_all(client: Client) -> list[dict[str, Any]]:
        return [await row_of(client, each) for each in dict.fromkeys(ids)]

    rows = with_client(servers, rows_of_all)
    if as_json:
        print_json(rows)
        return
    texts = [
        row
        | {
            "partitions": " ".join(row["partitions"]) or DASH,
            "open-for-ms": DASH if row["open-for-ms"] is None else row["open-for-ms"],
        }
        for row in rows
    ]
    print_table(texts, DESCRIBE_COLUMNS)


async def row_of(client: Client, transactional_id: str) -> dict[str, Any]:
    """Return the row for a transactional id."""
    from korvet.client.transactions import describe_transaction

    found = await describe_transaction(client, transactional_id)
    return {
        "transactional-id": found.transactional_id,
        "coordinator": found.coordinator,
        "producer-id": found.producer_id,
        "epoch": found.producer_epoch,
        "state": found.state,
        "timeout-ms": found.timeout_ms,
        "open-for-ms": found.open_ms(now_ms()),
        "partitions": [str(tp) for tp in found.partitions],
    }


@command.command("find-hanging")
@click.argument("topics", metavar="[TOPIC]…", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--longer-than",
    metavar="TIME",
    default="15m",
    show_default=True,
    callback=duration_ms,
    help="Only where nothing happened for longer; by default as long as a transaction may last.",
)
@bootstrap_servers
@as_json
def find_hanging(topics: tuple[str, ...], longer_than: int, servers: str, as_json: bool) -> None:
    """Find transactions that are open in a partition and that no coordinator will end.

    Consumers with read_committed wait for them forever. `korvet transactions abort` ends one.
    """
    from korvet.client import transactions

    async def search(client: Client) -> list[OpenTransaction]:
        tps = await partitions_of(client, topics)
        return await transactions.find_hanging(client, tps, longer_than_ms=longer_than, now_ms=now_ms())

    rows = [
        {
            "topic": each.tp.topic,
            "partition": each.tp.partition,
            "producer-id": each.producer.producer_id,
            "epoch": each.producer.producer_epoch,
            "coordinator-epoch": each.producer.coordinator_epoch,
            "start-offset": each.producer.open_offset,
            "idle-ms": max(0, now_ms() - each.producer.last_timestamp),
        }
        for each in with_client(servers, search)
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, HANGING_COLUMNS)


@command.command("abort")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("start_offset", metavar="START-OFFSET", type=click.IntRange(min=0))
@bootstrap_servers
def abort(topic: str, partition: int, start_offset: int, servers: str) -> None:
    """Abort the transaction of a partition that begins at START-OFFSET, as find-hanging shows it.

    Its records are lost for consumers with read_committed. The other partitions of the transaction do not change.
    """
    from korvet.client import TopicPartition

    tp = TopicPartition(topic, partition)

    async def end(client: Client) -> None:
        from korvet.client.transactions import abort, describe_producers

        producers = (await describe_producers(client, [tp]))[tp]
        found = next((each for each in producers if each.open_offset == start_offset), None)
        if found is None:
            raise click.BadParameter(
                f"{tp} has no open transaction that begins at offset {start_offset}.",
                param_hint="START-OFFSET",
            )
        await abort(client, tp, found.producer_id, found.producer_epoch, found.coordinator_epoch)

    with_client(servers, end)


async def partitions_of(client: Client, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Return the partitions of these topics, or of all."""
    described = [await client.topic(each) for each in topics] or (await client.topics()).values()
    return [tp for topic in described for tp in chosen(topic, ())]
