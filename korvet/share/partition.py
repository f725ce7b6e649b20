"""The state machine of a share partition: a partition as one share group consumes it. It does no IO, reads no clock.

Records below `end` are acquired by a member, available again, or finished (acknowledged or archived); records from
`end` on have not been delivered. Records in flight, acquired or available, are kept as runs of offsets: a run has
consecutive offsets, each of which has a record. An offset below `end` that is in no run is finished.

A lock ends at a time of the monotonic clock that the caller passes as `now_ms`. `tick` handles locks that have ended;
the caller calls it no later than `wake_ms`. If `is_unsaved` is True, the caller must save the state before it answers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from attrs import define, field, frozen

from korvet.protocol.errors import InvalidRecordState, InvalidRequest
from korvet.storage.shares import (
    AVAILABLE,
    HIGHEST_COUNT,
    UNKNOWN,
    Acknowledged,
    AckType,
    Holding,
    InFlight,
    Run,
    ShareLimits,
)


class Span(NamedTuple):
    """Consecutive offsets, from `first` to `last`."""

    first: int
    last: int


@frozen
class Read:
    """A read of the log, from `start` up to but not including `end`.

    Only the offsets in `spans`, in ascending order, have records that members may get.
    """

    start: int
    end: int
    spans: Sequence[Span]


_first = attrgetter("first")


@define(eq=False)
class SharePartition:
    """See the module. A new one has no `end`, and nothing to save."""

    end: int = UNKNOWN
    runs: list[Run] = field(factory=list)  # in ascending order, without overlaps
    epoch: int = 0  # rises when the start offset is altered
    is_unsaved: bool = False
    limits: ShareLimits = field(factory=ShareLimits)
    _wake_ms: float = inf

    @property
    def start(self) -> int:
        """The start offset: that of the first record that is not finished. UNKNOWN before the first fetch."""
        return self.runs[0].first if self.runs else self.end

    @property
    def in_flight(self) -> int:
        """The number of records that are acquired or available again."""
        return sum(run.size for run in self.runs)

    def holdings(self, most: int, now_ms: float) -> InFlight:
        """Return the records in flight, with the first `most` holdings."""
        found = []
        for run in self.runs[:most]:
            left = 0 if run.member == AVAILABLE else max(int(run.deadline_ms - now_ms), 0)
            held = 0 if run.member == AVAILABLE else max(self.limits.lock_ms - left, 0)
            found.append(Holding(run.first, run.last, run.size, run.deliveries, run.member, held, left))
        return InFlight(self.in_flight, found)

    def has_acquired(self, member: str) -> bool:
        """Return True if the member has records."""
        return any(run.member == member for run in self.runs)

    # --- Acquiring --------------------------------------------------------------------------------------

    def begin(self, offset: int) -> None:
        """Begin to deliver at an offset, and forget all records in flight."""
        self.end = offset
        self._set([])

    def next_offset(self) -> int | None:
        """Return the offset from which a caller has to read for `acquire`, or None if no record can be acquired."""
        for run in self.runs:
            if run.member == AVAILABLE:
                return run.first
        return self.end if self.in_flight < self.limits.max_locks else None

    def acquire(self, member: str, read: Read, max_records: int, now_ms: float) -> list[Run]:
        """Acquire at most `max_records` records for a member, in the order of their offsets.

        A record that is near its limit of deliveries comes alone or with few others (`ShareLimits.together`).
        Available records that the caller has not found in the log are gone, and so finished.
        """
        acquired, room = self._reacquire(member, read, max_records, now_ms)
        room = max(min(room, self.limits.max_locks - self.in_flight), 0)
        acquired += self._acquire_new(member, read, room, now_ms)
        return _merged(acquired)

    def _reacquire(self, member: str, read: Read, most: int, now_ms: float) -> tuple[list[Run], int]:
        """Acquire available records. Return them, and how many others may be acquired with them."""
        room, number = most, 0
        acquired: list[Run] = []
        runs: list[Run] = []
        deadline_ms = now_ms + self.limits.lock_ms
        for run in self.runs:
            if run.member != AVAILABLE or run.first >= read.end or run.last < read.start:
                runs.append(run)
                continue
            if run.first < read.start:
                runs.append(run._replace(last=read.start - 1))
            together = self.limits.together(run.deliveries, most)
            for span in _within(read.spans, max(run.first, read.start), min(run.last, read.end - 1)):
                # A record that may not join the ones before it begins the next request.
                room = min(room, max(together - number, 0))
                taken = min(room, span.last - span.first + 1)
                if taken > 0:
                    last, deliveries = span.first + taken - 1, min(run.deliveries + 1, HIGHEST_COUNT)
                    acquired.append(Run(span.first, last, deliveries, member, deadline_ms))
                    room -= taken
                    number += taken
                if span.first + taken <= span.last:
                    runs.append(run._replace(first=span.first + taken, last=span.last))
            if run.last >= read.end:
                runs.append(run._replace(first=read.end))
        runs += acquired
        runs.sort(key=_first)
        self._set(runs)
        return acquired, room

    def _acquire_new(self, member: str, read: Read, room: int, now_ms: float) -> list[Run]:
        if self.end < read.start or self.end >= read.end:
            return []
        acquired: list[Run] = []
        end = read.end
        for span in _within(read.spans, self.end, read.end - 1):
            taken = min(room, span.last - span.first + 1)
            if taken > 0:
                deadline_ms = now_ms + self.limits.lock_ms
                acquired.append(Run(span.first, span.first + taken - 1, 1, member, deadline_ms))
                room -= taken
            if span.first + taken <= span.last:
                end = span.first + taken
                break
        if end > self.end:
            self.end = end
            self._set([*self.runs, *acquired])
        return acquired

    # --- Acknowledging ----------------------------------------------------------------------------------

    def acknowledge(self, member: str, batches: Sequence[Acknowledged], now_ms: float) -> None:
        """Finish, release or renew records that a member has acquired: all of them or none.

        Offsets below the start offset are ignored. Raises InvalidRequest for offsets that were never delivered, and
        InvalidRecordState for records that the member has not acquired, or no longer.
        """
        self.tick(now_ms)
        for batch in batches:
            self._check(member, batch)
        for batch in batches:
            self._rewrite(batch, member, lambda run, kind=batch.kind: self._after(run, kind, now_ms))  # type: ignore[misc]

    def _check(self, member: str, batch: Acknowledged) -> None:
        if batch.last >= self.end:
            raise InvalidRequest("The acknowledged records were not acquired.")
        if batch.kind is AckType.RENEW and not self.limits.can_renew:
            raise InvalidRecordState("The group does not renew acquisition locks.")
        next_offset = max(batch.first, self.start)
        for run in self._overlapping(batch.first, batch.last):
            if run.first > next_offset and batch.kind is not AckType.GAP:
                break
            if run.member != member:
                break
            next_offset = run.last + 1
        if next_offset <= batch.last and batch.kind is not AckType.GAP:
            raise InvalidRecordState(f"The member has not acquired the record at offset {next_offset}.")

    def _after(self, run: Run, kind: AckType, now_ms: float) -> Run | None:
        if kind is AckType.RELEASE:
            return self._released(run)
        if kind is AckType.RENEW:
            return run._replace(deadline_ms=now_ms + self.limits.lock_ms)
        return None

    def _released(self, run: Run) -> Run | None:
        """Return the run as available, or None if its records were delivered as often as the limit allows."""
        if run.deliveries >= self.limits.max_deliveries:
            return None
        return run._replace(member=AVAILABLE, deadline_ms=inf)

    def release(self, member: str) -> None:
        """Release all records of a member."""
        self._release_where(lambda run: run.member == member)

    def archive_below(self, offset: int) -> None:
        """Finish all records below an offset, the start of the log."""
        if self.end != UNKNOWN and self.start < offset:
            self.end = max(self.end, offset)
            kept = [run._replace(first=max(run.first, offset)) for run in self.runs if run.last >= offset]
            self._set(kept)

    def forget_from(self, offset: int) -> None:
        """Forget all records from an offset on, the end of a log that has lost records."""
        if self.end > offset:
            self.end = offset
            self._set(
                [run._replace(last=min(run.last, offset - 1)) for run in self.runs if run.first < offset]
            )

    # --- Time -------------------------------------------------------------------------------------------

    @property
    def wake_ms(self) -> float:
        """The earliest time at which a lock may end."""
        return self._wake_ms

    def tick(self, now_ms: float) -> None:
        """Release the records whose locks have ended."""
        if now_ms >= self._wake_ms:
            self._release_where(lambda run: run.deadline_ms <= now_ms)

    def resume(self, now_ms: float) -> None:
        """Give all acquired records of a loaded state the full lock from now."""
        is_unsaved = self.is_unsaved
        deadline_ms = now_ms + self.limits.lock_ms
        self._set(
            [run if run.member == AVAILABLE else run._replace(deadline_ms=deadline_ms) for run in self.runs]
        )
        self.is_unsaved = is_unsaved

    # --- Runs -------------------------------------------------------------------------------------------

    def _release_where(self, is_released: Callable[[Run], bool]) -> None:
        if any(map(is_released, self.runs)):
            after = (self._released(run) if is_released(run) else run for run in self.runs)
            self._set([run for run in after if run is not None])

    def _overlapping(self, first: int, last: int) -> list[Run]:
        begin = self._index(first)
        end = bisect_right(self.runs, last, key=_first)
        return self.runs[begin:end]

    def _index(self, offset: int) -> int:
        """Return the index of the first run that ends at or after an offset."""
        index = bisect_right(self.runs, offset, key=_first)
        return index - 1 if index and self.runs[index - 1].last >= offset else index

    def _rewrite(self, batch: Acknowledged, member: str, change: Callable[[Run], Run | None]) -> None:
        """Replace the part of each of the member's runs that a batch covers by what `change` returns."""
        begin, end = self._index(batch.first), bisect_right(self.runs, batch.last, key=_first)
        after: list[Run] = []
        for run in self.runs[begin:end]:
            if run.member != member:
                after.append(run)
                continue
            inside = run._replace(first=max(run.first, batch.first), last=min(run.last, batch.last))
            if run.first < inside.first:
                after.append(run._replace(last=inside.first - 1))
            if (changed := change(inside)) is not None:
                after.append(changed)
            if run.last > inside.last:
                after.append(run._replace(first=inside.last + 1))
        self._set([*self.runs[:begin], *after, *self.runs[end:]])

    def _set(self, runs: Iterable[Run]) -> None:
        self.runs = _merged(runs)
        self._wake_ms = min((run.deadline_ms for run in self.runs), default=inf)
        self.is_unsaved = True


def _size(runs: Iterable[Run]) -> int:
    return sum(run.size for run in runs)


def _within(spans: Sequence[Span], first: int, last: int) -> Iterable[Span]:
    """Yield the parts of the spans from `first` to `last`."""
    for span in spans:
        if span.first > last:
            return
        if span.last >= first:
            yield Span(max(span.first, first), min(span.last, last))


def _merged(runs: Iterable[Run]) -> list[Run]:
    """Return runs in ascending order with neighbours of the same state joined."""
    merged: list[Run] = []
    for run in runs:
        if merged and merged[-1].last + 1 == run.first and merged[-1][2:] == run[2:]:
            merged[-1] = merged[-1]._replace(last=run.last)
        else:
            merged.append(run)
    return merged
