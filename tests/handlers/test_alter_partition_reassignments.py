from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.handlers.support import ask, create


async def reassign(
    broker: Broker,
    replicas: list[int] | None,
    *,
    name: str = "t",
    partition: int = 0,
    version: int = 1,
    allows_change: bool = True,
) -> int:
    asked = ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allows_change,
        topics=[ReassignableTopic(name=name, partitions=[asked])],
    )
    response = await ask(broker, 45, version, request)
    assert isinstance(response, AlterPartitionReassignmentsResponse)
    assert ErrorCode.NONE == response.error_code
    return response.responses[0].partitions[0].error_code


@pytest.mark.parametrize("version", range(2))
async def test_partition_may_stay_where_it_is(broker: Broker, version: int) -> None:
    await create(broker)

    assert ErrorCode.NONE == await reassign(broker, [1], version=version)


@pytest.mark.parametrize("replicas", [[], [2], [-1], [1, 2], [1, 1]])
async def test_other_brokers_are_refused(broker: Broker, replicas: list[int]) -> None:
    await create(broker)

    assert ErrorCode.INVALID_REPLICA_ASSIGNMENT == await reassign(broker, replicas)


async def test_no_reassignment_can_be_cancelled(broker: Broker) -> None:
    await create(broker)

    assert ErrorCode.NO_REASSIGNMENT_IN_PROGRESS == await reassign(broker, None)


@pytest.mark.parametrize("replicas", [[1], None])
async def test_unknown_partitions_are_not_reassigned(broker: Broker, replicas: list[int] | None) -> None:
    await create(broker)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown == await reassign(broker, replicas, partition=1)
    assert unknown == await reassign(broker, replicas, name="missing")
