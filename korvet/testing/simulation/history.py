"""Check the observations of clients and brokers against the guarantees of Kafka, as they happen.

- A record whose batch was acknowledged is in its log once, at the offset of the acknowledgement. No record is there
  twice, and those of a producer are in the order in which it sent them.
- A partition has one record at an offset, whoever reads it and whenever.
- In one generation of a group, one member at most owns a partition. Generations rise.
- A group whose broker assigns gives a partition to a member only when another one has given it up, or has been silent
  for the session timeout or the rebalance timeout.
- Committed offsets do not go back, unless a commit of the same generation had an unknown outcome.
- Workers of a queue get no record after it was accepted, none that another worker has locked, and each that was
  acknowledged (`korvet.testing.queue_history`).
- A reader of committed records gets no value of a transaction before its client has asked to commit it; at the end,
  transactions are whole, and in step with the offsets that they commit (`korvet.testing.transaction_history`).
- One broker at most works under a lease, unless one of them was paused meanwhile.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NoReturn

import trio
from attrs import define, field

from korvet.storage.interface import TopicPartition
from korvet.testing import transaction_history
from korvet.testing.queue_history import Event, Produced, Sent, anomalies
from korvet.testing.transaction_history import Ended, Logs, Outcome, Polled

# Events that a failure prints.
LAST_EVENTS = 40


class Violation(AssertionError):  # noqa: N818  names the condition
    """A guarantee that did not hold."""


def named(tps: Iterable[TopicPartition]) -> str:
    """Return the names of partitions."""
    return ", ".join(f"{tp.topic}-{tp.partition}" for tp in tps) or "nothing"


@define
class CommittedOffsets:
    """The committed offset of a partition, as its group's members may observe it."""

    offset: int = -1
    generation: int = -1
    unknown: set[int] = field(factory=set)  # commits of that generation whose outcome is unknown


@define(eq=False)
class History:
    """The events of a run, and the state that the next events have to agree with."""

    acknowledged: dict[str, tuple[TopicPartition, int]] = field(factory=dict)  # by value
    last_events: deque[str] = field(factory=lambda: deque(maxlen=LAST_EVENTS))
    events: int = 0
    records_read: int = 0
    queue: list[Event] = field(factory=list)  # of the workers of a queue
    transactions: list[transaction_history.Event] = field(factory=list)
    violated: trio.Event = field(factory=trio.Event)
    violation: Violation | None = None
    _outcomes: dict[str, Outcome] = field(factory=dict)  # of transactions
    _digest: hashlib._Hash = field(factory=hashlib.sha256)
    _values: dict[TopicPartition, dict[int, str]] = field(factory=dict)
    _places: dict[str, tuple[TopicPartition, int]] = field(factory=dict)
    _owners: dict[tuple[str, int, TopicPartition], str] = field(factory=dict)
    _generations: dict[str, int] = field(factory=dict)
    _held: dict[tuple[str, TopicPartition], tuple[str, float]] = field(factory=dict)
    _commits: dict[tuple[str, TopicPartition], CommittedOffsets] = field(factory=dict)
    _holders: dict[str, dict[str, float]] = field(
        factory=dict
    )  # brokers by lease, with the time of the beginning
    _paused_at: dict[str, float] = field(factory=dict)  # when a broker was last paused

    # --- Events -----------------------------------------------------------------------------------------

    def note(self, actor: str, text: str) -> None:
        """Record an event."""
        line = f"{trio.current_time():12.3f} {actor}: {text}"
        self.events += 1
        self.last_events.append(line)
        self._digest.update(line.encode())

    def violate(self, text: str, cause: BaseException | None = None) -> Violation:
        """Record a violation, and let the run end soon. Return the first one of the run."""
        self.note("check", text)
        if self.violation is None:
            self.violation = Violation(text)
            self.violation.__cause__ = cause
        self.violated.set()
        return self.violation

    def fail(self, text: str) -> NoReturn:
        """Record and raise a violation."""
        raise self.violate(text)

    @property
    def digest(self) -> str:
        """A hash of all events."""
        return self._digest.hexdigest()

    # --- Records ----------------------------------------------------------------------------------------

    def acknowledge(self, actor: str, tp: TopicPartition, base_offset: int, values: Sequence[str]) -> None:
        """Record that the broker acknowledged these values, at consecutive offsets."""
        self.note(actor, f"acknowledged {values[0]} × {len(values)} at {named([tp])}@{base_offset}")
        for offset, value in enumerate(values, base_offset):
            self.acknowledged[value] = (tp, offset)
            self._place(actor, tp, offset, value)

    def read(self, actor: str, tp: TopicPartition, found: Iterable[tuple[int, str]]) -> None:
        """Record that a consumer received these records, from one position on."""
        last = -1
        for offset, value in found:
            self.records_read += 1
            if offset <= last:
                self.fail(f"{actor} read {named([tp])}@{offset} after {named([tp])}@{last}")
            last = offset
            self._place(actor, tp, offset, value)

    def check_log(self, tp: TopicPartition, found: Sequence[tuple[int, str]]) -> None:
        """Compare the whole log of a partition with what was acknowledged."""
        self.read("the final check", tp, found)
        values = {value for _, value in found}
        for value, (of, _) in self.acknowledged.items():
            if of == tp and value not in values:
                self.fail(f"{value} was acknowledged, and is not in {named([tp])}")
        last: dict[str, int] = {}
        for offset, value in found:
            producer, _, number = value.rpartition(":")
            if int(number) <= last.get(producer, -1):
                self.fail(f"{value} at {named([tp])}@{offset} is behind {producer}:{last[producer]}")
            last[producer] = int(number)

    def check_queue(self, topic: str, lock_s: float, limit: int) -> None:
        """Check the events of the workers of a queue, which is empty."""
        sent = [Sent(value) for value, (tp, _) in self._places.items() if tp.topic == topic]
        produced = [Produced(value) for value, (tp, _) in self.acknowledged.items() if tp.topic == topic]
        for line in anomalies([*sent, *produced, *self.queue], lock_s, limit):
            self.fail(line)

    def transact(self, event: transaction_history.Event) -> None:
        """Record an event of a transactional client, or of a reader of committed records."""
        self.transactions.append(event)
        if isinstance(event, Ended):
            self._outcomes[event.transaction] = event.outcome
        elif isinstance(event, Polled):
            transaction = event.value.partition(":")[0]
            if self._outcomes[transaction] is Outcome.ABORTED:
                self.fail(
                    f"{event.reader} got {event.value}, and the commit of {transaction} was not requested"
                )

    @property
    def committed_transactions(self) -> int:
        """The number of transactions that were committed, as far as their clients know."""
        return sum(outcome is Outcome.COMMITTED for outcome in self._outcomes.values())

    def check_transactions(self, committed: Logs, everything: Logs, inputs: Logs) -> None:
        """Check the events of transactional clients and of readers: see `transaction_history.anomalies`."""
        for line in transaction_history.anomalies(self.transactions, committed, everything, inputs):
            self.fail(line)

    def _place(self, actor: str, tp: TopicPartition, offset: int, value: str) -> None:
        known = self._values.setdefault(tp, {}).setdefault(offset, value)
        if known != value:
            self.fail(f"{actor} has {value} at {named([tp])}@{offset}, where {known} was before")
        place = self._places.setdefault(value, (tp, offset))
        if place != (tp, offset):
            other = f"{named([place[0]])}@{place[1]}"
            self.fail(f"{actor} has {value} at {named([tp])}@{offset}, and it is at {other}, too")

    # --- Groups -----------------------------------------------------------------------------------------

    def generation(self, group: str) -> int:
        """Return the highest generation of a group that a member has seen."""
        return self._generations.get(group, -1)

    def join(self, actor: str, group: str, generation: int, before: int) -> None:
        """Record that a member is in a generation; `before` was the highest when it asked."""
        self.note(actor, f"joined generation {generation}")
        if generation < before:
            self.fail(f"{actor} joined generation {generation} of {group} after generation {before} existed")
        self._generations[group] = max(generation, self.generation(group))

    def assign(self, actor: str, group: str, generation: int, tps: Iterable[TopicPartition]) -> None:
        """Record that a member owns partitions in a generation."""
        owned = sorted(tps)
        self.note(actor, f"owns {named(owned)} in generation {generation}")
        for tp in owned:
            other = self._owners.setdefault((group, generation, tp), actor)
            if other != actor:
                self.fail(f"{actor} and {other} own {named([tp])} in generation {generation} of {group}")

    def hold(self, actor: str, group: str, tps: Iterable[TopicPartition], until_s: float) -> None:
        """Record that a member has these partitions and no others, exclusively until that time."""
        held = set(tps)
        for (of, tp), (other, ends_s) in list(self._held.items()):
            if of != group or (tp not in held and other != actor):
                continue
            if other != actor and trio.current_time() < ends_s:
                self.fail(f"{actor} gets {named([tp])} of {group}, which {other} has until {ends_s:.3f}")
            del self._held[group, tp]
        self._held |= {(group, tp): (actor, until_s) for tp in held}

    def commit(self, group: str, generation: int, tp: TopicPartition, offset: int, *, is_known: bool) -> None:
        """Record a commit that was acknowledged, or whose outcome is unknown.

        Its member owns the partition since that generation.
        """
        found = self._commits.setdefault((group, tp), CommittedOffsets())
        if generation > found.generation:
            found.generation, found.unknown = generation, set()
        if not is_known:
            found.unknown.add(offset)
        elif generation == found.generation:
            found.offset = offset
            found.unknown.discard(offset)

    def committed(self, actor: str, group: str, tp: TopicPartition, offset: int, floor: int) -> None:
        """Record a committed offset that a member received; `floor` is the one before it asked."""
        found = self._commits.get((group, tp), CommittedOffsets())
        if offset < floor and offset not in found.unknown:
            self.fail(f"{actor} starts at {named([tp])}@{offset}, and {floor} was committed")

    def floor(self, group: str, tp: TopicPartition) -> int:
        """Return the last offset whose commit was acknowledged, or -1."""
        return self._commits.get((group, tp), CommittedOffsets()).offset

    # --- Leases -----------------------------------------------------------------------------------------

    def paused(self, broker: str) -> None:
        """Record that a broker is paused, or no longer."""
        self._paused_at[broker] = trio.current_time()

    def begin_lease(self, broker: str, lease: str) -> None:
        """Record that a broker works under a lease from now on."""
        self.note(broker, f"has the lease {lease}")
        holders = self._holders.setdefault(lease, {})
        for other, since_s in holders.items():
            if self._paused_at.get(other, -1.0) < since_s:
                self.fail(f"{broker} and {other} work under the lease {lease}")
        holders[broker] = trio.current_time()

    def end_lease(self, broker: str, lease: str) -> None:
        """Record that a broker's work under a lease has ended."""
        self.note(broker, f"ended its work under the lease {lease}")
        self._holders[lease].pop(broker, None)
