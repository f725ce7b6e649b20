"""The search for transactions that hang: open in a partition for longer than any transaction may last.

The coordinator of a transaction aborts it when its timeout has passed. One that stays open has no coordinator any more:
the store has lost its document, or a tool has written to the partition. Consumers with `read_committed` wait for it.
The broker that holds the lease searches every INTERVAL_S, and logs each of them once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio
from attrs import define, field, frozen

from korvet.config import Config
from korvet.maintenance.leases import Leases
from korvet.protocol.errors import KafkaError, UnknownTopicOrPartition
from korvet.storage.interface import ActiveProducer, Storage, TopicPartition

logger = logging.getLogger(__name__)

LEASE = "hanging-transactions"
INTERVAL_S = 300.0
# A coordinator may be this late: it starts, or the store is away.
SLACK_MS = 300_000
NO_OFFSET = -1


@frozen
class Hanging:
    """A transaction that hangs: its producer, and its first offset in a partition."""

    tp: TopicPartition
    producer_id: int
    offset: int


@define(eq=False)
class HangingTransactions:
    """Finds them. `run` never returns; start it under `korvet.concurrency.tasks.supervise`.

    `clock` returns milliseconds since 1970.
    """

    storage: Storage
    config: Config
    leases: Leases
    clock: Callable[[], int]
    found: set[Hanging] = field(factory=set)  # by the last search, while this broker holds the lease

    async def run(self) -> None:
        """Search periodically while this broker holds the lease."""
        while True:
            await self.leases.while_held(LEASE, self._search_now_and_then)

    async def _search_now_and_then(self) -> None:
        try:
            while True:
                await trio.sleep(INTERVAL_S)
                try:
                    await self.search()
                except KafkaError as error:
                    logger.warning(
                        "hanging transactions cannot be searched for: %(error)s", {"error": error.message}
                    )
        finally:
            self.found = set()  # another broker goes on

    async def search(self) -> None:
        """Search all partitions, and log what hangs since the last time. Raises KafkaError."""
        found: set[Hanging] = set()
        for topic in list((await self.storage.topics()).values()):
            for number in range(topic.partitions):
                found |= await self._search_in(TopicPartition(topic.name, number))
        for each in sorted(found - self.found, key=lambda each: (each.tp, each.offset)):
            fields = {**each.tp._asdict(), "producer_id": each.producer_id, "offset": each.offset}
            logger.warning(
                "%(topic)s-%(partition)d: the transaction of producer %(producer_id)d from offset %(offset)d on"
                " seems to hang: nothing happened in it for longer than transaction.max.timeout.ms, and consumers"
                " with read_committed wait. See korvet transactions find-hanging",
                fields,
            )
        self.found = found

    async def _search_in(self, tp: TopicPartition) -> set[Hanging]:
        await trio.lowlevel.checkpoint()
        try:
            bounds = await self.storage.latest(tp)
            if bounds.last_stable_offset == bounds.high_watermark:
                return set()
            producers = await self.storage.active_producers(tp)
        except UnknownTopicOrPartition:  # it was deleted meanwhile
            return set()
        return {
            Hanging(tp, each.producer_id, each.current_txn_start_offset)
            for each in producers
            if self._hangs(each)
        }

    def _hangs(self, producer: ActiveProducer) -> bool:
        if producer.current_txn_start_offset == NO_OFFSET:
            return False
        idle_ms = self.clock() - producer.last_timestamp
        return idle_ms > self.config.transaction_max_timeout_ms + SLACK_MS
