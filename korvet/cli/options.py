"""Options that the client commands share: the cluster, security and timeouts."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from korvet.client import Client, Security, Topic, TopicPartition

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

SECURITY = "korvet.security"
TIMEOUT = "korvet.timeout"
PROFILE = "korvet.profile"
DEFAULT_SERVERS = "localhost:9092"


def _read_properties(context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Store the file's security settings in the context, and use its bootstrap.servers as the default."""
    if path is not None:
        settings = properties_of(Path(path))
        context.meta[SECURITY] = parsed_security(settings, path)
        if "bootstrap.servers" in settings:
            # Above the profile, and below the file of `korvet lake --config`.
            profile: Mapping[str, str] = context.meta.get(PROFILE, {})
            others = {
                name: value
                for name, value in (context.default_map or {}).items()
                if profile.get(name) is not value
            }
            context.default_map = {"servers": settings["bootstrap.servers"], **others}
    return path


def _read_profile(context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    """Use the settings of a profile as defaults."""
    from korvet.cli.profiles import COMMAND_CONFIG, SERVERS, read_profiles
    from korvet.cli.profiles import TIMEOUT as TIMEOUT_PROPERTY

    profiles = read_profiles()
    properties = dict(profiles.chosen(name))
    if not properties:
        return
    if file := properties.pop(COMMAND_CONFIG, None):
        path = profiles.path.parent / Path(file).expanduser()
        properties = properties_of(path) | properties
    defaults = {
        parameter: properties.pop(name)
        for parameter, name in (("servers", SERVERS), ("timeout", TIMEOUT_PROPERTY))
        if name in properties
    }
    context.default_map = {**defaults, **(context.default_map or {})}
    context.meta[PROFILE] = defaults
    context.meta[SECURITY] = parsed_security(properties, str(profiles.path))


def properties_of(path: Path) -> dict[str, str]:
    """Return the properties in a file. Raises BadParameter."""
    from korvet.config.properties import parse_properties

    try:
        return dict(parse_properties(path.read_text(encoding="utf-8", errors="replace")))
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}.") from None


def parsed_security(settings: Mapping[str, str], source: str) -> Security:
    """Return the security settings among properties. Raises BadParameter, which names their source."""
    from korvet.client.security import security_of

    try:
        return security_of(settings)
    except ValueError as error:
        raise click.BadParameter(f"{source}: {error}") from None


def _keep_timeout(context: click.Context, _parameter: click.Parameter, seconds: float) -> None:
    context.meta[TIMEOUT] = seconds


def complete_profiles(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of profiles that begin with `incomplete`."""
    from korvet.cli.profiles import read_profiles

    try:
        return [name for name in read_profiles().names if name.startswith(incomplete)]
    except click.ClickException:
        return []


_profile = click.option(
    "--profile",
    metavar="NAME",
    envvar="KORVET_PROFILE",
    show_envvar=True,
    is_eager=True,
    callback=_read_profile,
    expose_value=False,
    shell_complete=complete_profiles,
    help="Cluster of the file with profiles; see korvet profiles.",
)
_command_config = click.option(
    "--command-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    envvar="KORVET_COMMAND_CONFIG",
    show_envvar=True,
    callback=_read_properties,
    expose_value=False,
    help="Properties as Kafka's own tools take them: security.protocol, sasl.jaas.config, ssl.truststore.location, …",
)
_bootstrap_servers = click.option(
    "-b",
    "--bootstrap-servers",
    "--bootstrap-server",  # as Kafka's own tools name it
    "servers",
    metavar="HOST:PORT,…",
    default=DEFAULT_SERVERS,
    show_default=True,
    envvar="KORVET_BOOTSTRAP_SERVERS",
    show_envvar=True,
    help="Some brokers of the cluster.",
)


class Number(click.FloatRange):
    """A number within bounds. click's own type accepts "nan", which is within all of them."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            is_number = not math.isnan(float(str(value)))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{str(value)!r} is not a number.", param, ctx)
        return float(super().convert(float(str(value)), param, ctx))


_timeout = click.option(
    "--timeout",
    metavar="SECONDS",
    type=Number(min=0, min_open=True),
    default=30.0,
    show_default=True,
    callback=_keep_timeout,
    expose_value=False,
    help="Time limit of each request to a broker.",
)


def cluster_options(command: F) -> F:
    """Add the options that name a cluster and how to connect to it."""
    # In this order, click reads the file before it determines the servers.
    return _profile(_command_config(_bootstrap_servers(command)))


def bootstrap_servers(command: F) -> F:
    """Add the options for a command that uses `with_client`."""
    return cluster_options(_timeout(command))


def timeout_s() -> float:
    """Return the seconds of --timeout for the current command."""
    seconds: float = click.get_current_context().meta[TIMEOUT]
    return seconds


def security() -> Security:
    """Return the security settings of --command-config for the current command."""
    from korvet.client.security import PLAINTEXT

    found: Security = click.get_current_context().meta.get(SECURITY, PLAINTEXT)
    return found


def security_settings() -> dict[str, str]:
    """Return the settings of `security`, which contain secrets. Return none if the command has none."""
    # Without settings, the client is not imported.
    return security().settings() if SECURITY in click.get_current_context().meta else {}


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
        async with open_client(
            servers, security=secured, request_timeout_s=limit_s, retry_timeout_s=limit_s
        ) as client:
            return await use(client)

    check_addresses(servers)
    secured = security()
    limit_s = timeout_s()
    return trio.run(main)


def check_addresses(servers: str) -> None:
    from korvet.client import parse_address

    try:
        for address in servers.split(","):
            parse_address(address)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--bootstrap-servers") from None


def only_states(names: tuple[str, ...], what: str) -> Callable[[F], F]:
    """Return the option `--state`, which may be repeated, for a list of things that have these states."""
    return click.option(
        "--state",
        "states",
        type=click.Choice(names, case_sensitive=False),
        multiple=True,
        help=f"Only {what} in this state; may be repeated.",
    )


def chosen(topic: Topic, numbers: tuple[int, ...]) -> list[TopicPartition]:
    """Return the partitions of a topic with these numbers, or all if there are no numbers. Raises BadParameter."""
    from korvet.client import TopicPartition

    there = [partition.partition for partition in topic.partitions]
    for number in numbers:
        if number not in there:
            raise click.BadParameter(
                f"{topic.name} has {len(there)} partitions; there is no {number}.", param_hint="--partition"
            )
    return [TopicPartition(topic.name, number) for number in there if not numbers or number in numbers]


def assignments(texts: tuple[str, ...], option: str = "--set") -> dict[str, str]:
    """Parse the NAME=VALUE texts of an option that may be repeated. Raises BadParameter."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint=option)
        pairs[name.strip()] = value.strip()
    return pairs
