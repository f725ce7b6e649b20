from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.handlers.support import NOW_MS, Shim, ask, away, create, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        await create(broker)
        yield broker


async def list_transactions(broker: Broker, *, version: int = 2, **filters: Any) -> ListTransactionsResponse:
    response = await ask(broker, 66, version, ListTransactionsRequest(**filters))
    assert isinstance(response, ListTransactionsResponse)
    return response


async def listed(broker: Broker, **filters: Any) -> list[tuple[str, str]]:
    response = await list_transactions(broker, **filters)
    assert ErrorCode.NONE == response.error_code
    return [(each.transactional_id, each.transaction_state) for each in response.transaction_states]


@pytest.fixture
async def producers(broker: Broker) -> dict[str, TransactionalProducer]:
    """Three ids: without a transaction, with an open one, and with a complete one."""
    producers = {name: TransactionalProducer(broker, name) for name in ("idle", "open", "over")}
    for producer in producers.values():
        await producer.init()
    for name in ("open", "over"):
        await producers[name].send(b"a")
    await producers["over"].finish()
    return producers


async def test_all_ids_are_listed(broker: Broker, producers: dict[str, TransactionalProducer]) -> None:
    response = await list_transactions(broker, version=0)

    assert [
        ("idle", producers["idle"].producer_id, "Empty"),
        ("open", producers["open"].producer_id, "Ongoing"),
        ("over", producers["over"].producer_id, "CompleteCommit"),
    ] == [
        (each.transactional_id, each.producer_id, each.transaction_state)
        for each in response.transaction_states
    ]


async def test_states_select(broker: Broker, producers: dict[str, TransactionalProducer]) -> None:
    found = await listed(broker, state_filters=["Ongoing", "Empty", "Dead"])

    assert [("idle", "Empty"), ("open", "Ongoing")] == found


async def test_unknown_states_are_returned(
    broker: Broker, producers: dict[str, TransactionalProducer]
) -> None:
    names = ["ongoing", "Ongoing", "made-up", "ongoing", "Dead", "PrepareEpochFence"]

    response = await list_transactions(broker, state_filters=names)

    assert ["ongoing", "made-up"] == response.unknown_state_filters
    assert ["open"] == [each.transactional_id for each in response.transaction_states]


async def test_only_unknown_states_select_nothing(
    broker: Broker, producers: dict[str, TransactionalProducer]
) -> None:
    assert [] == await listed(broker, state_filters=["made-up"])


async def test_producer_ids_select(broker: Broker, producers: dict[str, TransactionalProducer]) -> None:
    asked = [producers["open"].producer_id, 1]

    assert [("open", "Ongoing")] == await listed(broker, producer_id_filters=asked)
    assert [] == await listed(broker, producer_id_filters=asked, state_filters=["Empty"])


async def test_duration_selects(broker: Broker, producers: dict[str, TransactionalProducer]) -> None:
    broker.clock = lambda: NOW_MS + 1000

    assert 3 == len(await listed(broker, duration_filter=999, version=1))
    assert ["idle"] == [name for name, _ in await listed(broker, duration_filter=1000, version=1)]
    assert 3 == len(await listed(broker, duration_filter=-1, version=1))


@pytest.mark.parametrize(
    "pattern, names",
    [
        (None, ["idle", "open", "over"]),
        ("", ["idle", "open", "over"]),
        ("o.*", ["open", "over"]),
        ("pen", []),
        ("idle|over", ["idle", "over"]),
    ],
)
async def test_pattern_selects(
    broker: Broker,
    producers: dict[str, TransactionalProducer],
    pattern: str | None,
    names: list[str],
) -> None:
    assert names == [name for name, _ in await listed(broker, transactional_id_pattern=pattern)]


async def test_invalid_pattern_is_refused(broker: Broker) -> None:
    response = await list_transactions(broker, transactional_id_pattern="(")

    assert ErrorCode.INVALID_REGULAR_EXPRESSION == response.error_code


@pytest.mark.parametrize("method", ["documents", "load"])
async def test_unreachable_storage_is_a_retriable_error(
    broker: Broker, producers: dict[str, TransactionalProducer], method: str
) -> None:
    broker.transactions.storage = Shim(broker._storage, **{method: away})

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await list_transactions(broker)).error_code
