"""A broker's way to the store that all simulated brokers share: delays, and errors before and after the effect.

It behaves as the Redis backend does: appends are begun in order, and their results arrive later; a batch that follows a
failed one of its producer is refused; topics are cached, so they are always available.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from random import Random
from typing import Any
from uuid import UUID

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError, KafkaStorageError
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import AppendResults, PendingAppend, Storage, Topic, TopicPartition, Watch
from korvet.storage.memory import MemoryStorage

# The longest delay without faults, and the share of calls that have one; to simulate it takes time.
DELAY_S, DELAYED = 0.002, 0.4
# How long a call waits for a store that is cut off before it fails.
PATIENCE_S = 5.0


@define
class StoreFaults:
    """The faults of one broker's way to the store."""

    fails_before: float = 0.0  # the probability that a call fails without effect
    fails_after: float = 0.0  # the probability that a call has its effect, and its answer is lost
    delay_s: float = DELAY_S  # the longest delay in each direction
    is_cut: bool = False


def forwarded(name: str) -> Any:
    """Return a method that calls the store's method of the same name, with the faults of the way."""

    async def method(self: StoreLink, *args: object, **kwargs: object) -> object:
        return await self.call(lambda: getattr(self.store, name)(*args, **kwargs))

    return method


def forwarded_by_partition(name: str, argument: int) -> Any:
    """Return such a method that has a result for each partition of one of its arguments, also if the call fails."""

    async def method(self: StoreLink, *args: Any, **kwargs: object) -> object:
        try:
            return await self.call(lambda: getattr(self.store, name)(*args, **kwargs))
        except KafkaError as error:
            return dict.fromkeys(args[argument], error)

    return method


@define(eq=False)
class StoreLink(Storage):
    """See the module. A broker has a new one in each of its lives."""

    store: MemoryStorage
    faults: StoreFaults
    chance: Random
    description: str = "simulated"
    durability: str = "as long as the simulation"
    is_elsewhere: bool = True
    _order: trio.Lock = field(factory=trio.Lock)

    read = forwarded_by_partition("read", 0)
    sizes = forwarded_by_partition("sizes", 0)
    ack = forwarded_by_partition("ack", 1)
    earliest = forwarded("earliest")
    latest = forwarded("latest")
    seek_ts = forwarded("seek_ts")
    seek_max_ts = forwarded("seek_max_ts")
    epoch_end = forwarded("epoch_end")
    truncate_before = forwarded("truncate_before")
    enforce_retention = forwarded("enforce_retention")
    compact = forwarded("compact")
    fence = forwarded("fence")
    committed = forwarded("committed")
    forget = forwarded("forget")
    create_topic = forwarded("create_topic")
    alter_topic = forwarded("alter_topic")
    delete_topic = forwarded("delete_topic")
    load = forwarded("load")
    save = forwarded("save")
    documents = forwarded("documents")

    async def topics(self) -> Mapping[str, Topic]:
        return await self.store.topics()

    async def topic(self, name: str) -> Topic | None:
        return await self.store.topic(name)

    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return await self.store.topic_by_id(topic_id)

    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        return self.store.watch(tps)

    async def append(
        self, batches: Mapping[TopicPartition, RecordBatch], *, acks: int = -1, timeout_s: float = 30.0
    ) -> AppendResults:
        pending = await self.begin_append(batches, acks=acks, timeout_s=timeout_s)
        return await pending.wait()

    async def begin_append(
        self, batches: Mapping[TopicPartition, RecordBatch], *, acks: int = -1, timeout_s: float = 30.0
    ) -> LinkedAppend:
        refused: AppendResults = {}
        producers = {tp: ProducerBatch.of(batch) for tp, batch in batches.items()}
        async with self._order:
            for tp, batch in producers.items():
                try:
                    self.failed_sequences.check(tp, batch)
                except KafkaError as error:
                    refused[tp] = error
            passed = {tp: batch for tp, batch in batches.items() if tp not in refused}
            try:
                await self.reach()
                results = await self.store.append(passed, acks=acks, timeout_s=timeout_s)
            except KafkaError as error:
                results = dict.fromkeys(passed, error)
            for tp, result in results.items():
                if isinstance(result, KafkaError):
                    self.failed_sequences.note(tp, producers[tp], result)
        return LinkedAppend(self, producers, results, refused)

    async def call(self, call: Callable[[], Awaitable[object]]) -> object:
        """Call the store, with the delays and errors of the way."""
        await self.reach()
        result = await call()
        await self.answer()
        return result

    async def reach(self) -> None:
        """Take the time until a call reaches the store. Raises KafkaStorageError if it does not."""
        await self._pass(self.faults.fails_before)

    async def answer(self) -> None:
        """Take the time until the answer is back. Raises KafkaStorageError if it is lost."""
        await self._pass(self.faults.fails_after)

    async def _pass(self, failure: float) -> None:
        if self.faults.delay_s > DELAY_S or self.chance.random() < DELAYED:
            await trio.sleep(self.chance.random() * self.faults.delay_s)
        if self.faults.is_cut:
            await trio.sleep(PATIENCE_S)
        if self.faults.is_cut or (failure and self.chance.random() < failure):
            raise KafkaStorageError("the store does not answer")


@define(eq=False)
class LinkedAppend(PendingAppend):
    """An append whose batches are in the store, or refused, and whose answer is on its way."""

    link: StoreLink
    producers: Mapping[TopicPartition, ProducerBatch]
    results: AppendResults
    refused: AppendResults

    async def wait(self) -> AppendResults:
        try:
            await self.link.answer()
        except KafkaError as error:
            for tp in self.results:
                self.results[tp] = error
                self.link.failed_sequences.note(tp, self.producers[tp], error)
        return self.refused | self.results

    def abandon(self) -> None:
        pass  # the batches are in the store
