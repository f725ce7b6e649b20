"""The committed offsets of all groups in the broker's memory, and those that transactions have staged.

The rules of staged offsets are in `korvet.storage.interface.GroupOffsets.stage`; `stage_offsets.lua` and
`settle_offsets.lua` apply the same rules in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import TypeVar

from attrs import define, evolve, field

from korvet.protocol.errors import (
    ConcurrentTransactions,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from korvet.storage.interface import OffsetAndMetadata, ProducerTransaction, TopicPartition, TransactionResult
from korvet.storage.memory_log import MemoryBudget
from korvet.storage.transaction_state import ENDED_KEPT, ENDED_KEPT_MS

# Bytes that a committed offset occupies besides its metadata.
OFFSET_COST = 600

T = TypeVar("T", OffsetAndMetadata, OffsetAndMetadata | None)


@define
class Staged:
    """The offsets that a transaction has staged; None for one that a plain commit has superseded."""

    number: int
    producer_epoch: int
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = field(factory=dict)


@define
class Offsets:
    """The offsets of one group. They are deleted with their topic, so they need not name its id."""

    generation_id: int = -1
    coordinator_epoch: int = 0
    committed: dict[TopicPartition, OffsetAndMetadata] = field(factory=dict)
    staged: dict[int, Staged] = field(factory=dict)  # by producer id
    ended: dict[int, tuple[int, int]] = field(factory=dict)  # producer id: transaction number, time in ms

    def check(self, generation_id: int, coordinator_epoch: int) -> None:
        """Raise NotCoordinator and IllegalGeneration if the group has a later coordinator or generation."""
        if 0 <= coordinator_epoch < self.coordinator_epoch:
            raise NotCoordinator
        if 0 <= generation_id < self.generation_id:
            raise IllegalGeneration

    def check_transaction(self, transaction: ProducerTransaction) -> None:
        """Raise unless the producer may stage offsets in that transaction."""
        producer_id, number = transaction.producer_id, transaction.number
        staged = self.staged.get(producer_id)
        latest = staged.number if staged is not None else 0
        if max(self.ended.get(producer_id, (0, 0))[0] + 1, latest) > number:
            raise InvalidTxnState(f"transaction {number} of producer {producer_id} has ended")
        if staged is None:
            return
        if staged.number < number:
            raise ConcurrentTransactions(
                f"transaction {staged.number} of producer {producer_id} has not ended"
            )
        if staged.producer_epoch > transaction.producer_epoch:
            raise InvalidProducerEpoch

    def remember_end(self, producer_id: int, number: int, now_ms: int) -> None:
        """Remember that the transaction has ended, and forget ends of long ago."""
        self.ended.pop(producer_id, None)
        self.ended[producer_id] = number, now_ms
        oldest = list(self.ended)[:-ENDED_KEPT]
        outdated = [each for each, (_, ended_ms) in self.ended.items() if ended_ms + ENDED_KEPT_MS < now_ms]
        for each in {*oldest, *outdated}:
            del self.ended[each]


def cost_of(offset: OffsetAndMetadata | None) -> int:
    return OFFSET_COST + (len(offset.metadata) if offset is not None else 0)


@define(eq=False)
class MemoryGroups:
    """Implements `GroupOffsets` for `MemoryStorage`. `is_there` returns True for an existing topic-partition."""

    budget: MemoryBudget
    clock: Callable[[], int]
    is_there: Callable[[TopicPartition], bool]
    _groups: dict[str, Offsets] = field(factory=dict)

    def fence(self, group_id: str) -> int:
        """Begin the epoch of another coordinator, and return it."""
        group = self._groups.setdefault(group_id, Offsets())
        group.coordinator_epoch += 1
        return group.coordinator_epoch

    def ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int,
        coordinator_epoch: int,
    ) -> dict[TopicPartition, KafkaError | None]:
        """See `GroupOffsets.ack`."""
        group = self._groups.get(group_id, Offsets())
        try:
            group.check(generation_id, coordinator_epoch)
        except KafkaError as error:
            return dict.fromkeys(offsets, error)
        group.generation_id = max(group.generation_id, generation_id)
        results = {tp: self._commit(group, tp, offset) for tp, offset in offsets.items()}
        if group.committed:
            self._groups[group_id] = group
        return results

    def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `GroupOffsets.committed`."""
        group = self._groups.get(group_id)
        if group is None:
            return {}
        if tps is None:
            return dict(group.committed)
        return {tp: group.committed[tp] for tp in tps if tp in group.committed}

    def stage(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        transaction: ProducerTransaction,
        *,
        generation_id: int,
        coordinator_epoch: int,
    ) -> dict[TopicPartition, KafkaError | None]:
        """See `GroupOffsets.stage`."""
        group = self._groups.get(group_id, Offsets())
        try:
            group.check(generation_id, coordinator_epoch)
            group.check_transaction(transaction)
        except KafkaError as error:
            return dict.fromkeys(offsets, error)
        group.generation_id = max(group.generation_id, generation_id)
        new = Staged(transaction.number, transaction.producer_epoch)
        staged = group.staged.get(transaction.producer_id, new)
        results = {tp: self._store(staged.offsets, tp, offset) for tp, offset in offsets.items()}
        if staged.offsets:
            group.staged[transaction.producer_id] = staged
            self._groups[group_id] = group
        return results

    def settle(self, group_id: str, *, producer_id: int, number: int, result: TransactionResult) -> None:
        """See `GroupOffsets.settle`."""
        group = self._groups.setdefault(group_id, Offsets())
        staged = group.staged.get(producer_id)
        if staged is not None and staged.number <= number:
            del group.staged[producer_id]
            self._settle(group, staged, is_committed=result is TransactionResult.COMMIT)
        if group.ended.get(producer_id, (0, 0))[0] < number:
            group.remember_end(producer_id, number, self.clock())

    def unstable(self, group_id: str, tps: Collection[TopicPartition] | None) -> Collection[TopicPartition]:
        """See `GroupOffsets.unstable`."""
        group = self._groups.get(group_id)
        if group is None or not group.staged:
            return ()
        found = {tp for staged in group.staged.values() for tp in staged.offsets}
        return found if tps is None else found.intersection(tps)

    def forget(self, group_id: str, tps: Collection[TopicPartition] | None) -> None:
        """See `GroupOffsets.forget`."""
        group = self._groups.get(group_id)
        if group is None:
            return
        if tps is None:
            tps = [*group.committed, *(tp for staged in group.staged.values() for tp in staged.offsets)]
            del self._groups[group_id]
        self._drop(group, tps)

    def forget_topic(self, topic: str) -> None:
        """Delete all groups' offsets in a topic."""
        for group in self._groups.values():
            staged = (tp for staged in group.staged.values() for tp in staged.offsets)
            self._drop(group, [tp for tp in (*group.committed, *staged) if tp.topic == topic])

    def _commit(self, group: Offsets, tp: TopicPartition, offset: OffsetAndMetadata) -> KafkaError | None:
        error = self._store(group.committed, tp, offset)
        if error is not None:
            return error
        for staged in group.staged.values():  # this commit is the later one (KAFKA-5247)
            if (superseded := staged.offsets.get(tp)) is not None:
                self.budget.give_back(cost_of(superseded) - cost_of(None))
                staged.offsets[tp] = None
        return None

    def _store(
        self, offsets: MutableMapping[TopicPartition, T], tp: TopicPartition, offset: OffsetAndMetadata
    ) -> KafkaError | None:
        """Store an offset that a client has sent, with the present time; return the error if it cannot be stored."""
        if not self.is_there(tp):
            return UnknownTopicOrPartition()
        try:
            self.budget.take(cost_of(offset))
        except KafkaError as error:
            return error
        self._replace(offsets, tp, evolve(offset, commit_timestamp_ms=self.clock()))
        return None

    def _settle(self, group: Offsets, staged: Staged, *, is_committed: bool) -> None:
        for tp, offset in staged.offsets.items():
            if is_committed and offset is not None and self.is_there(tp):
                self._replace(group.committed, tp, offset)
            else:
                self.budget.give_back(cost_of(offset))

    def _replace(self, offsets: MutableMapping[TopicPartition, T], tp: TopicPartition, offset: T) -> None:
        """Store an offset whose cost is taken already; give back that of the one that it replaces."""
        if tp in offsets:
            self.budget.give_back(cost_of(offsets[tp]))
        offsets[tp] = offset

    def _drop(self, group: Offsets, tps: Collection[TopicPartition]) -> None:
        self._drop_from(group.committed, tps)
        for staged in group.staged.values():
            self._drop_from(staged.offsets, tps)
        group.staged = {each: staged for each, staged in group.staged.items() if staged.offsets}

    def _drop_from(self, offsets: MutableMapping[TopicPartition, T], tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            if tp in offsets:
                self.budget.give_back(cost_of(offsets.pop(tp)))
