"""`korvet topics`: list, create, describe, alter and delete."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import as_json, assignments, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from korvet.client import Client, Topic


@click.group(name="topics")
def command() -> None:
    """List, create, describe, alter and delete topics."""


@command.command("list")
@bootstrap_servers
@as_json
def list_topics(servers: str, as_json: bool) -> None:
    """List the topics."""
    topics = with_client(servers, lambda client: client.topics())
    rows = [
        {"topic": topic.name, "partitions": len(topic.partitions), "id": kafka_id(topic.topic_id)}
        for topic in topics.values()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, ["topic", "partitions", "id"])


@command.command("create")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="NUMBER", help="[the broker's num.partitions]"
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), metavar="NUMBER",
    help="[the broker's default.replication.factor]",
)  # fmt: skip
@click.option(
    "--set", "texts", metavar="NAME=VALUE", multiple=True, help="A setting of the topic; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic already exists.")
@bootstrap_servers
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    texts: tuple[str, ...],
    if_not_exists: bool,
    servers: str,
) -> None:
    """Create a topic."""
    from korvet.protocol.errors import TopicAlreadyExists

    settings = assignments(texts)
    try:
        with_client(
            servers,
            lambda client: client.create_topic(
                name,
                partitions=partitions or -1,
                replication_factor=replication_factor or -1,
                settings=settings,
            ),
        )
    except TopicAlreadyExists:
        if not if_not_exists:
            raise


@command.command("describe")
@click.argument("names", metavar="TOPIC…", nargs=-1, required=True, shell_complete=complete_topics)
@bootstrap_servers
@as_json
def describe(names: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Show the partitions of topics, with their leader, first offset and next offset."""

    async def descriptions(client: Client) -> list[dict[str, Any]]:
        return [await description(client, await client.topic(name)) for name in names]

    topics = with_client(servers, descriptions)
    if as_json:
        print_json(topics)
        return
    for index, topic in enumerate(topics):
        if index:
            click.echo()
        click.echo(f"{topic['topic']}, id {topic['id']}")
        rows = [
            {**row, "replicas": joined(row["replicas"]), "isr": joined(row["isr"])}
            for row in topic["partitions"]
        ]
        print_table(rows, ["partition", "leader", "epoch", "replicas", "isr", "first", "next"])


async def description(client: Client, topic: Topic) -> dict[str, Any]:
    from korvet.client import EARLIEST, LATEST, TopicPartition

    tps = [TopicPartition(topic.name, partition.partition) for partition in topic.partitions]
    first = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    following = await client.list_offsets(dict.fromkeys(tps, LATEST))
    return {
        "topic": topic.name,
        "id": kafka_id(topic.topic_id),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader_id,
                "epoch": partition.leader_epoch,
                "replicas": list(partition.replica_ids),
                "isr": list(partition.isr_ids),
                "first": first[tp].offset,
                "next": following[tp].offset,
            }
            for tp, partition in zip(tps, topic.partitions, strict=True)
        ],
    }


def kafka_id(topic_id: UUID) -> str:
    """Format a topic id as Kafka's tools do."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def joined(ids: list[int]) -> str:
    return ",".join(map(str, ids))


@command.command("alter")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="So many in all; never fewer than there are.",
)
@click.option("--set", "texts", metavar="NAME=VALUE", multiple=True, help="A setting; may be repeated.")
@click.option(
    "--unset", "unset", metavar="NAME", multiple=True, help="Reset to the default; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Validate the change without making it.")
@bootstrap_servers
def alter(
    name: str,
    partitions: int | None,
    texts: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    servers: str,
) -> None:
    """Alter the settings of a topic, or add partitions.

    Both are asked about before either is done.
    """
    settings = assignments(texts)
    if partitions is None and not settings and not unset:
        raise click.UsageError("There is nothing to alter.")
    if named_twice := settings.keys() & set(unset):
        raise click.UsageError(f"{min(named_twice)} is named twice.")

    async def alter_all(client: Client) -> None:
        await altered(client, name, partitions, settings, unset, validate_only=True)
        if not dry_run:
            await altered(client, name, partitions, settings, unset, validate_only=False)

    with_client(servers, alter_all)


async def altered(
    client: Client,
    name: str,
    partitions: int | None,
    settings: Mapping[str, str],
    unset: Iterable[str],
    *,
    validate_only: bool,
) -> None:
    """Alter a topic, or with `validate_only` only validate the alteration."""
    from korvet.client.administration import DELETE, SET, TOPIC, Resource, add_partitions, alter_settings

    changes: dict[str, tuple[int, str | None]] = {key: (SET, value) for key, value in settings.items()}
    changes |= dict.fromkeys(unset, (DELETE, None))
    if changes:
        await alter_settings(client, Resource(TOPIC, name), changes, validate_only=validate_only)
    if partitions is not None:
        await add_partitions(client, name, partitions, validate_only=validate_only)


@command.command("delete")
@click.argument("names", metavar="TOPIC…", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_servers
def delete(names: tuple[str, ...], yes: bool, servers: str) -> None:
    """Delete topics and all their records."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(f"Delete {', '.join(names)} with all records?", abort=True)

    async def delete_all(client: Client) -> None:
        for name in names:
            await client.delete_topic(name)

    with_client(servers, delete_all)
