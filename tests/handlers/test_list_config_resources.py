from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.handlers.support import ask, create


async def listed(broker: Broker, *types: int, version: int = 1) -> tuple[int, list[tuple[str, int]]]:
    response = await ask(broker, 74, version, ListConfigResourcesRequest(resource_types=list(types)))
    return response.error_code, [
        (each.resource_name, each.resource_type) for each in response.config_resources
    ]


async def test_all_topics_and_the_broker_are_listed_by_default(broker: Broker) -> None:
    for name in ("orders", "bills"):
        await create(broker, name)

    assert (ErrorCode.NONE, [("1", 8), ("1", 4), ("bills", 2), ("orders", 2)]) == await listed(broker)


async def test_requested_types_are_listed(broker: Broker) -> None:
    await create(broker, "orders")

    assert (ErrorCode.NONE, [("orders", 2)]) == await listed(broker, 2)
    assert (ErrorCode.NONE, [("1", 4), ("orders", 2)]) == await listed(broker, 2, 4)
    assert (ErrorCode.NONE, []) == await listed(broker, 16, 32)


async def test_type_without_settings_is_unsupported(broker: Broker) -> None:
    assert (ErrorCode.UNSUPPORTED_VERSION, []) == await listed(broker, 2, 99)


async def test_version_0_lists_client_metrics_only(broker: Broker) -> None:
    await create(broker, "orders")

    assert (ErrorCode.NONE, []) == await listed(broker, version=0)
