"""Settings that clients change while brokers run, by AlterConfigs and IncrementalAlterConfigs (KIP-226).

A value may be set for one broker, and for all brokers of a cluster. A broker's own value precedes the cluster's, and
both precede the broker's file, environment and command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from korvet.config.kinds import Kind, double, integer, long
from korvet.config.settings import Config, DynamicValues, settings

#: The settings that a broker applies while it runs.
APPLIED: Final = (
    *("log.retention.ms", "log.retention.bytes"),
    *("log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "compression.type", "min.insync.replicas"),
    *("log.message.timestamp.type", "log.message.timestamp.before.max.ms"),
    *("log.message.timestamp.after.max.ms", "message.max.bytes"),
    *("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides"),
    "max.connection.creation.rate",
)
#: Kafka's settings that are the defaults of topic settings, and that brokers apply though they have no such setting.
OF_TOPICS: Final[Mapping[str, Kind[Any]]] = {
    "log.cleaner.delete.retention.ms": long(at_least=0),
    "log.cleaner.min.cleanable.ratio": double(at_least=0, at_most=1),
    "log.cleaner.min.compaction.lag.ms": long(at_least=0),
    "log.cleaner.max.compaction.lag.ms": long(at_least=1),
}
#: Kafka's dynamic settings of what korvet does not have. They are stored and shown, and have no effect.
WITHOUT_EFFECT: Final[Mapping[str, Kind[Any]]] = {
    **dict.fromkeys(
        (
            *("num.io.threads", "num.network.threads", "num.replica.fetchers", "background.threads"),
            *("num.recovery.threads.per.data.dir", "log.cleaner.threads"),
        ),
        integer(at_least=1),
    ),
    # kafka-reassign-partitions sets them for the time of a reassignment.
    **dict.fromkeys(
        (
            *("leader.replication.throttled.rate", "follower.replication.throttled.rate"),
            "replica.alter.log.dirs.io.max.bytes.per.second",
        ),
        long(at_least=0),
    ),
    "log.cleaner.io.buffer.size": integer(at_least=0),
    "log.cleaner.io.buffer.load.factor": double(at_least=0, at_most=1),
    "log.cleaner.io.max.bytes.per.second": double(at_least=0, at_most=1.7976931348623157e308),
}


def kind_of(name: str) -> Kind[Any] | None:
    """Return the kind of a setting that clients may change, or None."""
    if name in APPLIED:
        return settings()[name].kind
    return OF_TOPICS.get(name) or WITHOUT_EFFECT.get(name)


def with_dynamic(static: Config, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]) -> Config:
    """Return the configuration with dynamic values. Raises ConfigError if they contradict each other or others."""
    values = {**of_cluster, **of_broker}
    known = settings()
    parsed = {
        name.replace(".", "_"): known[name].kind.parse(value)
        for name, value in values.items()
        if name in APPLIED
    }
    return attrs.evolve(static, **parsed, dynamic=DynamicValues(static, of_cluster, of_broker))


def unknown_names(names: Iterable[str]) -> list[str]:
    """Return the names that are no settings of brokers."""
    known = settings()
    return [name for name in names if name not in known and kind_of(name) is None]
