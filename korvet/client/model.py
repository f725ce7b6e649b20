"""The data types of the client's arguments and results."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from attrs import frozen

from korvet.protocol.record import Headers

# Special timestamps of ListOffsets.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


class TopicPartition(NamedTuple):
    """The name of a topic and the number of a partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@frozen
class Partition:
    """A partition's leader and replicas. Without a leader, `leader_id` is -1."""

    partition: int
    leader_id: int
    leader_epoch: int
    replica_ids: tuple[int, ...]
    isr_ids: tuple[int, ...]


@frozen
class Topic:
    """A topic as Metadata describes it. The id is zero if the broker's version does not return ids."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[Partition, ...]

    @cached_property
    def leaders(self) -> dict[int, int]:
        """The ids of the brokers that lead the partitions, -1 without one."""
        return {each.partition: each.leader_id for each in self.partitions}


@frozen
class Record:
    """A record to be produced. Defaults: the current time (ms), and the partition of the key, or any without a key."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class Produced(NamedTuple):
    """The partition and offset of a produced record. With acks=0 the offset is -1."""

    partition: int
    offset: int


class ConsumedRecord(NamedTuple):
    """A stored record."""

    # A NamedTuple, since a consumer may create hundreds of thousands per second.

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@frozen
class ListedOffset:
    """A result of ListOffsets. Offset and timestamp are -1 if no record matches; the timestamp of a log's end is -1."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@frozen
class OffsetAndMetadata:
    """A committed offset: the next offset to read, and the metadata of the commit."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions of each topic, both in the given order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in tps:
        topics.setdefault(topic, []).append(partition)
    return topics
