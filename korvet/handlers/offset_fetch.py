"""OffsetFetch: v1-10.

Behaviour: the response has the group's committed offsets with their metadata; offset -1 if there is none, also for
unknown topics, as in Kafka. On Redis, if only plain Redis consumers have used the group so far, the offset is derived
from the offset at which they stopped. COORDINATOR_NOT_AVAILABLE for the group while the storage is unavailable.

Versions: null topics request all committed offsets (v2), an empty list none. The error of a group is in the response
from v2, in every partition in v1. Several groups from v8 (KIP-709). With `require_stable` (v7, KIP-447), a partition
for which an open transaction has staged an offset gets UNSTABLE_OFFSET_COMMIT. Member id and epoch (v9)
are those of groups whose broker assigns partitions (KIP-848): UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH; Kafka ignores them
for classic groups, too. v10 has ids of topics instead of
names: UNKNOWN_TOPIC_ID in each partition of an unknown one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from attrs import field, frozen

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.commits import placeholder
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices, each_in_slices, map_in_slices
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import ErrorCode, KafkaError, UnknownTopicId
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from korvet.protocol.repetitions import repeated
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import OffsetAndMetadata, TopicPartition

NONE_COMMITTED = OffsetAndMetadata(-1)
UNSTABLE = OffsetAndMetadata(-1)
NO_MEMBER = (None, -1)  # member id and epoch of a client that is not a member
# The first version that names topics by their ids.
BY_ID_SINCE = 10
# Objects that are made in a tenth of a millisecond.
PARTITIONS_AT_ONCE = 100


#: Topics, and their partitions with committed offsets, in the order of the response.
OffsetsByTopic = Sequence[tuple[str, Sequence[tuple[int, OffsetAndMetadata]]]]


@frozen
class Committed:
    """A group's committed offsets in the order of the response, or the error of reading them."""

    topics: OffsetsByTopic
    error_code: ErrorCode = ErrorCode.NONE
    denied: frozenset[str] = frozenset()  # topics that the client may not describe
    ids: Mapping[str, UUID] = field(factory=dict)  # of the topics by name, if the response has ids
    unknown: frozenset[str] = frozenset()  # placeholders of topics with unknown ids

    def error_of(self, topic: str) -> ErrorCode:
        """Return the error of each partition of a topic, except UNSTABLE_OFFSET_COMMIT."""
        if topic in self.unknown:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic in self.denied else self.error_code

    def error_at(self, topic: str, offset: OffsetAndMetadata) -> ErrorCode:
        """Return the error of a partition with that offset."""
        return ErrorCode.UNSTABLE_OFFSET_COMMIT if offset is UNSTABLE else self.error_of(topic)


async def handle(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    if context.version >= 8:
        groups = await _groups(broker, context, request.groups, is_stable=request.require_stable)
        return OffsetFetchResponse(groups=groups)
    committed = await _committed(
        broker, context, request.group_id, request.topics, is_stable=request.require_stable
    )
    if committed.error_code and context.version >= 2:
        return OffsetFetchResponse(error_code=committed.error_code)
    return OffsetFetchResponse(topics=_topics(committed))


async def _groups(
    broker: Broker, context: RequestContext, asked: Sequence[OffsetFetchRequestGroup], *, is_stable: bool
) -> list[OffsetFetchResponseGroup]:
    """Return a response for each entry of the request."""

    async def answer(each: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        member = (each.member_id, each.member_epoch)
        found = await _committed(broker, context, each.group_id, each.topics, member, is_stable=is_stable)
        return await _group(each.group_id, found)

    keys = await map_in_slices(repr, asked)
    different = dict(zip(keys, asked, strict=True))
    answers = dict(zip(different, await each_in_slices(answer, different.values()), strict=True))
    write = element_writer(OffsetFetchResponse, OffsetFetchResponseGroup, context.version)
    return repeated(keys, answers, write)


async def _committed(
    broker: Broker,
    context: RequestContext,
    group_id: str,
    asked: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    member: tuple[str | None, int] = NO_MEMBER,
    *,
    is_stable: bool,
) -> Committed:
    """Return the committed offsets of a group, with `is_stable` UNSTABLE for those that a transaction may replace."""

    def is_denied(topic: str) -> bool:
        return not broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)

    try:
        group_id = broker.group(context, group_id, Operation.DESCRIBE)
        if member != NO_MEMBER:
            await broker.groups.check_fetch(group_id, *member)
        has_ids = context.version >= BY_ID_SINCE
        if asked is None:
            everything = _by_topic(await _read(broker, group_id, None, is_stable=is_stable))
            visible = [each for each in everything if not is_denied(each[0])]
            return await _with_ids(broker, visible) if has_ids else Committed(visible)
        ids = await _set_names(broker, asked) if has_ids else {}
        unknown = frozenset(name for name, topic_id in ids.items() if name == placeholder(topic_id))
        names = list({topic.name for topic in asked} - unknown)
        are_denied = await map_in_slices(is_denied, names)
        denied = frozenset(name for name, denied in zip(names, are_denied, strict=True) if denied)
        tps = _requested_partitions([topic for topic in asked if topic.name not in denied | unknown])
        found = await _read(broker, group_id, tps, is_stable=is_stable)
        return Committed(_in_request_order(asked, found), denied=denied, ids=ids, unknown=unknown)
    except KafkaError as error:
        return Committed(_in_request_order(asked or (), {}), coordinator_error(error).error_code)


async def _set_names(
    broker: Broker, topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics]
) -> dict[str, UUID]:
    """Set the names of topics that a request has by id, placeholders for unknown ids. Return the ids by name."""
    ids = {}
    time_slices = TimeSlices()
    for topic in topics:
        if isinstance(topic, OffsetFetchRequestTopics):
            try:
                topic.name = (await broker.find_topic_by_id(topic.topic_id)).name
            except UnknownTopicId:
                topic.name = placeholder(topic.topic_id)
            ids[topic.name] = topic.topic_id
        await time_slices.next()
    return ids


async def _with_ids(broker: Broker, topics: OffsetsByTopic) -> Committed:
    """Return the committed offsets with the ids of their topics, without topics that do not exist any more."""
    known = {topic.name: topic.topic_id for topic in await broker.all_topics()}
    ids = {name: known[name] for name, _ in topics if name in known}
    return Committed([each for each in topics if each[0] in ids], ids=ids)


async def _read(
    broker: Broker, group_id: str, tps: Sequence[TopicPartition] | None, *, is_stable: bool
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    # In this order: an offset that is not staged any more is committed by now.
    unstable = await broker.groups.unstable(group_id, tps) if is_stable else ()
    committed = await broker.groups.committed(group_id, tps)
    if not unstable:
        return committed
    hidden = committed.keys() & unstable if tps is None else unstable
    return {**committed, **dict.fromkeys(hidden, UNSTABLE)}


def _requested_partitions(
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics],
) -> list[TopicPartition]:
    asked = [TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes]
    return list(dict.fromkeys(asked))


def _in_request_order(
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics],
    found: Mapping[TopicPartition, OffsetAndMetadata],
) -> OffsetsByTopic:
    """Return the offsets in the order of the request, including duplicate topics and partitions."""
    return [
        (
            topic.name,
            [
                (number, found.get(TopicPartition(topic.name, number), NONE_COMMITTED))
                for number in topic.partition_indexes
            ],
        )
        for topic in topics
    ]


def _by_topic(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> OffsetsByTopic:
    topics: dict[str, list[tuple[int, OffsetAndMetadata]]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, []).append((tp.partition, offset))
    return list(topics.items())


async def _group(group_id: str, committed: Committed) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=group_id, topics=[], error_code=committed.error_code)
    if committed.error_code:
        return answer
    time_slices = TimeSlices()
    for name, partitions in committed.topics:
        topic = OffsetFetchResponseTopics(
            name=name, topic_id=committed.ids.get(name, ZERO_UUID), partitions=[]
        )
        answer.topics.append(topic)
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            topic.partitions += [
                OffsetFetchResponsePartitions(
                    partition_index=number,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    error_code=committed.error_at(name, offset),
                )
                for number, offset in partitions[first : first + PARTITIONS_AT_ONCE]
            ]
            await time_slices.next()
    return answer


def _topics(committed: Committed) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=number,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    error_code=committed.error_at(name, offset),
                )
                for number, offset in partitions
            ],
        )
        for name, partitions in committed.topics
    ]
