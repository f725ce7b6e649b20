"""The compaction worker: topics with `cleanup.policy=compact` keep the last record of each key.

Every `log.cleaner.backoff.ms` the worker goes through these topics, under a lease. The storage decides whether a
partition is dirty enough, and compacts it (`Storage.compact`). The first round includes the other topics: a broker that
was killed during a compaction may have left data in a topic whose `cleanup.policy` was changed since.
"""

from __future__ import annotations

import logging

import trio
from attrs import define, field

from korvet.config import Config
from korvet.maintenance.leases import Leases
from korvet.maintenance.retention import is_still_there
from korvet.protocol.errors import KafkaError
from korvet.storage.interface import Storage, Topic, TopicPartition

logger = logging.getLogger(__name__)

LEASE = "compaction"


@define(eq=False)
class CompactionWorker:
    """Compacts partitions. `run` never returns; start it under `korvet.concurrency.tasks.supervise`."""

    storage: Storage
    config: Config
    leases: Leases
    # For metrics: compactions, those that failed, the bytes they removed, and their time.
    compactions: int = 0
    errors: int = 0
    removed_bytes: int = 0
    seconds: float = 0.0
    # The last logged error of each partition. Each round retries the partition but logs only a different error.
    _failures: dict[TopicPartition, str] = field(factory=dict)

    async def run(self) -> None:
        """Compact partitions periodically while this broker holds the lease."""
        while True:
            await self.leases.while_held(LEASE, self._compact_now_and_then)

    async def _compact_now_and_then(self) -> None:
        has_checked_all = False
        while True:
            try:
                await self.compact_all(everywhere=not has_checked_all)
                has_checked_all = True
            except KafkaError as error:
                logger.warning("compaction: the topics cannot be listed: %(error)s", {"error": error.message})
            await trio.sleep(self.config.log_cleaner_backoff_ms / 1000)

    async def compact_all(self, *, everywhere: bool = False) -> None:
        """Compact every dirty partition of compacted topics; with `everywhere`, of all topics."""
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
                self.errors += 1
                self._say_once(tp, error.message)
            return
        self._failures.pop(tp, None)
        if result is not None:
            self.compactions += 1
            self.removed_bytes += max(result.size_before - result.size_after, 0)
            self.seconds += trio.current_time() - began_s
            # Only a smaller log is worth a line: without records to remove, new fields of the entries can enlarge it.
            logger.log(
                logging.INFO if result.size_after < result.size_before else logging.DEBUG,
                "compaction: %(topic)s-%(partition)d: every key once up to offset %(offset)d;"
                " %(before)s bytes have become %(after)s in %(seconds).1f s",
                {
                    **tp._asdict(),
                    "offset": result.end,
                    "before": f"{result.size_before:,}",
                    "after": f"{result.size_after:,}",
                    "seconds": trio.current_time() - began_s,
                },
            )
        await trio.lowlevel.checkpoint()

    def _say_once(self, tp: TopicPartition, message: str) -> None:
        if self._failures.get(tp) != message:
            self._failures[tp] = message
            fields = {**tp._asdict(), "error": message}
            logger.warning("compaction: %(topic)s-%(partition)d: %(error)s", fields)
