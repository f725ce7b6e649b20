"""AlterShareGroupOffsets: v0.

Behaviour: a share group without members continues at other start offsets, and forgets its records in flight in these
partitions. A group that does not exist is created. READ on the group and on each topic is required. The next fetch
clamps an offset that is out of range to the log's start or end.

Errors: GROUP_ID_NOT_FOUND for a group of another type; NON_EMPTY_GROUP, also of a partition if plain Redis clients have
locked records of it; UNKNOWN_TOPIC_OR_PARTITION and TOPIC_AUTHORIZATION_FAILED of a partition.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error, partition_of
from korvet.broker.context import RequestContext
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation
from korvet.storage.interface import Topic
from korvet.storage.shares import SharePartitionKey


async def handle(
    broker: Broker, request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> AlterShareGroupOffsetsResponse:
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        await broker.groups.alter_share(group_id, creates=True)
    except KafkaError as error:
        refused = coordinator_error(error)
        return AlterShareGroupOffsetsResponse(
            error_code=refused.error_code, error_message=refused.message, responses=[]
        )
    return AlterShareGroupOffsetsResponse(
        responses=[await _topic(broker, context, group_id, topic) for topic in request.topics]
    )


async def _topic(
    broker: Broker, context: RequestContext, group_id: str, asked: AlterShareGroupOffsetsRequestTopic
) -> AlterShareGroupOffsetsResponseTopic:
    topic: Topic | KafkaError
    try:
        topic = await broker.topic(context, asked.topic_name, Operation.READ)
    except KafkaError as error:
        topic = error
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=topic.topic_id if isinstance(topic, Topic) else ZERO_UUID,
        partitions=[await _partition(broker, group_id, topic, each) for each in asked.partitions],
    )


async def _partition(
    broker: Broker, group_id: str, topic: Topic | KafkaError, asked: AlterShareGroupOffsetsRequestPartition
) -> AlterShareGroupOffsetsResponsePartition:
    answer = AlterShareGroupOffsetsResponsePartition(partition_index=asked.partition_index)
    try:
        if isinstance(topic, KafkaError):
            raise topic
        tp = partition_of(topic, asked.partition_index)
        key = SharePartitionKey(tp, topic.topic_id, group_id)
        await broker.share.partitions.reset(key, max(asked.start_offset, 0))
    except KafkaError as error:
        answer.error_code, answer.error_message = error.error_code, error.message
    return answer
