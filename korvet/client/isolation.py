"""Leave out the batches of a Fetch response that consumers do not get: markers and aborted transactions (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from attrs import define, field

from korvet.protocol.messages.fetch import AbortedTransaction
from korvet.protocol.record_batch import ControlType, RecordBatch, control_type

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Span(NamedTuple):
    """The offsets of a batch, in [start, end)."""

    start: int
    end: int

    def overlap(self, start: int, end: int) -> int:
        return max(0, min(self.end, end) - max(self.start, start))


def _last_first(aborted: Iterable[AbortedTransaction]) -> list[AbortedTransaction]:
    return sorted(aborted, key=lambda each: each.first_offset, reverse=True)


@define
class Passing:
    """The batches of one partition in a response that consumers get, and the spans of the others.

    `begins` are the response's aborted transactions: none with READ_UNCOMMITTED.
    """

    _begins: list[AbortedTransaction] = field(factory=list, converter=_last_first)
    aborted: list[Span] = field(factory=list, init=False)
    markers: list[Span] = field(factory=list, init=False)
    _producers: set[int] = field(factory=set, init=False)  # whose transaction here will be aborted

    def passes(self, batch: RecordBatch) -> bool:
        """Return True if consumers get the batch. Call it for each batch, in order."""
        while self._begins and self._begins[-1].first_offset <= batch.last_offset:
            self._producers.add(self._begins.pop().producer_id)
        span = Span(batch.base_offset, batch.last_offset + 1)
        if batch.is_control:
            self.markers.append(span)
            if control_type(batch) is ControlType.ABORT:
                self._producers.discard(batch.producer_id)
            return False
        if batch.is_transactional and batch.producer_id in self._producers:
            self.aborted.append(span)
            return False
        return True

    def aborted_records(self, start: int, end: int) -> int:
        """Return the number of records of aborted transactions in [start, end)."""
        return sum(span.overlap(start, end) for span in self.aborted)

    def marker_count(self, start: int, end: int) -> int:
        """Return the number of control batches in [start, end)."""
        return sum(start <= span.start < end for span in self.markers)
