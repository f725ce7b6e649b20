"""The options that set a broker's settings: of `korvet serve`, and of commands about a broker that does not run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from korvet.cli.options import assignments

if TYPE_CHECKING:
    from korvet.config import Config, Setting

F = TypeVar("F", bound=Callable[..., object])

# Environment variables of the other commands, which the broker would report as misspelt settings.
NOT_OF_THE_BROKER = (
    "KORVET_BOOTSTRAP_SERVERS",
    "KORVET_COMMAND_CONFIG",
    "KORVET_FAULT_PORT",
    "KORVET_PROFILE",
    "KORVET_PROFILES",
    "KORVET_TRACEBACK",
)
OPTIONS = (
    click.option("--storage", metavar="URL", help="Storage backend. [memory://]"),
    click.option(
        "--listeners",
        metavar="HOST:PORT,…",
        help="Addresses to listen on. [localhost:9092, on IPv4 and IPv6; :9092 is all addresses]",
    ),
    click.option(
        "--config",
        "file",
        envvar="KORVET_CONFIG",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Read settings from a TOML file.",
    ),
    click.option(
        "--processes", metavar="N", help="Number of processes that serve as one broker on one Redis. [1]"
    ),
    click.option("--set", "texts", metavar="NAME=VALUE", multiple=True, help="Any setting; may be repeated."),
)


def broker_settings(command: F) -> F:
    """Add the options, whose values `read_config` takes, to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def read_config(file: Path | None = None, texts: tuple[str, ...] = (), **options: str | None) -> Config:
    """Return the settings from the file, the environment and the flags. Raises ConfigError with all faults."""
    from korvet.config import load_config

    given = {name.replace("_", "."): value for name, value in options.items() if value is not None}
    flags = given | assignments(texts)
    environ = {name: value for name, value in os.environ.items() if name not in NOT_OF_THE_BROKER}
    return load_config(file=file, environ=environ, flags=flags)


def default_of(setting: Setting) -> str:
    """Return a setting's default for users."""
    return shown(setting.default)


def shown(value: object) -> str:
    """Return a value as users write it, or "not set"."""
    from korvet.broker.topics import written

    return "not set" if value in (None, (), "") else written(value)
