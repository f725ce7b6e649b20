"""DescribeShareGroupOffsets: v0-1.

Behaviour: the response has the start offset of each share partition of each group: that of the first record that is not
finished, and -1 before the first fetch. With null topics it has all share partitions with a state. DESCRIBE on each
group and topic is required; topics that the client may not describe are left out if it asks for all.

Versions: v1 has the lag (KIP-1226): the offsets from the end of what was delivered to the high watermark, and the
records in flight. It counts offsets, which may have no records; in the record layout it counts records.

Errors: TOPIC_AUTHORIZATION_FAILED of a partition. Groups, topics and partitions that do not exist have no states, and
are no errors, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.protocol.errors import KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation, ResourceType
from korvet.share.partition import SharePartition
from korvet.storage.interface import TopicPartition
from korvet.storage.shares import UNKNOWN, ShareOffsets

States = Mapping[TopicPartition, SharePartition | ShareOffsets]


async def handle(
    broker: Broker, request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    groups = await in_parallel(partial(_described, broker, context), request.groups)
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _described(
    broker: Broker, context: RequestContext, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = asked.group_id
    try:
        broker.group(context, group_id, Operation.DESCRIBE)
        broker.groups.routing.check(group_id)
        states = await _states(broker, group_id)
        topics = _all(broker, context, states) if asked.topics is None else asked.topics
        described = [await _topic(broker, context, topic, states) for topic in topics]
    except KafkaError as error:
        refused = coordinator_error(error)
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, topics=[], error_code=refused.error_code, error_message=refused.message
        )
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=described)


async def _states(broker: Broker, group_id: str) -> States:
    """Return the states in topics that exist."""
    ids = {topic.topic_id for topic in await broker.all_topics()}
    stored = await broker.share.partitions.stored(group_id)
    return {key.tp: state for key, state in stored.items() if key.topic_id in ids}


def _all(
    broker: Broker, context: RequestContext, states: States
) -> Iterable[DescribeShareGroupOffsetsRequestTopic]:
    names: dict[str, list[int]] = {}
    for tp in sorted(states):
        names.setdefault(tp.topic, []).append(tp.partition)
    return [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
        for name, numbers in names.items()
        if broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
    ]


async def _topic(
    broker: Broker, context: RequestContext, asked: DescribeShareGroupOffsetsRequestTopic, states: States
) -> DescribeShareGroupOffsetsResponseTopic:
    topic_id, refused = ZERO_UUID, None
    try:
        topic_id = (await broker.topic(context, asked.topic_name, Operation.DESCRIBE)).topic_id
    except TopicAuthorizationFailed as error:
        refused = error
    except UnknownTopicOrPartition:
        pass
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=topic_id,
        partitions=[
            await _partition(broker, TopicPartition(asked.topic_name, number), refused, states)
            for number in asked.partitions
        ],
    )


async def _partition(
    broker: Broker, tp: TopicPartition, refused: KafkaError | None, states: States
) -> DescribeShareGroupOffsetsResponsePartition:
    described = DescribeShareGroupOffsetsResponsePartition(
        partition_index=tp.partition, start_offset=UNKNOWN, leader_epoch=0
    )
    try:
        if refused is not None:
            raise refused
        state = states.get(tp)
        if state is not None:
            offsets = await broker.log.latest(tp)
            described.start_offset, described.leader_epoch = state.start, offsets.leader_epoch
            described.lag = _lag(state, offsets.high_watermark)
    except KafkaError as error:
        described.error_code, described.error_message = error.error_code, error.message
    return described


def _lag(state: SharePartition | ShareOffsets, high_watermark: int) -> int:
    if isinstance(state, ShareOffsets):
        return state.lag
    return max(high_watermark - state.end, 0) + state.in_flight
