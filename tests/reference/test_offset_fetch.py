"""The statements of the reference page "Fetch Committed Offsets"."""

from __future__ import annotations

import pytest

from korvet.storage.interface import TopicPartition
from korvet.testing.records import numbered
from tests.reference.conversation import GROUP, ORDERS, STREAM, Conversation
from tests.reference.places import ON_REDIS

PAYMENTS = TopicPartition("payments", 0)


@pytest.mark.parametrize("version", [1, 5, 7, 8, 9])
async def test_committed_offset_is_returned_in_the_schema_of_the_version(
    broker: Conversation, version: int
) -> None:
    await broker.create("orders", 3)
    await broker.create("payments")
    await broker.commit({ORDERS: 44}, metadata="processed batch 123")
    await broker.commit({TopicPartition("orders", 1): 20, PAYMENTS: 100})

    assert [
        ("orders", [(0, 44, -1, "processed batch 123"), (1, 20, -1, ""), (2, -1, -1, "")]),
        ("payments", [(0, 100, -1, "")]),
    ] == await broker.offsets_fetched({"orders": [0, 1, 2], "payments": [0]}, version=version)


async def test_offset_of_a_group_without_state_is_minus_1(broker: Conversation) -> None:
    await broker.create()
    await broker.produce(*numbered(3))

    assert -1 == await broker.committed()


@ON_REDIS
async def test_committed_offset_takes_precedence_over_the_redis_group(broker: Conversation) -> None:
    await broker.create()
    for _ in range(3):
        last = (await broker.produce(*numbered(1))).base_offset
    await broker.commit({ORDERS: last})
    broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"})

    assert last == await broker.committed()


@ON_REDIS
async def test_offset_falls_back_to_the_one_after_the_last_delivered_id(broker: Conversation) -> None:
    await broker.create()
    offsets = [(await broker.produce(*numbered(1))).base_offset for _ in range(3)]
    broker.plain.xgroup_create(STREAM, GROUP, "0")
    broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"}, count=2, noack=True)
    next_offset = offsets[1] + 1

    assert next_offset == await broker.committed()
    assert [("orders", [(0, next_offset, -1, "")])] == await broker.offsets_fetched(
        {"orders": [0]}, version=7
    )


@ON_REDIS
async def test_lowest_pending_entry_takes_precedence_over_the_last_delivered_id(
    broker: Conversation,
) -> None:
    """The page names only `last-delivered-id`, after which a Kafka consumer would miss what is unacknowledged."""
    await broker.create()
    offsets = [(await broker.produce(*numbered(1))).base_offset for _ in range(3)]
    broker.plain.xgroup_create(STREAM, GROUP, "0")
    broker.plain.xreadgroup(GROUP, "worker", {STREAM: ">"})
    broker.plain.xack(STREAM, GROUP, broker.plain.xpending(STREAM, GROUP)["min"])

    assert offsets[1] == await broker.committed()
