from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
)
from korvet.storage.interface import Topic
from tests.handlers.support import ask, create

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32


def wanted(configs: dict[str, str | None], name: str = "t", kind: int = TOPIC) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )


async def alter(
    broker: Broker, *resources: AlterConfigsResource, validate_only: bool = False
) -> list[AlterConfigsResourceResponse]:
    request = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    responses: list[AlterConfigsResourceResponse] = (await ask(broker, 33, 2, request)).responses
    assert [(each.resource_type, each.resource_name) for each in resources] == [
        (each.resource_type, each.resource_name) for each in responses
    ]
    return responses


async def settings_of(broker: Broker, name: str = "t") -> dict[str, str]:
    topic = await broker._storage.topic(name)
    assert isinstance(topic, Topic)
    return {
        key: value for key, value in topic.settings.items() if "offset" not in key and "layout" not in key
    }


async def test_given_settings_replace_all_previous_ones(broker: Broker) -> None:
    topic = await create(broker, retention_ms="1000", segment_ms="5")

    (result,) = await alter(broker, wanted({"retention.bytes": "9"}))

    assert (ErrorCode.NONE, None) == (result.error_code, result.error_message)
    assert {"retention.bytes": "9"} == await settings_of(broker)
    altered = await broker._storage.topic("t")
    assert altered is not None
    assert (topic.topic_id, "dense") == (altered.topic_id, altered.settings["offset.mapping"])


async def test_empty_settings_unset_all_previous_ones(broker: Broker) -> None:
    await create(broker, retention_ms="1000")

    await alter(broker, wanted({}))

    assert {} == await settings_of(broker)


async def test_fixed_settings_may_be_given_with_their_current_value(broker: Broker) -> None:
    await create(broker)

    (same,) = await alter(broker, wanted({"offset.mapping": "dense", "retention.ms": "1"}))
    (other,) = await alter(broker, wanted({"offset.mapping": "timestamp", "retention.ms": "2"}))

    assert ErrorCode.NONE == same.error_code
    assert ErrorCode.INVALID_CONFIG == other.error_code
    assert "offset.mapping" in (other.error_message or "")
    assert "fixed when the topic was created" in (other.error_message or "")
    assert {"retention.ms": "1"} == await settings_of(broker)


async def test_validate_only_alters_no_setting(broker: Broker) -> None:
    await create(broker)

    (right,) = await alter(broker, wanted({"retention.ms": "1"}), validate_only=True)
    (wrong,) = await alter(broker, wanted({"retention.ms": "soon"}), validate_only=True)

    assert (ErrorCode.NONE, ErrorCode.INVALID_CONFIG) == (right.error_code, wrong.error_code)
    assert {} == await settings_of(broker)


@pytest.mark.parametrize(
    "configs, code, words",
    [
        ({"retention.mss": "1"}, ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        ({"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG, "accepted: a whole number, at least -1"),
        (
            {"retention.ms": "1", "compression.type": "zip", "segment.ms": "0"},
            ErrorCode.INVALID_CONFIG,
            "compression.type",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
            ErrorCode.INVALID_CONFIG,
            "min.compaction.lag.ms (10) > max.compaction.lag.ms (9)",
        ),
        ({"retention.ms": None}, ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
    ],
)
async def test_invalid_setting_alters_no_setting(
    broker: Broker, configs: dict[str, str | None], code: ErrorCode, words: str
) -> None:
    await create(broker, segment_bytes="1000")

    (result,) = await alter(broker, wanted(configs))

    assert code == result.error_code
    assert words in (result.error_message or "")
    assert {"segment.bytes": "1000"} == await settings_of(broker)


async def test_resources_are_answered_independently(broker: Broker) -> None:
    await create(broker, "a")
    await create(broker, "b")

    results = await alter(
        broker,
        wanted({"retention.ms": "1"}, "a"),
        wanted({"retention.ms": "1"}, "missing"),
        wanted({"retention.ms": "1"}, "b c"),
        wanted({"retention.ms": "1"}, ""),
        wanted({"retention.ms": "1"}, "b"),
    )

    assert [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ] == [each.error_code for each in results]
    assert {"retention.ms": "1"} == await settings_of(broker, "a")
    assert {"retention.ms": "1"} == await settings_of(broker, "b")


async def test_duplicate_resources_are_refused(broker: Broker) -> None:
    await create(broker, "a")
    await create(broker, "b")

    results = await alter(
        broker,
        wanted({"retention.ms": "1"}, "a"),
        wanted({"retention.ms": "2"}, "b"),
        wanted({"retention.ms": "3"}, "a"),
    )

    assert [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST] == [
        each.error_code for each in results
    ]
    assert {} == await settings_of(broker, "a")


async def test_duplicate_settings_are_refused(broker: Broker) -> None:
    await create(broker)
    resource = wanted({"retention.ms": "1"})
    resource.configs *= 2

    (result,) = await alter(broker, resource)

    assert ErrorCode.INVALID_REQUEST == result.error_code
    assert {} == await settings_of(broker)


@pytest.mark.parametrize(
    "kind, name, words",
    [
        (BROKER, "1", "Cannot update these configs dynamically: node.id"),
        (BROKER, "", "Cannot update these configs dynamically: node.id"),
        (BROKER, "2", "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER, "x", "Broker id must be an integer"),
        (BROKER_LOGGER, "1", "Unknown resource type 8"),
        (GROUP, "", "Default group resources are not allowed."),
        (0, "", "Unknown resource type 0"),
    ],
)
async def test_resources_and_settings_that_cannot_be_altered(
    broker: Broker, kind: int, name: str, words: str
) -> None:
    (result,) = await alter(broker, wanted({"node.id": "1"}, name, kind))

    assert ErrorCode.INVALID_REQUEST == result.error_code
    assert words in (result.error_message or "")


async def test_unknown_broker_setting_is_reported(broker: Broker) -> None:
    (result,) = await alter(broker, wanted({"message.max.bites": "1"}, "1", BROKER))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert "message.max.bites" in (result.error_message or "")


async def test_empty_alteration_of_a_broker_succeeds(broker: Broker) -> None:
    (result,) = await alter(broker, wanted({}, "1", BROKER))

    assert ErrorCode.NONE == result.error_code
