"""The partitions a broker has to do with: found by name, brought up to date, called by script.

The scripts refuse a topic id that is not the partition's, so nothing crosses a deletion and recreation, however
late this broker learns of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from attrs import define, field

from korvet.protocol.errors import KafkaStorageError, UnknownTopicOrPartition
from korvet.storage.interface import StorageDefaults, TopicPartition
from korvet.storage.redis_caller import RedisCaller
from korvet.storage.redis_catalogue import Catalogue, CataloguedTopic, partitions_of
from korvet.storage.redis_connection import Script, ScriptCall
from korvet.storage.redis_keys import Keyspace
from korvet.storage.redis_partition import Partition, make_partition
from korvet.storage.redis_replies import Argument
from korvet.storage.redis_scripts import DROP, INIT, SETTLE

logger = logging.getLogger(__name__)

Answer = Sequence[bytes]

# How often in a row a script may find that somebody deleted the state, or wrote by hand.
ATTEMPTS = 10


@define(eq=False)
class Partitions:
    """All partitions that were asked for, as long as their topics are there."""

    redis: RedisCaller
    catalogue: Catalogue
    keyspace: Keyspace
    defaults: StorageDefaults
    _partitions: dict[TopicPartition, Partition] = field(factory=dict)

    def known(self, tp: TopicPartition) -> Partition | None:
        """The partition, if the catalogue as this broker knows it has it; asks nobody."""
        catalogued = self.catalogue.cached(tp.topic)
        if catalogued is None or not 0 <= tp.partition < catalogued.topic.partitions:
            return None
        return self._partition(catalogued, tp)

    async def find(self, tp: TopicPartition) -> Partition:
        """The partition. Raises UnknownTopicOrPartition, after a look at the store itself."""
        partition = self.known(tp)
        if partition is not None:
            return partition
        catalogued = await self.catalogue.reload(tp.topic)
        if catalogued is None or not 0 <= tp.partition < catalogued.topic.partitions:
            self._partitions.pop(tp, None)
            raise UnknownTopicOrPartition
        return self._partition(catalogued, tp)

    def _partition(self, catalogued: CataloguedTopic, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        topic, created = catalogued
        if partition is None or partition.created != created or partition.topic.topic_id != topic.topic_id:
            partition = make_partition(self.keyspace, self.defaults, topic, created, tp)
            self._partitions[tp] = partition
        elif partition.topic is not topic:
            partition.configure(topic)
        return partition

    async def has_stream(self, partition: Partition) -> bool:
        """Whether there is anything to look after: where nobody ever wrote, no state shall be made for it."""
        return bool(await self.redis.execute(b"EXISTS", partition.keys.stream, repeatable=True))

    # --- Scripts ----------------------------------------------------------------------------------------

    async def call(
        self, partition: Partition, script: Script, *own: Argument, more_keys: Sequence[bytes] = ()
    ) -> Answer:
        """A partition script's answer, after whatever had to be done first. All of them may be repeated.

        Raises UnknownTopicOrPartition when the topic with the partition's id is gone.
        """
        for _ in range(ATTEMPTS):
            answer = cast(
                Answer,
                await self.redis.run(
                    script, (*partition.keys.all, *more_keys), partition.arguments(*own), repeatable=True
                ),
            )
            if not await self.prepare(partition, answer[0]):
                return answer
        raise KafkaStorageError(f"{partition.tp} does not come to rest")

    async def prepare(self, partition: Partition, status: bytes) -> bool:
        """Do what a script demands before it can do its work; False if it was done already."""
        if status in (b"nostate", b"othertopic"):
            await self.revive(partition)
            return True
        if status == b"rescan":
            await self.settle(partition)
            return True
        return False

    async def revive(self, partition: Partition) -> None:
        """Make a partition's state, where the topic is still in the catalogue."""
        await self._check_catalogued(partition)
        arguments = partition.arguments(partition.created)
        answer = cast(Answer, await self.redis.run(INIT, partition.keys.all, arguments, repeatable=True))
        try:
            if answer[0] == b"deleted":
                raise UnknownTopicOrPartition
            # Deleted in the meantime, by somebody who found no state to delete yet?
            await self._check_catalogued(partition)
        except UnknownTopicOrPartition:
            await self.drop(partition)
            raise

    async def _check_catalogued(self, partition: Partition) -> None:
        catalogued = await self.catalogue.reload(partition.tp.topic)
        if catalogued is None or catalogued.topic.topic_id != partition.topic.topic_id:
            raise UnknownTopicOrPartition

    async def settle(self, partition: Partition) -> None:
        """Account for what others wrote or deleted, in steps of some milliseconds."""
        status = b"rescan"
        while status == b"rescan":
            (status,) = cast(
                Answer,
                await self.redis.run(SETTLE, partition.keys.all, partition.arguments(), repeatable=True),
            )
        if status != b"ok":
            await self.revive(partition)

    async def drop(self, partition: Partition) -> None:
        """Delete a partition's keys, unless a later topic has them."""
        arguments = (partition.topic_id, partition.created)
        keys = (*partition.keys.all, *partition.keys.compaction)
        await self.redis.run(DROP, keys, arguments, repeatable=True)

    async def drop_topic(self, deleted: CataloguedTopic) -> None:
        """Delete the keys of all partitions of a topic that is out of the catalogue."""
        calls = []
        for tp in partitions_of(deleted.topic):
            partition = make_partition(self.keyspace, self.defaults, *deleted, tp)
            arguments = (partition.topic_id, partition.created)
            calls.append(ScriptCall(DROP, (*partition.keys.all, *partition.keys.compaction), arguments))
            if tp in self._partitions and self._partitions[tp].created == deleted.created:
                del self._partitions[tp]
        await self.redis.run_all(calls, repeatable=True)
