"""OffsetDelete: v0 (KIP-496).

Behaviour: a group's positions are deleted for good. GROUP_SUBSCRIBED_TO_TOPIC where members read the topic, or might;
UNKNOWN_TOPIC_OR_PARTITION for what is not there; both per partition. For the whole request: GROUP_ID_NOT_FOUND,
INVALID_GROUP_ID for an empty one, and NON_EMPTY_GROUP where there are members of which nobody knows what they read,
as those of Kafka Connect.
"""

from __future__ import annotations

from korvet.broker import Broker, Operation, RequestContext, coordinator_error, partition_of
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from korvet.storage.interface import TopicPartition

Outcomes = dict[TopicPartition, KafkaError | None]


async def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    outcomes: Outcomes = {}
    for topic in request.topics:
        await _look_up(broker, context, topic, outcomes)
    found = [tp for tp, error in outcomes.items() if error is None]
    try:
        group_id = broker.group(context, request.group_id, Operation.DELETE)
        outcomes |= await broker.groups.delete_positions(group_id, found)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=coordinator_error(error).error_code, topics=[])
    return OffsetDeleteResponse(topics=[_answer(topic, outcomes) for topic in request.topics])


async def _look_up(
    broker: Broker, context: RequestContext, data: OffsetDeleteRequestTopic, outcomes: Outcomes
) -> None:
    """Note which of a topic's partitions are there."""
    for partition in data.partitions:
        tp = TopicPartition(data.name, partition.partition_index)
        try:
            partition_of(await broker.topic(context, data.name, Operation.READ), tp.partition)
            outcomes[tp] = None
        except KafkaError as error:
            outcomes[tp] = coordinator_error(error)


def _answer(data: OffsetDeleteRequestTopic, outcomes: Outcomes) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=data.name,
        partitions=[
            OffsetDeleteResponsePartition(
                partition_index=partition.partition_index,
                error_code=_code(outcomes[TopicPartition(data.name, partition.partition_index)]),
            )
            for partition in data.partitions
        ],
    )


def _code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.error_code
