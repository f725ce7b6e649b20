"""ListPartitionReassignments: v0.

Behaviour: none, whatever is asked for: partitions do not move from broker to broker, for they are in the store. Kafka's
own tools ask before they describe a topic.
"""

from __future__ import annotations

from korvet.broker import Broker, Operation, RequestContext
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    broker: Broker,
    request: ListPartitionReassignmentsRequest,  # noqa: ARG001  there are none to choose from
    context: RequestContext,
) -> ListPartitionReassignmentsResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
    except KafkaError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.error_code, error_message=error.message, topics=[]
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=[])
