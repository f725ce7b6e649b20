"""Find the open transactions of a cluster, in the partitions where consumers with `read_committed` wait for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from attrs import define, field, frozen

from korvet.client.client import Client
from korvet.client.isolation import READ_COMMITTED
from korvet.client.model import LATEST, TopicPartition
from korvet.client.transactions import (
    OpenTransaction,
    Transaction,
    hanging_of,
    known_transactions,
    open_transactions,
    will_end,
)

# Limit of the partitions whose producers are read at a time.
MOST_PARTITIONS = 100
# A coordinator is asked for a transaction in which nothing happened for this time. It may be that late itself.
IDLE_MS = 60_000
OPEN, HANGING, OVERDUE = "open", "hanging", "overdue"


@frozen
class ShownTransaction:
    """A transaction that is open in a partition. `transactional_id` is empty if it is unknown.

    Its state is that of its coordinator if nothing happened in it for IDLE_MS. Then it hangs if no coordinator will end
    it, and is overdue if it is open for longer than its timeout.
    """

    tp: TopicPartition
    offset: int
    producer_id: int
    idle_ms: int
    transactional_id: str = ""
    state: str = OPEN

    @property
    def is_stuck(self) -> bool:
        """True if consumers wait for longer than the transaction may last."""
        return self.state == HANGING or self.state.endswith(OVERDUE)


@frozen
class Found:
    """Open transactions, and reasons why there may be more."""

    transactions: tuple[ShownTransaction, ...]
    notes: tuple[str, ...] = ()

    @property
    def stuck(self) -> list[str]:
        """The partitions in which consumers wait for longer than a transaction may last, sorted."""
        return sorted({str(each.tp) for each in self.transactions if each.is_stuck})


@define(eq=False)
class OpenTransactions:
    """Finds the open transactions of one cluster, time after time."""

    client: Client
    patience_ms: int = IDLE_MS
    _ends: Mapping[TopicPartition, int] = field(factory=dict)
    _waiting: Collection[TopicPartition] = ()

    async def find(self, ends: Mapping[TopicPartition, int]) -> Found:
        """Return the transactions that are open below these ends, which were read before. Raises KafkaError."""
        # No transaction has begun if the end has not moved since it was the last stable offset.
        asked = [tp for tp, end in ends.items() if tp in self._waiting or self._ends.get(tp) != end]
        stable = await self.client.list_offsets(dict.fromkeys(asked, LATEST), isolation_level=READ_COMMITTED)
        waiting = {tp for tp, at in stable.items() if at.offset < ends[tp]}
        self._ends, self._waiting = ends, waiting
        notes = []
        if len(waiting) > MOST_PARTITIONS:
            notes.append(f"transactions of the first {MOST_PARTITIONS} of {len(waiting):,} partitions only")
        return Found(tuple(await self._described(sorted(waiting)[:MOST_PARTITIONS])), tuple(notes))

    async def _described(self, tps: Collection[TopicPartition]) -> list[ShownTransaction]:
        opened = await open_transactions(self.client, tps)
        now_ms = time.time_ns() // 1_000_000
        idle = [each for each in opened if each.idle_ms(now_ms) >= self.patience_ms]
        known = await known_transactions(self.client, {each.producer.producer_id for each in idle})
        hanging = await hanging_of(self.client, idle, known)
        return [
            shown(each, known.get(each.producer.producer_id), now_ms, is_hanging=each in hanging)
            for each in opened
        ]


def shown(
    opened: OpenTransaction, known: Transaction | None, now_ms: int, *, is_hanging: bool
) -> ShownTransaction:
    """Return what is shown of an open transaction, given what its coordinator knows."""
    state = HANGING if is_hanging else OPEN
    if not is_hanging and known is not None and will_end(opened, known):
        state = f"{known.state}, {OVERDUE}" if is_overdue(known, now_ms) else known.state
    return ShownTransaction(
        opened.tp,
        opened.producer.open_offset,
        opened.producer.producer_id,
        opened.idle_ms(now_ms),
        known.transactional_id if known is not None else "",
        state,
    )


def is_overdue(known: Transaction, now_ms: int) -> bool:
    """Return True if the transaction is open for IDLE_MS longer than its timeout."""
    open_ms = known.open_ms(now_ms)
    return open_ms is not None and open_ms > known.timeout_ms + IDLE_MS
