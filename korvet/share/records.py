"""The offsets of the records in batches that members of a share group may get."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from korvet.protocol.record_batch import ControlType, RecordBatch, control_type, decode_records
from korvet.share.partition import Span
from korvet.storage.shares import Run
from korvet.storage.values import AbortedTransaction


class Offsets(NamedTuple):
    """The consecutive offsets of records in batches, and the offset after the last batch."""

    spans: Sequence[Span]
    end: int


def offsets_of(batches: Iterable[RecordBatch], start: int, aborted: Iterable[AbortedTransaction]) -> Offsets:
    """Return the offsets from `start` on, without those of markers and of aborted transactions.

    The records of a batch are decoded only if some of its offsets have none.
    """
    spans: list[Span] = []
    end = start
    for batch in _delivered(batches, aborted):
        end = max(end, batch.last_offset + 1)
        if batch.is_control or not batch.record_count:
            continue
        for span in _spans(batch):
            if span.last < start:
                continue
            first = max(span.first, start)
            if spans and spans[-1].last + 1 == first:
                spans[-1] = Span(spans[-1].first, span.last)
            else:
                spans.append(Span(first, span.last))
    return Offsets(spans, end)


def _delivered(
    batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]
) -> Iterator[RecordBatch]:
    """Yield the batches, without those of aborted transactions."""
    later = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        while later and later[-1].first_offset <= batch.last_offset:
            aborting.add(later.pop().producer_id)
        if batch.is_control:
            if control_type(batch) is ControlType.ABORT:
                aborting.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborting:
            continue
        yield batch


def _spans(batch: RecordBatch) -> Iterator[Span]:
    if batch.record_count == batch.last_offset_delta + 1:
        yield Span(batch.base_offset, batch.last_offset)
        return
    first = last = None
    for record in decode_records(batch):
        offset = batch.base_offset + record[0]
        if first is None or last is None:
            first = last = offset
        elif offset == last + 1:
            last = offset
        else:
            yield Span(first, last)
            first = last = offset
    if first is not None and last is not None:
        yield Span(first, last)


def batches_of(batches: Sequence[RecordBatch], acquired: Sequence[Run]) -> list[memoryview]:
    """Return the bytes of the batches that contain acquired records."""
    if not acquired:
        return []
    first, last = acquired[0].first, acquired[-1].last
    return [each.buffer for each in batches if each.last_offset >= first and each.base_offset <= last]
