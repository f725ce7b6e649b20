"""The offsets in a request that commits them: those that the client may commit, and the errors of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import Factory, define

from korvet.broker.broker import Broker, coordinator_error, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import KafkaError, OffsetMetadataTooLarge
from korvet.security.acls import Operation
from korvet.storage.interface import OffsetAndMetadata, Topic, TopicPartition

Outcomes = dict[TopicPartition, KafkaError | None]


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


async def sort_commits(broker: Broker, context: RequestContext, topics: Sequence[CommittedTopic]) -> Commits:
    """Sort the partitions of a request into offsets to commit, and errors."""
    commits = Commits()
    time_slices = TimeSlices()
    for topic in topics:
        await _sort(broker, context, topic, commits, time_slices)
    return commits


async def _sort(
    broker: Broker,
    context: RequestContext,
    data: CommittedTopic,
    commits: Commits,
    time_slices: TimeSlices,
) -> None:
    await time_slices.next()
    topic: Topic | KafkaError
    try:
        topic = await broker.topic(context, data.name, Operation.READ)
    except KafkaError as error:
        topic = coordinator_error(error)
    for partition in data.partitions:
        try:
            if isinstance(topic, KafkaError):
                raise topic
            tp = partition_of(topic, partition.partition_index)
            commits.offsets[tp] = _checked(broker, partition)
        except KafkaError as error:
            commits.outcomes[TopicPartition(data.name, partition.partition_index)] = error
        await time_slices.next()


def _checked(broker: Broker, data: CommittedPartition) -> OffsetAndMetadata:
    metadata = data.committed_metadata or ""
    if len(metadata) > broker.config.offset_metadata_max_bytes:
        raise OffsetMetadataTooLarge
    return OffsetAndMetadata(data.committed_offset, data.committed_leader_epoch, metadata)
