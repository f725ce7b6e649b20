"""The state machine of a share group's members (KIP-932). It does no IO and reads no clock.

The group epoch rises with each change of members, subscriptions or subscribed topics, and a heartbeat that finds it
above the assignment epoch computes a new assignment. A member moves to it directly: partitions are shared, so that none
has to be revoked first. The records that members acquire are in `korvet.share`.

Each call passes `now_ms`, read from a monotonic clock. `tick` handles the timeouts that have passed; the caller calls
it no later than `wake_ms`. If `is_unsaved` is True, the caller must save the group before it answers.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

from attrs import define, field, frozen

from korvet.coordination.deadlines import Deadlines
from korvet.groups.assignors import Candidate, assign_shares
from korvet.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH, Beat
from korvet.groups.subscriptions import Assignment, Subscription, Subscriptions, Topics
from korvet.protocol.errors import FencedMemberEpoch, GroupMaxSizeReached, UnknownMemberId
from korvet.protocol.text import quoted

logger = logging.getLogger(__name__)

ASSIGNOR = "simple"


class ShareState(Enum):
    """The states of a share group; the values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    STABLE = "Stable"


@frozen
class ShareGroupLimits:
    """The settings for members of share groups: the broker's, and the group's own where it has some."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 200


@frozen(kw_only=True)
class ShareHeartbeat:
    """The fields of ShareGroupHeartbeat. None means: as before."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] | None = None


@define(eq=False)
class ShareMember:
    """One member."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscription: Subscription = field(factory=Subscription)
    epoch: int = 0
    previous_epoch: int = 0
    assignment: Assignment = field(factory=dict)


@define(eq=False, repr=False)
class ShareGroup:
    """See the module. A new group is Empty and has nothing to save."""

    group_id: str
    limits: ShareGroupLimits = field(factory=ShareGroupLimits)
    epoch: int = 0
    assignment_epoch: int = 0
    topics_hash: int | None = None  # None: the subscribed topics have changed since the last heartbeat
    members: dict[str, ShareMember] = field(factory=dict)
    is_unsaved: bool = False
    answers: list[tuple[object, Any]] = field(factory=list)
    subscriptions: Subscriptions = field(factory=Subscriptions)
    _deadlines: Deadlines[str] = field(factory=Deadlines)

    def __repr__(self) -> str:
        return f"<ShareGroup {quoted(self.group_id)} epoch={self.epoch} members={len(self.members)}>"

    @property
    def state(self) -> ShareState:
        """The state that Kafka's tools print."""
        return ShareState.STABLE if self.members else ShareState.EMPTY

    def is_subscribed(self, topic: str) -> bool:
        """Return True if members subscribe to the topic."""
        return self.subscriptions.has(topic)

    # --- Heartbeats -------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat, topics: Topics, now_ms: float) -> Beat:
        """Add or update a member and move it to its assignment; or let it leave.

        Raises GroupMaxSizeReached, UnknownMemberId, FencedMemberEpoch.
        """
        if request.member_epoch == LEAVE_EPOCH:
            self.remove(self._find(request.member_id), "leaves")
            return Beat(request.member_id, LEAVE_EPOCH)
        member = self._admitted(request)
        before = member.assignment
        is_changed = self._update(member, request)
        self._follow(topics, is_changed=is_changed)
        if self.epoch > self.assignment_epoch:
            self._assign()
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch
            self.is_unsaved = True
        self._deadlines.set(member.member_id, now_ms + self.limits.session_timeout_ms)
        has_changed = request.member_epoch == JOIN_EPOCH or member.assignment != before
        is_behind = request.member_epoch != member.epoch
        return Beat(member.member_id, member.epoch, member.assignment if has_changed or is_behind else None)

    def is_steady(self, request: ShareHeartbeat, topics: Topics) -> bool:
        """Return True if a heartbeat only extends the member's session."""
        member = self.members.get(request.member_id)
        return (
            member is not None
            and request.member_epoch == member.epoch == self.assignment_epoch == self.epoch
            and request.names is None
            and request.rack_id is None
            and (request.client_id, request.client_host) == (member.client_id, member.client_host)
            and self.subscriptions.has_seen(topics)
        )

    def _find(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId
        return member

    def _admitted(self, request: ShareHeartbeat) -> ShareMember:
        if request.member_epoch != JOIN_EPOCH:
            member = self._find(request.member_id)
            if request.member_epoch not in (member.epoch, member.previous_epoch):
                raise FencedMemberEpoch(f"the member's epoch is {member.epoch}, not {request.member_epoch}")
            return member
        known = self.members.get(request.member_id)
        if known is not None:
            return known
        if len(self.members) >= self.limits.max_size:
            raise GroupMaxSizeReached
        new = self.members[request.member_id] = ShareMember(request.member_id)
        self.subscriptions.add(new.subscription)
        self._log("%(_group)s: %(_member)s joins", new.member_id)
        return new

    def _update(self, member: ShareMember, request: ShareHeartbeat) -> bool:
        """Update what the heartbeat says about the member. Return True if its subscription has changed."""
        rack_id = member.rack_id if request.rack_id is None else request.rack_id
        details = (rack_id, request.client_id, request.client_host)
        if details != (member.rack_id, member.client_id, member.client_host):
            member.rack_id, member.client_id, member.client_host = details
            self.is_unsaved = True
        before, names = member.subscription, request.names
        if names is None or names == before.names:
            return False
        member.subscription = Subscription(names)
        self.subscriptions.add(member.subscription)
        self.subscriptions.remove(before)
        self.is_unsaved = True
        return True

    def remove(self, member: ShareMember, reason: str) -> None:
        """Remove a member and begin a group epoch."""
        self._log("%(_group)s: %(_member)s %(reason)s", member.member_id, reason=reason)
        del self.members[member.member_id]
        self.subscriptions.remove(member.subscription)
        self._deadlines.clear(member.member_id)
        self.topics_hash = None
        self._begin_epoch()
        if not self.members:
            self.assignment_epoch = self.epoch

    # --- Assignments ------------------------------------------------------------------------------------

    def _follow(self, topics: Topics, *, is_changed: bool) -> None:
        """Begin a group epoch if a subscription, or a topic to which members subscribe, has changed."""
        self.subscriptions.see(topics)
        is_new = is_changed or self.epoch == 0
        if self.subscriptions.is_stale or self.topics_hash is None:
            topics_hash = self.subscriptions.hash()
            is_new |= self.topics_hash not in (None, topics_hash)
            if topics_hash != self.topics_hash:
                self.topics_hash, self.is_unsaved = topics_hash, True
        if is_new:
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.is_unsaved = True

    def _assign(self) -> None:
        ids = self.subscriptions.ids
        candidates = [
            Candidate(each.member_id, None, ids(each.subscription), each.assignment)
            for each in self.members.values()
        ]
        target = assign_shares(candidates, self.subscriptions.counts())
        for member_id, assignment in target.items():
            self.members[member_id].assignment = assignment
        self.assignment_epoch, self.is_unsaved = self.epoch, True

    # --- Time -------------------------------------------------------------------------------------------

    def resume(self, now_ms: float) -> None:
        """Start the timeouts of a group that was loaded. Every member gets its full session from now."""
        for member in self.members.values():
            self.subscriptions.add(member.subscription)
            self._deadlines.set(member.member_id, now_ms + self.limits.session_timeout_ms)

    @property
    def wake_ms(self) -> float:
        """The earliest time at which a timeout may pass."""
        return self._deadlines.next_ms

    def tick(self, now_ms: float) -> None:
        """Remove the members whose sessions have timed out."""
        while (member_id := self._deadlines.pop(now_ms)) is not None:
            self.remove(self.members[member_id], "is removed: its session timed out")

    def give_up(self) -> None:
        """Do nothing: a share group answers every request at once."""

    def _log(self, text: str, member_id: str, **fields: str) -> None:
        name = f"share group {quoted(self.group_id)} (epoch {self.epoch}, {len(self.members)} members)"
        about = {"_group": name, "group": self.group_id, "_member": quoted(member_id), "member": member_id}
        logger.info(text, {**about, **fields})
