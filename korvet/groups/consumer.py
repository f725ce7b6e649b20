"""The state machine of a consumer group whose broker assigns (KIP-848). It does no IO and reads no clock.

The group epoch rises with each change of members, subscriptions or subscribed topics. A request may compute a new
target assignment, whose epoch is the assignment epoch; it then moves its member one step to its target
(`korvet.groups.reconciliation`), and the member's epoch follows the assignment epoch.

Members use the consumer protocol (`korvet.groups.consumer_heartbeats`) or the classic one (`korvet.groups.mixed`). The
rules are those of Apache Kafka's GroupMetadataManager. Each call passes `now_ms`, read from a monotonic clock. `tick`
handles the timeouts that have passed; the caller calls it no later than `wake_ms`. If `is_unsaved` is True, the caller
must save what `changes` names before it answers.

Differences from Kafka:

- A target for a large group is computed by the caller in time slices (`assigning`, `apply`); until it is applied, the
  old target holds.
- A static member that has left for a while has no rebalance timeout.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from attrs import define, evolve, field, frozen

from korvet.coordination.deadlines import Deadlines
from korvet.groups.assignors import ASSIGNORS, Candidate, Target
from korvet.groups.consumer_members import Changes, ConsumerLimits, ConsumerMember, ConsumerState, Details
from korvet.groups.members import Answer, Ticket
from korvet.groups.reconciliation import Aim, Current, MemberState, Owners, reconciled
from korvet.groups.subscriptions import Assignment, Subscription, Subscriptions, Topics
from korvet.protocol.errors import FencedInstanceId, GroupMaxSizeReached, UnknownMemberId
from korvet.protocol.steps import Steps, at_once
from korvet.protocol.text import quoted

logger = logging.getLogger(__name__)

# Partitions, and pairs of a member and a topic, up to which a request computes the target itself.
MOST_AT_ONCE = 20_000


class Timer(Enum):
    """The kinds of timeouts of a member."""

    SESSION = 0
    REBALANCE = 1
    JOIN = 2
    SYNC = 3


REASONS = {
    Timer.SESSION: "is removed: its session timed out",
    Timer.REBALANCE: "is removed: it did not revoke its partitions in time",
    Timer.JOIN: "is removed: it did not join again in time",
    Timer.SYNC: "is removed: it did not sync in time",
}


@frozen
class Downgrade:
    """A conversion to a classic group. Each member uses the classic protocol."""

    generation_id: int | None = None  # the group epoch if None
    must_rebalance: bool = True  # the classic members' targets are not their assignments yet


@frozen
class NewTarget:
    """A computed target, and the group epoch for which it was computed."""

    epoch: int
    target: Target


@define(eq=False, repr=False)
class ConsumerGroup:
    """See the module. A new group is Empty and has nothing to save."""

    group_id: str
    limits: ConsumerLimits = field(factory=ConsumerLimits)
    epoch: int = 0
    assignment_epoch: int = 0
    assigned_ms: float = float("-inf")  # when the target was computed
    topics_hash: int | None = None  # None: the subscribed topics have changed since the last heartbeat
    members: dict[str, ConsumerMember] = field(factory=dict)
    targets: dict[str, Assignment] = field(factory=dict)
    downgrade: Downgrade | None = None  # if the group may become a classic one now
    changes: Changes = field(factory=Changes)
    answers: list[tuple[Ticket, Answer]] = field(factory=list)
    subscriptions: Subscriptions = field(factory=Subscriptions)
    _static: dict[str, str] = field(factory=dict)  # group instance id -> member id
    _owners: Owners = field(factory=Owners)
    _deadlines: Deadlines[tuple[Timer, str]] = field(factory=Deadlines)

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroup {quoted(self.group_id)} {self.state.value} epoch={self.epoch}"
            f" members={len(self.members)}>"
        )

    def __str__(self) -> str:
        return f"group {quoted(self.group_id)} (epoch {self.epoch}, {len(self.members)} members)"

    def log(self, text: str, member_id: str = "", *, level: int = logging.INFO, **fields: str | None) -> None:
        """Log a line about the group, and maybe one of its members (`korvet.logs`)."""
        about = {"_group": self, "group": self.group_id, "_member": quoted(member_id), "member": member_id}
        logger.log(level, text, {**about, **fields})

    # --- State ------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        """The state that Kafka's tools print."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        return ConsumerState.STABLE if self.is_reconciled else ConsumerState.RECONCILING

    @property
    def is_reconciled(self) -> bool:
        """True if each member has its target, and the target is that of the group epoch."""
        epoch = self.assignment_epoch
        return epoch == self.epoch and all(
            member.current.is_reconciled_to(epoch) for member in self.members.values()
        )

    @property
    def is_unsaved(self) -> bool:
        """True if the group has changed since `changes` was replaced."""
        return bool(self.changes)

    @property
    def resolved(self) -> dict[str, frozenset[str]]:
        """The names of the topics that match each expression. Change them with `resolve`."""
        return self.subscriptions.resolved

    @property
    def assignor(self) -> str:
        """The name of the assignor that most members name, or else of the default."""
        votes = Counter(
            member.details.assignor
            for member in self.members.values()
            if member.details.assignor in self.limits.assignors
        )
        # Among those with equal votes Kafka takes `uniform`, whichever was named first.
        named = max(votes, key=lambda name: (votes[name], name), default=None)
        return named or self.limits.assignors[0]

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return True if another member owns a partition of the member's target."""
        subscribed = self.subscriptions.ids(member.subscription)
        for topic_id, target in self.targets.get(member.member_id, {}).items():
            if topic_id in subscribed:
                owners = self._owners.of_topic(topic_id)
                if any(owners.get(each, member.member_id) != member.member_id for each in target):
                    return True
        return False

    def is_subscribed(self, topic: str) -> bool:
        """Return True if members subscribe to the topic."""
        return self.subscriptions.has(topic)

    def resolve(self, expression: str, names: frozenset[str]) -> None:
        """Set the names of the topics that match an expression."""
        if self.subscriptions.resolve(expression, names):
            self.changes.has_resolved = True

    # --- Targets ----------------------------------------------------------------------------------------

    def follow(self, topics: Topics, *, is_changed: bool) -> None:
        """Begin a group epoch if a subscription, or a topic to which members subscribe, has changed."""
        self.subscriptions.see(topics)
        is_new = is_changed or self.epoch == 0
        if self.subscriptions.is_stale or self.topics_hash is None:
            topics_hash = self.subscriptions.hash()
            is_new |= self.topics_hash not in (None, topics_hash)
            if topics_hash != self.topics_hash:
                self.topics_hash = topics_hash
                self.changes.has_head = True
        if is_new:
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.changes.has_head = True
        self.log("%(_group)s begins an epoch")

    def must_assign(self, now_ms: float) -> bool:
        """Return True if there must be a new target, and the interval since the last one has passed.

        A group that was loaded has none before a request brings the topics.
        """
        if not self.members or self.epoch <= self.assignment_epoch or not self.subscriptions.has_topics:
            return False
        return now_ms - self.assigned_ms >= self.limits.assignment_interval_ms

    def assign_if_small(self, now_ms: float) -> None:
        """Compute the target if there must be a new one. The caller does it for a large group that has one already."""
        if self.must_assign(now_ms) and (self.assignment_epoch == 0 or not self.is_large):
            self.apply(at_once(self.assigning()), now_ms)

    @property
    def is_large(self) -> bool:
        """True if a request does not compute the target itself; the caller does, after `must_assign`."""
        counts = self.subscriptions.counts()
        return sum(counts.values()) + len(counts) * len(self.members) > MOST_AT_ONCE

    def assigning(self) -> Steps[NewTarget]:
        """Compute the target for the group as it is now, in steps between which the group may change."""
        epoch = self.epoch
        candidates = [
            Candidate(
                member.member_id,
                member.instance_id,
                self.subscriptions.ids(member.subscription),
                self.targets.get(member.member_id, {}),
            )
            for member in self.members.values()
        ]
        target = yield from ASSIGNORS[self.assignor](candidates, self.subscriptions.counts())
        return NewTarget(epoch, target)

    def apply(self, new: NewTarget, now_ms: float) -> bool:
        """Make a computed target the group's. Return False, and change nothing, if the group has changed meanwhile."""
        if (
            new.epoch != self.epoch
            or new.epoch == self.assignment_epoch
            or new.target.keys() != self.members.keys()
        ):
            return False
        for member_id, assignment in new.target.items():
            if self.targets.get(member_id, {}) != assignment:
                self.changes.targets.add(member_id)
        self.targets = new.target
        self.assignment_epoch, self.assigned_ms = new.epoch, now_ms
        self.changes.has_head = True
        return True

    # --- Members ----------------------------------------------------------------------------------------

    def find(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return the member. Raises UnknownMemberId, or FencedInstanceId if its instance has another member id."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is not None and holder != member_id:
                self.log("%(_group)s: fenced %(_member)s; its instance has another member id", member_id)
                raise FencedInstanceId
            if holder is None:
                raise UnknownMemberId
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member with that group instance id."""
        holder = self._static.get(instance_id or "")
        return None if holder is None else self.members[holder]

    def check_room(self, member_id: str) -> None:
        """Raise GroupMaxSizeReached if the group is full and has no such member."""
        if len(self.members) >= self.limits.max_size and member_id not in self.members:
            raise GroupMaxSizeReached

    def admit(self, member_id: str, existing: ConsumerMember | None) -> ConsumerMember:
        """Return the member for an id: the existing one, a replacement of a static member, or a new one."""
        if existing is None:
            member = ConsumerMember(member_id)
            self.members[member_id] = member
            self.subscriptions.add(member.subscription)
            self.changes.add_all_parts(member_id)
            self.log("%(_group)s: %(_member)s joins", member_id)
            return member
        if existing.member_id == member_id and not existing.has_left_for_a_while:
            return existing
        return self._replace(existing, member_id)

    def _replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place of a static member to a client with another member id, or to one that is back."""
        self.log(
            "%(_group)s: %(_member)s replaces static member %(_replaced)s",
            member_id,
            replaced=old.member_id,
            _replaced=quoted(old.member_id),
        )
        new = evolve(old, member_id=member_id, current=evolve(old.current, epoch=0, previous_epoch=0))
        self._owners.replace(old.member_id, old.current, Current())
        self._owners.replace(member_id, Current(), new.current)
        self._clear_deadlines(old.member_id)
        # Keep the order of members.
        self.members = {
            (member_id if key == old.member_id else key): (new if each is old else each)
            for key, each in self.members.items()
        }
        self.targets[member_id] = self.targets.pop(old.member_id, {})
        self._static[new.instance_id or ""] = member_id
        self.changes.add_all_parts(old.member_id)
        self.changes.add_all_parts(member_id)
        return new

    def remove(self, members: Sequence[ConsumerMember], reason: str) -> None:
        """Remove members and begin a group epoch. If only classic members are left, the group may be downgraded."""
        for member in members:
            self.log("%(_group)s: %(_member)s %(reason)s", member.member_id, reason=reason)
            self._forget(member)
        self.topics_hash = None
        if self.can_downgrade:
            self.downgrade = Downgrade(self.epoch)
        self._begin_epoch()
        if not self.members:
            # As in Kafka: nothing is to be assigned, and the next member gets its target immediately.
            self.assignment_epoch, self.assigned_ms = self.epoch, float("-inf")

    def _forget(self, member: ConsumerMember) -> None:
        self.set_current(member, Current())
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self.subscriptions.remove(member.subscription)
        self._clear_deadlines(member.member_id)
        self.changes.add_all_parts(member.member_id)
        self.changes.has_resolved |= bool(member.subscription.expression)

    @property
    def can_downgrade(self) -> bool:
        """True if the group has only classic members, and may become a classic group."""
        limits, size = self.limits, len(self.members)
        return 0 < size <= limits.classic.max_size and limits.can_downgrade and self.are_all_classic

    @property
    def are_all_classic(self) -> bool:
        """True if every member uses the classic protocol."""
        return all(member.classic is not None for member in self.members.values())

    def reconcile(
        self,
        member: ConsumerMember,
        owned: Assignment | None,
        now_ms: float,
        *,
        is_subscription_changed: bool = False,
    ) -> None:
        """Move a member one step to its target. `owned` is what it reports to own."""
        if member.current.is_reconciled_to(self.assignment_epoch) and not is_subscription_changed:
            return
        subscribed = self.subscriptions.ids(member.subscription)
        target = self.targets.get(member.member_id, {})
        aim = Aim(self.assignment_epoch, target, subscribed, owned, is_subscription_changed)
        after = reconciled(member.member_id, member.current, aim, self._owners)
        if after == member.current:
            return
        self.set_current(member, after)
        if after.state is not MemberState.UNREVOKED:
            self._deadlines.clear((Timer.REBALANCE, member.member_id))
        elif member.classic is None:
            self.set_timer(Timer.REBALANCE, member, now_ms + member.details.rebalance_timeout_ms)

    def set_current(self, member: ConsumerMember, after: Current) -> None:
        """Set a member's current assignment."""
        if self._owners.replace(member.member_id, member.current, after):
            self.changes.released.add(member.member_id)
        member.current = after
        self.changes.currents.add(member.member_id)

    def subscribe(self, member: ConsumerMember, subscription: Subscription) -> bool:
        """Set a member's subscription. Return True if it has changed."""
        before = member.subscription
        if subscription == before:
            return False
        self.subscriptions.add(subscription)
        self.subscriptions.remove(before)
        member.subscription = subscription
        self.changes.members.add(member.member_id)
        self.changes.has_resolved |= before.expression != subscription.expression
        return True

    def set_details(self, member: ConsumerMember, details: Details) -> None:
        """Set what a member has sent about itself, except for its subscription."""
        if member.instance_id != details.instance_id:
            self._static.pop(member.instance_id or "", None)
        if details.instance_id is not None:
            self._static[details.instance_id] = member.member_id
        member.details = details
        self.changes.members.add(member.member_id)

    # --- Time -------------------------------------------------------------------------------------------

    def resume(self, now_ms: float) -> None:
        """Start the timeouts of a group that was loaded. Every member gets its full timeouts from now."""
        for member in self.members.values():
            self._owners.replace(member.member_id, Current(), member.current)
            self.subscriptions.add(member.subscription)
            if member.instance_id is not None:
                self._static[member.instance_id] = member.member_id
            self.extend_session(member, now_ms)
            if member.current.state is MemberState.UNREVOKED and member.classic is None:
                self.set_timer(Timer.REBALANCE, member, now_ms + member.details.rebalance_timeout_ms)
        if self.can_downgrade:
            self.downgrade = Downgrade()

    @property
    def wake_ms(self) -> float:
        """The earliest time at which a timeout may pass."""
        return self._deadlines.next_ms

    def tick(self, now_ms: float) -> None:
        """Remove the members whose timeouts have passed."""
        while (due := self._deadlines.pop(now_ms)) is not None:
            timer, member_id = due
            self.remove([self.members[member_id]], REASONS[timer])

    def give_up(self) -> None:
        """Do nothing: the group answers every request immediately."""

    def extend_session(self, member: ConsumerMember, now_ms: float) -> None:
        """Begin the member's session timeout again."""
        classic = member.details.classic
        timeout_ms = self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        self._deadlines.set((Timer.SESSION, member.member_id), now_ms + timeout_ms)

    def start_timer(self, timer: Timer, member: ConsumerMember, end_ms: float) -> None:
        """Do as `set_timer` does, unless the timer is set already."""
        if not self._deadlines.is_set((timer, member.member_id)):
            self.set_timer(timer, member, end_ms)

    def set_timer(self, timer: Timer, member: ConsumerMember, end_ms: float) -> None:
        """Remove the member at that time, unless the timer is cleared or set again."""
        self._deadlines.set((timer, member.member_id), end_ms)

    def clear_timer(self, timer: Timer, member: ConsumerMember) -> None:
        """Clear a timer of a member."""
        self._deadlines.clear((timer, member.member_id))

    def _clear_deadlines(self, member_id: str) -> None:
        for timer in Timer:
            self._deadlines.clear((timer, member_id))
