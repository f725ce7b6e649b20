from __future__ import annotations

import pytest

from korvet.broker.topics import (
    ALL_SETTINGS,
    SETTINGS,
    ConfigSource,
    NewTopic,
    colliding,
    effective,
    plan,
    rules_of,
    validate_name,
    validate_settings,
    validate_together,
)
from korvet.config import Config, load_config
from korvet.protocol.errors import InvalidConfig, InvalidReplicaAssignment, InvalidTopicException
from korvet.storage.interface import TopicConfig
from korvet.storage.topic_config import BACKEND_SETTINGS, PARSERS, topic_config

# Every topic setting in the documentation of Apache Kafka 3.9, 4.1 and 4.4, without max.decompressed.message.bytes:
# a batch may decompress to 20 MB (docs/limits.md), and there is no limit of a record.
KAFKAS = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "errors.deadletterqueue.group.enable",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]
FIXED = ["storage.layout", "offset.mapping", "offset.sequence.bits"]
OF_LAKE_TABLES = [
    "korvet.lake.decode",
    "korvet.lake.enable",
    "korvet.lake.iceberg.enable",
    "korvet.lake.lag.ms",
    "korvet.lake.on.error",
    "korvet.lake.retention.ms",
]
OURS = ["record.validation", *FIXED, *OF_LAKE_TABLES]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_valid_topic_names_are_accepted(name: str) -> None:
    validate_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "a:b", "ä", "a\n", "a\x00", "$a", "{a}", "٣"]
)
def test_invalid_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicException):
        validate_name(name)


@pytest.mark.parametrize(
    "name, expected", [("a.b", "a_b"), ("a_b", None), ("a-b", None), ("ab", None), ("a..b", None)]
)
def test_names_that_differ_only_in_dots_and_underscores_collide(name: str, expected: str | None) -> None:
    assert expected == colliding(name, ["x", "a_b", "a-c"])


def test_settings_are_those_of_kafka_and_ten_of_korvet() -> None:
    assert sorted(KAFKAS + OURS) == sorted(SETTINGS)


def test_every_default_is_accepted() -> None:
    given = [(setting.name, setting.default) for setting in ALL_SETTINGS if setting.default]

    assert dict(given) == validate_settings(given)


def test_every_setting_parsed_by_storage_is_enforced() -> None:
    assert all(SETTINGS[name].enforced for name in (*PARSERS, *BACKEND_SETTINGS))


def test_storage_reads_the_same_defaults() -> None:
    values = {each.setting.name: each.value for each in effective({}, Config(storage="redis://host"))}

    assert TopicConfig(backend_settings=BACKEND_SETTINGS) == topic_config(values, TopicConfig())


def test_only_settings_of_korvet_are_fixed() -> None:
    assert sorted(FIXED) == sorted(setting.name for setting in ALL_SETTINGS if setting.fixed)


@pytest.mark.parametrize(
    "name, value",
    [
        ("retention.ms", "-1"),
        ("retention.bytes", "9223372036854775807"),
        ("cleanup.policy", "delete"),
        ("cleanup.policy", " delete , delete "),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "uncompressed"),
        ("compression.zstd.level", "-131072"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("preallocate", "TRUE"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "*"),
        ("remote.storage.enable", "true"),
        ("offset.sequence.bits", "16"),
    ],
)
def test_valid_setting_values_are_accepted(name: str, value: str) -> None:
    assert {name: value} == validate_settings([(name, value)])


@pytest.mark.parametrize(
    "name, value",
    [
        ("retention.ms", "-2"),
        ("retention.ms", "week"),
        ("retention.ms", ""),
        ("max.message.bytes", "2147483648"),
        ("cleanup.policy", "keep"),
        ("cleanup.policy", "compact,keep"),
        ("delete.retention.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("compression.type", "none"),
        ("message.timestamp.type", "createtime"),
        ("min.insync.replicas", "0"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "1"),
        ("offset.sequence.bits", "0"),
        ("offset.mapping", "sparse"),
        ("storage.layout", "segment"),
        ("leader.replication.throttled.replicas", "all"),
    ],
)
def test_invalid_setting_values_are_refused_with_the_accepted_ones(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        validate_settings([(name, value)])


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_cannot_be_archived(policy: str) -> None:
    settings = {"cleanup.policy": policy, "remote.storage.enable": "true"}
    with pytest.raises(InvalidConfig, match="do not go together"):
        validate_together(settings, Config(lake_url="/lake"))


def test_remote_storage_requires_a_lake_url() -> None:
    with pytest.raises(InvalidConfig, match="lake.url"):
        validate_together({"remote.storage.enable": "TRUE"}, Config())
    validate_together({"remote.storage.enable": "TRUE"}, Config(lake_url="/lake"))


def test_every_invalid_setting_is_reported_with_a_similar_name() -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_settings([("retention.m", "1"), ("segment.ms", "0"), ("flush.ms", None)])

    assert (
        "Unknown topic config name: retention.m (did you mean retention.ms?); "
        "Invalid value for segment.ms: 0 is out of range (accepted: a whole number, at least 1); "
        "Null value not supported for topic configs: flush.ms"
    ) == caught.value.message


def test_topic_values_override_broker_values_and_defaults() -> None:
    config = load_config(flags={"compression.type": "lz4", "log.retention.minutes": "1"})

    values = {each.setting.name: (each.value, each.source) for each in effective({"segment.ms": "5"}, config)}

    assert ("5", ConfigSource.TOPIC) == values["segment.ms"]
    assert ("lz4", ConfigSource.BROKER) == values["compression.type"]
    assert ("60000", ConfigSource.BROKER) == values["retention.ms"]
    assert ("delete", ConfigSource.DEFAULT) == values["cleanup.policy"]
    assert sorted(values) == list(values)


def test_rules_are_read_from_topic_and_broker() -> None:
    config = Config(message_max_bytes=77)

    assert 77 == rules_of({}, config).max_message_bytes
    assert 5 == rules_of({"max.message.bytes": "5"}, config).max_message_bytes


@pytest.mark.parametrize(
    "settings, limits",
    [
        ({}, False),
        ({"message.timestamp.before.max.ms": "5"}, True),
        ({"message.timestamp.after.max.ms": "5"}, True),
        ({"message.timestamp.after.max.ms": "5", "message.timestamp.type": "LogAppendTime"}, False),
    ],
)
def test_limits_timestamps_depends_on_the_timestamp_settings(settings: dict[str, str], limits: bool) -> None:
    assert limits == rules_of(settings, Config()).limits_timestamps


def test_plan_uses_the_defaults_of_the_broker() -> None:
    planned = plan(NewTopic("t"), Config(num_partitions=4), [], [1])

    assert ("t", 4, {}) == (planned.name, planned.partitions, dict(planned.settings))


def test_assignments_of_all_partitions_have_equally_many_brokers() -> None:
    living = [1, 2, 3]
    accepted = NewTopic("orders", assignments=[(0, [1, 2]), (1, [2, 3])])
    refused = NewTopic("orders", assignments=[(0, [1]), (1, [2, 3])])

    assert 2 == plan(accepted, Config(), [], living).partitions
    with pytest.raises(
        InvalidReplicaAssignment, match="2 replica.* previous partitions, which have 1 replica"
    ):
        plan(refused, Config(), [], living)
