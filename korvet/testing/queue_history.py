"""Check what workers on a queue did and saw: members of a share group, and plain Redis consumers of the same queue.

Workers write an `Event` for each thing that they did or saw, with times of one monotonic clock in seconds. They are
checked when the queue is empty:

    delivered after its end    a record was delivered again after it was accepted
    delivered under a lock     a record was delivered to another worker before its lock had ended
    never delivered            a record whose produce was acknowledged was delivered to no worker
    repeated count             two deliveries of a record had the same delivery count
    missing count              counts say that there were more deliveries than there can have been
    above the limit            a member got a record more often than the limit of deliveries allows
    never sent                 a value that no producer sent
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from attrs import frozen

# Clocks of the server and of the workers are read at different moments.
SLACK_S = 0.1


@frozen
class Sent:
    """A producer sent a value."""

    value: str


@frozen
class Produced:
    """The produce of a value was acknowledged."""

    value: str


@frozen
class Delivered:
    """A worker got a record by a request of that time. `count` is None if the answer has no delivery count.

    `place` is the record's offset or entry ID, which the lines of anomalies contain.
    """

    worker: str
    value: str
    asked_s: float
    at_s: float
    count: int | None
    place: object = None


@frozen
class Finished:
    """A worker has accepted a record, and has seen the success."""

    worker: str
    value: str
    at_s: float


@frozen
class Released:
    """A worker is about to release a record."""

    worker: str
    value: str
    at_s: float


@frozen
class Left:
    """A worker's session may have ended at any time after this, which releases its records."""

    worker: str
    at_s: float


@frozen
class Lost:
    """A request for records got no answer."""

    worker: str


Event = Sent | Produced | Delivered | Finished | Released | Left | Lost


def anomalies(events: Sequence[Event], lock_s: float, limit: int) -> list[str]:
    """Return a line for each anomaly, which begins with its name."""
    return list(_anomalies(events, lock_s, limit))


def _anomalies(events: Sequence[Event], lock_s: float, limit: int) -> Iterator[str]:
    sent = {each.value for each in events if isinstance(each, Sent)}
    finished: dict[str, float] = {}
    deliveries: dict[str, list[Delivered]] = defaultdict(list)
    released: dict[tuple[str, str], list[float]] = defaultdict(list)
    left: dict[str, list[float]] = defaultdict(list)
    lost = 0
    for event in events:
        match event:
            case Delivered(value=value):
                deliveries[value].append(event)
            case Finished(value=value, at_s=at_s):
                finished[value] = min(at_s, finished.get(value, at_s))
            case Released(worker, value, at_s):
                released[worker, value].append(at_s)
            case Left(worker, at_s):
                left[worker].append(at_s)
            case Lost():
                lost += 1
    for value, found in deliveries.items():
        if value not in sent:
            yield f"never sent: {value}"
        for each in found:
            if value in finished and each.asked_s > finished[value]:
                yield f"delivered after its end: {each}, finished at {finished[value]}"
        found.sort(key=lambda each: each.at_s)

        def may_follow(before: Delivered, after: Delivered) -> bool:
            """Return True if the second one may have come after the end of the first one's lock."""
            ends = [*released[before.worker, before.value], *left[before.worker]]
            is_released = any(before.asked_s <= each <= after.at_s for each in ends)
            return is_released or after.at_s >= before.asked_s + lock_s - SLACK_S

        for before, after in _pairs(found):
            # The order of requests that overlap in time is unknown. Of others, the earlier one cannot follow.
            if not may_follow(before, after) and not may_follow(after, before):
                yield f"delivered under a lock: {before}, then {after}"
        yield from _wrong_counts(value, found, limit, lost)
    for event in events:
        if isinstance(event, Produced) and event.value not in deliveries:
            yield f"never delivered: {event.value}"


def _pairs(found: Sequence[Delivered]) -> Iterator[tuple[Delivered, Delivered]]:
    for index, before in enumerate(found):
        for after in found[index + 1 :]:
            yield before, after


def _wrong_counts(value: str, found: Sequence[Delivered], limit: int, lost: int) -> Iterator[str]:
    counts = Counter(each.count for each in found if each.count is not None)
    for count, times in counts.items():
        if times > 1:
            with_it = [each for each in found if each.count == count]
            yield f"repeated count: {value} was delivered {times} times with count {count}: {with_it}"
    highest = max(counts, default=0)
    if highest > limit:
        yield f"above the limit: {value} has count {highest}"
    if highest > len(found) + lost:
        yield f"missing count: {value} has count {highest} after {len(found)} deliveries, {lost} answers were lost"
