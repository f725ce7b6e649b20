"""Remember the idempotent producers of a partition (KIP-98, KIP-360); callers pass the time.

A producer numbers its records per partition; a batch carries the number of its first record, and its count. The
partition remembers, per producer id, the epoch and the last five batches. If a batch is sent again because its answer
was lost, the partition detects the duplicate and returns the first answer. The rules are those of Apache
Kafka (ProducerStateManager and ProducerAppendInfo), in this order:

1. A batch with the epoch, first and last sequence of one of the last five is a duplicate of it.
2. A lower epoch than the one remembered is refused: InvalidProducerEpoch.
3. A higher epoch begins with sequence 0, or is refused: OutOfOrderSequenceNumber.
4. The same epoch goes on with the next sequence, or is refused: OutOfOrderSequenceNumber. After 2^31 - 1 comes 0. If a
   transaction's marker has raised the epoch, 0 is next.
5. An unknown producer id begins with sequence 0, or is refused: OutOfOrderSequenceNumber. If the partition may have
   forgotten it, it begins anywhere. A partition may have forgotten every id given out before `complete_from`: before a
   producer last expired, a topic was last deleted, or a broker opened the store. An id contains its time.

There are two differences from Kafka. In Kafka a producer expires by the timestamps of its records, so that a producer
of replayed old records expires immediately; here it expires by the time of its last append. In Kafka every unknown
producer begins anywhere: a batch whose predecessor failed is then stored, and clients take the predecessor for stored,
too.

The contract suite checks these rules for backends that apply them elsewhere, in a script beside the data. If several
batches of one producer arrive together, each is checked after its predecessor was remembered.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from attrs import define, field

from korvet.protocol.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber

# A producer has at most five requests in flight (max.in.flight.requests.per.connection).
BATCHES_REMEMBERED = 5
MAX_SEQUENCE = 2**31 - 1
# A producer id is the time of its assignment, in units of 64 ms since 2020, and 19 more bits. So ids never repeat, even
# if the store loses its last ones, and are below 2^53 until 2054: Lua and JavaScript store them in doubles.
ID_EPOCH_MS = 1_577_836_800_000
ID_UNIT_MS = 64
ID_LOW_BITS = 19
# Approximate bytes of one producer with its batches, for backends that count their memory.
PRODUCER_COST = 900


class AppendedBatch(NamedTuple):
    """The sequences of an appended batch, and the answer to its append."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    log_append_time_ms: int = -1


def producer_id_at(now_ms: int) -> int:
    """Return the lowest producer id that is given out at that time."""
    return max(0, now_ms - ID_EPOCH_MS) // ID_UNIT_MS << ID_LOW_BITS


def next_sequence(sequence: int) -> int:
    """Return the sequence number after `sequence`; they have 31 bits and wrap around to 0."""
    return (sequence + 1) & MAX_SEQUENCE


@define
class Producer:
    """One producer id in one partition."""

    epoch: int
    last_append_ms: int
    batches: deque[AppendedBatch] = field(factory=lambda: deque(maxlen=BATCHES_REMEMBERED))

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record under this epoch; -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else -1

    def duplicate_of(self, epoch: int, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        """Return the remembered batch with the same epoch and sequences, or None."""
        if epoch != self.epoch:
            return None
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def check(self, producer_id: int, epoch: int, first_sequence: int) -> None:
        """Raise unless a batch that is not a duplicate may follow."""
        if epoch < self.epoch:
            message = f"producer {producer_id} has epoch {self.epoch} by now; a batch came with {epoch}"
            raise InvalidProducerEpoch(message)

        expected = 0
        if epoch == self.epoch and self.batches:
            expected = next_sequence(self.batches[-1].last_sequence)
        if first_sequence != expected:
            message = (
                f"a batch of producer {producer_id}, epoch {epoch}, begins with sequence {first_sequence}; "
                f"{expected} comes next"
            )
            raise OutOfOrderSequenceNumber(message)


@define
class ProducerStates:
    """All producers of one partition."""

    expiration_ms: int
    complete_from: int = 0  # every producer with at least this id is remembered
    # Ordered by the last append, so the first one expires first. A clock that steps backwards can break that order; the
    # first producer then delays the removal of the others, and `_known` checks each producer's own time.
    producers: dict[int, Producer] = field(factory=dict)

    def __len__(self) -> int:
        return len(self.producers)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, *, now_ms: int
    ) -> AppendedBatch | None:
        """Return None if the batch may be appended, or the earlier batch if it is a duplicate. Change nothing.

        Raise InvalidProducerEpoch and OutOfOrderSequenceNumber.
        """
        producer = self._known(producer_id, now_ms)
        if producer is None:
            self._check_unknown(producer_id, first_sequence)
            return None

        duplicate = producer.duplicate_of(epoch, first_sequence, last_sequence)
        if duplicate is None:
            producer.check(producer_id, epoch, first_sequence)
        return duplicate

    def remember(self, producer_id: int, epoch: int, batch: AppendedBatch, *, now_ms: int) -> None:
        """Remember a batch that `check` has accepted and that was appended."""
        producer = self._known(producer_id, now_ms)
        if producer is None or producer.epoch != epoch:
            producer = Producer(epoch, now_ms)
        producer.batches.append(batch)
        producer.last_append_ms = now_ms
        self.producers.pop(producer_id, None)
        self.producers[producer_id] = producer

    def epoch_of(self, producer_id: int, now_ms: int) -> int:
        """Return the producer's epoch, or -1 if the partition does not know the producer."""
        producer = self._known(producer_id, now_ms)
        return -1 if producer is None else producer.epoch

    def may_have_forgotten(self, producer_id: int) -> bool:
        """Return True if the producer, which the partition does not know, may have appended before."""
        return producer_id < self.complete_from or producer_id in self.producers

    def raise_epoch(self, producer_id: int, epoch: int, *, now_ms: int) -> None:
        """Remember the producer's epoch, which a marker has raised: its batches begin with sequence 0 again."""
        self.producers.pop(producer_id, None)
        self.producers[producer_id] = Producer(epoch, now_ms)

    def expire(self, now_ms: int) -> int:
        """Forget producers without appends for `expiration_ms`; return their number."""
        expired = []
        for producer_id, producer in self.producers.items():
            if not self._expired(producer, now_ms):
                break
            expired.append(producer_id)
        for producer_id in expired:
            del self.producers[producer_id]
        if expired:
            self.complete_from = producer_id_at(now_ms)
        return len(expired)

    def _check_unknown(self, producer_id: int, first_sequence: int) -> None:
        if first_sequence != 0 and not self.may_have_forgotten(producer_id):
            message = (
                f"the first batch of producer {producer_id} has sequence {first_sequence}; 0 comes first"
            )
            raise OutOfOrderSequenceNumber(message)

    def _known(self, producer_id: int, now_ms: int) -> Producer | None:
        producer = self.producers.get(producer_id)
        return None if producer is None or self._expired(producer, now_ms) else producer

    def _expired(self, producer: Producer, now_ms: int) -> bool:
        return now_ms - producer.last_append_ms >= self.expiration_ms
