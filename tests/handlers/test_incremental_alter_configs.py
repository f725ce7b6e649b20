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


async def test_what_is_not_named_stays(broker: Broker) -> None:
    await create(broker, retention_ms="1000", segment_ms="5", segment_bytes="1000")

    (result,) = await alter(
        broker, wanted(("retention.ms", SET, "2000"), ("segment.ms", DELETE, None), ("flush.ms", SET, "1"))
    )

    assert (ErrorCode.NONE, None) == (result.error_code, result.error_message)
    assert {"retention.ms": "2000", "segment.bytes": "1000", "flush.ms": "1"} == await settings_of(broker)


async def test_to_delete_what_is_not_set_is_no_error(broker: Broker) -> None:
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
async def test_lists_are_changed_by_their_elements(
    broker: Broker, before: str, change: tuple[int, str], after: str
) -> None:
    await broker._storage.create_topic("t", 1, {THROTTLED: before})

    (result,) = await alter(broker, wanted((THROTTLED, *change)))

    assert ErrorCode.NONE == result.error_code
    assert {THROTTLED: after} == await settings_of(broker)


async def test_lists_that_were_not_set_begin_with_the_default(broker: Broker) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("cleanup.policy", APPEND, "delete")))

    assert ErrorCode.NONE == result.error_code
    assert {"cleanup.policy": "delete"} == await settings_of(broker)


@pytest.mark.parametrize("operation, verb", [(APPEND, "APPEND"), (SUBTRACT, "SUBTRACT")])
async def test_only_lists_have_elements(broker: Broker, operation: int, verb: str) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("retention.ms", operation, "1")))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert f"Can't {verb} to key retention.ms because its type is not LIST." == result.error_message


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
async def test_a_setting_nobody_knows_is_named(broker: Broker, operation: int) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(("clean.policy", operation, "delete")))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert "Unknown topic config name: clean.policy (did you mean cleanup.policy?)" == result.error_message


async def test_one_wrong_change_leaves_the_resource_and_no_other_as_it_was(broker: Broker) -> None:
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
async def test_what_was_fixed_at_creation_stays(broker: Broker, change: Change) -> None:
    before = await create(broker)

    (result,) = await alter(broker, wanted(change, ("retention.ms", SET, "1")))

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert change[0] in (result.error_message or "")
    assert "fixed when the topic was created" in (result.error_message or "")
    assert before == await broker._storage.topic("t")


async def test_a_fixed_setting_may_be_set_to_what_it_is(broker: Broker) -> None:
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
async def test_changes_that_make_no_sense_are_refused(
    broker: Broker, changes: list[Change], kind: int, name: str
) -> None:
    await create(broker)

    (result,) = await alter(broker, wanted(*changes, kind=kind, name=name))

    assert ErrorCode.INVALID_REQUEST == result.error_code
    assert {} == await settings_of(broker)


async def test_a_resource_that_stands_twice_is_refused_both_times(broker: Broker) -> None:
    await create(broker)

    results = await alter(broker, wanted(("retention.ms", SET, "1")), wanted(("retention.ms", SET, "2")))

    assert [ErrorCode.INVALID_REQUEST] * 2 == [each.error_code for each in results]
    assert {} == await settings_of(broker)


async def test_validate_only_alters_nothing(broker: Broker) -> None:
    await create(broker)

    (right,) = await alter(broker, wanted(("retention.ms", SET, "1")), validate_only=True)
    (wrong,) = await alter(broker, wanted(("retention.ms", SET, "x")), validate_only=True)

    assert (ErrorCode.NONE, ErrorCode.INVALID_CONFIG) == (right.error_code, wrong.error_code)
    assert {} == await settings_of(broker)


async def test_broker_settings_are_refused_and_deleting_none_is_not(broker: Broker) -> None:
    results = await alter(
        broker,
        wanted(("message.max.bytes", SET, "1"), kind=BROKER, name="1"),
        wanted(("message.max.bytes", DELETE, None), kind=BROKER, name=""),
    )

    assert [ErrorCode.INVALID_REQUEST, ErrorCode.NONE] == [each.error_code for each in results]
    assert "Cannot update these configs dynamically: message.max.bytes" in (results[0].error_message or "")


@pytest.mark.parametrize("kind", [0, 8, 16, 32, 99])
async def test_other_types_are_unknown(broker: Broker, kind: int) -> None:
    (result,) = await alter(broker, wanted(("x", SET, "1"), kind=kind))

    assert (ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}") == (
        result.error_code,
        result.error_message,
    )


async def test_a_conflict_is_tried_again_with_what_is_there_by_then(broker: Broker) -> None:
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


async def test_a_topic_that_never_comes_to_rest_is_a_passing_error(broker: Broker) -> None:
    await create(broker)

    async def alter_topic(*_: object, **__: object) -> Topic:
        await trio.lowlevel.checkpoint()
        raise DocumentConflict

    install(broker, Shim(broker._storage, alter_topic=alter_topic))

    (result,) = await alter(broker, wanted(("retention.ms", SET, "1")))

    assert ErrorCode.KAFKA_STORAGE_ERROR == result.error_code
