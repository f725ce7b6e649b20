"""ListPartitionReassignments: v0.

Behaviour: the response is always empty. Partitions are in the storage and do not move between brokers. Kafka's tools
send this request before they describe a topic.
"""

from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from korvet.security.acls import Operation


async def handle(
    broker: Broker,
    request: ListPartitionReassignmentsRequest,  # noqa: ARG001  the response is always empty
    context: RequestContext,
) -> ListPartitionReassignmentsResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
    except KafkaError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.error_code, error_message=error.message, topics=[]
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=[])
