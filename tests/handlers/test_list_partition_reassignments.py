from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from tests.handlers.support import ask, create


@pytest.mark.parametrize("names", [None, [], ["t", "missing"]])
async def test_no_reassignments_are_listed(broker: Broker, names: list[str] | None) -> None:
    await create(broker)
    topics = None
    if names is not None:
        topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0]) for name in names]

    response = await ask(broker, 46, 0, ListPartitionReassignmentsRequest(topics=topics))

    assert ListPartitionReassignmentsResponse(error_message=None, topics=[]) == response
