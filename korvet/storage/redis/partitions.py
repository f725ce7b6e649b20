"""The partitions that a broker uses: find them by name, bring their state up to date, call their scripts.

The scripts refuse a topic id that is not the partition's. An operation on a deleted topic therefore never affects a new
topic of the same name, however late this broker detects the deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from attrs import define, field

from korvet.protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartition
from korvet.storage.damage import Damage
from korvet.storage.interface import StorageDefaults, Topic, TopicPartition
from korvet.storage.redis.append.layouts import StorageLayout, layout_of
from korvet.storage.redis.catalogue import Catalogue, CataloguedTopic, partitions_of
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import Script, ScriptCall
from korvet.storage.redis.client.replies import Argument
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.leader_epochs import LeaderEpochs
from korvet.storage.redis.partition import Partition, PartitionedTopic
from korvet.storage.redis.scripts import DROP, INIT, SETTLE

logger = logging.getLogger(__name__)

Answer = Sequence[bytes]

# Attempts in a row that may find the state deleted, or entries that another client added, before an error.
ATTEMPTS = 10
# Partitions created or deleted in one write, which keeps Redis and the broker busy for a millisecond or two.
CREATED_AT_ONCE = DROPPED_AT_ONCE = 32


@define(eq=False)
class Partitions:
    """The partitions used so far, and the calls of their scripts."""

    redis: RedisCaller
    catalogue: Catalogue
    keyspace: Keyspace
    defaults: StorageDefaults
    leader_epochs: LeaderEpochs
    damage: Damage = field(factory=Damage)
    _topics: dict[str, PartitionedTopic] = field(factory=dict)

    def known(self, tp: TopicPartition) -> Partition | None:
        """Return the partition if the cached catalogue has it, without a command to Redis."""
        catalogued = self.catalogue.cached(tp.topic)
        if catalogued is None or not 0 <= tp.partition < catalogued.topic.partitions:
            return None
        return self._partition(catalogued, tp)

    async def find(self, tp: TopicPartition) -> Partition:
        """Return the partition. Raise UnknownTopicOrPartition only after reading the catalogue in Redis."""
        partition = self.known(tp)
        if partition is not None:
            return partition
        catalogued = await self.catalogue.reload(tp.topic)
        if catalogued is None:
            self._topics.pop(tp.topic, None)
            raise UnknownTopicOrPartition
        if not 0 <= tp.partition < catalogued.topic.partitions:
            raise UnknownTopicOrPartition
        return self._partition(catalogued, tp)

    def layout_of(self, topic: Topic) -> StorageLayout:
        """Return the layout of a topic."""
        known = self._topics.get(topic.name)
        if known is not None and known.topic is topic:
            return known.format.layout
        return layout_of(topic.config)

    def _partition(self, catalogued: CataloguedTopic, tp: TopicPartition) -> Partition:
        topic, created, _ = catalogued
        known = self._topics.get(topic.name)
        if known is None or known.created != created or known.topic.topic_id != topic.topic_id:
            known = self._topics[topic.name] = self._partitioned(catalogued)
        elif known.topic is not topic:
            known.configure(topic)
        return known.partition(tp)

    def _partitioned(self, catalogued: CataloguedTopic) -> PartitionedTopic:
        return PartitionedTopic(*catalogued, self.keyspace, self.defaults, self.leader_epochs)

    async def has_stream(self, partition: Partition) -> bool:
        """Return True if the partition has a stream; without one, maintenance must not create a state."""
        return bool(await self.redis.execute(b"EXISTS", partition.keys.stream, repeatable=True))

    # --- Scripts ----------------------------------------------------------------------------------------

    async def call(
        self, partition: Partition, script: Script, *own: Argument, more_keys: Sequence[bytes] = ()
    ) -> Answer:
        """Call a partition script until it has done its work, and return its answer. The scripts are repeatable.

        Raise UnknownTopicOrPartition if the topic with the partition's id is gone.
        """
        for _ in range(ATTEMPTS):
            answer = cast(
                Answer,
                await self.redis.run(
                    script,
                    (*partition.keys.log, *more_keys),
                    lambda run_id: partition.arguments(run_id, *own),
                    repeatable=True,
                ),
            )
            if not await self.prepare(partition, answer[0]):
                return answer
        raise KafkaStorageError(f"{partition.tp} does not come to rest")

    async def prepare(self, partition: Partition, status: bytes) -> bool:
        """Create or settle the state if the script's status requires it; return True if the script must be repeated."""
        if status in (b"nostate", b"othertopic"):
            await self.revive(partition)
            return True
        if status == b"rescan":
            await self.settle(partition)
            return True
        if status == b"damaged":
            raise self.damaged(partition)
        return False

    def damaged(self, partition: Partition) -> KafkaStorageError:
        """Return the error for a partition whose state another client has overwritten; log it once per topic."""
        key = partition.keys.state.decode()
        self.damage.note(
            partition.tp.topic, f"{key} is not as korvet wrote it, so the partition is not served"
        )
        return KafkaStorageError(f"{key} is damaged")

    async def revive(self, partition: Partition) -> None:
        """Create a partition's state. Raise UnknownTopicOrPartition if the topic is not in the catalogue any more."""
        await self._check_catalogued(partition)
        call = self._init_call(partition, await self.catalogue.forgotten_ms())
        answer = cast(Answer, await self.redis.run(call.script, call.keys, call.args, repeatable=True))
        try:
            if answer[0] == b"deleted":
                raise UnknownTopicOrPartition
            # Another broker may have deleted the topic in the meantime, when there was no state to delete yet.
            await self._check_catalogued(partition)
        except UnknownTopicOrPartition:
            await self.drop(partition)
            raise

    async def create_states(self, created: CataloguedTopic, first: int = 0) -> None:
        """Create the states of a new topic's partitions, beginning with number `first`, several in one write.

        The first request about a partition without a state takes several round trips, and other clients may append
        meanwhile. ListOffsets would then return a later end than that at its arrival. If Redis refuses, the first
        request creates the state.
        """
        topic = self._partitioned(created)
        tps = partitions_of(created.topic)[first:]
        try:
            forgotten = await self.catalogue.forgotten_ms()
            for at in range(0, len(tps), CREATED_AT_ONCE):
                calls = [
                    self._init_call(topic.partition(tp), forgotten) for tp in tps[at : at + CREATED_AT_ONCE]
                ]
                for reply in await self.redis.run_all(calls):
                    if isinstance(reply, Exception):
                        raise self.redis.failure(reply)
            await self.catalogue.stored(created.topic)
        except UnknownTopicOrPartition:
            # Another broker has deleted the topic in the meantime, possibly before there was a state to delete yet.
            await self.drop_topic(created)
        except KafkaError as error:
            fields = {"topic": created.topic.name, "error": error}
            logger.debug("partitions of %(topic)s are created at their first use: %(error)s", fields)

    def _init_call(self, partition: Partition, forgotten_ms: bytes) -> ScriptCall:
        """Return the call that creates a partition's state."""
        own = (partition.shared.created, forgotten_ms, partition.shared.created_ms)
        run_id = self.redis.run_id(partition.keys.stream)
        return ScriptCall(INIT, partition.keys.all, partition.arguments(run_id, *own))

    async def _check_catalogued(self, partition: Partition) -> None:
        catalogued = await self.catalogue.reload(partition.tp.topic)
        if catalogued is None or catalogued.topic.topic_id != partition.topic.topic_id:
            raise UnknownTopicOrPartition

    async def settle(self, partition: Partition) -> None:
        """Update the state for entries that other clients added or deleted, in steps of some milliseconds."""
        status = b"rescan"
        while status in (b"rescan", b"epoch"):
            if status == b"epoch":
                await self.leader_epochs.begin(self.redis.run_id(partition.keys.stream))
            (status,) = cast(
                Answer,
                await self.redis.run(SETTLE, partition.keys.log, partition.arguments, repeatable=True),
            )
        if status != b"ok" and not await self.prepare(partition, status):
            raise KafkaStorageError(f"{partition.tp} cannot be settled")

    async def drop(self, partition: Partition) -> None:
        """Delete a partition's keys, unless they belong to a later topic."""
        call = drop_call(partition)
        await self.redis.run(call.script, call.keys, call.args, repeatable=True)

    async def drop_topic(self, deleted: CataloguedTopic) -> None:
        """Delete the keys of all partitions of a topic that was removed from the catalogue, several in one write."""
        known = self._topics.get(deleted.topic.name)
        if known is not None and known.created == deleted.created:
            del self._topics[deleted.topic.name]
        dropped = self._partitioned(deleted)
        tps = partitions_of(deleted.topic)
        for first in range(0, len(tps), DROPPED_AT_ONCE):
            calls = [drop_call(dropped.partition(tp)) for tp in tps[first : first + DROPPED_AT_ONCE]]
            await self.redis.run_all(calls)


def drop_call(partition: Partition) -> ScriptCall:
    """Return the call that deletes a partition's keys, unless they belong to a later topic."""
    keys = (*partition.keys.all, partition.keys.shares, *partition.keys.compaction)
    return ScriptCall(DROP, keys, (partition.topic_id, partition.shared.created))
