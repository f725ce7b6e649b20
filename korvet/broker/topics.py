"""The rules for topic names, topic settings and new topics.

The broker accepts and validates every topic setting that Kafka documents, even those without effect here (segments,
flushing), so that tools which copy settings between clusters work. `enforced` is True for the settings that have an
effect. The three settings that only korvet has are fixed when the topic is created.

Values are stored as the strings that clients sent. `rules_of` parses the settings that handlers need, and storage
parses its own.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain, product
from typing import Any

from attrs import field, frozen

from korvet.config import MAX_LONG, Config, Kind, boolean, double, integer, list_of, long, one_of, text
from korvet.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    PolicyViolation,
    TopicAlreadyExists,
)

MAX_NAME_LENGTH = 249
LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+")
# Kafka stores offsets and transactions in topics with these names. Clients cannot write to them, nor create them here.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
CLUSTER_METADATA_TOPIC = "__cluster_metadata"


# --- Names ---------------------------------------------------------------------------------------------------


def validate_name(name: str) -> None:
    """Raise InvalidTopicException unless the name is valid for a topic."""
    if reason := _fault_of(name):
        raise InvalidTopicException(f"Topic name is invalid: {reason}")


def _fault_of(name: str) -> str:
    if name in ("", ".", ".."):
        return f"{name!r} is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"it is {len(name)} characters long, and {MAX_NAME_LENGTH} are the most"
    if not LEGAL_NAME.fullmatch(name):
        return f"{name!r} has characters other than ASCII letters and digits, '.', '_' and '-'"
    return ""


def colliding(name: str, existing: Collection[str]) -> str | None:
    """Return an existing topic whose name differs from `name` only in '.' and '_', or None."""
    # Kafka refuses such a pair, because its metrics write both as '_'. Dashboards that read korvet's metrics do so too.
    parts = re.split(r"[._]", name)
    separators = len(parts) - 1
    if 2**separators < len(existing):
        variants: Iterable[str] = (
            "".join(chain.from_iterable(zip(parts, (*each, ""), strict=True)))
            for each in product("._", repeat=separators)
        )
        return next((each for each in variants if each != name and each in existing), None)
    unified = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == unified), None)


# --- Settings ------------------------------------------------------------------------------------------------


class ConfigSource(IntEnum):
    """The source of a setting's value, with the protocol's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    BROKER = 4
    DEFAULT = 5
    GROUP = 8


@frozen
class TopicSetting:
    """A topic setting."""

    name: str
    kind: Kind[Any]
    default: str
    enforced: bool = False  # True if it has an effect; otherwise it is only stored and shown
    fixed: bool = False  # can be set only when the topic is created
    broker_settings: tuple[str, ...] = ()  # the broker settings that are the default of this setting
    from_broker: Callable[[Config], object] | None = None

    @property
    def kafka_default(self) -> str | None:
        """The broker setting that is Kafka's default, if this broker has no such setting."""
        return None if self.broker_settings else KAFKA_DEFAULTS.get(self.name)


@frozen
class SettingValue:
    """The effective value of a topic setting, and its source."""

    setting: TopicSetting
    value: str
    source: ConfigSource


def _stored(name: str, kind: Kind[Any], default: object) -> TopicSetting:
    return TopicSetting(name, kind, written(default))


def _from_broker(
    name: str, kind: Kind[Any], broker_setting: str, read: Callable[[Config], object], *, fixed: bool = False
) -> TopicSetting:
    return TopicSetting(
        name,
        kind,
        written(read(Config())),
        enforced=True,
        fixed=fixed,
        broker_settings=tuple(broker_setting.split(", ")),
        from_broker=read,
    )


def written(value: object) -> str:
    """Format a value as Kafka does."""
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


_REPLICAS = list_of(text("partition:broker, or *", r"\*|none|[0-9]+:[0-9]+"))

ALL_SETTINGS = (
    # Enforced by the broker or by storage
    TopicSetting("cleanup.policy", list_of(one_of("delete", "compact")), "delete", enforced=True),
    TopicSetting("delete.retention.ms", long(at_least=0), "86400000", enforced=True),
    TopicSetting("min.cleanable.dirty.ratio", double(at_least=0, at_most=1), "0.5", enforced=True),
    TopicSetting("min.compaction.lag.ms", long(at_least=0), "0", enforced=True),
    TopicSetting("max.compaction.lag.ms", long(at_least=1), str(MAX_LONG), enforced=True),
    _from_broker(
        "retention.ms",
        long(at_least=-1),
        "log.retention.ms, log.retention.minutes, log.retention.hours",
        lambda config: config.retention_ms,
    ),
    _from_broker("retention.bytes", long(), "log.retention.bytes", lambda config: config.log_retention_bytes),
    _from_broker(
        "compression.type",
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.type",
        lambda config: config.compression_type,
    ),
    _from_broker(
        "max.message.bytes",
        integer(at_least=0),
        "message.max.bytes",
        lambda config: config.message_max_bytes,
    ),
    _from_broker(
        "message.timestamp.type",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        lambda config: config.log_message_timestamp_type,
    ),
    _from_broker(
        "message.timestamp.before.max.ms",
        long(at_least=0),
        "log.message.timestamp.before.max.ms",
        lambda config: config.log_message_timestamp_before_max_ms,
    ),
    _from_broker(
        "message.timestamp.after.max.ms",
        long(at_least=0),
        "log.message.timestamp.after.max.ms",
        lambda config: config.log_message_timestamp_after_max_ms,
    ),
    _from_broker(
        "min.insync.replicas",
        integer(at_least=1),
        "min.insync.replicas",
        lambda config: config.min_insync_replicas,
    ),
    TopicSetting("remote.storage.enable", boolean(), "false", enforced=True),
    TopicSetting("local.retention.bytes", long(at_least=-2), "-2", enforced=True),
    TopicSetting("local.retention.ms", long(at_least=-2), "-2", enforced=True),
    # Only in korvet
    _from_broker(
        "record.validation",
        one_of("full", "batch"),
        "record.validation",
        lambda config: config.record_validation,
    ),
    _from_broker(
        "storage.layout",
        one_of("record", "batch"),
        "storage.layout",
        lambda config: config.storage_layout,
        fixed=True,
    ),
    _from_broker(
        "offset.mapping",
        one_of("timestamp", "dense"),
        "offset.mapping",
        lambda config: config.default_offset_mapping,
        fixed=True,
    ),
    _from_broker(
        "offset.sequence.bits",
        integer(at_least=1, at_most=16),
        "offset.sequence.bits",
        lambda config: config.offset_sequence_bits,
        fixed=True,
    ),
    # For `korvet lake run`, which reads them
    TopicSetting("korvet.lake.enable", boolean(), "false", enforced=True),
    TopicSetting("korvet.lake.lag.ms", long(at_least=100), "60000", enforced=True),
    TopicSetting("korvet.lake.retention.ms", long(at_least=-1), "-1", enforced=True),
    TopicSetting(
        "korvet.lake.decode", one_of("none", "json", "json-schema", "avro", "protobuf"), "none", enforced=True
    ),
    TopicSetting("korvet.lake.on.error", one_of("dlq", "skip", "stop"), "dlq", enforced=True),
    TopicSetting("korvet.lake.iceberg.enable", boolean(), "false", enforced=True),
    # Kafka's settings that are only stored and shown
    _stored("compression.gzip.level", integer(at_least=-1, at_most=9), -1),
    _stored("compression.lz4.level", integer(at_least=1, at_most=17), 9),
    _stored("compression.zstd.level", integer(at_least=-131_072, at_most=22), 3),
    _stored("errors.deadletterqueue.group.enable", boolean(), default=False),
    _stored("file.delete.delay.ms", long(at_least=0), 60_000),
    _stored("flush.messages", long(at_least=1), MAX_LONG),
    _stored("flush.ms", long(at_least=0), MAX_LONG),
    _stored("follower.replication.throttled.replicas", _REPLICAS, ""),
    _stored("index.interval.bytes", integer(at_least=0), 4096),
    _stored("leader.replication.throttled.replicas", _REPLICAS, ""),
    _stored("preallocate", boolean(), default=False),
    _stored("remote.copy.lag.bytes", long(at_least=-1), -1),
    _stored("remote.copy.lag.ms", long(at_least=-1), 0),
    _stored("remote.log.copy.disable", boolean(), default=False),
    _stored("remote.log.delete.on.disable", boolean(), default=False),
    _stored("segment.bytes", integer(at_least=14), 1_073_741_824),
    _stored("segment.index.bytes", integer(at_least=4), 10_485_760),
    _stored("segment.jitter.ms", long(at_least=0), 0),
    _stored("segment.ms", long(at_least=1), 604_800_000),
    _stored("unclean.leader.election.enable", boolean(), default=False),
)
# The broker settings that Apache Kafka 4.4 shows as synonyms of topic settings for which korvet has a fixed default.
KAFKA_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "remote.copy.lag.bytes": "log.remote.copy.lag.bytes",
    "remote.copy.lag.ms": "log.remote.copy.lag.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
SETTINGS: Mapping[str, TopicSetting] = {setting.name: setting for setting in ALL_SETTINGS}


def validate_settings(given: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the settings to store. Raises InvalidConfig with all faults and the accepted values."""
    settings: dict[str, str] = {}
    faults = []
    for name, value in given:
        fault = _fault_of_setting(name, value)
        if fault or value is None:
            faults.append(fault)
        else:
            settings[name] = value
    if faults:
        raise InvalidConfig("; ".join(faults))
    return settings


def _fault_of_setting(name: str, value: str | None) -> str:
    setting = SETTINGS.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        return f"Unknown topic config name: {name}" + (f" (did you mean {near[0]}?)" if near else "")
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    try:
        setting.kind.parse(value)
    except ValueError as error:
        return f"Invalid value for {name}: {error} (accepted: {setting.kind.accepted})"
    return ""


def validate_together(settings: Mapping[str, str], config: Config) -> None:
    """Raise InvalidConfig if valid settings contradict each other or the broker's settings."""
    least, most = (
        int(settings.get(name, SETTINGS[name].default))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if least > most:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    is_archived = settings.get("remote.storage.enable", "false").strip().lower() == "true"
    if is_archived and "compact" in settings.get("cleanup.policy", ""):
        raise InvalidConfig(
            "remote.storage.enable=true and cleanup.policy=compact do not go together; accepted: either of them"
        )
    if is_archived and config.lake_url is None:
        raise InvalidConfig(
            "remote.storage.enable=true needs the broker's setting lake.url, the location of the tables; accepted "
            "without it: false"
        )


def effective(settings: Mapping[str, str], config: Config) -> list[SettingValue]:
    """Return every setting of a topic with these `settings`, sorted by name as Kafka lists them."""
    own = own_settings(settings, config)
    return [_effective(setting, own, config) for _, setting in sorted(SETTINGS.items())]


def own_settings(settings: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return the settings of a topic that a client or operator has set.

    Storage stores the fixed settings of every topic. Those that equal the broker's defaults are left out.
    """
    return {
        name: value
        for name, value in settings.items()
        if name in SETTINGS and not (SETTINGS[name].fixed and value == _broker_value(SETTINGS[name], config))
    }


def _broker_value(setting: TopicSetting, config: Config) -> str:
    """Return the broker's default of a setting."""
    if setting.from_broker is not None:
        return written(setting.from_broker(config))
    name = KAFKA_DEFAULTS.get(setting.name, "")
    return config.of_broker.get(name) or config.of_cluster.get(name) or setting.default


def _effective(setting: TopicSetting, settings: Mapping[str, str], config: Config) -> SettingValue:
    if setting.name in settings:
        return SettingValue(setting, settings[setting.name], ConfigSource.TOPIC)
    names = setting.broker_settings or (setting.kafka_default or "",)
    source = next(
        (source for name in names if (source := source_of(name, config)) != ConfigSource.DEFAULT),
        ConfigSource.DEFAULT,
    )
    return SettingValue(setting, _broker_value(setting, config), source)


def source_of(name: str, config: Config) -> ConfigSource:
    """Return the source of the value of a broker's setting."""
    if name in config.of_broker:
        return ConfigSource.DYNAMIC_BROKER
    if name in config.of_cluster:
        return ConfigSource.DYNAMIC_DEFAULT_BROKER
    return ConfigSource.DEFAULT if config.source_of(name) == "default" else ConfigSource.BROKER


# --- New topics ----------------------------------------------------------------------------------------------


@frozen
class NewTopic:
    """A requested topic. -1 is the broker's default, as in Kafka."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()  # partition, brokers
    settings: Sequence[tuple[str, str | None]] = ()


@frozen
class PlannedTopic:
    """A topic as it will be created."""

    name: str
    partitions: int
    settings: Mapping[str, str]


# Kafka's ReplicationControlManager.MAX_PARTITIONS_PER_BATCH.
MAX_PARTITIONS_PER_REQUEST = 10_000


def validate_request(partitions: int, config: Config) -> None:
    """Raise PolicyViolation if one request may not add so many partitions."""
    if partitions > max(MAX_PARTITIONS_PER_REQUEST, config.max_partitions):
        raise PolicyViolation("Excessively large number of partitions per request.")


def requested_partitions(new: NewTopic, config: Config) -> int:
    """Return the number of partitions of a requested topic; 0 if the requested number is invalid."""
    if new.assignments:
        return len(new.assignments)
    return config.num_partitions if new.num_partitions == -1 else max(0, new.num_partitions)


def plan(new: NewTopic, config: Config, existing: Collection[str], brokers: Collection[int]) -> PlannedTopic:
    """Validate a requested topic by Kafka's rules, in Kafka's order, and return the topic to create.

    `brokers` are the living ones.

    Raises InvalidTopicException, TopicAlreadyExists, InvalidConfig, InvalidRequest, InvalidReplicaAssignment,
    InvalidReplicationFactor, InvalidPartitions.
    """
    validate_name(new.name)
    if new.name in existing:
        raise TopicAlreadyExists(f"Topic '{new.name}' already exists.")
    if other := colliding(new.name, existing):
        raise InvalidTopicException(f"Topic '{new.name}' collides with existing topic: {other}")
    settings = validate_settings(new.settings)
    validate_together(settings, config)
    partitions = _assigned(new, brokers) if new.assignments else _counted(new, config, brokers)
    if partitions > config.max_partitions:
        raise InvalidPartitions(
            f"{partitions} partitions are more than max.partitions={config.max_partitions} allows."
        )
    return PlannedTopic(new.name, partitions, settings)


def _counted(new: NewTopic, config: Config, brokers: Collection[int]) -> int:
    """Return the number of partitions if the broker assigns them."""
    factor = config.default_replication_factor if new.replication_factor == -1 else new.replication_factor
    if factor < 1:
        raise InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if factor > len(brokers) and config.replication_factor_policy != "lenient":
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be"
            f" reached because only {len(brokers)} broker(s) are registered."
        )
    if new.num_partitions < 1 and new.num_partitions != -1:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
    return config.num_partitions if new.num_partitions == -1 else new.num_partitions


def _assigned(new: NewTopic, living: Collection[int]) -> int:
    """Return the number of partitions if the client has assigned them to living brokers."""
    if new.replication_factor != -1:
        raise InvalidRequest(
            "A manual partition assignment was specified, but replication factor was not set to -1."
        )
    if new.num_partitions != -1:
        raise InvalidRequest(
            "A manual partition assignment was specified, but numPartitions was not set to -1."
        )
    replicas = len(new.assignments[0][1])
    for _, brokers in new.assignments:
        validate_brokers(brokers, living)
        if len(brokers) != replicas:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
                f"consistent with previous partitions, which have {replicas} replica(s)."
            )
    if sorted(partition for partition, _ in new.assignments) != list(range(len(new.assignments))):
        raise InvalidReplicaAssignment("Partitions should be a consecutive 0-based integer sequence.")
    return len(new.assignments)


def validate_brokers(brokers: Sequence[int], living: Collection[int]) -> None:
    """Raise InvalidReplicaAssignment unless `brokers` are living ones, each once."""
    if not brokers:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    if unknown := [broker for broker in brokers if broker not in living]:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
        )
    if repeated := [broker for broker, times in Counter(brokers).items() if times > 1]:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes the broker {repeated[0]} more than once."
        )


# --- Rules for handlers --------------------------------------------------------------------------------------


@frozen
class TopicRules:
    """The settings that determine whether a batch is accepted, parsed once per topic instead of once per batch."""

    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    is_compacted: bool = False
    checks_records: bool = True

    limits_timestamps: bool = field(init=False)  # True if the timestamps of records must be validated

    @limits_timestamps.default
    def _limits_timestamps(self) -> bool:
        limited = min(self.timestamp_before_max_ms, self.timestamp_after_max_ms) < MAX_LONG
        return limited and not self.log_append_time


def rules_of(settings: Mapping[str, str], config: Config) -> TopicRules:
    """Return the rules that `settings` and the broker's defaults define."""

    def value(name: str) -> str:
        return _effective(SETTINGS[name], settings, config).value

    return TopicRules(
        max_message_bytes=int(value("max.message.bytes")),
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        is_compacted="compact" in value("cleanup.policy"),
        checks_records=value("record.validation") == "full",
    )
