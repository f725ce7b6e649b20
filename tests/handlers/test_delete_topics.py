from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import OffsetAndMetadata
from tests.handlers.support import T0, append, ask, create, new_broker


async def delete(
    broker: Broker, *asked: str | UUID | DeleteTopicState, version: int = 6
) -> list[DeletableTopicResult]:
    states = [
        each
        if isinstance(each, DeleteTopicState)
        else DeleteTopicState(name=each)
        if isinstance(each, str)
        else DeleteTopicState(topic_id=each)
        for each in asked
    ]
    if version < 6:
        names = [str(each) for each in asked]
        request = DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
    else:
        request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    response = await ask(broker, 20, version, request)
    assert isinstance(response, DeleteTopicsResponse)
    return response.responses


@pytest.mark.parametrize("version", [1, 5, 6])
async def test_topic_is_deleted_by_name(broker: Broker, version: int) -> None:
    created = await create(broker)

    (result,) = await delete(broker, "t", version=version)

    assert ("t", created.topic_id, ErrorCode.NONE) == (result.name, result.topic_id, result.error_code)
    assert await broker._storage.topic("t") is None


async def test_topic_is_deleted_by_id(broker: Broker) -> None:
    created = await create(broker)

    (result,) = await delete(broker, created.topic_id)

    assert ("t", created.topic_id, ErrorCode.NONE) == (result.name, result.topic_id, result.error_code)


async def test_missing_topics_are_unknown(broker: Broker) -> None:
    nobody = uuid4()

    results = await delete(broker, "none", nobody)

    assert [
        ("none", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, nobody, ErrorCode.UNKNOWN_TOPIC_ID),
    ] == [(each.name, each.topic_id, each.error_code) for each in results]


async def test_duplicate_and_ambiguous_topics_are_refused(broker: Broker) -> None:
    created = await create(broker)

    results = await delete(
        broker,
        "t",
        "t",
        DeleteTopicState(),
        DeleteTopicState(name="t", topic_id=created.topic_id),
    )

    assert ["t", None, "t"] == [each.name for each in results]
    assert [ErrorCode.INVALID_REQUEST] * 3 == [each.error_code for each in results]
    assert await broker._storage.topic("t") is not None


async def test_topic_named_both_ways_is_deleted_once(broker: Broker) -> None:
    created = await create(broker)

    results = await delete(broker, "t", created.topic_id)

    assert [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID] == [each.error_code for each in results]


async def test_records_and_committed_offsets_are_deleted(broker: Broker) -> None:
    await create(broker)
    await append(broker)
    await broker._storage.ack("g", {T0: OffsetAndMetadata(1)})

    await delete(broker, "t")
    await create(broker)

    assert 0 == (await broker._storage.latest(T0)).high_watermark
    assert {} == await broker._storage.committed("g")


@pytest.mark.parametrize(
    "version, error", [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
async def test_delete_topic_enable_false_refuses_deletion(version: int, error: ErrorCode) -> None:
    broker = await new_broker(delete_topic_enable=False)
    await create(broker)

    (result,) = await delete(broker, "t", version=version)

    assert error == result.error_code
    assert await broker._storage.topic("t") is not None
