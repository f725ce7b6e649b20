"""The offsets in a request that commits them: those that the client may commit, and the errors of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from attrs import Factory, define

from korvet.broker.broker import Broker, coordinator_error, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import KafkaError, OffsetMetadataTooLarge
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import OffsetAndMetadata, Topic, TopicPartition

Outcomes = dict[TopicPartition, KafkaError | None]

# Limit of the partitions of a request that is handled without a pause.
PARTITIONS_AT_ONCE = 64


class CommittedPartition(Protocol):
    """A partition in a request of OffsetCommit or TxnOffsetCommit."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class CommittedTopic(Protocol):
    """A topic in a request of OffsetCommit or TxnOffsetCommit."""

    name: str

    @property
    def partitions(self) -> Sequence[CommittedPartition]: ...


def placeholder(topic_id: UUID) -> str:
    """Return a name for a topic with an unknown id. No topic can have it."""
    return f"#{topic_id}"


@define
class Commits:
    """The offsets that can be committed, and the outcomes that are decided without the group."""

    offsets: dict[TopicPartition, OffsetAndMetadata] = Factory(dict)
    outcomes: Outcomes = Factory(dict)

    @property
    def asked(self) -> list[TopicPartition]:
        """The partitions that get the group's error if the client may not commit at all.

        As in Kafka, that error also replaces OFFSET_METADATA_TOO_LARGE.
        """
        too_large = [tp for tp, error in self.outcomes.items() if isinstance(error, OffsetMetadataTooLarge)]
        return [*self.offsets, *too_large]


async def sort_commits(
    broker: Broker,
    context: RequestContext,
    topics: Sequence[CommittedTopic],
    topic_ids: Sequence[UUID] | None = None,
) -> Commits:
    """Sort the partitions of a request into offsets to commit, and errors.

    If the request has ids of topics instead of names, set the names, which key the result. A topic that is unknown or
    denied gets a name that no topic can have.
    """
    commits = Commits()
    time_slices = TimeSlices()
    for number, topic in enumerate(topics):
        topic_id = None if topic_ids is None else topic_ids[number]
        await _sort(broker, context, topic, topic_id, commits, time_slices)
    return commits


def sort_commits_now(
    broker: Broker,
    context: RequestContext,
    topics: Sequence[CommittedTopic],
    topic_ids: Sequence[UUID] | None = None,
) -> Commits | None:
    """Do the same for a request of few partitions whose topics are known. Otherwise return None, and do nothing."""
    known: list[Topic] = []
    count = 0
    for number, data in enumerate(topics):
        topic_id = None if topic_ids is None else topic_ids[number]
        topic = broker.known_topic(data.name) if topic_id is None else broker.known_topic_by_id(topic_id)
        count += len(data.partitions)
        if topic is None or count > PARTITIONS_AT_ONCE:
            return None
        known.append(topic)
    commits = Commits()
    for data, topic in zip(topics, known, strict=True):
        try:
            broker.authorize(context, Operation.READ, ResourceType.TOPIC, topic.name)
            data.name = topic.name
            found: Topic | KafkaError = topic
        except KafkaError as error:
            if topic_ids is not None:
                data.name = placeholder(topic.topic_id)
            found = error
        for partition in data.partitions:
            _add(broker, data, partition, found, commits)
    return commits


async def _sort(
    broker: Broker,
    context: RequestContext,
    data: CommittedTopic,
    topic_id: UUID | None,
    commits: Commits,
    time_slices: TimeSlices,
) -> None:
    await time_slices.next()
    topic: Topic | KafkaError
    try:
        if topic_id is None:
            topic = await broker.topic(context, data.name, Operation.READ)
        else:
            data.name = placeholder(topic_id)
            topic = await broker.topic_by_id(context, topic_id, Operation.READ)
            data.name = topic.name
    except KafkaError as error:
        topic = coordinator_error(error)
    for partition in data.partitions:
        _add(broker, data, partition, topic, commits)
        await time_slices.next()


def _add(
    broker: Broker,
    data: CommittedTopic,
    partition: CommittedPartition,
    topic: Topic | KafkaError,
    commits: Commits,
) -> None:
    """Add a partition to the offsets to commit, or to the outcomes if there is an error, which may be the topic's."""
    try:
        if isinstance(topic, KafkaError):
            raise topic
        tp = partition_of(topic, partition.partition_index)
        commits.offsets[tp] = _checked(broker, partition)
    except KafkaError as error:
        commits.outcomes[TopicPartition(data.name, partition.partition_index)] = error


def _checked(broker: Broker, data: CommittedPartition) -> OffsetAndMetadata:
    metadata = data.committed_metadata or ""
    if len(metadata) > broker.config.offset_metadata_max_bytes:
        raise OffsetMetadataTooLarge
    return OffsetAndMetadata(data.committed_offset, data.committed_leader_epoch, metadata)
