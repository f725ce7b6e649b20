"""CreatePartitions: v0-3.

Behaviour: `count` is the new total number of partitions of the topic. Errors: INVALID_PARTITIONS unless it is larger
than the current number and at most `max.partitions`; INVALID_REPLICA_ASSIGNMENT unless each new partition has one
assignment, to living brokers; INVALID_REQUEST for a topic that appears twice; UNKNOWN_TOPIC_OR_PARTITION;
POLICY_VIOLATION if the request, up to this topic, adds more than 10,000 partitions in total (or `max.partitions`, if
that is larger), or if they would exceed `max.broker.partitions`. With `validate_only`, the response is the same and no
partitions are added.

Versions: partitions above the client's quota are THROTTLING_QUOTA_EXCEEDED from v3; before, the client is only
throttled.

Declined: `timeout_ms`. The partitions exist when the broker responds.
"""

from __future__ import annotations

from collections import Counter

from korvet.broker.administration import alter_topic
from korvet.broker.alterations import with_partitions
from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.topics import validate_request
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from korvet.security.acls import Operation
from korvet.storage.interface import Topic


async def handle(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    asked = Counter(topic.name for topic in request.topics)
    # A topic that appears several times has one entry in the response.
    topics = {topic.name: topic for topic in request.topics}
    results = []
    added = 0
    time_slices = TimeSlices()
    for name, times in asked.items():
        result = CreatePartitionsTopicResult(name=name)
        try:
            if times > 1:
                raise InvalidRequest("Duplicate topic name.")
            added += await _create(broker, context, topics[name], added, validate_only=request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.error_code, error.message
        results.append(result)
        await time_slices.next()
    return CreatePartitionsResponse(results=results)


async def _create(
    broker: Broker, context: RequestContext, topic: CreatePartitionsTopic, before: int, *, validate_only: bool
) -> int:
    """Add partitions to a topic and return their number. `before` is the number that the request added before."""
    assignments = None if topic.assignments is None else [each.broker_ids for each in topic.assignments]

    def altered(there: Topic) -> Topic:
        return with_partitions(there, topic.count, assignments, broker.config, broker.membership.living)

    there = await broker.topic(context, topic.name, Operation.ALTER)
    additional = altered(there).partitions - there.partitions
    validate_request(before + additional, broker.config)
    await broker.check_partitions(additional)
    broker.quotas.mutated(context, additional, is_strict=context.version >= 3)
    await alter_topic(broker, topic.name, altered, validate_only=validate_only)
    if not validate_only:
        broker.added_partitions(additional)
    return additional
