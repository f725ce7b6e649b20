"""The retention worker: trims partitions that receive no records. Other partitions are trimmed by appends.

It runs every `log.retention.check.interval.ms`, under a lease. The storage decides which records are dropped, by the
settings of the topic and its own clock. If a partition cannot be trimmed, the worker logs it and continues with the
others. Only archived records of a tiered topic are dropped, and none while the lake's archived offsets are unknown.
"""

from __future__ import annotations

import logging
import time

import trio
from attrs import define

from korvet.config import Config
from korvet.maintenance.leases import Leases
from korvet.protocol.errors import KafkaError
from korvet.storage.interface import Storage, Topic, TopicPartition
from korvet.tiered.log import Tiers

logger = logging.getLogger(__name__)

LEASE = "retention"
# The storage also checks retention at most this often during appends.
SHORTEST_INTERVAL_S = 1.0


@define(eq=False)
class RetentionWorker:
    """Enforces retention. `run` never returns; start it under `korvet.concurrency.tasks.supervise`."""

    storage: Storage
    config: Config
    leases: Leases
    log: Tiers  # has the archived offsets
    # For metrics: partitions that were trimmed, and those that could not be; the end of the last run, Unix time.
    trims: int = 0
    errors: int = 0
    last_run_s: float = 0.0

    async def run(self) -> None:
        """Trim all partitions periodically while this broker holds the lease."""
        while True:
            await self.leases.while_held(LEASE, self._trim_now_and_then)

    async def _trim_now_and_then(self) -> None:
        while True:
            await trio.sleep(max(SHORTEST_INTERVAL_S, self.config.log_retention_check_interval_ms / 1000))
            try:
                await self.trim_all()
            except KafkaError as error:
                logger.warning("retention: the topics cannot be listed: %(error)s", {"error": error.message})

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
        self.last_run_s = time.time()

    async def _trim(self, topic: Topic, tp: TopicPartition, up_to: int | None) -> None:
        try:
            start = await self.storage.enforce_retention(tp, up_to=up_to)
        except KafkaError as error:
            if await is_still_there(self.storage, topic):
                self.errors += 1
                fields = {**tp._asdict(), "error": error.message}
                logger.warning("retention: %(topic)s-%(partition)d cannot be trimmed: %(error)s", fields)
            return
        if start is not None:
            self.trims += 1
            fields = {**tp._asdict(), "offset": start}
            logger.info("retention: %(topic)s-%(partition)d: new log start offset %(offset)d", fields)
        await trio.lowlevel.checkpoint()


async def is_still_there(storage: Storage, topic: Topic) -> bool:
    """Return False if the topic has been deleted, which explains an error; True if it exists or that is unknown."""
    try:
        found = await storage.topic(topic.name)
    except KafkaError:
        return True
    return found is not None and found.topic_id == topic.topic_id
