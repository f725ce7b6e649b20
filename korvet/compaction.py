"""The worker that compacts: topics with `cleanup.policy=compact` keep the last record of each key.

Every `log.cleaner.backoff.ms` it goes through these topics, under a lease; whether a partition is dirty enough, and all
that compaction does, is the store's business (`Storage.compact`). When it begins it asks for the other topics, too: of
a broker that died in the middle something may be left in one that is not compacted any more.
"""

from __future__ import annotations

import logging

import trio
from attrs import define, field

from korvet.config import Config
from korvet.leases import Leases
from korvet.protocol.errors import KafkaError
from korvet.retention import is_still_there
from korvet.storage.interface import Storage, Topic, TopicPartition

logger = logging.getLogger(__name__)

LEASE = "compaction"


@define(eq=False)
class CompactionWorker:
    """`run` goes on for ever, and belongs under `korvet.tasks.supervise`."""

    storage: Storage
    config: Config
    leases: Leases
    # What was said last of a partition that cannot be compacted: it is tried again and again.
    _failures: dict[TopicPartition, str] = field(factory=dict)

    async def run(self) -> None:
        """Compact now and then, for as long as the lease is ours."""
        while True:
            await self.leases.while_held(LEASE, self._compact_now_and_then)

    async def _compact_now_and_then(self) -> None:
        has_looked_everywhere = False
        while True:
            try:
                await self.compact_all(everywhere=not has_looked_everywhere)
                has_looked_everywhere = True
            except KafkaError as error:
                logger.warning("compaction: the topics cannot be listed: %s", error.message)
            await trio.sleep(self.config.log_cleaner_backoff_ms / 1000)

    async def compact_all(self, *, everywhere: bool = False) -> None:
        """Compact every partition that is due."""
        topics = await self.storage.topics()
        for topic in list(topics.values()):
            if not everywhere and not topic.config.is_compacted:
                continue
            for number in range(topic.partitions):
                await self._compact(topic, TopicPartition(topic.name, number))

    async def _compact(self, topic: Topic, tp: TopicPartition) -> None:
        began_s = trio.current_time()
        try:
            result = await self.storage.compact(tp)
        except KafkaError as error:
            if await is_still_there(self.storage, topic):
                self._say_once(tp, error.message)
            return
        self._failures.pop(tp, None)
        if result is not None:
            # A log that shrank is news; one that had nothing to remove may even grow by its entries' fields.
            logger.log(
                logging.INFO if result.size_after < result.size_before else logging.DEBUG,
                "compaction: %s-%d: every key once up to offset %d; %s bytes have become %s in %.1f s",
                *tp,
                result.end,
                f"{result.size_before:,}",
                f"{result.size_after:,}",
                trio.current_time() - began_s,
            )
        await trio.lowlevel.checkpoint()

    def _say_once(self, tp: TopicPartition, message: str) -> None:
        if self._failures.get(tp) != message:
            self._failures[tp] = message
            logger.warning("compaction: %s-%d: %s", *tp, message)
