"""The steps by which a member of a consumer group moves from its current assignment to its target. Pure.

    Stable ──────────────────── the target is newer ──────────────→ compute the next assignment
    Unrevoked ──── the member does not report revoked partitions ─→ compute the next assignment
    Unreleased ──────────────────── on each heartbeat ────────────→ compute the next assignment

The next assignment keeps what is both assigned and in the target, revokes the rest of the assigned partitions, and
grants those of the target that no other member owns. While the member still owns a partition to be revoked, it is
Unrevoked at its old epoch, and gets nothing. Otherwise it moves to the epoch of the target. It is then Unreleased if
another member owns a partition of its target, or else Stable.

The rules are those of Apache Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from enum import Enum
from uuid import UUID

from attrs import define, evolve, field, frozen

from korvet.groups.subscriptions import Assignment

# Topic id -> partition -> epoch of the member when it was granted the partition.
Granted = Mapping[UUID, Mapping[int, int]]


class MemberState(Enum):
    """The progress of a member towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


@frozen
class Current:
    """A member's current assignment. The member owns the assigned partitions and those that it is revoking."""

    state: MemberState = MemberState.STABLE
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Granted = field(factory=dict)
    revoking: Granted = field(factory=dict)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Return True if the member has all of its target of that epoch."""
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    @property
    def partitions(self) -> dict[UUID, frozenset[int]]:
        """The assigned partitions."""
        return {topic_id: frozenset(epochs) for topic_id, epochs in self.assigned.items()}

    @property
    def owned(self) -> dict[UUID, frozenset[int]]:
        """The partitions that the member owns: those assigned, and those that it is revoking."""
        owned = self.partitions
        for topic_id, epochs in self.revoking.items():
            owned[topic_id] = owned.get(topic_id, frozenset()) | frozenset(epochs)
        return owned

    def granted_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the member's epoch when it was granted a partition that it owns; None if it does not own it."""
        assigned = self.assigned.get(topic_id, {}).get(partition)
        return assigned if assigned is not None else self.revoking.get(topic_id, {}).get(partition)


@define
class Owners:
    """The member id of the owner of each partition that is assigned, or that its member is revoking."""

    _owners: dict[UUID, dict[int, str]] = field(factory=dict)

    def of_topic(self, topic_id: UUID) -> Mapping[int, str]:
        """Return the owners of a topic's partitions."""
        return self._owners.get(topic_id, {})

    def replace(self, member_id: str, before: Current, after: Current) -> bool:
        """Change what a member owns. Return True if it released partitions. Raises ValueError if it took some."""
        if before.assigned == after.assigned and before.revoking == after.revoking:
            return False
        released = [each for each in _owned(before) if not _owns(after, *each)]
        for topic_id, partition in released:
            del self._owners[topic_id][partition]
        for topic_id, partition in _owned(after):
            owner = self._owners.setdefault(topic_id, {}).setdefault(partition, member_id)
            if owner != member_id:
                raise ValueError(f"partition {partition} of {topic_id} belongs to {owner}, not {member_id}")
        return bool(released)


@frozen
class Aim:
    """The next assignment of a member, and the partitions that it reports to own (None if it does not report them)."""

    epoch: int
    target: Assignment
    subscribed: Container[UUID]
    owned: Assignment | None
    is_subscription_changed: bool = False


def reconciled(member_id: str, current: Current, aim: Aim, owners: Owners) -> Current:
    """Return the member's next assignment: the same object if nothing changes."""
    if current.state is MemberState.STABLE and current.epoch == aim.epoch:
        return _without_unsubscribed(current, aim)
    if current.state is MemberState.UNREVOKED and _reports(aim.owned, current.revoking):
        return _without_unsubscribed(current, aim)
    return _next(member_id, current, aim, owners)


def _without_unsubscribed(current: Current, aim: Aim) -> Current:
    """Revoke the topics to which the member has stopped subscribing, before there is a target without them."""
    if not aim.is_subscription_changed:
        return current
    kept = {topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id in aim.subscribed}
    if len(kept) == len(current.assigned):
        return current
    revoking = dict(current.revoking)
    for topic_id in current.assigned.keys() - kept.keys():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **current.assigned[topic_id]}
    if _reports(aim.owned, revoking):
        return Current(MemberState.UNREVOKED, current.epoch, current.epoch, kept, revoking)
    return evolve(current, previous_epoch=current.epoch, assigned=kept)


def _next(member_id: str, current: Current, aim: Aim, owners: Owners) -> Current:
    assigned: dict[UUID, Mapping[int, int]] = {}
    revoking: dict[UUID, Mapping[int, int]] = {}
    granted: dict[UUID, list[int]] = {}
    is_withheld = False
    for topic_id in dict.fromkeys((*current.assigned, *aim.target)):
        target = aim.target.get(topic_id, frozenset()) if topic_id in aim.subscribed else frozenset()
        epochs = current.assigned.get(topic_id, {})
        kept, revoked = _split(epochs, target)
        if kept:
            assigned[topic_id] = kept
        if revoked:
            revoking[topic_id] = revoked
        wanted = [partition for partition in sorted(target) if partition not in kept]
        held = owners.of_topic(topic_id)
        free = [partition for partition in wanted if held.get(partition, member_id) == member_id]
        is_withheld = is_withheld or len(free) < len(wanted)
        if free:
            granted[topic_id] = free
    if _reports(aim.owned, revoking):
        return Current(MemberState.UNREVOKED, current.epoch, current.epoch, assigned, revoking)
    for topic_id, free in granted.items():
        assigned[topic_id] = {**assigned.get(topic_id, {}), **dict.fromkeys(free, aim.epoch)}
    state = MemberState.UNRELEASED if is_withheld else MemberState.STABLE
    return Current(state, aim.epoch, current.epoch, assigned)


def _split(epochs: Mapping[int, int], target: frozenset[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the granted partitions that are in the target, and those that are not."""
    kept = {partition: epoch for partition, epoch in epochs.items() if partition in target}
    revoked = {partition: epoch for partition, epoch in epochs.items() if partition not in target}
    return kept, revoked


def _reports(owned: Assignment | None, revoking: Granted) -> bool:
    """Return True if the member still owns a partition to be revoked. Without a report it owns all of them."""
    if not revoking:
        return False
    if owned is None:
        return True
    return any(
        partition in revoking.get(topic_id, ())
        for topic_id, partitions in owned.items()
        for partition in partitions
    )


def _owned(current: Current) -> Iterator[tuple[UUID, int]]:
    for side in (current.assigned, current.revoking):
        for topic_id, epochs in side.items():
            for partition in epochs:
                yield topic_id, partition


def _owns(current: Current, topic_id: UUID, partition: int) -> bool:
    return current.granted_epoch(topic_id, partition) is not None
