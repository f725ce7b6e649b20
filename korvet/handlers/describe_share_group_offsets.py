"""DescribeShareGroupOffsets: v0-1.

Behaviour: the response has the start offset of each share partition of each group: that of the first record that is not
finished, and -1 before the first fetch. With null topics it has all share partitions with a state. DESCRIBE on each
group and topic is required; topics that the client may not describe are left out if it asks for all.

Versions: v1 has the lag (KIP-1226): the offsets from the end of what was delivered to the high watermark, and the
records in flight. It counts offsets, which may have no records; in the record layout it counts records.

Records in flight: korvet's own tagged field `max_in_flight` of a request returns who holds which records instead, for
`korvet groups` and the web page: of each partition the number of records in flight, and the first ones of them. The
leader of the partition answers, whether or not it coordinates the group.

Errors: TOPIC_AUTHORIZATION_FAILED and KAFKA_STORAGE_ERROR of a partition, and the latter of a group if no state can be
read. Groups, topics and partitions that do not exist have no states, and are no errors, as in Kafka. With
`max_in_flight`: NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from uuid import UUID

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
    DescribeShareGroupOffsetsResponseTopic,
    RecordsInFlight,
)
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponsePartition as Described,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation, ResourceType
from korvet.share.partition import SharePartition
from korvet.storage.interface import TopicPartition
from korvet.storage.shares import UNKNOWN, ShareOffsets, SharePartitionKey

States = Mapping[TopicPartition, SharePartition | ShareOffsets | KafkaError]
#: Completes what is described of a partition. Arguments: the topic's id, the description, the partition.
Look = Callable[[UUID, Described, TopicPartition], Awaitable[None]]

MOST_IN_FLIGHT = 1000  # elements for a partition in an answer


async def handle(
    broker: Broker, request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    most = min(request.max_in_flight, MOST_IN_FLIGHT)
    groups = await in_parallel(partial(_described, broker, context, most), request.groups)
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _described(
    broker: Broker, context: RequestContext, most: int, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = asked.group_id
    try:
        broker.group(context, group_id, Operation.DESCRIBE)
        if most > 0:
            look = partial(_in_flight, broker, context, group_id, most)
            described = [await _topic(broker, context, topic, look) for topic in asked.topics or ()]
        else:
            broker.groups.routing.check(group_id)
            states = await _states(broker, group_id)
            topics = _all(broker, context, states) if asked.topics is None else asked.topics
            look = partial(_offsets, broker, states)
            described = [await _topic(broker, context, topic, look) for topic in topics]
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
    broker: Broker, context: RequestContext, asked: DescribeShareGroupOffsetsRequestTopic, look: Look
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
            await _partition(TopicPartition(asked.topic_name, number), refused, partial(look, topic_id))
            for number in asked.partitions
        ],
    )


async def _partition(
    tp: TopicPartition,
    refused: KafkaError | None,
    look: Callable[[Described, TopicPartition], Awaitable[None]],
) -> Described:
    described = Described(partition_index=tp.partition, start_offset=UNKNOWN, leader_epoch=0)
    try:
        if refused is not None:
            raise refused
        await look(described, tp)
    except KafkaError as error:
        described.error_code, described.error_message = error.error_code, error.message
    return described


async def _offsets(
    broker: Broker, states: States, _topic_id: UUID, described: Described, tp: TopicPartition
) -> None:
    state = states.get(tp)
    if isinstance(state, KafkaError):
        raise state
    if state is not None:
        offsets = await broker.log.latest(tp)
        described.start_offset, described.leader_epoch = state.start, offsets.leader_epoch
        described.lag = _lag(state, offsets.high_watermark)


def _lag(state: SharePartition | ShareOffsets, high_watermark: int) -> int:
    if isinstance(state, ShareOffsets):
        return state.lag
    return max(high_watermark - state.end, 0) + state.in_flight


async def _in_flight(
    broker: Broker,
    context: RequestContext,
    group_id: str,
    most: int,
    topic_id: UUID,
    described: Described,
    tp: TopicPartition,
) -> None:
    broker.check_leads(context, tp)
    if topic_id == ZERO_UUID:
        raise UnknownTopicOrPartition
    found = await broker.share.partitions.in_flight(SharePartitionKey(tp, topic_id, group_id), most)
    described.in_flight_count = found.records
    described.in_flight = [
        RecordsInFlight(
            first_offset=each.first,
            last_offset=each.last,
            record_count=each.records,
            delivery_count=each.deliveries,
            member_id=each.member,
            acquired_ms=each.held_ms,
            lock_ms=each.lock_ms,
        )
        for each in found.holdings
    ]
