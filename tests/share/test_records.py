from __future__ import annotations

from typing import Any

from korvet.protocol.record_batch import ControlType, RecordBatch, build_batch, build_marker, stamp
from korvet.share.partition import Span
from korvet.share.records import batches_of, offsets_of
from korvet.storage.shares import Run
from korvet.storage.values import AbortedTransaction


def batch(base_offset: int, *deltas: int, **header: Any) -> RecordBatch:
    """Return a batch with records at these distances from its base offset."""
    built = RecordBatch(build_batch([(delta, 0, None, b"x", ()) for delta in deltas], **header))
    stamp(built, base_offset, 0)
    return built


def test_consecutive_batches_are_one_span() -> None:
    batches = [batch(0, 0, 1), batch(2, 0, 1, 2)]

    assert ([Span(1, 4)], 5) == offsets_of(batches, 1, ())


def test_offsets_without_records_end_spans() -> None:
    batches = [batch(0, 0, 2, 3), batch(10, 0)]

    assert ([Span(0, 0), Span(2, 3), Span(10, 10)], 11) == offsets_of(batches, 0, ())
    assert ([Span(3, 3), Span(10, 10)], 11) == offsets_of(batches, 3, ())


def test_no_batch_is_no_offset() -> None:
    assert ([], 7) == offsets_of([], 7, ())


def test_batches_without_acquired_records_are_left_out() -> None:
    batches = [batch(0, 0, 1), batch(2, 0, 1), batch(4, 0)]

    assert [batches[1].buffer] == batches_of(batches, [Run(3, 3, 1, "a")])
    assert [] == batches_of(batches, [])


def test_records_of_aborted_transactions_and_markers_are_left_out() -> None:
    def of_transaction(base_offset: int, producer_id: int) -> RecordBatch:
        return batch(
            base_offset, 0, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )

    def marker(base_offset: int, kind: ControlType, producer_id: int) -> RecordBatch:
        built = RecordBatch(build_marker(kind, producer_id, 0, 0, 0))
        stamp(built, base_offset, 0)
        return built

    batches = [
        of_transaction(0, 1),
        of_transaction(1, 2),
        marker(2, ControlType.ABORT, 1),
        marker(3, ControlType.COMMIT, 2),
        of_transaction(4, 1),
        marker(5, ControlType.COMMIT, 1),
    ]

    assert ([Span(1, 1), Span(4, 4)], 6) == offsets_of(batches, 0, [AbortedTransaction(1, 0)])
    assert ([Span(0, 1), Span(4, 4)], 6) == offsets_of(batches, 0, [])
