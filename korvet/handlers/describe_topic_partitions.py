"""DescribeTopicPartitions: v0.

Behaviour: the response has the topics sorted by name, each with its partitions as in Metadata. An empty list requests
all topics. A response has at most `response_partition_limit` partitions, and at most 2000. The client sends
`next_cursor` back as `cursor` to get the next ones. UNKNOWN_TOPIC_OR_PARTITION and INVALID_TOPIC_EXCEPTION per topic;
the request never creates a topic. A cursor with a topic that is not in the request, or with a negative partition, is
INVALID_REQUEST for all topics.

korvet does not replicate, so both lists of replicas that are eligible to lead (ELR) are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect, RequestContext
from korvet.broker.topics import INTERNAL_TOPICS, validate_name
from korvet.concurrency.time_slices import TimeSlices, map_in_slices, unique_in_slices
from korvet.protocol.errors import ErrorCode, InvalidRequest, KafkaError
from korvet.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from korvet.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import Topic, TopicPartition

# Kafka's default of max.request.partition.size.limit.
MAX_PARTITIONS = 2000
START = Cursor(topic_name="", partition_index=0)


async def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    names = await unique_in_slices(await map_in_slices(_name_of, request.topics))
    cursor = request.cursor or START
    try:
        _check(cursor, names)
        if names:
            return await _named(broker, context, cursor, names, request.response_partition_limit)
    except InvalidRequest as error:
        code = error.error_code
        return DescribeTopicPartitionsResponse(
            topics=await map_in_slices(lambda topic: _error(code, topic.name), request.topics)
        )
    try:
        topics = await broker.topics(context, Operation.DESCRIBE)
    except KafkaError as error:
        # As in Metadata: the response has no field for this error, and clients would take a shorter list as complete.
        raise Disconnect(f"the topics cannot be listed: {error}") from error
    return await _page(broker, context, cursor, topics, request.response_partition_limit)


async def _named(
    broker: Broker, context: RequestContext, cursor: Cursor, names: Sequence[str], limit: int
) -> DescribeTopicPartitionsResponse:
    """Return a page of the topics that the client may describe, and after them an error for each other topic."""
    allowed, denied = [], []
    time_slices = TimeSlices()
    for name in names:
        await time_slices.next()
        try:
            broker.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
            allowed.append(name)
        except KafkaError as error:
            if name >= cursor.topic_name:
                denied.append(_error(error.error_code, name))
    page = await _page(broker, context, cursor, allowed, limit)
    page.topics += denied
    return page


def _name_of(topic: TopicRequest) -> str:
    return topic.name


def _check(cursor: Cursor, names: Sequence[str]) -> None:
    if names and cursor is not START and cursor.topic_name not in names:
        raise InvalidRequest("The topic list should contain the cursor's topic.")
    if cursor.partition_index < 0:
        raise InvalidRequest("The cursor's partition must be valid.")


async def _page(
    broker: Broker,
    context: RequestContext,
    cursor: Cursor,
    topics: Sequence[str | Topic],
    limit: int,
) -> DescribeTopicPartitionsResponse:
    """Return the partitions from the cursor on, up to the limit. A topic that is a name may not exist."""
    left = max(1, min(limit, MAX_PARTITIONS))
    page = DescribeTopicPartitionsResponse(topics=[])
    time_slices = TimeSlices()
    for each in topics:
        await time_slices.next()
        name = each if isinstance(each, str) else each.name
        if name < cursor.topic_name:
            continue
        if left == 0:
            page.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        first = cursor.partition_index if name == cursor.topic_name else 0
        described, end = await _described(broker, context, each, range(first, first + left))
        page.topics.append(described)
        left -= len(described.partitions)
        if end:
            page.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return page


async def _described(
    broker: Broker, context: RequestContext, wanted: str | Topic, numbers: range
) -> tuple[DescribeTopicPartitionsResponseTopic, int]:
    """Return a topic with its partitions in `numbers`, and the number of the next partition, or 0 if it has none."""
    try:
        topic = wanted if isinstance(wanted, Topic) else await _found(broker, wanted)
    except KafkaError as error:
        return _error(error.error_code, str(wanted), _operations(broker, context, str(wanted))), 0
    end = min(numbers.stop, topic.partitions)
    described = DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(broker, context, TopicPartition(topic.name, number))
            for number in range(numbers.start, end)
        ],
        topic_authorized_operations=_operations(broker, context, topic.name),
    )
    return described, end if end < topic.partitions else 0


async def _found(broker: Broker, name: str) -> Topic:
    validate_name(name)
    return await broker.find_topic(name)


def _partition(
    broker: Broker, context: RequestContext, tp: TopicPartition
) -> DescribeTopicPartitionsResponsePartition:
    leaders = broker.membership.leaders_on(context.listener_name)
    leader_id = leaders.of(tp.topic, tp.partition)
    replicas = broker.replicas(leader_id, leaders.seeds)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=tp.partition,
        leader_id=leader_id,
        leader_epoch=broker.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=replicas,
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


def _operations(broker: Broker, context: RequestContext, name: str) -> int:
    return broker.authorized_operations(context, ResourceType.TOPIC, name)


def _error(
    code: ErrorCode, name: str, operations: int = AUTHORIZED_OPERATIONS_OMITTED
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        partitions=[],
        topic_authorized_operations=operations,
    )
