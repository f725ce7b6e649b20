"""The interface to stores that keep the states of share groups (KIP-932) beside the records, and its values.

The states in other stores are documents (`korvet.share`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from math import inf
from typing import NamedTuple
from uuid import UUID

from attrs import frozen

from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import KafkaError, UnsupportedVersion
from korvet.storage.values import IsolationLevel, Topic, TopicPartition

AVAILABLE = ""  # the member of a run that no member has acquired
UNKNOWN = -1  # the start offset before the first fetch
# Delivery counts are int16 on the wire.
HIGHEST_COUNT = 32_767
# A record that was delivered less often may be acquired with any number of others.
FEW_DELIVERIES = 2


class AckType(IntEnum):
    """The kinds of acknowledgements, with the numbers of ShareAcknowledge."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Run(NamedTuple):
    """Records in flight that have the same state: offsets from `first` to `last`."""

    first: int
    last: int
    deliveries: int
    member: str = AVAILABLE
    deadline_ms: float = inf  # at which the lock of acquired records ends

    @property
    def size(self) -> int:
        """The number of records."""
        return self.last - self.first + 1


class Acknowledged(NamedTuple):
    """Consecutive offsets that a member acknowledges in the same way."""

    first: int
    last: int
    kind: AckType


@frozen
class ShareLimits:
    """The settings of a share group."""

    lock_ms: int = 30_000
    max_deliveries: int = 5
    max_locks: int = 2_000  # records in flight
    can_renew: bool = True

    def together(self, deliveries: int, most: int) -> int:
        """Return how many of `most` records may be acquired together with one that was delivered so often.

        The last attempt is made alone, and the ones before it with fewer and fewer records, so that a record that kills
        its workers uses up no attempts of many others.
        """
        if deliveries < FEW_DELIVERIES:
            return most
        if deliveries + 1 >= self.max_deliveries:
            return 1
        halvings = deliveries + 1 - max(2, (self.max_deliveries + 1) // 2)
        return max(most >> max(halvings, 0), 1)


class SharePartitionKey(NamedTuple):
    """A partition as a group consumes it. A topic that is created again has another id."""

    tp: TopicPartition
    topic_id: UUID
    group_id: str

    def __str__(self) -> str:
        return f"{self.tp.topic}:{self.tp.partition}:{self.topic_id}:{self.group_id}"

    @classmethod
    def parsed(cls, key: str) -> SharePartitionKey:
        """Return the key that a document has. Raises ValueError."""
        topic, partition, topic_id, group_id = key.split(":", 3)
        return cls(TopicPartition(topic, int(partition)), UUID(topic_id), group_id)


@frozen
class Acquisition:
    """The records that a member requests: at most so many records and bytes, and new ones only of `min_bytes`."""

    member_id: str
    limits: ShareLimits
    max_records: int
    max_bytes: int
    min_bytes: int = 1
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED


@frozen
class Acquired:
    """The acquired records, and the batches that contain them. `wait_ms` is the time until the next lock ends."""

    batches: EncodedBatches
    runs: Sequence[Run]
    wait_ms: float = inf


class ShareOffsets(NamedTuple):
    """The offset of the first record that is not finished, and the number of records that are not."""

    start: int
    lag: int


class Holding(NamedTuple):
    """Records in flight that are in the same state: `records` of them from offset `first` to `last`.

    `member` is AVAILABLE if none holds them. `held_ms` is the time since they were acquired, or their lock renewed, and
    `lock_ms` the time until it ends: 0 if it has ended.
    """

    first: int
    last: int
    records: int
    deliveries: int
    member: str = AVAILABLE
    held_ms: int = 0
    lock_ms: int = 0


class InFlight(NamedTuple):
    """The number of records in flight, and the holdings with the lowest offsets, in their order."""

    records: int
    holdings: Sequence[Holding]


class ShareLog:
    """The states of share groups, by a store that keeps them beside the records of some topics.

    Each change is stored, and confirmed by replicas as far as acks=all is, before the method returns. A lost connection
    to the store repeats none. Errors: UnknownTopicOrPartition, KafkaStorageError while the store is unavailable, and
    NotEnoughReplicasAfterAppend.
    """

    def keeps_shares(self, topic: Topic) -> bool:  # noqa: ARG002  a store may depend on the topic
        """Return True if the store keeps the states of share groups of this topic."""
        return False

    async def open_share(self, key: SharePartitionKey, offset: int) -> None:  # noqa: ARG002
        """Let a group begin at an offset, unless the store has a state of the group already."""
        raise _not_kept(key)

    async def acquire_share(
        self,
        key: SharePartitionKey,
        acquisition: Acquisition,  # noqa: ARG002  stores that keep shares use it
    ) -> Acquired | None:
        """Acquire records for a member, in the order of their offsets; return None before `open_share`."""
        raise _not_kept(key)

    async def acknowledge_share(
        self,
        key: SharePartitionKey,
        member_id: str,  # noqa: ARG002  stores that keep shares use it
        batches: Sequence[Acknowledged],  # noqa: ARG002
        limits: ShareLimits,  # noqa: ARG002
    ) -> None:
        """Acknowledge records of a member, all or none. Raises InvalidRequest, InvalidRecordState."""
        raise _not_kept(key)

    async def release_share(self, key: SharePartitionKey, member_id: str, limits: ShareLimits) -> None:  # noqa: ARG002
        """Release all records of a member."""
        raise _not_kept(key)

    async def share_offsets(
        self,
        group_id: str,  # noqa: ARG002  stores that keep shares use it
        topics: Collection[Topic],  # noqa: ARG002
    ) -> Mapping[SharePartitionKey, ShareOffsets | KafkaError]:
        """Return the offsets of the group's share partitions that the store keeps in these topics.

        A share partition that cannot be read has an error. If none can be read, the error is raised.
        """
        return {}

    async def share_in_flight(self, key: SharePartitionKey, limits: ShareLimits, most: int) -> InFlight:  # noqa: ARG002
        """Return the number of records in flight, with at most `most` holdings of the first ones."""
        raise _not_kept(key)

    async def reset_share(self, key: SharePartitionKey, offset: int, limits: ShareLimits) -> None:  # noqa: ARG002
        """Let a group continue at an offset, and forget its records in flight.

        Raises NonEmptyGroup if a consumer that is not a member of the group has locked records.
        """
        raise _not_kept(key)

    async def forget_shares(self, group_id: str, topics: Collection[Topic]) -> None:
        """Delete the states of a group that the store keeps in these topics."""


def _not_kept(key: SharePartitionKey) -> UnsupportedVersion:
    return UnsupportedVersion(f"the storage keeps no states of share groups, also not in {key.tp}")
