"""A topic's settings, and what they amount to."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import InvalidConfig
from korvet.storage.interface import OffsetMapping, TimestampType, TopicConfig
from korvet.storage.offsets import TimestampOffsets, offset_mapper
from korvet.storage.redis.append.layouts import StorageLayout, layout_of
from korvet.storage.topic_config import fixed_settings, topic_config, with_fixed_settings

DEFAULTS = TopicConfig(
    backend_settings={"storage.layout": "batch", "offset.sequence.bits": "13"}, retention_ms=1234
)


def test_defaults_apply_without_settings() -> None:
    assert DEFAULTS == topic_config({}, DEFAULTS)


def test_every_storage_setting_is_parsed() -> None:
    settings = {
        "storage.layout": "record",
        "offset.mapping": "dense",
        "offset.sequence.bits": "16",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "zstd",
        "retention.ms": "-1",
        "retention.bytes": "4096",
        "min.insync.replicas": "3",
    }

    assert TopicConfig(
        mapping=OffsetMapping.DENSE,
        backend_settings={"storage.layout": "record", "offset.sequence.bits": "16"},
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        compression_type="zstd",
        retention_ms=-1,
        retention_bytes=4096,
        min_insync_replicas=3,
    ) == topic_config(settings, DEFAULTS)


def test_other_settings_are_ignored() -> None:
    assert DEFAULTS == topic_config({"segment.bytes": "17", "no.such": "thing"}, DEFAULTS)


@pytest.mark.parametrize(
    "settings, retention_ms",
    [
        ({"cleanup.policy": "delete"}, 1234),
        ({"cleanup.policy": "compact,delete"}, 1234),
        ({"cleanup.policy": "compact"}, -1),
        ({"remote.storage.enable": "false"}, 1234),
        ({"remote.storage.enable": "true"}, 1234),
        ({"remote.storage.enable": "true", "local.retention.ms": "-2"}, 1234),
        ({"remote.storage.enable": "true", "local.retention.ms": "17"}, 17),
        ({"local.retention.ms": "17"}, 1234),
    ],
)
def test_retention_is_unlimited_under_the_compact_policy(settings: dict[str, str], retention_ms: int) -> None:
    assert retention_ms == topic_config(settings, DEFAULTS).retention_ms


@pytest.mark.parametrize(
    "name, value",
    [("retention.ms", "a week"), ("offset.mapping", "sparse"), ("message.timestamp.type", "createtime")],
)
def test_invalid_settings_are_reported_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        topic_config({name: value}, DEFAULTS)


def test_missing_fixed_settings_get_their_defaults() -> None:
    settings = with_fixed_settings({"offset.mapping": "dense", "retention.ms": "5"}, DEFAULTS)

    assert {
        "storage.layout": "batch",
        "offset.mapping": "dense",
        "offset.sequence.bits": "13",
        "retention.ms": "5",
    } == settings
    assert {
        "storage.layout": "batch",
        "offset.mapping": "dense",
        "offset.sequence.bits": "13",
    } == fixed_settings(settings)


def test_backend_parses_its_own_settings() -> None:
    config = topic_config({"storage.layout": "record"}, DEFAULTS)

    assert layout_of(config) is StorageLayout.RECORD
    assert TimestampOffsets(13) == offset_mapper(config)
    assert layout_of(TopicConfig()) is StorageLayout.RECORD
    assert TimestampOffsets(10) == offset_mapper(TopicConfig())


@pytest.mark.parametrize(
    "name, value",
    [("storage.layout", "pages"), ("offset.sequence.bits", "17"), ("offset.sequence.bits", "x")],
)
def test_backend_refuses_invalid_settings_of_its_own(name: str, value: str) -> None:
    config = topic_config({name: value}, TopicConfig())

    with pytest.raises(InvalidConfig, match=name):
        (layout_of if name == "storage.layout" else offset_mapper)(config)
