"""CreatePartitions: v0-3.

Behaviour: `count` is how many partitions the topic shall have in all. INVALID_PARTITIONS unless these are more than
there are and no more than `max.partitions`; INVALID_REPLICA_ASSIGNMENT unless there is one assignment for each new one,
naming this broker alone; INVALID_REQUEST for a topic that stands twice, UNKNOWN_TOPIC_OR_PARTITION. `validate_only`
answers the same and adds nothing.

Versions: they differ in encoding alone; nothing is ever throttled.

Declined: `timeout_ms`; the partitions are there when it is answered.
"""

from __future__ import annotations

from collections import Counter

from korvet.administration import alter_topic
from korvet.alterations import with_partitions
from korvet.broker import Broker, Operation, RequestContext
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    asked = Counter(topic.name for topic in request.topics)
    # A topic that stands several times is answered once.
    topics = {topic.name: topic for topic in request.topics}
    return CreatePartitionsResponse(
        results=[
            await _create(broker, context, topics[name], times, validate_only=request.validate_only)
            for name, times in asked.items()
        ]
    )


async def _create(
    broker: Broker, context: RequestContext, topic: CreatePartitionsTopic, times: int, *, validate_only: bool
) -> CreatePartitionsTopicResult:
    assignments = None if topic.assignments is None else [each.broker_ids for each in topic.assignments]
    try:
        if times > 1:
            raise InvalidRequest("Duplicate topic name.")
        await alter_topic(
            broker,
            context,
            topic.name,
            Operation.ALTER,
            lambda there: with_partitions(there, topic.count, assignments, broker.config),
            validate_only=validate_only,
        )
    except KafkaError as error:
        return CreatePartitionsTopicResult(
            name=topic.name, error_code=error.error_code, error_message=error.message
        )
    return CreatePartitionsTopicResult(name=topic.name)
