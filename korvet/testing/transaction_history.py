"""Check what transactional clients did and saw against the logs of a cluster.

Clients write an `Event` for each thing that they did or saw, in one list. Afterwards the test reads every partition at
both isolation levels, and `anomalies` compares. They are named after Jepsen's workload for Kafka-like systems:

    aborted read          a reader of committed records got a value of a transaction that was aborted
    torn transaction      the last read has some values of a transaction, but not all
    lost                  a value of a committed transaction is missing
    duplicate             a value is at two offsets of a partition
    reordered             values of one transactional id are not in the order in which it sent them
    moved backwards       a reader saw an offset again, or an earlier one
    skipped               a reader went past a committed value
    inconsistent offset   an offset of a partition had two values
    never sent            a value that no transaction sent
    uncommitted misses    a read of all records lacks a committed value
    repeated input        two committed transactions have read the same value
    forgotten input       no committed transaction has read a value, though offsets behind it were committed
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum

from attrs import define, field, frozen

#: Topic and partition.
Partition = tuple[str, int]
#: The offsets and values of a partition, in order.
Log = Sequence[tuple[int, str]]
Logs = Mapping[Partition, Log]


class Outcome(Enum):
    """The end of a transaction, as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@frozen
class Began:
    """A transaction began: a transactional id, and its number there."""

    transaction: str
    transactional_id: str


@frozen
class Took:
    """A transaction read a value, and commits the offset behind it."""

    transaction: str
    partition: Partition
    offset: int
    value: str


@frozen
class Sent:
    """A transaction sent a value. Its number rises with each one of the transactional id."""

    transaction: str
    partition: Partition
    value: str


@frozen
class Ended:
    """A transaction ended. Without this event, its end is unknown."""

    transaction: str
    outcome: Outcome


@frozen
class Polled:
    """A reader of committed records got a value."""

    reader: str
    partition: Partition
    offset: int
    value: str


Event = Began | Took | Sent | Ended | Polled


@define
class Transaction:
    """A transaction: its values, those that it read, and its end."""

    transactional_id: str
    outcome: Outcome = Outcome.UNKNOWN
    sent: list[tuple[Partition, str]] = field(factory=list)
    took: list[tuple[Partition, int, str]] = field(factory=list)


def transactions_of(events: Sequence[Event]) -> dict[str, Transaction]:
    """Return the transactions of a history, in the order in which they began."""
    found: dict[str, Transaction] = {}
    for event in events:
        match event:
            case Began(name, transactional_id):
                found[name] = Transaction(transactional_id)
            case Took(name, partition, offset, value):
                found[name].took.append((partition, offset, value))
            case Sent(name, partition, value):
                found[name].sent.append((partition, value))
            case Ended(name, outcome):
                found[name].outcome = outcome
    return found


def anomalies(events: Sequence[Event], committed: Logs, everything: Logs, inputs: Logs) -> list[str]:
    """Return a line for each anomaly. `committed` and `everything` are the last reads at both isolation levels.

    `inputs` are the records that transactions read, each of which one committed transaction has read at the end.
    """
    transactions = transactions_of(events)
    visible = {(partition, value): offset for partition, log in committed.items() for offset, value in log}
    return [
        *_of_outputs(transactions, visible),
        *_of_logs(transactions, committed, everything),
        *_of_readers(events, transactions, committed),
        *_of_inputs(transactions, visible, inputs),
    ]


def is_visible(transaction: Transaction, visible: Collection[tuple[Partition, str]]) -> bool:
    """Return True if a transaction took effect: it has that outcome, or one of its values is there."""
    if transaction.outcome is Outcome.UNKNOWN:
        return any(sent in visible for sent in transaction.sent)
    return transaction.outcome is Outcome.COMMITTED


def _of_outputs(
    transactions: Mapping[str, Transaction], visible: Mapping[tuple[Partition, str], int]
) -> Iterator[str]:
    for name, each in transactions.items():
        seen = [sent for sent in each.sent if sent in visible]
        if each.outcome is Outcome.ABORTED and seen:
            yield f"aborted read: the log has {seen[0][1]} of {name}, which was aborted"
        elif each.outcome is Outcome.COMMITTED and len(seen) < len(each.sent):
            lost = next(sent for sent in each.sent if sent not in visible)
            yield f"lost: {lost[1]} of {name}, which was committed, is not in {lost[0]}"
        elif each.outcome is Outcome.UNKNOWN and 0 < len(seen) < len(each.sent):
            yield f"torn transaction: {len(seen)} of {len(each.sent)} values of {name} are there"


def _of_logs(transactions: Mapping[str, Transaction], committed: Logs, everything: Logs) -> Iterator[str]:
    order: dict[tuple[str, Partition], dict[str, int]] = defaultdict(dict)
    owner: dict[tuple[Partition, str], str] = {}
    for each in transactions.values():
        for partition, value in each.sent:
            numbers = order[each.transactional_id, partition]
            numbers[value] = len(numbers)
            owner[partition, value] = each.transactional_id
    for partition, log in committed.items():
        last: dict[str, tuple[int, str]] = {}
        for value, count in Counter(value for _, value in log).items():
            if count > 1:
                yield f"duplicate: {value} is at {count} offsets of {partition}"
        for _, value in log:
            transactional_id = owner.get((partition, value))
            if transactional_id is None:
                yield f"never sent: {value} in {partition}"
                continue
            number = order[transactional_id, partition][value]
            before = last.get(transactional_id)
            if before is not None and number < before[0]:
                yield f"reordered: {value} is behind {before[1]} in {partition}"
            last[transactional_id] = number, value
        missing = set(log) - set(everything[partition])
        for offset, value in sorted(missing):
            yield f"uncommitted misses: {value} at offset {offset} of {partition}"


def _of_readers(
    events: Sequence[Event], transactions: Mapping[str, Transaction], committed: Logs
) -> Iterator[str]:
    values = {partition: dict(log) for partition, log in committed.items()}
    offsets = {partition: [offset for offset, _ in log] for partition, log in committed.items()}
    index = {partition: {offset: i for i, offset in enumerate(each)} for partition, each in offsets.items()}
    aborted = {
        sent for each in transactions.values() if each.outcome is Outcome.ABORTED for sent in each.sent
    }
    at: dict[tuple[str, Partition], int] = {}  # the index of the last value
    for event in events:
        if not isinstance(event, Polled):
            continue
        partition, offset = event.partition, event.offset
        if (partition, event.value) in aborted:
            yield f"aborted read: {event.reader} got {event.value} of {partition}"
            continue
        if values[partition].get(offset) != event.value:
            found = values[partition].get(offset)
            yield f"inconsistent offset: {event.reader} got {event.value} at {offset} of {partition}: now {found}"
            continue
        now, before = index[partition][offset], at.get((event.reader, partition), -1)
        if now <= before:
            yield f"moved backwards: {event.reader} got offset {offset} of {partition} after a later one"
        elif now > before + 1:
            skipped = offsets[partition][before + 1]
            yield f"skipped: {event.reader} went past offset {skipped} of {partition} to {offset}"
        at[event.reader, partition] = max(now, before)


def _of_inputs(
    transactions: Mapping[str, Transaction],
    visible: Mapping[tuple[Partition, str], int],
    inputs: Logs,
) -> Iterator[str]:
    readers: dict[tuple[Partition, int], list[str]] = defaultdict(list)
    for name, each in transactions.items():
        if is_visible(each, visible):
            for partition, offset, _ in each.took:
                readers[partition, offset].append(name)
    for (partition, offset), names in readers.items():
        if len(names) > 1:
            yield f"repeated input: offset {offset} of {partition} was read by {' and '.join(names)}"
    for partition, log in inputs.items():
        for offset, value in log:
            if (partition, offset) not in readers:
                yield f"forgotten input: {value} at offset {offset} of {partition}"
