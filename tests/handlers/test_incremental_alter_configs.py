from __future__ import annotations

import pytest
import trio

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
)
from korvet.storage.interface import DocumentConflict, Topic
from tests.handlers.support import Shim, ask, create, install

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Change = tuple[str, int, str | None]

THROTTLED = "leader.replication.throttled.replicas"


def wanted(*changes: Change, name: str = "t", kind: int = TOPIC) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )


async def alter(
    broker: Broker, *resources: AlterConfigsResource, validate_only: bool = False
) -> list[AlterConfigsResourceResponse]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    responses: list[AlterConfigsResourceResponse] = (await ask(broker, 44, 1, request)).responses
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


async def test_other_settings_are_unchanged(broker: Broker) -> None:
    await create(broker, retention_ms="1000", segment_ms="5", segment_bytes="1000")

    (result,) = await alter(
        broker, wanted(("retention.ms", SET, "2000"), ("segment.ms", DELETE, None), ("flush.ms", SET, "1"))
    )

    assert (ErrorCode.NONE, None) == (result.error_code, result.error_message)
    assert {"retention.ms": "2000", "segment.bytes": "1000", "flush.ms": "1"} == await settings_of(broker)


async def test_deleting_an_unset_setting_succeeds(broker: Broker) -> None:
    await create(broker, retention_ms="1")

    (result,) = await alter(
        broker, wanted(("segment.ms", DELETE, None), ("nobody.knows", DELETE, ""), ("flush.ms", DELETE, "9"))
    )

    assert ErrorCode.NONE == result.error_code
    assert {"retention.ms": "1"} == await settings_of(broker)


@pytest.mark.parametrize(
    "before, change, after",
    [
        ("0:1", (APPEND, "1:1,2:1"), "0:1,1:1,2:1"),
        ("0:1,1:1", (APPEND, "1:1"), "0:1,1:1"),
        ("", (APPEND, "0:1,0:1"), "0:1"),
        ("0:1,1:1,2:1", (SUBTRACT, "2:1,0:1"), "1:1"),
        ("0:1", (SUBTRACT, "7:7"), "0:1"),
        ("0:1", (SUBTRACT, "0:1"), ""),
    ],
)
async def test_list_elements_are_appended_and_subtracted(
    broker: Broker, before: str, change: tuple[int, str], after: str
) -> None:
    await broker._storage.create_topic("t", 1, {THROTTLED: before})

    (result,) = await alter(broker, wanted((THROTTLED, *change)))

    assert ErrorCode.NONE == result.error_code
    assert {THROTTLED: after} == await settings_of(broker)


async def test_append_to_an_unset_list_starts_with_the_default(broker: Broker) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("cleanup.policy", APPEND, "delete")))

    assert ErrorCode.NONE == result.error_code
    assert {"cleanup.policy": "delete"} == await settings_of(broker)


@pytest.mark.parametrize("operation, verb", [(APPEND, "APPEND"), (SUBTRACT, "SUBTRACT")])
async def test_append_and_subtract_require_a_list(broker: Broker, operation: int, verb: str) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("retention.ms", operation, "1")))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert f"Can't {verb} to key retention.ms because its type is not LIST." == result.error_message


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
async def test_unknown_setting_is_reported(broker: Broker, operation: int) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("clean.policy", operation, "delete")))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert "Unknown topic config name: clean.policy (did you mean cleanup.policy?)" == result.error_message


async def test_invalid_change_leaves_only_its_resource_unchanged(broker: Broker) -> None:
    await create(broker, "a")
    await create(broker, "b")

    results = await alter(
        broker,
        wanted(("retention.ms", SET, "1"), ("segment.ms", SET, "0"), ("flush.ms", SET, "x"), name="a"),
        wanted(("retention.ms", SET, "1"), name="b"),
    )

    assert [ErrorCode.INVALID_CONFIG, ErrorCode.NONE] == [each.error_code for each in results]
    assert "segment.ms" in (results[0].error_message or "")
    assert "flush.ms" in (results[0].error_message or "")
    assert {} == await settings_of(broker, "a")
    assert {"retention.ms": "1"} == await settings_of(broker, "b")


@pytest.mark.parametrize(
    "change",
    [
        ("storage.layout", SET, "batch"),
        ("storage.layout", DELETE, None),
        ("offset.mapping", SET, "timestamp"),
        ("offset.sequence.bits", SET, "11"),
    ],
)
async def test_settings_fixed_at_creation_cannot_be_altered(broker: Broker, change: Change) -> None:
    before = await create(broker)

    (result,) = await alter(broker, wanted(change, ("retention.ms", SET, "1")))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert change[0] in (result.error_message or "")
    assert "fixed when the topic was created" in (result.error_message or "")
    assert before == await broker._storage.topic("t")


async def test_fixed_setting_may_be_set_to_its_current_value(broker: Broker) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("offset.mapping", SET, "dense")))

    assert ErrorCode.NONE == result.error_code


@pytest.mark.parametrize(
    "changes",
    [
        [("retention.ms", SET, None)],
        [(THROTTLED, APPEND, None)],
        [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
        [("retention.ms", 4, "1")],
        [("retention.ms", -1, "1")],
    ],
)
@pytest.mark.parametrize("kind, name", [(TOPIC, "t"), (BROKER, "1")])
async def test_invalid_changes_are_refused(
    broker: Broker, changes: list[Change], kind: int, name: str
) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(*changes, kind=kind, name=name))

    assert ErrorCode.INVALID_REQUEST == result.error_code
    assert {} == await settings_of(broker)


async def test_duplicate_resources_are_refused(broker: Broker) -> None:
    await create(broker)

    results = await alter(broker, wanted(("retention.ms", SET, "1")), wanted(("retention.ms", SET, "2")))

    assert [ErrorCode.INVALID_REQUEST] * 2 == [each.error_code for each in results]
    assert {} == await settings_of(broker)


async def test_validate_only_alters_no_setting(broker: Broker) -> None:
    await create(broker)

    (right,) = await alter(broker, wanted(("retention.ms", SET, "1")), validate_only=True)
    (wrong,) = await alter(broker, wanted(("retention.ms", SET, "x")), validate_only=True)

    assert (ErrorCode.NONE, ErrorCode.INVALID_CONFIG) == (right.error_code, wrong.error_code)
    assert {} == await settings_of(broker)


async def test_settings_that_are_not_dynamic_cannot_be_set_but_deleting_them_succeeds(broker: Broker) -> None:
    results = await alter(
        broker,
        wanted(("node.id", SET, "1"), kind=BROKER, name="1"),
        wanted(("node.id", DELETE, None), kind=BROKER, name=""),
    )

    assert [ErrorCode.INVALID_REQUEST, ErrorCode.NONE] == [each.error_code for each in results]
    assert "Cannot update these configs dynamically: node.id" in (results[0].error_message or "")


@pytest.mark.parametrize("kind", [0, 8, 16, 99])
async def test_unknown_resource_types_are_refused(broker: Broker, kind: int) -> None:
    (result,) = await alter(broker, wanted(("x", SET, "1"), kind=kind))

    assert (ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}") == (
        result.error_code,
        result.error_message,
    )


async def test_conflict_is_retried_with_the_current_settings(broker: Broker) -> None:
    topic = await create(broker)
    storage = broker._storage
    conflicts = iter([{"segment.ms": "1"}, {"segment.ms": "2"}])

    async def alter_topic(known: Topic, **values: object) -> Topic:
        if (settings := next(conflicts, None)) is not None:
            present = await storage.topic("t")
            assert present is not None
            await storage.alter_topic(present, settings={**present.settings, **settings})
            raise DocumentConflict
        return await storage.alter_topic(known, **values)  # type: ignore[arg-type]  # what was given is passed on

    install(broker, Shim(storage, alter_topic=alter_topic))

    (result,) = await alter(broker, wanted(("retention.ms", SET, "1")))

    assert ErrorCode.NONE == result.error_code
    assert {"retention.ms": "1", "segment.ms": "2"} == await settings_of(broker)
    assert topic.topic_id == (await storage.topics())["t"].topic_id


async def test_repeated_conflicts_are_a_storage_error(broker: Broker) -> None:
    await create(broker)

    async def alter_topic(*_: object, **__: object) -> Topic:
        await trio.lowlevel.checkpoint()
        raise DocumentConflict

    install(broker, Shim(broker._storage, alter_topic=alter_topic))

    (result,) = await alter(broker, wanted(("retention.ms", SET, "1")))

    assert ErrorCode.KAFKA_STORAGE_ERROR == result.error_code
