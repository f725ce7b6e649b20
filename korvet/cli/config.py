"""`korvet config`: print the settings that a broker would have, and the reference of all settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.broker_settings import broker_settings, default_of, read_config, shown
from korvet.cli.options import as_json
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.config import Config, Setting


@click.group(name="config")
def command() -> None:
    """Show the settings of a broker without running it.

    `korvet configs` shows and alters the settings of running brokers and of topics.
    """


@command.command("print")
@broker_settings
@click.option("--set-only", is_flag=True, help="Only settings that are not at their default.")
@as_json
def print_values(set_only: bool, as_json: bool, **given: Any) -> None:
    """Print the value of every setting, and its source.

    The options, the file and the environment are those of `korvet serve`. Secrets are printed as [hidden], and URLs
    without their passwords.
    """
    rows = [row for row in rows_of(read_config(**given)) if not set_only or row["source"] != "default"]
    if as_json:
        print_json(rows)
    else:
        print_table([row | {"value": shown(row["value"])} for row in rows], ["name", "value", "source"])


def rows_of(config: Config) -> Iterator[dict[str, Any]]:
    """Yield a row for each setting, then for each setting of one listener."""
    from korvet.config import settings

    for name, setting in settings().items():
        value = visible(setting, getattr(config, name.replace(".", "_")))
        yield {"name": name, "value": value, "source": config.source_of(name)}
    for name, value in config.of_listeners().items():
        setting = settings()[name.split(".", 3)[3]]
        yield {"name": name, "value": visible(setting, value), "source": config.source_of(name)}


def visible(setting: Setting, value: Any) -> Any:
    """Return a value for users: as JSON has it, a URL without its password, any other secret hidden."""
    from korvet.config import HIDDEN

    if setting.kind.is_secret and not setting.kind.hides_passwords and value is not None:
        return HIDDEN
    if isinstance(value, tuple):
        return shown(value) if value else None
    return setting.kind.shown(value)


@command.command("reference")
def print_reference() -> None:
    """Print the page docs/configuration.md: every setting of the broker and of topics."""
    for line in reference():
        click.echo(line)


HEAD = """\
# Configuration

For operators: all settings, their defaults, and what they accept. `korvet config reference` prints this page.

A setting is given on the command line (`korvet serve --set num.partitions=3`), in the environment
(`KORVET_NUM_PARTITIONS=3`), or in the TOML file of `--config` (`num.partitions = 3`). The command line overrides the
environment, which overrides the file. `korvet config print` takes the same options as `korvet serve`, and prints each
value with its source. Values may contain [references to secrets](security.md#secrets).

Names are those of Apache Kafka where Kafka has the setting.

`listener.name.NAME.SETTING` sets one of these for one listener: {of_listeners}.

## Settings of the broker
"""
TOPIC_HEAD = """\
## Settings of topics

Admin clients set them when they create or alter a topic (`korvet topics create --set retention.ms=60000`,
`korvet configs set orders retention.ms=60000`). The default is the broker setting of the third column, if there is one.
Those marked *stored* are stored and returned, but have no effect.
"""


def reference() -> Iterator[str]:
    """Yield the lines of the reference."""
    from korvet.config import OF_LISTENERS

    yield HEAD.format(of_listeners=", ".join(f"`{name}`" for name in OF_LISTENERS))
    for title, settings in grouped().items():
        yield f"### {title}\n\n| setting | default | accepted | meaning |\n|---|---|---|---|"
        for setting in settings:
            unit = f" ({setting.unit})" if setting.unit else ""
            default = f"`{default_of(setting)}`"
            yield row(f"`{setting.name}`", default, setting.kind.accepted + unit, setting.help)
        yield ""
    yield from reference_of_topics()


def grouped() -> dict[str, list[Setting]]:
    """Return the settings by the title of their group."""
    from korvet.config import GROUPS, settings

    groups: dict[str, list[Setting]] = {}
    for name, setting in settings().items():
        title = GROUPS.get(name) or list(groups)[-1]
        groups.setdefault(title, []).append(setting)
    return groups


def reference_of_topics() -> Iterator[str]:
    """Yield the lines about topic settings."""
    from korvet.broker.topic_documentation import HELP
    from korvet.broker.topics import ALL_SETTINGS

    yield TOPIC_HEAD
    yield "| setting | default | broker setting | accepted | meaning |\n|---|---|---|---|---|"
    for setting in ALL_SETTINGS:
        brokers = ", ".join(f"`{name}`" for name in setting.broker_settings)
        default = f"`{setting.default}`" if setting.default else ""
        stored = "" if setting.enforced else "*stored*; "
        yield row(f"`{setting.name}`", default, brokers, setting.kind.accepted, stored + HELP[setting.name])


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
