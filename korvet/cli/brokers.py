"""`korvet brokers`: list the brokers of a cluster, and describe one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.configs import value_of
from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.client.administration import DescribedSetting
    from korvet.client.brokers import BrokerShare

COLUMNS = ("broker", "host", "port", "rack", "role", "leads", "coordinates")
SETTING_COLUMNS = ("name", "value", "source")
DEFAULT = "default"


@click.group(name="brokers")
def command() -> None:
    """List the brokers of a cluster, and describe one of them."""


@command.command("list")
@bootstrap_servers
@as_json
def list_brokers(servers: str, as_json: bool) -> None:
    """List the living brokers with the number of partitions they lead and of groups they coordinate."""
    from korvet.client.brokers import describe_brokers

    rows = [row_of(each) for each in with_client(servers, describe_brokers)]
    if as_json:
        print_json(rows)
    else:
        print_table([shown(row) for row in rows], COLUMNS)


@command.command("describe")
@click.argument("broker_id", metavar="ID", type=int)
@bootstrap_servers
@as_json
def describe(broker_id: int, servers: str, as_json: bool) -> None:
    """Show a broker, the groups that it coordinates, and its settings that are not the defaults."""
    broker, settings = with_client(servers, lambda client: described(client, broker_id))
    rows: list[dict[str, Any]] = [
        {"name": each.name, "value": each.value, "source": each.source} for each in settings
    ]
    if as_json:
        print_json(row_of(broker) | {"groups": broker.groups, "settings": rows})
        return
    print_table([shown(row_of(broker))], COLUMNS)
    click.echo(f"groups: {', '.join(broker.groups or ()) or '-'}")
    print_table(
        [row | {"value": value_of(each)} for row, each in zip(rows, settings, strict=True)], SETTING_COLUMNS
    )


async def described(client: Client, broker_id: int) -> tuple[BrokerShare, list[DescribedSetting]]:
    from korvet.client.administration import BROKER, Resource, describe_settings
    from korvet.client.brokers import describe_broker

    broker = await describe_broker(client, broker_id)
    settings = await describe_settings(client, Resource(BROKER, str(broker_id)))
    return broker, [each for each in settings if each.source != DEFAULT]


def row_of(broker: BrokerShare) -> dict[str, Any]:
    return {
        "broker": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "role": "controller" if broker.is_controller else None,
        "leads": broker.leads,
        "coordinates": None if broker.groups is None else len(broker.groups),
    }


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: "-" if value is None else value for name, value in row.items()}
