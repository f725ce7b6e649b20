"""OffsetDelete: v0 (KIP-496).

Behaviour: the group's committed offsets of these partitions are deleted. Errors per partition:
GROUP_SUBSCRIBED_TO_TOPIC if members subscribe to the topic, or if their subscriptions cannot be parsed;
UNKNOWN_TOPIC_OR_PARTITION. Errors of the whole request: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID for an empty group id, and
NON_EMPTY_GROUP if the group has members that are not consumers, such as workers of Kafka Connect.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, coordinator_error, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices, each_in_slices, map_in_slices
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from korvet.security.acls import Operation
from korvet.storage.interface import TopicPartition

Outcomes = dict[TopicPartition, KafkaError | None]


async def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    outcomes: Outcomes = {}
    try:
        group_id = broker.group(context, request.group_id, Operation.DELETE)
        await each_in_slices(partial(_find, broker, context, outcomes), request.topics)
        found = [tp for tp, error in outcomes.items() if error is None]
        outcomes |= await broker.groups.delete_offsets(group_id, found)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=coordinator_error(error).error_code, topics=[])
    topics = await map_in_slices(lambda topic: _answer(topic, outcomes), request.topics)
    return OffsetDeleteResponse(topics=topics)


async def _find(
    broker: Broker, context: RequestContext, outcomes: Outcomes, data: OffsetDeleteRequestTopic
) -> None:
    """Set None for each existing partition of a topic, and the error of each other one."""
    time_slices = TimeSlices()
    for partition in data.partitions:
        await time_slices.next()
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
