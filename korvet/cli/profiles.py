"""Profiles: named clusters with their settings, in a file. `korvet profiles` lists them.

The file is TOML, by default ~/.config/korvet/profiles.toml (KORVET_PROFILES names another one):

    profile = "dev"                             # used without --profile and KORVET_PROFILE; optional

    [dev]
    bootstrap.servers = "localhost:9092"

    [production]
    bootstrap.servers = "a.example:9093,b.example:9093"
    timeout = 10                                # seconds, as --timeout
    security.protocol = "SASL_SSL"              # and any other property that --command-config accepts
    command.config = "production.properties"    # more of them, in a file beside this one

A profile has the lowest precedence: options, environment variables and --command-config override it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from korvet.cli.output import print_json, print_table

VARIABLE = "KORVET_PROFILES"
SERVERS, TIMEOUT, COMMAND_CONFIG = "bootstrap.servers", "timeout", "command.config"


@frozen
class Profiles:
    """The profiles of a file: the properties of each, and the name of the default one."""

    path: Path
    by_name: Mapping[str, Mapping[str, str]]
    default: str | None = None

    @property
    def names(self) -> list[str]:
        return sorted(self.by_name)

    def chosen(self, name: str | None) -> Mapping[str, str]:
        """Return the properties of a profile, of the default one if the name is None. Raises BadParameter."""
        name = self.default if name is None else name
        if name is None:
            return {}
        if name not in self.by_name:
            there = f"it has {', '.join(self.names)}" if self.by_name else "it has no profiles"
            reason = there if self.path.exists() else "the file does not exist"
            raise click.BadParameter(
                f"{self.path} has no profile {name!r}; {reason}.", param_hint="--profile"
            )
        return self.by_name[name]


def path_of_profiles() -> Path:
    """Return the path of the file with profiles."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME")
    return Path(folder or Path.home() / ".config") / "korvet" / "profiles.toml"


def read_profiles() -> Profiles:
    """Return the profiles of the file; none if it does not exist. Raises ClickException."""
    path = path_of_profiles()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles(path, {})
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not valid TOML: {error}"
        raise click.ClickException(f"{path}: {reason}.") from None
    default = tables.pop("profile", None)
    if not isinstance(default, str | None):
        raise click.ClickException(f"{path}: profile is the name of a profile in quotes.")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise click.ClickException(f"{path}: {name} is no profile; accepted: profile and tables [NAME].")
    return Profiles(path, {name: flattened(table) for name, table in tables.items()}, default)


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values as text, by their names with dots."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(as_json: bool) -> None:
    """List the profiles: named clusters with their settings.

    --profile NAME and KORVET_PROFILE=NAME select one. Profiles are tables of ~/.config/korvet/profiles.toml, or of the
    file that KORVET_PROFILES names. A table has bootstrap.servers, timeout and the properties of Kafka's clients. A
    line profile = "NAME" before the tables selects the profile that is used otherwise.
    """
    found = read_profiles()
    selected = os.environ.get("KORVET_PROFILE") or found.default
    rows = [
        {
            "profile": name,
            "bootstrap-servers": found.by_name[name].get(SERVERS, "-"),
            "security": found.by_name[name].get("security.protocol", "-"),
            "selected": name == selected,
        }
        for name in found.names
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        [row | {"selected": "yes" if row["selected"] else ""} for row in rows],
        ["profile", "bootstrap-servers", "security", "selected"],
    )
    if not rows:
        click.echo(f"There are no profiles in {found.path}.", err=True)
