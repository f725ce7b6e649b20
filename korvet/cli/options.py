"""What the commands of a client have in common: which cluster they speak to, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from korvet.client import Client, Topic, TopicPartition

T = TypeVar("T")

bootstrap_servers = click.option(
    "-b",
    "--bootstrap-servers",
    "servers",
    metavar="HOST:PORT,…",
    default="localhost:9092",
    show_default=True,
    envvar="KORVET_BOOTSTRAP_SERVERS",
    show_envvar=True,
    help="Some of the brokers of the cluster.",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

partition_numbers = click.option(
    "-p",
    "--partition",
    "numbers",
    metavar="NUMBER",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be repeated.",
)


def with_client(servers: str, use: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, run `use` with the client, and return what it returns."""
    import trio

    from korvet.client import open_client

    async def main() -> T:
        async with open_client(servers) as client:
            return await use(client)

    check_addresses(servers)
    return trio.run(main)


def check_addresses(servers: str) -> None:
    from korvet.client import parse_address

    try:
        for address in servers.split(","):
            parse_address(address)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--bootstrap-servers") from None


def chosen(topic: Topic, numbers: tuple[int, ...]) -> list[TopicPartition]:
    """The partitions of a topic with these numbers, or all of them."""
    from korvet.client import TopicPartition

    there = [partition.partition for partition in topic.partitions]
    for number in numbers:
        if number not in there:
            raise click.BadParameter(
                f"{topic.name} has {len(there)} partitions; there is no {number}.", param_hint="--partition"
            )
    return [TopicPartition(topic.name, number) for number in there if not numbers or number in numbers]


def assignments(texts: tuple[str, ...], option: str = "--set") -> dict[str, str]:
    """The NAME=VALUE texts of an option that may be repeated."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint=option)
        pairs[name.strip()] = value.strip()
    return pairs
