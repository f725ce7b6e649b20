"""Parse a topic's raw settings into the configuration that storage applies.

The names are Kafka's, and three names of korvet, which are fixed at creation and therefore always stored with the
topic: a later change of the broker's defaults does not affect existing topics. Values were validated when they were
set (`korvet.broker.topics`); a value that is invalid nevertheless raises InvalidConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from korvet.protocol.errors import InvalidConfig
from korvet.storage.interface import OffsetMapping, StorageLayout, TimestampType, TopicConfig

LAYOUT = "storage.layout"
MAPPING = "offset.mapping"
SEQUENCE_BITS = "offset.sequence.bits"
FIXED_SETTINGS = (LAYOUT, MAPPING, SEQUENCE_BITS)

TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}

AS_A_WHOLE = -2  # value of local.retention.* that stands for the topic's retention.*

# Setting -> (attribute of TopicConfig, function that parses its string).
PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    LAYOUT: ("layout", StorageLayout),
    MAPPING: ("mapping", OffsetMapping),
    SEQUENCE_BITS: ("sequence_bits", int),
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
    config = evolve(
        defaults, **dict(_parse(name, value) for name, value in settings.items() if name in PARSERS)
    )
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
    fixed = {
        LAYOUT: defaults.layout.value,
        MAPPING: defaults.mapping.value,
        SEQUENCE_BITS: str(defaults.sequence_bits),
    }
    return fixed | dict(settings)


def fixed_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the three fixed settings, which no alteration changes."""
    return {name: settings[name] for name in FIXED_SETTINGS}


def _parse(name: str, value: str) -> tuple[str, Any]:
    attribute, parse = PARSERS[name]
    try:
        return attribute, parse(value)
    except (KeyError, ValueError):
        message = f"{name} cannot be {value!r}"
        raise InvalidConfig(message) from None
