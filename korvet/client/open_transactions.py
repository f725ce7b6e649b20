"""Open transactions of a cluster, in the partitions where consumers with `read_committed` wait for them."""

from __future__ import annotations

import time
from collections.abc import Collection

from attrs import define, field, frozen

from korvet.client import Client
from korvet.client.model import TopicPartition
from korvet.client.transactions import (
    NO_OFFSET,
    OpenTransaction,
    Transaction,
    describe_producers,
    known_transactions,
    will_end,
)

# Limit of the partitions whose producers are read in one sample.
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


@define
class TransactionReader:
    """Reads the open transactions of one cluster, time after time."""

    client: Client
    patience_ms: int = IDLE_MS
    _suspects: set[OpenTransaction] = field(factory=set)  # which no coordinator had last time

    async def read(self, tps: Collection[TopicPartition]) -> list[ShownTransaction]:
        """Return the transactions that are open in these partitions. Raises KafkaError."""
        now_ms = time.time_ns() // 1_000_000
        opened = [
            OpenTransaction(tp, producer)
            for tp, producers in (await describe_producers(self.client, tps)).items()
            for producer in producers
            if producer.open_offset != NO_OFFSET
        ]
        idle = [each for each in opened if idle_ms(each, now_ms) >= self.patience_ms]
        ids = {each.producer.producer_id for each in idle}
        known = await known_transactions(self.client, ids) if ids else {}
        suspects = {each for each in idle if not will_end(each, known.get(each.producer.producer_id))}
        # One that ended between the two requests is open to the first one, and unknown to the second one.
        hanging, self._suspects = suspects & self._suspects, suspects
        return [
            shown(each, known.get(each.producer.producer_id), now_ms, is_hanging=each in hanging)
            for each in opened
        ]


def idle_ms(opened: OpenTransaction, now_ms: int) -> int:
    return max(0, now_ms - opened.producer.last_timestamp)


def shown(
    opened: OpenTransaction, known: Transaction | None, now_ms: int, *, is_hanging: bool
) -> ShownTransaction:
    """Return what is shown of an open transaction, given what its coordinator knows."""
    state = HANGING if is_hanging else OPEN
    if not is_hanging and known is not None and will_end(opened, known):
        open_ms = known.open_ms(now_ms) or 0
        state = f"{known.state}, {OVERDUE}" if open_ms > known.timeout_ms + IDLE_MS else known.state
    return ShownTransaction(
        opened.tp,
        opened.producer.open_offset,
        opened.producer.producer_id,
        idle_ms(opened, now_ms),
        known.transactional_id if known is not None else "",
        state,
    )
