"""What the client is given and what it answers: plain values, in Kafka's words."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from attrs import frozen

from korvet.protocol.record import Headers

# Timestamps with a meaning of their own in ListOffsets.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


class TopicPartition(NamedTuple):
    """One partition's address."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@frozen
class Partition:
    """Who has a partition. Without a leader, `leader_id` is -1."""

    partition: int
    leader_id: int
    leader_epoch: int
    replica_ids: tuple[int, ...]
    isr_ids: tuple[int, ...]


@frozen
class Topic:
    """A topic as Metadata describes it; the id is zero where the broker is too old for ids."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[Partition, ...]


@frozen
class Record:
    """A record to be produced. Without timestamp: now (ms). Without partition: as the key says, or any."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class Produced(NamedTuple):
    """Where a record went; with acks=0 nobody says which offset, and it is -1."""

    partition: int
    offset: int


class ConsumedRecord(NamedTuple):
    """A record as it is stored. A NamedTuple, since there may be hundreds of thousands a second."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@frozen
class ListedOffset:
    """What ListOffsets found: -1 and -1 where no record is that late; timestamp -1 for a log's end."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@frozen
class OffsetAndMetadata:
    """A group's position: the next offset to read, and the words its committer left with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
