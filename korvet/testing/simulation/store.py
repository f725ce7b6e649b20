"""A broker's way to the store that all simulated brokers share: delays, and errors before and after the effect.

It behaves as the Redis backend does: appends are begun in order, and their results arrive later; a batch that follows a
failed one of its producer is refused; topics are cached, so they are always available.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError, KafkaStorageError
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import FailedSequences, ProducerBatch
from korvet.storage.interface import (
    NO_TRANSACTIONS,
    AppendResults,
    DocumentWatch,
    PendingAppend,
    TopicPartition,
    Transactions,
)
from korvet.storage.memory import MemoryStorage
from korvet.storage.proxy import StorageProxy

# Documents are read again after this time, even if none was announced.
LOOK_AGAIN_S = 600.0
# The longest delay without faults, and the share of calls that have one; to simulate it takes time.
DELAY_S, DELAYED = 0.002, 0.4
# Time after which a call to a store that is cut off fails.
PATIENCE_S = 5.0


@define(eq=False)
class SharedStore(MemoryStorage):
    """A store that several brokers use, which notifies them of announced documents as Redis does."""

    _announced: dict[str, trio.Event] = field(factory=dict)

    async def announce(self, kind: str) -> None:
        if (event := self._announced.pop(kind, None)) is not None:
            event.set()

    def watch_documents(self, kind: str) -> AbstractContextManager[DocumentWatch]:
        return nullcontext(Announcements(self, kind))

    def next_announcement(self, kind: str) -> trio.Event:
        """Return the event that is set when documents of that kind are announced next."""
        return self._announced.setdefault(kind, trio.Event())


class Announcements:
    """The watch of documents in a shared store."""

    def __init__(self, store: SharedStore, kind: str) -> None:
        self._store, self._kind = store, kind
        self._next = store.next_announcement(kind)

    async def wait(self) -> None:
        with trio.move_on_after(LOOK_AGAIN_S):
            await self._next.wait()
        self._next = self._store.next_announcement(self._kind)


@define
class StoreFaults:
    """The faults of one broker's way to the store."""

    fails_before: float = 0.0  # the probability that a call fails without effect
    fails_after: float = 0.0  # the probability that a call has its effect, and its answer is lost
    delay_s: float = DELAY_S  # the longest delay in each direction
    is_cut: bool = False


# Methods with a result for each partition of one of their arguments, also if the call fails; the argument's index.
BY_PARTITION = {"read": 0, "sizes": 0, "ack": 1, "stage": 1, "write_markers": 0}
# Methods that a broker answers from its memory.
CACHED = {"topics", "topic", "topic_by_id"}


@define(eq=False)
class StoreLink(StorageProxy):
    """See the module. A broker has a new one in each of its lives."""

    storage: SharedStore
    faults: StoreFaults
    chance: Random
    #: `after_passes` is called instead of that call or answer, counted from now; never if it is 0.
    passes_left: int = 0
    after_passes: Callable[[], None] = lambda: None
    failed_sequences: FailedSequences = field(factory=FailedSequences)
    _order: trio.Lock = field(factory=trio.Lock)

    @property
    def is_elsewhere(self) -> bool:  # type: ignore[override]  # read only
        return True

    async def append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults:
        pending = await self.begin_append(batches, acks=acks, timeout_s=timeout_s, transactions=transactions)
        return await pending.wait()

    async def begin_append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
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
                results = await self.storage.append(
                    passed, acks=acks, timeout_s=timeout_s, transactions=transactions
                )
            except KafkaError as error:
                results = dict.fromkeys(passed, error)
            for tp, result in results.items():
                if isinstance(result, KafkaError):
                    self.failed_sequences.note(tp, producers[tp], result)
        return LinkedAppend(self, producers, results, refused)

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the store, with the delays and errors of the way."""
        if name in CACHED:
            return await super().call(name, args, kwargs)
        try:
            await self.reach()
            result = await super().call(name, args, kwargs)
            await self.answer()
        except KafkaError as error:
            if name not in BY_PARTITION:
                raise
            return dict.fromkeys(args[BY_PARTITION[name]], error)
        return result

    async def reach(self) -> None:
        """Take the time until a call reaches the store. Raises KafkaStorageError if it does not."""
        await self._pass(self.faults.fails_before)

    async def answer(self) -> None:
        """Take the time until the answer is back. Raises KafkaStorageError if it is lost."""
        await self._pass(self.faults.fails_after)

    async def _pass(self, failure: float) -> None:
        if self.passes_left:
            self.passes_left -= 1
            if not self.passes_left:
                self.after_passes()
                raise KafkaStorageError("the broker ends before this")
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
