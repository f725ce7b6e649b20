"""The idempotent producers' batches that failed, so that no later batch of the same producer overtakes them.

A producer has several batches of a partition in flight. If the first one fails and the second one is stored, librdkafka
takes the first one for stored, too. So after a failure that clients retry, a backend refuses the later batches of the
same producer, epoch and partition with the same error, until the failed batch arrives again.

A producer may also give up the failed batch. It then sends a refused batch again without the failed one before it. That
batch passes, and the rules of `korvet.storage.producer_state` decide.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Self

from attrs import define

from korvet.protocol.errors import CorruptMessage, KafkaError, NotEnoughReplicasAfterAppend
from korvet.protocol.record_batch import RecordBatch

# Failures kept; the oldest is dropped first. A failure takes about 500 bytes.
MAX_FAILURES = 10_000
SEQUENCES = 2**31
# After these, a later batch may be stored: the failed one is stored, or its header, and so its producer, is unreliable.
HARMLESS = (NotEnoughReplicasAfterAppend, CorruptMessage)


class ProducerBatch(NamedTuple):
    """The header fields that identify a producer's batch. The producer id is -1 without idempotence."""

    producer_id: int
    epoch: int
    sequence: int  # of the first record

    @classmethod
    def of(cls, batch: RecordBatch) -> Self:
        return cls(batch.producer_id, batch.producer_epoch, batch.base_sequence)


@define
class Failure:
    """The earliest failed batch of a producer in one partition."""

    batch: ProducerBatch
    error: KafkaError
    last_refused: int  # the sequence of the last batch that was refused because of it

    def precedes(self, batch: ProducerBatch) -> bool:
        """Return True if a batch that failed does not replace this failure."""
        if batch.epoch != self.batch.epoch:
            return batch.epoch < self.batch.epoch
        return is_later(batch.sequence, self.batch.sequence)


class FailedSequences(dict[tuple[Hashable, int], Failure]):
    """The failures in all partitions of a storage, by partition and producer id."""

    def __init__(self, max_failures: int = MAX_FAILURES) -> None:
        super().__init__()
        self.max_failures = max_failures

    def check(self, tp: Hashable, batch: ProducerBatch) -> None:
        """Raise the earlier batch's error if `batch` must not overtake it."""
        key = tp, batch.producer_id
        failure = self.get(key)
        if failure is None or batch.epoch < failure.batch.epoch:
            return
        if batch.epoch == failure.batch.epoch:
            if is_later(batch.sequence, failure.last_refused):
                failure.last_refused = batch.sequence
                raise type(failure.error)(failure.error.message)
            if is_later(failure.batch.sequence, batch.sequence):
                return
        del self[key]

    def note(self, tp: Hashable, batch: ProducerBatch, error: KafkaError) -> None:
        """Remember a batch that failed, if clients retry the error and nothing of the batch is stored for certain."""
        if batch.producer_id < 0 or not error.retriable or isinstance(error, HARMLESS):
            return
        key = tp, batch.producer_id
        failure = self.pop(key, None)
        if failure is None or not failure.precedes(batch):
            # The original error would keep its traceback, and the request in it, alive.
            failure = Failure(batch, type(error)(error.message), batch.sequence)
        self[key] = failure
        if len(self) > self.max_failures:
            del self[next(iter(self))]


def is_later(sequence: int, other: int) -> bool:
    """Return True if `sequence` follows `other`; sequences have 31 bits and wrap around."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2
