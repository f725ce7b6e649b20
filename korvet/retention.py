"""The worker that trims partitions nobody writes to; those that are written to are trimmed as they grow.

Every `log.retention.check.interval.ms`, under a lease. What is dropped is the store's to say, by the settings of the
topic and its own clock; a partition that cannot be trimmed is logged, and does not hold up the others. Of a tiered
topic only what is archived is dropped, and nothing while the lake cannot tell what that is.
"""

from __future__ import annotations

import logging

import trio
from attrs import define

from korvet.config import Config
from korvet.leases import Leases
from korvet.protocol.errors import KafkaError
from korvet.storage.interface import Storage, Topic, TopicPartition
from korvet.tiers import Tiers

logger = logging.getLogger(__name__)

LEASE = "retention"
# An append does not look more often, either.
SHORTEST_INTERVAL_S = 1.0


@define(eq=False)
class RetentionWorker:
    """`run` goes on for ever, and belongs under `korvet.tasks.supervise`."""

    storage: Storage
    config: Config
    leases: Leases
    log: Tiers  # knows what is archived

    async def run(self) -> None:
        """Trim now and then, for as long as the lease is ours."""
        while True:
            await self.leases.while_held(LEASE, self._trim_now_and_then)

    async def _trim_now_and_then(self) -> None:
        while True:
            await trio.sleep(max(SHORTEST_INTERVAL_S, self.config.log_retention_check_interval_ms / 1000))
            try:
                await self.trim_all()
            except KafkaError as error:
                logger.warning("retention: the topics cannot be listed: %s", error.message)

    async def trim_all(self) -> None:
        """Trim every partition once."""
        topics = await self.storage.topics()
        for topic in list(topics.values()):
            if topic.config.retention_ms < 0 and topic.config.retention_bytes < 0:
                continue
            archived = await self.log.trimmable(topic) if topic.config.is_tiered else None
            for number in range(topic.partitions):
                up_to = None if archived is None else archived.get(number, 0)
                await self._trim(topic, TopicPartition(topic.name, number), up_to)

    async def _trim(self, topic: Topic, tp: TopicPartition, up_to: int | None) -> None:
        try:
            start = await self.storage.enforce_retention(tp, up_to=up_to)
        except KafkaError as error:
            if await is_still_there(self.storage, topic):
                logger.warning("retention: %s-%d cannot be trimmed: %s", *tp, error.message)
            return
        if start is not None:
            logger.info("retention: %s-%d begins at offset %d now", *tp, start)
        await trio.lowlevel.checkpoint()


async def is_still_there(storage: Storage, topic: Topic) -> bool:
    """Whether a topic that something failed in was not simply deleted meanwhile."""
    try:
        found = await storage.topic(topic.name)
    except KafkaError:
        return True
    return found is not None and found.topic_id == topic.topic_id
