"""A failed batch keeps later ones of its producer out: the rules, without a store around them."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import (
    CorruptMessage,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)
from korvet.storage.failed_sequences import FailedSequences, ProducerBatch

PARTITION = "orders-0"


@pytest.fixture
def failed() -> FailedSequences:
    """Batch 5 of producer 7, epoch 0, has failed."""
    failed = FailedSequences()
    failed.note(PARTITION, ProducerBatch(7, 0, 5), KafkaStorageError("away"))
    return failed


def passes(
    failed: FailedSequences,
    sequence: int,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    partition: str = PARTITION,
) -> bool:
    try:
        failed.check(partition, ProducerBatch(producer_id, epoch, sequence))
    except KafkaError:
        return False
    return True


def test_later_batches_get_the_error_of_the_failed_one(failed: FailedSequences) -> None:
    with pytest.raises(KafkaStorageError, match="away"):
        failed.check(PARTITION, ProducerBatch(7, 0, 6))


def test_later_batches_pass_after_the_failed_one_was_repeated(failed: FailedSequences) -> None:
    assert [False] * 3 + [True] * 4 == [passes(failed, sequence) for sequence in (6, 7, 8, 5, 6, 7, 8)]
    assert 0 == len(failed)


def test_batch_that_fails_again_blocks_later_batches_again(failed: FailedSequences) -> None:
    for _ in range(3):
        assert [False, False, True] == [passes(failed, sequence) for sequence in (6, 7, 5)]
        failed.note(PARTITION, ProducerBatch(7, 0, 5), RequestTimedOut())

    with pytest.raises(RequestTimedOut):
        failed.check(PARTITION, ProducerBatch(7, 0, 6))


def test_repeated_later_batches_pass_when_the_failed_one_was_abandoned(failed: FailedSequences) -> None:
    """The producer sends a refused batch again, and the partition's own rules decide."""
    assert [False, False, True, True] == [passes(failed, sequence) for sequence in (6, 7, 6, 7)]


def test_refusals_do_not_replace_the_failure(failed: FailedSequences) -> None:
    failed.note(PARTITION, ProducerBatch(7, 0, 6), KafkaStorageError())

    assert [False, True, True] == [passes(failed, sequence) for sequence in (6, 5, 6)]


def test_earlier_failure_replaces_a_later_one(failed: FailedSequences) -> None:
    failed.note(PARTITION, ProducerBatch(7, 0, 3), KafkaStorageError())

    assert [False, False, True, True, True] == [passes(failed, sequence) for sequence in (4, 5, 3, 4, 5)]


def test_higher_epoch_clears_the_failure(failed: FailedSequences) -> None:
    assert passes(failed, 9, epoch=1)
    assert 0 == len(failed)


def test_lower_epoch_passes(failed: FailedSequences) -> None:
    failed.note(PARTITION, ProducerBatch(7, 1, 0), KafkaStorageError())

    assert passes(failed, 6, epoch=0)
    assert not passes(failed, 1, epoch=1)


def test_other_producers_and_partitions_are_not_blocked(failed: FailedSequences) -> None:
    assert passes(failed, 6, producer_id=8)
    assert passes(failed, 6, partition="orders-1")
    assert not passes(failed, 6)


def test_batches_sent_before_the_failed_one_pass(failed: FailedSequences) -> None:
    assert passes(failed, 4)
    assert not passes(failed, 6)


def test_sequences_wrap_around() -> None:
    failed = FailedSequences()
    failed.note(PARTITION, ProducerBatch(7, 0, 2**31 - 1), KafkaStorageError())

    assert [False, False, True, True] == [passes(failed, sequence) for sequence in (0, 1, 2**31 - 1, 0)]


@pytest.mark.parametrize("error", [NotEnoughReplicasAfterAppend(), CorruptMessage(), MessageTooLarge()])
def test_errors_that_are_not_retried_block_no_batches(error: KafkaError) -> None:
    failed = FailedSequences()
    failed.note(PARTITION, ProducerBatch(7, 0, 0), error)

    assert passes(failed, 1)


def test_producers_without_idempotence_are_not_tracked() -> None:
    failed = FailedSequences()
    failed.note(PARTITION, ProducerBatch(-1, -1, -1), NotEnoughReplicas())

    assert 0 == len(failed)


def test_oldest_failures_are_dropped() -> None:
    failed = FailedSequences(max_failures=3)
    for producer_id in range(5):
        failed.note(PARTITION, ProducerBatch(producer_id, 0, 0), NotEnoughReplicas())
    failed.note(PARTITION, ProducerBatch(2, 0, 1), NotEnoughReplicas())
    failed.note(PARTITION, ProducerBatch(9, 0, 0), NotEnoughReplicas())

    passing = [producer_id for producer_id in range(10) if passes(failed, 1, producer_id=producer_id)]
    assert [0, 1, 3, 5, 6, 7, 8] == passing
