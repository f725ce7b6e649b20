"""The share partitions of a broker: each is a document that the coordinator runs, or state that the store keeps itself.

Two brokers, or processes, that both serve a state that the store keeps do no harm: the store decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from korvet.protocol.errors import KafkaError
from korvet.share.coordinator import ShareCoordinator
from korvet.share.partition import SharePartition
from korvet.storage.interface import Storage, Topic
from korvet.storage.shares import (
    Acknowledged,
    Acquired,
    Acquisition,
    InFlight,
    ShareOffsets,
    SharePartitionKey,
)


@define(eq=False)
class SharePartitions:
    """See the module."""

    coordinator: ShareCoordinator

    @property
    def _storage(self) -> Storage:
        return self.coordinator.storage

    async def is_kept(self, key: SharePartitionKey) -> bool:
        """Return True if the store keeps the state of the share partition."""
        topic = await self._storage.topic_by_id(key.topic_id)
        return topic is not None and self._storage.keeps_shares(topic)

    # --- Members ----------------------------------------------------------------------------------------

    async def acquire_kept(self, key: SharePartitionKey, acquisition: Acquisition) -> Acquired | None:
        """Acquire records of a share partition that the store keeps; return None before `open_kept`."""
        return await self._storage.acquire_share(key, acquisition)

    async def open_kept(self, key: SharePartitionKey, offset: int) -> None:
        """Let a share partition that the store keeps begin at an offset, unless it has begun already."""
        await self._storage.open_share(key, offset)

    async def acknowledge(
        self, key: SharePartitionKey, member_id: str, batches: Sequence[Acknowledged]
    ) -> None:
        """Acknowledge records of a member, all or none. Raises InvalidRequest, InvalidRecordState."""
        if not await self.is_kept(key):
            await self.coordinator.acknowledge(str(key), member_id, batches)
            return
        limits = self.coordinator.limits_of(key.group_id)
        await self._storage.acknowledge_share(key, member_id, batches, limits)
        self.coordinator.notify(str(key))

    async def release(self, key: SharePartitionKey, member_id: str) -> None:
        """Release all records of a member."""
        if not await self.is_kept(key):
            await self.coordinator.release(str(key), member_id)
            return
        await self._storage.release_share(key, member_id, self.coordinator.limits_of(key.group_id))
        self.coordinator.notify(str(key))

    # --- Administration ---------------------------------------------------------------------------------

    async def stored(
        self, group_id: str
    ) -> Mapping[SharePartitionKey, SharePartition | ShareOffsets | KafkaError]:
        """Return the states of a group in all topics, or the errors of those that cannot be read."""
        topics = {topic.topic_id: topic for topic in (await self._storage.topics()).values()}
        kept = [topic for topic in topics.values() if self._storage.keeps_shares(topic)]
        found: dict[SharePartitionKey, SharePartition | ShareOffsets | KafkaError] = {}
        for key, state in (await self.coordinator.stored(group_id)).items():
            topic = topics.get(key.topic_id)
            if topic is not None and not self._storage.keeps_shares(topic):
                found[key] = state
        return found | dict(await self._storage.share_offsets(group_id, kept))

    async def in_flight(self, key: SharePartitionKey, most: int) -> InFlight:
        """Return the records in flight of a share partition that this broker leads, with the first holdings."""
        if await self.is_kept(key):
            return await self._storage.share_in_flight(key, self.coordinator.limits_of(key.group_id), most)
        return await self.coordinator.in_flight(str(key), most)

    async def reset(self, key: SharePartitionKey, offset: int) -> None:
        """Let a group continue at an offset, and forget all its records in flight.

        Raises NonEmptyGroup if plain clients of the store have locked records.
        """
        if await self.is_kept(key):
            await self._storage.reset_share(key, offset, self.coordinator.limits_of(key.group_id))
        else:
            await self.coordinator.reset(key, offset)

    async def forget_group(self, group_id: str, topic: Topic | None = None) -> None:
        """Delete the states of a group, in one topic or in all."""
        topics = list((await self._storage.topics()).values()) if topic is None else [topic]
        await self._storage.forget_shares(group_id, topics)
        await self.coordinator.forget_group(group_id, None if topic is None else topic.name)
