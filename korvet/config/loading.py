"""Read settings from a TOML file, the environment and the command line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from korvet.config.kinds import ConfigError, Kind
from korvet.config.references import Resolver, references
from korvet.config.settings import Config, Setting, name_of, settings

ENVIRONMENT_PREFIX = "KORVET_"
# Environment variables that are not settings, not even misspelt ones: those that Kubernetes sets in every container of
# a namespace with a service called korvet, the path of the configuration file,
# and the password of `korvet users add`.
NO_SETTINGS = re.compile(r"KORVET_(CONFIG|PASSWORD|SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
#: The settings that `listener.name.NAME.SETTING` sets for one listener.
OF_LISTENERS = (
    "max.connections",
    "max.connection.creation.rate",
    *("sasl.enabled.mechanisms", "connections.max.reauth.ms", "sasl.server.max.receive.size"),
    *(name for name in settings() if name.startswith("ssl.")),
)
OVERRIDE = re.compile(
    rf"listener\.name\.(?P<listener>.+)\.(?P<setting>{'|'.join(map(re.escape, OF_LISTENERS))})"
)


@frozen
class _Given:
    """A raw value and its source."""

    value: Any
    source: str
    references: Sequence[str] = ()  # replaced in the value, which is a secret then

    def resolved(self, resolver: Resolver, name: str, errors: list[str]) -> _Given | None:
        """Return this with the references in the value replaced, or None after adding an error."""
        try:
            return _Given(resolver.resolve(self.value), self.source, references(self.value))
        except ValueError as error:
            errors.append(f"$.{name}: {error} (from {self.source})")
            return None

    def fault(self, name: str, error: object, kind: Kind[Any]) -> str:
        """Return a line for the user about an invalid value."""
        if self.references:
            error = f"the value of {', '.join(self.references)} does not have that form"
        return f"$.{name}: {error} (from {self.source}); accepted: {kind.accepted}"


def load_config(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings from all sources. Raises one ConfigError with all faults."""
    known = settings()
    names = {alias: name for name, setting in known.items() for alias in (name, *setting.aliases)}
    errors: list[str] = []
    given: dict[str, _Given] = {}
    of_listeners: dict[tuple[str, str], _Given] = {}
    for source in (
        _from_file(file, errors),
        _from_environment(environ or {}),
        _from_flags(flags or {}),
    ):
        for name, value in source:
            if name in names:
                given[names[name]] = value
            elif match := OVERRIDE.fullmatch(name):
                # In the environment, dots stand for underscores in the listener's name.
                of_listeners[match["listener"].replace(".", "_").upper(), match["setting"]] = value
            else:
                errors.append(_unknown(name, value.source, names))
    resolver = Resolver(environ or {})
    resolved = {
        name: result for name, each in given.items() if (result := each.resolved(resolver, name, errors))
    }
    overrides = _overrides(known, of_listeners, resolver, errors)
    values = _parsed(known, resolved, errors)
    readers = {
        name: partial(_read, resolver, given[name].value, known[name].kind)
        for name, each in resolved.items()
        if each.references
    }
    sources = {name: each.source for name, each in given.items()}
    sources |= {name_of(*key): each.source for key, each in of_listeners.items()}
    try:
        if values is not None:
            config = Config(**values, overrides=overrides, readers=readers, sources=sources)
    except ConfigError as contradictions:
        errors += contradictions.errors
    if errors:
        raise ConfigError(errors)
    return config


def setting_of(name: str) -> str:
    """Return the name of a setting without `listener.name.NAME.`."""
    match = OVERRIDE.fullmatch(name)
    return match["setting"] if match else name


def _read(resolver: Resolver, value: Any, kind: Kind[Any]) -> Any:
    return kind.parse(resolver.resolve(value))


def _overrides(
    known: Mapping[str, Setting],
    of_listeners: Mapping[tuple[str, str], _Given],
    resolver: Resolver,
    errors: list[str],
) -> dict[tuple[str, str], Any]:
    """Return the values of settings on single listeners."""
    overrides = {}
    for (listener, setting), given in of_listeners.items():
        name, kind = name_of(listener, setting), known[setting].kind
        if resolved := given.resolved(resolver, name, errors):
            try:
                overrides[listener, setting.replace(".", "_")] = kind.parse(resolved.value)
            except ValueError as error:
                errors.append(resolved.fault(name, error, kind))
    return overrides


def _from_file(file: Path | None, errors: list[str]) -> Iterator[tuple[str, _Given]]:
    if file is None:
        return
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            errors.append(f"{file}: {error.strerror}")
        else:
            errors.append(f"{file}: {error}; accepted: TOML (names that begin alike may need quotes)")
        return
    for name, value in _flattened(tables):
        yield name, _Given(value, str(file))


def _flattened(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for variable, value in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and not NO_SETTINGS.fullmatch(variable):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            yield name, _Given(value, variable)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, _Given]]:
    for name, value in flags.items():
        yield name, _Given(value, "command line")


def _unknown(name: str, source: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "; `korvet serve --settings` prints them all"
    return f"$.{name}: unknown setting (from {source}){hint}"


def _parsed(
    known: Mapping[str, Setting], given: Mapping[str, _Given], errors: list[str]
) -> dict[str, Any] | None:
    """Return the attributes of Config with the given values, or None after adding the faults of all of them."""
    # Not by cattrs, since importing it and making its function for Config took a sixteenth of a broker's start.
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, setting in known.items():
        if value := given.get(name):
            try:
                values[name.replace(".", "_")] = setting.kind.parse(value.value)
            except ValueError as error:
                faults.append(value.fault(name, error, setting.kind))
    errors += faults
    return None if faults else values
