"""Policies of `korvet lake run`: which topics become tables, how fresh the tables are, and how they are kept.

    lake = "s3://bucket/lake"

    [defaults]
    lag = "60s"
    decode = {format = "avro", registry = "http://registry:8081"}
    iceberg = true

    [topics."orders.*"]
    retain = "400d"

A topic's policy consists of [defaults], overridden by its settings `korvet.lake.*`, overridden by its section: the one
of its name, or else the first whose pattern matches the whole name. A section enables its topics.

All faults of the file are reported together, one line each. Invalid settings of one topic are a fault of that topic.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NewType

import attrs
from attrs import evolve, field, frozen
from cattrs.errors import ClassValidationError

from korvet.config import ConfigError
from korvet.config.units import duration_ms, size_bytes
from korvet.lake.registration.target import faults as faults_of_target
from korvet.pipeline.archive_plan import NAME
from korvet.pipeline.decoding.specification import (
    CONVERTER,
    OnError,
    Specification,
    described,
    read_sections,
    structure,
)

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", int)
Ratio = NewType("Ratio", float)
DecodeSettings = NewType("DecodeSettings", dict[str, Any])

FOREVER = "forever"
NO_DECODE = "none"
# Settings in [catalog] and [register] that are not the catalogue's own.
NAMESPACE, TYPED_NAMESPACE = "namespace", "typed_namespace"
NAMESPACES = (NAMESPACE, TYPED_NAMESPACE)
LEAST_LAG_S = 0.1
# Readers may still use files that a table no longer references, and an archiver may still commit new ones.
LEAST_KEPT_S = 24 * 3600.0


@frozen
class Settings:
    """The settings of a section, or of a topic on the broker. None: not given."""

    enable: bool | None = None
    lag: Seconds | None = None
    flush_bytes: Bytes | None = None
    retain: Seconds | None = None
    retain_typed: Seconds | None = None
    decode: DecodeSettings | None = None
    on_error: OnError | None = None
    iceberg: bool | None = None
    register: bool | None = None
    join: bool | None = None
    keep_files: Seconds | None = None
    max_bad_rows: int | None = None
    max_bad_ratio: Ratio | None = None

    def over(self, other: Settings) -> Settings:
        """Return the settings of `other`, overridden by these. The settings of `decode` are merged."""
        given = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        if self.decode is not None and other.decode is not None:
            given["decode"] = DecodeSettings({**other.decode, **self.decode})
        return evolve(other, **given)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield values that are out of range, as (name, reason)."""
        if self.lag is not None and not LEAST_LAG_S <= self.lag < math.inf:
            yield "lag", f"must be at least {LEAST_LAG_S:g} s"
        if self.keep_files is not None and self.keep_files < LEAST_KEPT_S:
            yield "keep_files", "must be at least 24h, because readers may still need the files"
        if self.max_bad_rows is not None and self.max_bad_rows < 0:
            yield "max_bad_rows", "must be at least 0"


NAMES = tuple(one.name for one in attrs.fields(Settings))


@frozen
class Policy:
    """The policy of one topic."""

    topic: str
    #: Longest time for which a record waits for its commit.
    lag_s: float = 60.0
    #: Bytes of rows of a partition that cause an earlier commit.
    flush_bytes: int = 64_000_000
    #: Age at which records are dropped, by their own timestamps.
    retain_s: float = math.inf
    #: The same for rows of the typed and the dlq table.
    retain_typed_s: float = math.inf
    #: Settings of the typed table; None: the topic is only archived.
    decode: Specification | None = None
    iceberg: bool = False
    #: Register the tables in the catalogue of [register], if there is one.
    register: bool = True
    join: bool = True
    #: Age at which a vacuum removes files that no table references.
    keep_files_s: float = 7 * 24 * 3600.0
    #: Thresholds of rows that cannot be decoded, in one run.
    max_bad_rows: int | None = None
    max_bad_ratio: float | None = None

    def exceeded(self, records: int, bad: int) -> str:
        """Return the threshold that these numbers exceed, in words, or "" if there is none."""
        if self.max_bad_rows is not None and bad > self.max_bad_rows:
            return f"{bad:,} bad rows, more than max_bad_rows = {self.max_bad_rows:,}"
        if self.max_bad_ratio is not None and bad > self.max_bad_ratio * records:
            return f"{bad:,} of {records:,} rows are bad, more than max_bad_ratio = {self.max_bad_ratio:g}"
        return ""


@frozen
class LakeFile:
    """The contents of lake.toml. `sections` are the names or patterns of topics with their settings, in order."""

    lake: str
    typed: str | None = None
    bootstrap_servers: str | None = None
    group: str = "korvet-lake"
    storage: dict[str, str] = field(factory=dict)
    spark: dict[str, str] = field(factory=dict)
    catalog: dict[str, str] = field(factory=dict)
    register: dict[str, str] = field(factory=dict)
    defaults: Settings = field(factory=Settings)
    sections: dict[str, Settings] = field(factory=dict)
    #: The folder to which paths in the file are relative.
    folder: Path = field(factory=Path)

    @property
    def names(self) -> list[str]:
        """The sections of single topics."""
        return [name for name in self.sections if NAME.fullmatch(name)]

    def section(self, topic: str, *, is_internal: bool = False) -> Settings | None:
        """Return the section of a topic. Patterns do not match internal topics."""
        if topic in self.sections or is_internal:
            return self.sections.get(topic)
        patterns = (name for name in self.sections if not NAME.fullmatch(name))
        return next((self.sections[each] for each in patterns if re.fullmatch(each, topic)), None)

    def policy(
        self, topic: str, given: Mapping[str, str] = MappingProxyType({}), *, is_internal: bool = False
    ) -> Policy | None:
        """Return the policy of a topic whose own settings on the broker are `given`, None if it is not enabled.

        Raises ConfigError with the faults of the topic's settings.
        """
        section = self.section(topic, is_internal=is_internal)
        own = topic_settings(given)
        enable = section.enable if section is not None and section.enable is not None else own.enable
        if enable is None:
            enable = section is not None or (bool(self.defaults.enable) and not is_internal)
        if not enable:
            return None
        merged = own.over(self.defaults)
        return policy_of(topic, merged if section is None else section.over(merged), self.folder)


def policy_of(topic: str, settings: Settings, folder: Path) -> Policy:
    """Return the policy for merged settings. Raises ConfigError."""
    values: dict[str, Any] = {
        "lag_s": settings.lag,
        "flush_bytes": settings.flush_bytes,
        "retain_s": settings.retain,
        "retain_typed_s": settings.retain_typed,
        "iceberg": settings.iceberg,
        "register": settings.register,
        "join": settings.join,
        "keep_files_s": settings.keep_files,
        "max_bad_rows": settings.max_bad_rows,
        "max_bad_ratio": settings.max_bad_ratio,
    }
    decode = None
    if settings.decode is not None and settings.decode.get("format") != NO_DECODE:
        given = dict(settings.decode)
        if settings.on_error is not None:
            given["on_error"] = settings.on_error
        decode = structure(topic, given, "decode", folder)
    return Policy(topic, decode=decode, **{name: each for name, each in values.items() if each is not None})


#: The sections of properties of stores, of Spark and of catalogues, whose names have dots.
PROPERTIES = {"storage", "spark", "catalog", "register"}
FILE_KEYS = {one.name for one in attrs.fields(LakeFile)} - {"sections", "folder"} | {"topics"}


# --- Topic settings of the broker ---------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    return text.strip().lower() == "true"


# Topic setting -> (name in Settings, function of its value).
TOPIC_SETTINGS: Mapping[str, tuple[str, Any]] = {
    "korvet.lake.enable": ("enable", _boolean),
    "korvet.lake.lag.ms": ("lag", lambda text: int(text) / 1000),
    "korvet.lake.retention.ms": ("retain", lambda text: int(text) / 1000 if int(text) >= 0 else math.inf),
    "korvet.lake.decode": ("decode", lambda text: {"format": text}),
    "korvet.lake.on.error": ("on_error", str),
    "korvet.lake.iceberg.enable": ("iceberg", _boolean),
}
ARCHIVED = "remote.storage.enable"
DESCRIBED = (*TOPIC_SETTINGS, ARCHIVED)


def topic_settings(given: Mapping[str, str]) -> Settings:
    """Return the settings that a topic has on the broker. `given` are those that differ from the defaults."""
    values = {name: parse(given[each]) for each, (name, parse) in TOPIC_SETTINGS.items() if each in given}
    if _boolean(given.get(ARCHIVED, "")):
        values.setdefault("enable", True)
    return Settings(**values)


# --- The file -----------------------------------------------------------------------------------------------


def read_lake_file(path: Path) -> LakeFile:
    """Read lake.toml. Raises ConfigError with all faults, and OSError."""
    values = read_sections(path)
    faults = list(_unknown(f"{path}: $", values, FILE_KEYS))
    sections = _tables(f"{path}: $.topics", values.pop("topics", {}), faults)
    known = {name: value for name, value in values.items() if name in FILE_KEYS}
    defaults = _settings(f"{path}: $.defaults", known.pop("defaults", {}), faults)
    for name in PROPERTIES & known.keys():
        known[name] = dict(_flat(_tables(f"{path}: $.{name}", known[name], faults)))
    topics = {}
    for name, section in sections.items():
        where = f'{path}: $.topics."{name}"'
        topics[name] = _settings(where, section, faults)
        if not NAME.fullmatch(name):
            try:
                re.compile(name)
            except re.error as error:
                faults.append(f"{where}: is neither a name nor a regular expression: {error}")
    try:
        made: LakeFile = CONVERTER_OF_FILES.structure(known, LakeFile)
    except ClassValidationError as error:
        raise ConfigError([*faults, *described(error, f"{path}: $")]) from None
    made = evolve(made, defaults=defaults, sections=topics, folder=path.parent)
    faults += [f"{path}: $.register.{name}: {reason}" for name, reason in _faults_of_catalogue(made.register)]
    if not faults:
        faults += list(_faults_of_policies(made, path))
    if faults:
        raise ConfigError(faults)
    return made


def _tables(where: str, value: object, faults: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        faults.append(f"{where}: is not a section")
        return {}
    return value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a section by their names: TOML reads a name with dots as tables inside each other."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _settings(where: str, value: object, faults: list[str]) -> Settings:
    """Return the settings of a section, and append its faults."""
    values = _tables(where, value, faults)
    faults += _unknown(where, values, NAMES)
    try:
        made: Settings = CONVERTER_OF_FILES.structure(
            {name: each for name, each in values.items() if name in NAMES}, Settings
        )
    except ClassValidationError as error:
        faults += described(error, where)
        return Settings()
    faults += [f"{where}.{name}: {reason}" for name, reason in made.faults()]
    return made


def _unknown(where: str, values: Mapping[str, Any], known: Any) -> Iterator[str]:
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"is {near[0]} meant?" if near else f"there are {', '.join(sorted(known))}"
            yield f"{where}.{name}: there is no such setting; {hint}"


def _faults_of_policies(made: LakeFile, path: Path) -> Iterator[str]:
    """Yield faults of the settings for decoding, which depend on each other."""
    merged = {f'topics."{name}"': each.over(made.defaults) for name, each in made.sections.items()}
    for where, settings in (merged or {"defaults": made.defaults}).items():
        try:
            policy_of("topic", settings, made.folder)
        except ConfigError as error:
            yield from (f"{path}: $.{where}.{line}" for line in error.errors)


def _faults_of_catalogue(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if given:
        yield from faults_of_target({name: text for name, text in given.items() if name not in NAMESPACES})


# --- Structuring --------------------------------------------------------------------------------------------


def _seconds(value: Any, _type: Any) -> float:
    if value == FOREVER:
        return math.inf
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration such as 60s")  # noqa: TRY004  cattrs expects it
    return duration_ms(value) / 1000


def _bytes(value: Any, _type: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a size such as 64MB")  # noqa: TRY004  cattrs expects it
    return size_bytes(value)


def _ratio(value: Any, _type: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a number from 0 to 1")
    return float(value)


def _decode(value: Any, _type: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"format": value}
    if value is False:
        return {"format": NO_DECODE}
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is neither a format, false, nor a table of settings")  # noqa: TRY004  cattrs expects it
    return value


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda each: each is kind


def _converter() -> Any:
    converter = CONVERTER.copy()
    for kind, hook in ((Seconds, _seconds), (Bytes, _bytes), (Ratio, _ratio), (DecodeSettings, _decode)):
        converter.register_structure_hook_func(_is(kind), hook)
    return converter


CONVERTER_OF_FILES = _converter()
