from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.broker.topics import SETTINGS
from korvet.config import load_config, settings
from korvet.config.dynamic import APPLIED
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from tests.handlers.members import answer
from tests.handlers.support import Shim, ask, away, create, install, new_broker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
OF_TOPIC, OF_BROKER, DEFAULT = 1, 4, 5


async def describe(
    broker: Broker,
    name: str = "t",
    kind: int = TOPIC,
    keys: list[str] | None = None,
    *,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )
    response = await ask(broker, 32, 4, request)
    (result,) = response.results
    assert isinstance(result, DescribeConfigsResult)
    return result


async def one(
    broker: Broker, key: str, name: str = "t", kind: int = TOPIC, *, synonyms: bool = True
) -> DescribeConfigsResourceResult:
    """Return one setting of a resource."""
    (entry,) = (await describe(broker, name, kind, [key], synonyms=synonyms)).configs
    return entry


def synonyms_of(entry: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


# --- Topics -------------------------------------------------------------------------------------------------


async def test_topic_has_every_setting_with_value_and_source(broker: Broker) -> None:
    await create(broker, retention_ms="1000")

    result = await describe(broker)

    assert (ErrorCode.NONE, "", TOPIC, "t") == (
        result.error_code,
        result.error_message,
        result.resource_type,
        result.resource_name,
    )
    assert sorted(SETTINGS) == [entry.name for entry in result.configs]
    values = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
    assert ("1000", OF_TOPIC) == values["retention.ms"]
    assert ("1048588", DEFAULT) == values["max.message.bytes"]
    assert ("delete", DEFAULT) == values["cleanup.policy"]
    assert ("dense", DEFAULT) == values["offset.mapping"]
    assert {(None, ())} == {(entry.documentation, tuple(entry.synonyms)) for entry in result.configs}


async def test_values_are_formatted_as_in_kafka(broker: Broker) -> None:
    await create(broker, retention_ms=" +1000", preallocate="TRUE", cleanup_policy=" delete , delete")

    values = {entry.name: entry.value for entry in (await describe(broker)).configs}

    assert ("1000", "true", "delete,delete") == (
        values["retention.ms"],
        values["preallocate"],
        values["cleanup.policy"],
    )


async def test_only_settings_fixed_at_creation_are_read_only(broker: Broker) -> None:
    await create(broker)

    result = await describe(broker)

    read_only = {entry.name for entry in result.configs if entry.read_only}
    assert {"storage.layout", "offset.mapping", "offset.sequence.bits"} == read_only
    assert not any(entry.is_sensitive for entry in result.configs)


async def test_fixed_settings_have_the_topic_as_source_only_if_they_differ_from_the_default(
    broker: Broker,
) -> None:
    await create(broker, storage_layout="batch")

    sources = {entry.name: (entry.value, entry.config_source) for entry in (await describe(broker)).configs}

    assert ("batch", OF_TOPIC) == sources["storage.layout"]
    assert ("dense", DEFAULT) == sources["offset.mapping"]
    assert ("10", DEFAULT) == sources["offset.sequence.bits"]


async def test_enforced_settings_without_a_broker_setting_have_the_synonym_of_kafka(broker: Broker) -> None:
    await create(broker, cleanup_policy="compact")

    entry = await one(broker, "cleanup.policy")

    assert [
        ("cleanup.policy", "compact", OF_TOPIC),
        ("log.cleanup.policy", "delete", DEFAULT),
    ] == synonyms_of(entry)


@pytest.mark.parametrize(
    "name, number",
    [("preallocate", 1), ("compression.type", 2), ("min.insync.replicas", 3), ("retention.ms", 5)],
)
async def test_types_are_numbered_as_in_the_protocol(broker: Broker, name: str, number: int) -> None:
    await create(broker)

    assert number == (await one(broker, name)).config_type


async def test_types_of_fractions_and_lists(broker: Broker) -> None:
    await create(broker)

    assert 6 == (await one(broker, "min.cleanable.dirty.ratio")).config_type
    assert 7 == (await one(broker, "cleanup.policy")).config_type


@pytest.mark.parametrize("keys", [None, []])
async def test_missing_keys_select_all_settings(broker: Broker, keys: list[str] | None) -> None:
    await create(broker)

    assert len(SETTINGS) == len((await describe(broker, keys=keys)).configs)


async def test_unknown_keys_are_left_out(broker: Broker) -> None:
    await create(broker)

    result = await describe(broker, keys=["segment.bytes", "segment.bites"])

    assert ["segment.bytes"] == [entry.name for entry in result.configs]


async def test_documentation_marks_settings_without_effect(broker: Broker) -> None:
    await create(broker)

    result = await describe(broker, documentation=True)

    texts = {entry.name: entry.documentation or "" for entry in result.configs}
    assert all(texts.values())
    without = {name for name, text in texts.items() if text.endswith("but it has no effect.")}
    assert {name for name, setting in SETTINGS.items() if not setting.enforced} == without


async def test_synonyms_start_with_the_effective_value(broker: Broker) -> None:
    broker.config = load_config(flags={"message.max.bytes": "2000"})
    await create(broker, max_message_bytes="1000")

    assert [
        ("max.message.bytes", "1000", OF_TOPIC),
        ("message.max.bytes", "2000", OF_BROKER),
        ("message.max.bytes", "1048588", DEFAULT),
    ] == synonyms_of(await one(broker, "max.message.bytes"))


async def test_synonyms_of_an_unset_setting_are_the_default(broker: Broker) -> None:
    await create(broker)

    assert [("message.max.bytes", "1048588", DEFAULT)] == synonyms_of(await one(broker, "max.message.bytes"))
    assert [("log.segment.bytes", "1073741824", DEFAULT)] == synonyms_of(await one(broker, "segment.bytes"))
    assert [] == synonyms_of(await one(broker, "segment.ms"))


async def test_retention_has_three_broker_settings(broker: Broker) -> None:
    await create(broker)
    unset = await one(broker, "retention.ms")
    broker.config = load_config(flags={"log.retention.hours": "1"})
    hours = await one(broker, "retention.ms")
    broker.config = load_config(flags={"log.retention.hours": "1", "log.retention.ms": "5"})
    both = await one(broker, "retention.ms")

    assert ("604800000", DEFAULT, []) == (unset.value, unset.config_source, synonyms_of(unset))
    assert ("3600000", OF_BROKER) == (hours.value, hours.config_source)
    assert ("log.retention.hours", "1", OF_BROKER) == synonyms_of(hours)[0]
    assert ("5", OF_BROKER) == (both.value, both.config_source)
    assert [
        ("log.retention.ms", "5", OF_BROKER),
        ("log.retention.hours", "1", OF_BROKER),
        ("log.retention.hours", "168", DEFAULT),
    ] == synonyms_of(both)


async def test_topics_described_together_have_their_own_values(broker: Broker) -> None:
    await create(broker, "a", retention_ms="1")
    await create(broker, "b")
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=["retention.ms"])
        for name in ("a", "b", "a")
    ]

    response = await answer(broker, 32, 1, DescribeConfigsRequest(resources=resources, include_synonyms=True))

    assert [("a", "1", 1), ("b", "604800000", 0), ("a", "1", 1)] == [
        (each.resource_name, each.configs[0].value, len(each.configs[0].synonyms))
        for each in response.results
    ]


# --- What is not there --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, name, code",
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (-1, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_resources_without_settings_are_errors(
    broker: Broker, kind: int, name: str, code: ErrorCode
) -> None:
    result = await describe(broker, name, kind)

    assert (code, kind, name, []) == (
        result.error_code,
        result.resource_type,
        result.resource_name,
        result.configs,
    )
    assert result.error_message


async def test_failing_resource_does_not_fail_other_resources() -> None:
    broker = await new_broker()
    await create(broker)
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["segment.ms"])
        for kind, name in ((TOPIC, "missing"), (TOPIC, "t"), (99, "x"))
    ]

    response = await ask(broker, 32, 4, DescribeConfigsRequest(resources=resources))

    assert [3, 0, 42] == [each.error_code for each in response.results]
    assert 1 == len(response.results[1].configs)


async def test_unreachable_storage_is_a_storage_error(broker: Broker) -> None:
    install(broker, Shim(broker._storage, topic=away))

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await describe(broker)).error_code


# --- The broker ---------------------------------------------------------------------------------------------


async def test_broker_settings_that_are_not_dynamic_are_read_only() -> None:
    broker = await new_broker()
    broker.config = load_config(flags={"node.id": "7", "listeners": ":9092,[::1]:9093"})

    result = await describe(broker, "7", BROKER, documentation=True)

    entries = {entry.name: entry for entry in result.configs}
    assert sorted(settings()) == list(entries)
    assert set(APPLIED) == {entry.name for entry in result.configs if not entry.read_only}
    assert all(entry.documentation for entry in result.configs)
    assert ("7", OF_BROKER, 3) == (
        entries["node.id"].value,
        entries["node.id"].config_source,
        entries["node.id"].config_type,
    )
    assert "PLAINTEXT://:9092,PLAINTEXT2://[::1]:9093" == entries["listeners"].value
    assert ("true", DEFAULT, 1) == (
        entries["delete.topic.enable"].value,
        entries["delete.topic.enable"].config_source,
        entries["delete.topic.enable"].config_type,
    )
    assert entries["broker.rack"].value is None


async def test_storage_url_is_sensitive() -> None:
    broker = await new_broker()
    broker.config = load_config(flags={"storage": "redis://:secret@host", "node.id": "1"})

    entry = await one(broker, "storage", "1", BROKER)

    assert (None, True, 9) == (entry.value, entry.is_sensitive, entry.config_type)
    assert [("storage", None, OF_BROKER), ("storage", None, DEFAULT)] == synonyms_of(entry)


async def test_synonyms_of_a_broker_setting_are_its_fallbacks() -> None:
    broker = await new_broker()
    broker.config = load_config(flags={"log.retention.minutes": "10", "node.id": "1"})

    assert [
        ("log.retention.minutes", "10", OF_BROKER),
        ("log.retention.hours", "168", DEFAULT),
    ] == synonyms_of(await one(broker, "log.retention.minutes", "1", BROKER))
    assert [("log.retention.hours", "168", DEFAULT)] == synonyms_of(
        await one(broker, "log.retention.hours", "1", BROKER)
    )
    assert [] == synonyms_of(await one(broker, "log.retention.ms", "1", BROKER))


async def test_cluster_wide_broker_settings_are_empty(broker: Broker) -> None:
    result = await describe(broker, "", BROKER)

    assert (ErrorCode.NONE, []) == (result.error_code, result.configs)
