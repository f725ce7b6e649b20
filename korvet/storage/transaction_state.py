"""The transactions of a partition (KIP-98, KIP-890): the rules, which are pure; callers pass the time.

A transaction has a number, which rises with each transaction of its producer. The partition remembers the last
transaction of each producer: open from its first batch on, ended by a marker. Rules for a batch, after those of
`korvet.storage.producer_state`:

1. A batch of a transaction belongs to the open one if the numbers are equal. A higher number begins a transaction, if
   the one before has ended: otherwise TransactionBehind. If the number's transaction has ended, or a later one has
   begun: TransactionEnded, which fences late batches of clients whose epoch does not rise (transaction.version 1).
2. Under transaction.version 2 the first batch of a transaction has sequence 0, or is refused:
   OutOfOrderSequenceNumber.
3. A plain batch of a producer whose transaction is open is refused: InvalidTxnState.

Rules for a marker, in this order:

1. If its transaction has ended, or a later one has begun, nothing is written.
2. An epoch below the known one is refused: InvalidProducerEpoch. A marker without number under transaction.version 2
   needs a higher epoch, unless no transaction is open.
3. A coordinator epoch below that of the last marker is refused: TransactionCoordinatorFenced.
4. If an earlier transaction of the producer is open, TransactionBehind: the marker would end that one.
5. Otherwise the marker is written, also if the transaction has no records here.

The last stable offset is the first offset of the oldest open transaction. Readers with `read_committed` end there, and
get a list of the aborted transactions of what they have read. Each entry has the `stable` offset after the abort:
transactions that are aborted later begin there or above it, which bounds the search.

Redis applies the same rules in a script (`append.lua`); the contract suite compares both.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from attrs import define, field

from korvet.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from korvet.storage.interface import TransactionBehind, TransactionEnded
from korvet.storage.values import AbortedTransaction, Marker, TransactionNumber, TransactionResult

# The time for which a group remembers that a transaction has ended, and the number of transactions that it remembers.
# Offsets that arrive later for one of them are refused.
ENDED_KEPT_MS = 600_000
ENDED_KEPT = 500
# Approximate bytes of a transaction and of an aborted one, for backends that count their memory.
TRANSACTION_COST = 300
ABORTED_COST = 150


@define
class PartitionTransaction:
    """The open transaction of a producer in a partition, or its last one."""

    number: int
    producer_epoch: int
    coordinator_epoch: int  # of the producer's last marker; -1 if there is none
    first_offset: int  # of its first record; -1 if it has none
    result: TransactionResult | None  # None: it is open
    changed_ms: int

    @property
    def is_open(self) -> bool:
        return self.result is None

    def has_passed(self, number: int) -> bool:
        """Return True if the transaction of that number has ended, or a later one has begun."""
        return self.number > number or (self.number == number and not self.is_open)


class Aborted(NamedTuple):
    """An aborted transaction that has records in the partition."""

    marker_offset: int
    producer_id: int
    first_offset: int
    stable: int  # the first unstable offset after the abort


@define
class TransactionStates:
    """All transactions of one partition that it remembers."""

    transactions: dict[int, PartitionTransaction] = field(factory=dict)  # by producer id
    # First offsets by producer id, in the order of the offsets.
    open: dict[int, int] = field(factory=dict)
    aborted: list[Aborted] = field(factory=list)  # by marker offset

    @property
    def first_open(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self.open.values()), None)

    @property
    def cost(self) -> int:
        """Approximate bytes of the transactions in memory."""
        return len(self.transactions) * TRANSACTION_COST + len(self.aborted) * ABORTED_COST

    def known_epoch(self, producer_id: int, epoch: int) -> int:
        """Return the producer's known epoch, given the one that the producers' state has, or -1."""
        known = self.transactions.get(producer_id)
        return epoch if known is None else max(epoch, known.producer_epoch)

    # --- Batches ----------------------------------------------------------------------------------------

    def check_batch(
        self, producer_id: int, epoch: int, first_sequence: int, transaction: TransactionNumber
    ) -> None:
        """Raise unless a batch of the transaction may be appended. Change nothing."""
        last = self.transactions.get(producer_id)
        if last is not None:
            if epoch < last.producer_epoch:
                raise InvalidProducerEpoch(
                    f"producer {producer_id} has epoch {last.producer_epoch} by now; a batch came with {epoch}"
                )
            if last.is_open and last.number == transaction.number:
                return
            if last.has_passed(transaction.number):
                raise TransactionEnded
            if last.is_open:
                raise TransactionBehind
        if transaction.version >= 2 and first_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id} begins a transaction with sequence {first_sequence}; 0 comes first"
            )

    def check_plain_batch(self, producer_id: int) -> None:
        """Raise InvalidTxnState if the producer has an open transaction."""
        if producer_id in self.open:
            raise InvalidTxnState(f"producer {producer_id} has an open transaction in the partition")

    def note_batch(self, producer_id: int, epoch: int, number: int, base_offset: int, now_ms: int) -> None:
        """Note a batch that `check_batch` has accepted and that was appended."""
        last = self.transactions.get(producer_id)
        if last is not None and last.is_open:
            last.producer_epoch, last.changed_ms = epoch, now_ms
            return
        coordinator_epoch = -1 if last is None else last.coordinator_epoch
        self._put(
            producer_id,
            PartitionTransaction(number, epoch, coordinator_epoch, base_offset, None, now_ms),
        )
        self.open[producer_id] = base_offset

    # --- Markers ----------------------------------------------------------------------------------------

    def has_ended(self, marker: Marker) -> bool:
        """Return True if the marker's transaction has ended, so that nothing is to be written."""
        last = self.transactions.get(marker.producer_id)
        return marker.number >= 0 and last is not None and last.has_passed(marker.number)

    def check_marker(self, marker: Marker, known_epoch: int) -> None:
        """Raise unless a marker whose transaction has not ended may be written. Change nothing.

        `known_epoch` is the producer's, or -1.
        """
        last = self.transactions.get(marker.producer_id)
        known_epoch = self.known_epoch(marker.producer_id, known_epoch)
        is_open = last is not None and last.is_open
        needs_higher_epoch = is_open and marker.number < 0 and marker.version >= 2
        if marker.producer_epoch < known_epoch + needs_higher_epoch:
            raise InvalidProducerEpoch(
                f"producer {marker.producer_id} has epoch {known_epoch}; a marker came with {marker.producer_epoch}"
            )
        if last is not None and marker.coordinator_epoch < last.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a coordinator with epoch {last.coordinator_epoch} has written markers of producer "
                f"{marker.producer_id}; a marker came with {marker.coordinator_epoch}"
            )
        if last is not None and is_open and 0 <= marker.number != last.number:
            raise TransactionBehind

    def note_marker(self, marker: Marker, offset: int, now_ms: int) -> None:
        """Note a marker that `check_marker` has accepted and that was written at that offset."""
        last = self.transactions.get(marker.producer_id)
        first_offset = self.open.pop(marker.producer_id, -1)
        number = marker.number if marker.number >= 0 or last is None else last.number
        self._put(
            marker.producer_id,
            PartitionTransaction(
                number, marker.producer_epoch, marker.coordinator_epoch, first_offset, marker.result, now_ms
            ),
        )
        if marker.result is TransactionResult.ABORT and first_offset >= 0:
            first_open = self.first_open
            stable = offset + 1 if first_open is None else first_open
            self.aborted.append(Aborted(offset, marker.producer_id, first_offset, stable))

    def _put(self, producer_id: int, transaction: PartitionTransaction) -> None:
        """Store a producer's transaction as the last changed one, since the first ones expire first."""
        self.transactions.pop(producer_id, None)
        self.transactions[producer_id] = transaction

    # --- Reading ----------------------------------------------------------------------------------------

    def aborted_between(self, offset: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records or a marker in [offset, end)."""
        found = []
        for at in range(
            bisect_left(self.aborted, offset, key=attrgetter("marker_offset")), len(self.aborted)
        ):
            aborted = self.aborted[at]
            if aborted.first_offset < end:
                found.append(AbortedTransaction(aborted.producer_id, aborted.first_offset))
            if aborted.stable >= end:
                break
        return found

    # --- Dropping ---------------------------------------------------------------------------------------

    def drop_before(self, offset: int) -> None:
        """Drop the aborted transactions whose records and markers are all below `offset`."""
        del self.aborted[: bisect_left(self.aborted, offset, key=attrgetter("marker_offset"))]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget ended transactions that were not changed for `expiration_ms`."""
        expired = []
        for producer_id, each in self.transactions.items():
            if now_ms - each.changed_ms < expiration_ms:
                break
            if not each.is_open:
                expired.append(producer_id)
        for producer_id in expired:
            del self.transactions[producer_id]
