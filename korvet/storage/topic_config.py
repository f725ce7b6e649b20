"""Parse a topic's raw settings into the configuration that storage applies.

The names are Kafka's, and three names of korvet, which are fixed at creation and therefore always stored with the
topic: a later change of the broker's defaults does not affect existing topics. Two of these only a backend parses.
Values were validated when they were
set (`korvet.broker.topics`); a value that is invalid nevertheless raises InvalidConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import evolve

from korvet.protocol.errors import InvalidConfig
from korvet.storage.values import OffsetMapping, TimestampType, TopicConfig

Parsed = TypeVar("Parsed")

LAYOUT = "storage.layout"
MAPPING = "offset.mapping"
SEQUENCE_BITS = "offset.sequence.bits"
# The settings that only a backend parses, with their defaults.
BACKEND_SETTINGS = {LAYOUT: "record", SEQUENCE_BITS: "10"}
FIXED_SETTINGS = (MAPPING, *BACKEND_SETTINGS)

TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}

AS_A_WHOLE = -2  # value of local.retention.* that stands for the topic's retention.*

# Setting -> (attribute of TopicConfig, function that parses its string).
PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    MAPPING: ("mapping", OffsetMapping),
    "message.timestamp.type": ("timestamp_type", TIMESTAMP_TYPES.__getitem__),
    "compression.type": ("compression_type", str),
    "retention.ms": ("retention_ms", int),
    "retention.bytes": ("retention_bytes", int),
    "min.insync.replicas": ("min_insync_replicas", int),
    "cleanup.policy": ("is_compacted", lambda policy: "compact" in policy),
    "remote.storage.enable": ("is_tiered", lambda value: value.strip().lower() == "true"),
    "delete.retention.ms": ("delete_retention_ms", int),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", int),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", int),
    "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", float),
}


def topic_config(settings: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """Return the defaults, overridden by `settings`. Settings that do not concern storage are ignored.

    Retention drops nothing if the policy is only to compact, as in Kafka. If records are archived
    (`remote.storage.enable`), `local.retention.*` is the retention of storage, and -2 stands for `retention.*`.
    """
    parsed = dict(_parse(name, value) for name, value in settings.items() if name in PARSERS)
    backend = {name: settings[name] for name in BACKEND_SETTINGS if name in settings}
    config = evolve(defaults, **parsed, backend_settings={**defaults.backend_settings, **backend})
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return evolve(config, retention_ms=-1, retention_bytes=-1)
    if config.is_tiered:
        local_ms, local_bytes = (
            int(settings.get(name, AS_A_WHOLE)) for name in ("local.retention.ms", "local.retention.bytes")
        )
        return evolve(
            config,
            retention_ms=config.retention_ms if local_ms == AS_A_WHOLE else local_ms,
            retention_bytes=config.retention_bytes if local_bytes == AS_A_WHOLE else local_bytes,
        )
    return config


def with_fixed_settings(settings: Mapping[str, str], defaults: TopicConfig) -> dict[str, str]:
    """Return the settings to store at creation: `settings`, with missing fixed ones from the defaults."""
    return {MAPPING: defaults.mapping.value, **BACKEND_SETTINGS, **defaults.backend_settings, **settings}


def fixed_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the three fixed settings, which no alteration changes."""
    return {name: settings[name] for name in FIXED_SETTINGS}


def backend_setting(config: TopicConfig, name: str, parse: Callable[[str], Parsed]) -> Parsed:
    """Parse one of BACKEND_SETTINGS. Raise InvalidConfig for a value that `parse` refuses."""
    return _parsed(name, config.backend_settings.get(name, BACKEND_SETTINGS[name]), parse)


def _parse(name: str, value: str) -> tuple[str, Any]:
    attribute, parse = PARSERS[name]
    return attribute, _parsed(name, value, parse)


def _parsed(name: str, value: str, parse: Callable[[str], Parsed]) -> Parsed:
    try:
        return parse(value)
    except (KeyError, ValueError):
        message = f"{name} cannot be {value!r}"
        raise InvalidConfig(message) from None
