"""`korvet configs`: list, print and alter the settings of topics and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import as_json, assignments, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.client.administration import DescribedSetting, Resource

BROKER_PREFIX = "broker:"
RESOURCE = click.argument("resource", metavar="TOPIC|broker:ID", shell_complete=complete_topics)


@click.group(name="configs")
def command() -> None:
    """Show and alter the settings of topics and brokers."""


@command.command("list")
@RESOURCE
@click.option("--set-only", is_flag=True, help="Only settings that are not at their default.")
@bootstrap_servers
@as_json
def list_settings(resource: str, set_only: bool, servers: str, as_json: bool) -> None:
    """List the settings of a topic or a broker, with the value and source of each."""
    settings = described(servers, resource)
    chosen = [each for each in settings if not set_only or each.source != "default"]
    if as_json:
        print_json([as_row(each) | {"documentation": each.documentation} for each in chosen])
    else:
        print_table([printable(each) for each in chosen], ["name", "value", "source", "read-only"])


@command.command("get")
@RESOURCE
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@bootstrap_servers
@as_json
def get(resource: str, names: tuple[str, ...], servers: str, as_json: bool) -> None:
    """Print the values of settings, one on each line, in the order of the arguments."""
    settings = {each.name: each for each in described(servers, resource, names)}
    missing = [name for name in names if name not in settings]
    if missing:
        raise click.ClickException(f"{resource} has no setting {', '.join(missing)}")
    if as_json:
        print_json([as_row(settings[name]) for name in names])
        return
    for name in names:
        click.echo(value_of(settings[name]))


@command.command("set")
@RESOURCE
@click.argument("texts", metavar="[NAME=VALUE]…", nargs=-1)
@click.option(
    "--unset", "unset", metavar="NAME", multiple=True, help="Reset to the default; may be repeated."
)
@click.option(
    "--append", "appended", metavar="NAME=VALUE", multiple=True, help="Add to a list; may be repeated."
)
@click.option(
    "--subtract",
    "subtracted",
    metavar="NAME=VALUE",
    multiple=True,
    help="Remove from a list; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Validate the change without making it.")
@bootstrap_servers
def set_settings(
    resource: str,
    texts: tuple[str, ...],
    unset: tuple[str, ...],
    appended: tuple[str, ...],
    subtracted: tuple[str, ...],
    dry_run: bool,
    servers: str,
) -> None:
    """Alter settings: all of them, or none if one is refused."""
    from korvet.client.administration import APPEND, DELETE, SET, SUBTRACT

    changes: dict[str, tuple[int, str | None]] = {}
    for option, operation, given in (
        ("NAME=VALUE", SET, texts),
        ("--append", APPEND, appended),
        ("--subtract", SUBTRACT, subtracted),
    ):
        for name, value in assignments(given, option).items():
            once(name, changes)
            changes[name] = operation, value
    for name in unset:
        once(name, changes)
        changes[name] = DELETE, None
    if not changes:
        raise click.UsageError("There is nothing to alter.")
    alter(servers, resource, changes, dry_run=dry_run)


def once(name: str, changes: dict[str, tuple[int, str | None]]) -> None:
    if name in changes:
        raise click.UsageError(f"{name} is named twice.")


def alter(servers: str, resource: str, changes: dict[str, tuple[int, str | None]], *, dry_run: bool) -> None:
    """Alter settings of the resource with that name."""
    from korvet.client.administration import alter_settings

    parsed = parse_resource(resource)
    with_client(servers, lambda client: alter_settings(client, parsed, changes, validate_only=dry_run))


def described(servers: str, resource: str, names: tuple[str, ...] | None = None) -> list[DescribedSetting]:
    """Return the settings of the resource with that name."""
    from korvet.client.administration import describe_settings

    parsed = parse_resource(resource)
    return with_client(servers, lambda client: describe_settings(client, parsed, names))


def parse_resource(text: str) -> Resource:
    """Parse a topic's name, or `broker:` and an id. Raises BadParameter."""
    # No topic's name has a colon.
    from korvet.client.administration import BROKER, TOPIC, Resource

    if not text.startswith(BROKER_PREFIX):
        return Resource(TOPIC, text)
    node_id = text.removeprefix(BROKER_PREFIX)
    if not node_id.isdecimal():
        raise click.BadParameter(f"{node_id!r} is not a broker id.", param_hint="TOPIC|broker:ID")
    return Resource(BROKER, node_id)


def as_row(setting: DescribedSetting) -> dict[str, object]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": setting.source,
        "read-only": setting.read_only,
        "sensitive": setting.sensitive,
    }


def printable(setting: DescribedSetting) -> dict[str, object]:
    """Return a row of the table, with words for missing values."""
    return as_row(setting) | {
        "value": value_of(setting),
        "read-only": "yes" if setting.read_only else "no",
    }


def value_of(setting: DescribedSetting) -> str:
    if setting.value is None:
        return "(hidden)" if setting.sensitive else "(not set)"
    return setting.value
