from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED
from tests.handlers.support import ask, new_broker


async def describe(broker: Broker, *, operations: bool = False, **fields: Any) -> DescribeClusterResponse:
    request = DescribeClusterRequest(include_cluster_authorized_operations=operations, **fields)
    response = await ask(broker, 60, 2, request)
    assert isinstance(response, DescribeClusterResponse)
    return response


async def test_response_contains_cluster_id_broker_and_controller(broker: Broker) -> None:
    response = await describe(broker)

    assert (ErrorCode.NONE, broker.cluster_id, 1, 1) == (
        response.error_code,
        response.cluster_id,
        response.controller_id,
        response.endpoint_type,
    )
    assert [(1, "broker.example", 9092, None, False)] == [
        (each.broker_id, each.host, each.port, each.rack, each.is_fenced) for each in response.brokers
    ]


async def test_cluster_id_survives_a_restart(broker: Broker) -> None:
    again = await new_broker(broker._storage)  # type: ignore[arg-type]

    assert 22 == len(broker.cluster_id)
    assert broker.cluster_id == again.cluster_id


async def test_authorized_operations_are_returned_only_when_requested(broker: Broker) -> None:
    silent, asked = await describe(broker), await describe(broker, operations=True)

    assert AUTHORIZED_OPERATIONS_OMITTED == silent.cluster_authorized_operations
    assert 0b1_1111_1010_0000 == asked.cluster_authorized_operations


@pytest.mark.parametrize(
    "endpoint_type, error",
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_controller_endpoints_are_refused(broker: Broker, endpoint_type: int, error: ErrorCode) -> None:
    response = await describe(broker, endpoint_type=endpoint_type)

    assert (error, []) == (response.error_code, response.brokers)
