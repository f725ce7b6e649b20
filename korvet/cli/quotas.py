"""`korvet quotas`: list, set and remove client quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.security.quotas import Entity, Quotas

F = TypeVar("F", bound=Callable[..., object])

COLUMNS = ["user", "client-id", "ip", "quota", "value"]
DEFAULT = "<default>"
KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)


@click.group(name="quotas")
def command() -> None:
    """List, set and remove client quotas.

    A quota is on a user, a client id, both, or an address. A default holds for all those without a quota of their own.
    """


def entity_options(command: F) -> F:
    """Add the options that name an entity."""
    for kind, text in reversed(
        (("user", "user"), ("client-id", "client id"), ("ip", "address that clients connect from"))
    ):
        command = click.option(f"--default-{kind}", is_flag=True, help=f"The default for each {text}.")(
            command
        )
        command = click.option(f"--{kind}", metavar="NAME", help=f"A {text}.")(command)
    return command


@command.command("list")
@entity_options
@bootstrap_servers
@as_json
def list_quotas(servers: str, as_json: bool, **names: str | bool | None) -> None:
    """List quotas, all or those of an entity and its combinations."""
    from korvet.client import quotas

    entity = named(names)
    rows = rows_of(with_client(servers, lambda client: quotas.list_quotas(client, entity)))
    if as_json:
        print_json(rows)
    else:
        print_table(rows, COLUMNS)


@command.command("set")
@click.argument("values", metavar="QUOTA=VALUE…", nargs=-1, required=True)
@entity_options
@bootstrap_servers
def set_quotas(servers: str, values: tuple[str, ...], **names: str | bool | None) -> None:
    """Set quotas: producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate.

    An address has connection_creation_rate only.
    """
    from korvet.client import quotas

    entity, changes = required(names), dict(map(parsed, values))
    with_client(servers, lambda client: quotas.alter_quotas(client, entity, changes))


@command.command("remove")
@click.argument("keys", metavar="[QUOTA]…", nargs=-1, type=click.Choice(KEYS))
@entity_options
@bootstrap_servers
def remove(servers: str, keys: tuple[str, ...], **names: str | bool | None) -> None:
    """Remove quotas of an entity, these or all."""
    from korvet.client import Client, quotas

    entity = required(names)

    async def remove(client: Client) -> None:
        found = await quotas.list_quotas(client, entity, is_strict=True)
        removed = keys or tuple(found.get(entity, ()))
        if not removed or not found.get(entity, {}).keys() >= set(removed):
            raise click.ClickException("there is no such quota")
        await quotas.alter_quotas(client, entity, dict.fromkeys(removed))

    with_client(servers, remove)


# --- What the options mean ----------------------------------------------------------------------------------


def named(options: Mapping[str, str | bool | None]) -> Entity:
    """Return the entity that the options name, empty without any."""
    from korvet.security.quotas import TYPES, entity_of

    names: dict[str, str | None] = {}
    for kind in TYPES:
        option = kind.replace("-", "_")
        name, is_default = options[option], options[f"default_{option}"]
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --default-{kind} exclude each other.")
        if is_default:
            names[kind] = None
        elif name is not None:
            names[kind] = str(name)
    return entity_of(names)


def required(options: Mapping[str, str | bool | None]) -> Entity:
    """Return the entity that the options name. Raises UsageError without any."""
    if entity := named(options):
        return entity
    raise click.UsageError("Name a user, a client id or an address.")


def parsed(text: str) -> tuple[str, float]:
    """Return the key and the value of QUOTA=VALUE."""
    key, _, value = text.partition("=")
    if key not in KEYS:
        raise click.BadParameter(f"{key!r} is not one of {', '.join(KEYS)}.", param_hint="QUOTA")
    try:
        return key, float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number.", param_hint=key) from None


def rows_of(quotas: Quotas) -> list[dict[str, object]]:
    """Return a row for each quota, sorted by entity."""
    from korvet.security.quotas import sort_key

    return [
        {
            **dict.fromkeys(COLUMNS[:3], ""),
            **{kind: DEFAULT if name is None else name for kind, name in entity},
            "quota": key,
            "value": int(value) if value.is_integer() else value,
        }
        for entity in sorted(quotas, key=sort_key)
        for key, value in sorted(quotas[entity].items())
    ]
