"""Read settings from a TOML file, the environment and the command line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from korvet.config.kinds import ConfigError
from korvet.config.settings import Config, Setting, dotted, settings

ENVIRONMENT_PREFIX = "KORVET_"
# Environment variables that are not settings, not even misspelt ones: those that Kubernetes sets in every container of
# a namespace with a service called korvet, the path of the configuration file,
# and the password of `korvet users add`.
NO_SETTINGS = re.compile(r"KORVET_(CONFIG|PASSWORD|SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
#: The settings that `listener.name.NAME.SETTING` sets for one listener.
OF_LISTENERS = ("sasl.enabled.mechanisms", "connections.max.reauth.ms", "sasl.server.max.receive.size")
OVERRIDE = re.compile(
    rf"listener\.name\.(?P<listener>.+)\.(?P<setting>{'|'.join(map(re.escape, OF_LISTENERS))})"
)


@frozen
class _Given:
    """A raw value and its source."""

    value: Any
    source: str


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
    overrides: dict[tuple[str, str], Any] = {}
    for source in (
        _from_file(file, errors),
        _from_environment(environ or {}),
        _from_flags(flags or {}),
    ):
        for name, value in source:
            if name in names:
                given[names[name]] = value
            elif match := OVERRIDE.fullmatch(name):
                _override(match, known[match["setting"]], value, overrides, errors)
            else:
                errors.append(_unknown(name, value.source, names))
    return _structure(known, given, overrides, errors)


def _override(
    match: re.Match[str],
    setting: Setting,
    given: _Given,
    overrides: dict[tuple[str, str], Any],
    errors: list[str],
) -> None:
    """Add the value of a setting on one listener."""
    # In the environment, dots stand for underscores in the listener's name.
    listener = match["listener"].replace(".", "_").upper()
    try:
        overrides[listener, setting.name.replace(".", "_")] = setting.kind.parse(given.value)
    except ValueError as error:
        errors.append(f"$.{match[0]}: {error} (from {given.source}); accepted: {setting.kind.accepted}")


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


def _structure(
    known: Mapping[str, Setting],
    given: Mapping[str, _Given],
    of_listeners: Mapping[tuple[str, str], Any],
    errors: list[str],
) -> Config:
    """Return the Config of the given values. Raises ConfigError after collecting the faults of all fields."""
    # Imported here, because importing cattrs takes longer than all the rest, and users of the class do not need it.
    from cattrs import ClassValidationError, Converter  # noqa: PLC0415
    from cattrs.gen import make_dict_structure_fn, override  # noqa: PLC0415

    def hook(setting: Setting) -> Callable[[Any, Any], Any]:
        return lambda value, _: setting.kind.parse(value)

    overrides: dict[str, Any] = {
        attribute.name: override(rename=name, struct_hook=hook(known[name]))
        for attribute in attrs.fields(Config)
        if (name := dotted(attribute.name)) in known
    }
    structure = make_dict_structure_fn(Config, Converter(), **overrides)
    try:
        config = structure({name: value.value for name, value in given.items()}, Config)
    except ClassValidationError as invalid:
        errors += _explained(invalid, known, given)
    if errors:
        raise ConfigError(errors)
    sources = {name: value.source for name, value in given.items()}
    return attrs.evolve(config, sources=sources, overrides=of_listeners)


def _explained(invalid: Any, known: Mapping[str, Setting], given: Mapping[str, _Given]) -> Iterator[str]:
    """Yield one line for each fault that cattrs collected."""
    of_fields, others = invalid.group_exceptions()
    for error, note in of_fields:
        name = dotted(note.name)
        yield f"$.{name}: {error} (from {given[name].source}); accepted: {known[name].kind.accepted}"
    for error in others:
        yield from error.errors if isinstance(error, ConfigError) else [f"$: {error}"]
