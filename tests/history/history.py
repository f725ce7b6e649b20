"""Check what clients did and saw against the logs of a cluster.

Clients write an `Event` for each thing that they did or saw, in one list. Afterwards the test reads every partition
from start to end, and `violations` compares. A correct cluster violates none of these rules, which are named after
what they find. They are those of Jepsen's workload for Kafka-like systems, for values that are unique:

    inconsistent offset   an offset of a partition had two values
    duplicate             a value is at two offsets of a partition
    lost                  an acknowledged value is missing, or is at another offset
    vanished              a value that a client read is missing, or is at another offset
    never sent            a value that no producer sent
    refused but stored    the broker rejected a value, and stored it nevertheless
    reordered             values of one producer are not in the order in which it sent them
    moved backwards       a reader saw an offset again, or an earlier one, without a new position
    skipped               a reader went past a value
    forgotten commit      a group began behind an offset that it had committed before
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

#: Topic and partition.
Partition = tuple[str, int]


@frozen
class Value:
    """The value of one record: its producer, and its number there, which rises by 1."""

    producer: str
    number: int

    def encode(self) -> bytes:
        return f"{self.producer}:{self.number}".encode()


def decode(data: bytes) -> Value:
    """Return the value of a record. Raises ValueError."""
    producer, _, number = data.decode().rpartition(":")
    return Value(producer, int(number))


@frozen
class Sent:
    """A producer sent a value."""

    partition: Partition
    value: Value


@frozen
class Acknowledged:
    """The broker acknowledged a value at an offset, which a repeated request does not learn (None)."""

    partition: Partition
    value: Value
    offset: int | None


@frozen
class Rejected:
    """The broker rejected a value with an error after which it is certainly not stored."""

    partition: Partition
    value: Value


@frozen
class Positioned:
    """A reader begins at an offset; a member of `group` at the offset that the broker returned as committed."""

    reader: str
    partition: Partition
    offset: int
    group: str = ""


@frozen
class Read:
    """A reader got a record."""

    reader: str
    partition: Partition
    offset: int
    value: Value


@frozen
class Committed:
    """The broker acknowledged that a group's next record is the one at `offset`."""

    group: str
    partition: Partition
    offset: int


@frozen
class Asked:
    """A member asked for the committed offset of a partition; the next `Positioned` of the reader has the answer."""

    reader: str
    partition: Partition


Event = Sent | Acknowledged | Rejected | Positioned | Read | Committed | Asked
#: The values of each partition by offset, in order.
Logs = Mapping[Partition, Sequence[tuple[int, Value]]]


def violations(events: Sequence[Event], logs: Logs) -> list[str]:
    """Return a line for each violation of a rule."""
    found = [*_places(events, logs), *_values(events, logs), *_order(logs)]
    return [*found, *_readings(events, logs), *_commits(events)]


def _places(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    """Compare the values that clients saw at each offset."""
    at: dict[tuple[Partition, int], Value] = {}
    where: defaultdict[tuple[Partition, Value], set[int]] = defaultdict(set)
    seen = [(tp, offset, value) for tp, log in logs.items() for offset, value in log]
    seen += [
        (event.partition, event.offset, event.value)
        for event in events
        if isinstance(event, Acknowledged | Read) and event.offset is not None
    ]
    for tp, offset, value in seen:
        if at.setdefault((tp, offset), value) != value:
            yield f"inconsistent offset: {tp} {offset} had {at[tp, offset]} and {value}"
        where[tp, value].add(offset)
    for (tp, value), offsets in where.items():
        if len(offsets) > 1:
            yield f"duplicate: {value} is in {tp} at {sorted(offsets)}"


def _values(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    """Compare the values that are stored with those that were sent, acknowledged, rejected and read."""
    places = {(tp, offset, value) for tp, log in logs.items() for offset, value in log}
    stored = {(tp, value) for tp, _, value in places}
    sent = set()
    for event in events:
        if isinstance(event, Sent):
            sent.add((event.partition, event.value))
        elif isinstance(event, Acknowledged | Read) and not _is_there(event, places, stored):
            rule = "lost" if isinstance(event, Acknowledged) else "vanished"
            yield f"{rule}: {event.value} was in {event.partition} at {event.offset}"
        elif isinstance(event, Rejected) and (event.partition, event.value) in stored:
            yield f"refused but stored: {event.value} in {event.partition}"
    for tp, value in stored - sent:
        yield f"never sent: {value} in {tp}"


def _is_there(
    event: Acknowledged | Read,
    places: Collection[tuple[Partition, int, Value]],
    stored: Collection[tuple[Partition, Value]],
) -> bool:
    """Return True if the value is at the offset at which it was acknowledged or read."""
    if event.offset is None:
        return (event.partition, event.value) in stored
    return (event.partition, event.offset, event.value) in places


def _order(logs: Logs) -> Iterator[str]:
    """Compare the order of each producer's values in a partition."""
    for tp, log in logs.items():
        last: dict[str, int] = {}
        for offset, value in log:
            before = last.get(value.producer, -1)
            if value.number <= before:
                yield f"reordered: {value} is in {tp} at {offset}, after number {before}"
            last[value.producer] = max(before, value.number)


def _readings(events: Iterable[Event], logs: Logs) -> Iterator[str]:
    """Compare each reader's records with the log, from each of its positions on."""
    offsets = {tp: [offset for offset, _ in log] for tp, log in logs.items()}
    next_offset: dict[tuple[str, Partition], int] = {}
    for event in events:
        if isinstance(event, Positioned):
            next_offset[event.reader, event.partition] = event.offset
        elif isinstance(event, Read):
            reading = (event.reader, event.partition)
            wanted = next_offset.get(reading, 0)
            if event.offset < wanted:
                yield f"moved backwards: {event.reader} read {event.partition} {event.offset} after {wanted - 1}"
            known = offsets.get(event.partition, [])
            between = known[bisect_left(known, wanted) : bisect_left(known, event.offset)]
            if between:
                yield f"skipped: {event.reader} read {event.partition} {event.offset} without {between[:5]}"
            next_offset[reading] = event.offset + 1


@define
class Commits:
    """The commits of one group in one partition: the largest one, and what it was when a member asked."""

    largest: int = -1
    when_asked: dict[str, int] = field(factory=dict)


def _commits(events: Iterable[Event]) -> Iterator[str]:
    """Compare where the members of a group begin with what the group had committed before they asked."""
    groups: defaultdict[tuple[str, Partition], Commits] = defaultdict(Commits)
    asked: dict[tuple[str, Partition], Mapping[str, int]] = {}
    for event in events:
        if isinstance(event, Committed):
            commits = groups[event.group, event.partition]
            commits.largest = max(commits.largest, event.offset)
        elif isinstance(event, Asked):
            largest = {
                group: commits.largest for (group, tp), commits in groups.items() if tp == event.partition
            }
            asked[event.reader, event.partition] = largest
        elif isinstance(event, Positioned) and event.group:
            committed = asked.get((event.reader, event.partition), {}).get(event.group, -1)
            if event.offset < committed:
                yield (
                    f"forgotten commit: {event.reader} of {event.group} began in {event.partition} at {event.offset},"
                    f" and {committed} was committed"
                )


def counts(events: Iterable[Event]) -> str:
    """Return how often each kind of event happened."""
    numbers: defaultdict[str, int] = defaultdict(int)
    for event in events:
        numbers[type(event).__name__.lower()] += 1
    return ", ".join(f"{count:,} {name}" for name, count in sorted(numbers.items()))


def unread(events: Iterable[Event], logs: Logs, readers: Iterable[str]) -> int:
    """Return how many stored records none of the readers got."""
    wanted = set(readers)
    read: defaultdict[Partition, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, Read) and event.reader in wanted:
            read[event.partition].append(event.offset)
    missing = 0
    for tp, log in logs.items():
        got = sorted(set(read[tp]))
        missing += sum(1 for offset, _ in log if bisect_left(got, offset) == bisect_right(got, offset))
    return missing
