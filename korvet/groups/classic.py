"""The state machine of a classic consumer group. It does no IO and reads no clock.

    Empty ─join→ PreparingRebalance ─all joined, or time is up→ CompletingRebalance ─the leader syncs→ Stable
                   ↑                                                  │                                 │
                   └──────── a member joins again, leaves, or its session times out ────────────────────┘

The rules are those of Apache Kafka's ClassicGroup and GroupMetadataManager. Each call passes `now_ms`, read from a
monotonic clock. `tick` handles the timeouts that have passed; the caller calls it no later than `wake_ms`.

A join and a sync may have to wait for other members. The caller passes a ticket (any object) with each, and the group
appends the ticket with its answer to `answers`, in the same call or in a later one. Every ticket is answered, also when
its member leaves or is replaced. If `is_unsaved` is True, the caller must save the group before it sends the answers,
so that the group is the same after a crash of the broker.

Differences from Kafka:

- The members of a generation are saved when it begins, not only when they have their assignments, so that no
  generation begins twice.
- A member that leaves while its sync waits gets an answer to the sync.
- At most `max_newcomers` clients, and at most `max_size`, hold a member id under which they have not joined yet.
  Beyond `max_newcomers` the group drops the oldest of these ids, and its client has to request another one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from uuid import uuid4

from attrs import define, evolve, field

from korvet.coordination.deadlines import Deadlines
from korvet.groups.members import (
    CONSUMER,
    NEW_MEMBER,
    Answer,
    GroupLimits,
    Join,
    Joined,
    JoinedMember,
    Leave,
    Member,
    State,
    Sync,
    Synced,
    Ticket,
    selected_protocol,
    subscribed_topics,
)
from korvet.protocol.errors import (
    ErrorCode,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from korvet.protocol.text import quoted, quoted_list

logger = logging.getLogger(__name__)

# Clients should truncate their reasons to this length (KIP-800); not all do.
LONGEST_REASON = 255
# Characters of a member id before the random part. A longer client id would make ids that do not fit in a response.
LONGEST_PREFIX = 255


class Timer(Enum):
    """The kinds of timeouts of a group."""

    JOIN = 0
    SYNC = 1
    SESSION = 2
    NEWCOMER = 3


JOIN = (Timer.JOIN, "")
SYNC = (Timer.SYNC, "")


def new_member_id(prefix: str) -> str:
    """Return a member id that no other member has."""
    return f"{prefix[:LONGEST_PREFIX]}-{uuid4()}"


@define(eq=False, repr=False)
class ClassicGroup:
    """See the module. A new group is Empty and has nothing to save."""

    group_id: str
    limits: GroupLimits = field(factory=GroupLimits)
    new_member_id: Callable[[str], str] = new_member_id
    state: State = State.EMPTY
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(factory=dict)
    # Topics the members subscribe to; None if unknown: not consumers, or metadata that cannot be parsed.
    subscribed_topics: frozenset[str] | None = None
    answers: list[tuple[Ticket, Answer]] = field(factory=list)
    is_unsaved: bool = False
    _static: dict[str, str] = field(factory=dict)  # group instance id -> member id
    _pending: dict[str, None] = field(factory=dict)  # ids assigned but not joined under yet, oldest first
    _supported: Counter[str] = field(factory=Counter)  # protocol -> number of members that support it
    _joining: int = 0  # members whose join waits
    _not_synced: set[str] = field(factory=set)
    _is_initial: bool = False  # the current rebalance is the first after Empty
    _initial_delay_ms: int = 0
    _initial_rest_ms: int = 0
    _has_newcomers: bool = False
    _deadlines: Deadlines[tuple[Timer, str]] = field(factory=Deadlines)  # the text is a member id, or empty

    def __repr__(self) -> str:
        return (
            f"<ClassicGroup {quoted(self.group_id)} {self.state.value} generation={self.generation_id}"
            f" members={len(self.members)}>"
        )

    def __str__(self) -> str:
        return (
            f"group {quoted(self.group_id)} ({self.state.value}, generation {self.generation_id},"
            f" {len(self.members)} members)"
        )

    def log(self, text: str, member_id: str = "", *, level: int = logging.INFO, **fields: str | None) -> None:
        """Log a line about the group, and maybe one of its members (`korvet.logs`)."""
        about = {"_group": self, "group": self.group_id, "_member": quoted(member_id), "member": member_id}
        logger.log(level, text, {**about, **fields})

    # --- Requests ---------------------------------------------------------------------------------------

    def join(self, join: Join, ticket: Ticket, now_ms: float) -> None:
        """Add or update a member. The answer comes when the next generation begins, unless nothing has changed."""
        try:
            if not self._has_room_for(join):
                self._forget(join.member_id)
                raise GroupMaxSizeReached
            if not self._supports(join):
                raise InconsistentGroupProtocol
            if join.member_id == NEW_MEMBER:
                self._join_as_new(join, ticket, now_ms)
            elif join.member_id in self._pending and join.group_instance_id is None:
                self._add(join.member_id, join, ticket, now_ms)
            else:
                self._join_again(join, ticket, now_ms)
        except KafkaError as error:
            # A client that was rejected because the group is full loses its member id.
            keeps_id = not isinstance(error, GroupMaxSizeReached)
            member_id = join.member_id if keeps_id else NEW_MEMBER
            self._answer(ticket, Joined(error_code=error.error_code, member_id=member_id))

    def expect(self, member_id: str) -> None:
        """Accept the next join with a member id that a client got before this group was created."""
        if member_id != NEW_MEMBER:
            self._pending[member_id] = None

    def sync(self, sync: Sync, ticket: Ticket, now_ms: float) -> None:
        """Request an assignment. The answer comes once the leader has sent the assignments."""
        try:
            self._check(sync.member_id, sync.group_instance_id, sync.generation_id)
            if _differ(sync.protocol_type, self.protocol_type) or _differ(
                sync.protocol_name, self.protocol_name
            ):
                raise InconsistentGroupProtocol
            if self.state is State.PREPARING_REBALANCE:
                raise RebalanceInProgress
        except KafkaError as error:
            self._answer(ticket, Synced(error_code=error.error_code))
            return
        member = self.members[sync.member_id]
        self._has_synced(member)
        if self.state is State.STABLE:
            self._answer(ticket, self._synced(member))
            return
        self._answer_sync(member, Synced(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            self._assign(sync.assignments, now_ms)

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: float
    ) -> None:
        """Extend the session of a member.

        Raises RebalanceInProgress if the member has to join again, and UnknownMemberId, FencedInstanceId or
        IllegalGeneration if it is not a member of this generation.
        """
        member = self._check(member_id, group_instance_id, generation_id)
        self._extend_session(member, now_ms)
        if self.state is State.PREPARING_REBALANCE:
            raise RebalanceInProgress

    def leave(self, leaving: Sequence[Leave], now_ms: float) -> list[ErrorCode]:
        """Remove members. Return one error code for each."""
        outcomes = [self._leave(each) for each in leaving]
        if ErrorCode.NONE in outcomes and self.state is not State.EMPTY:
            self._rebalance("members left", now_ms)
        return outcomes

    def check_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: float
    ) -> None:
        """Raise the error that forbids a member to commit offsets, if there is one. Extend the member's session."""
        if self.state is State.EMPTY and generation_id < 0:
            return
        if generation_id < 0 and not member_id and group_instance_id is None:
            raise UnknownMemberId("the group has members; only they may commit")
        member = self._check(member_id, group_instance_id, generation_id)
        if self.state is State.COMPLETING_REBALANCE:
            raise RebalanceInProgress
        self._extend_session(member, now_ms)

    def check_staging(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: float
    ) -> None:
        """Raise the error that forbids to stage offsets in a transaction, if there is one (KIP-447).

        A producer without a consumer's member id may always do so, and a rebalance does not forbid it. As in a plain
        commit, nothing is checked without a generation while the group is empty.
        """
        is_member = generation_id >= 0 or member_id != "" or group_instance_id is not None
        if not is_member or (self.state is State.EMPTY and generation_id < 0):
            return
        member = self._check(member_id, group_instance_id, generation_id)
        self._extend_session(member, now_ms)

    def may_be_fenced(self, member_id: str, group_instance_id: str | None) -> bool:
        """Return True if a request with these ids may be answered by FencedInstanceId."""
        return group_instance_id is not None and self._static.get(group_instance_id) != member_id

    def is_subscribed(self, topic: str) -> bool:
        """Return True if members subscribe to the topic, or may do so because their subscriptions are unknown."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics

    @property
    def is_consumer_group(self) -> bool:
        """True if the members are consumers, not workers of Kafka Connect, for example."""
        return self.protocol_type == CONSUMER

    @property
    def has_newcomers(self) -> bool:
        """True if a client was assigned a member id under which it has not joined yet."""
        return bool(self._pending)

    def resume(self, now_ms: float) -> None:
        """Start the timeouts of a group that was loaded. Every member gets its full session timeout from now."""
        for member in self.members.values():
            self._supported.update(member.protocol_names)
            if member.group_instance_id is not None:
                self._static[member.group_instance_id] = member.member_id
            self._extend_session(member, now_ms)
        self.subscribed_topics = self._subscriptions()
        if self.state is State.COMPLETING_REBALANCE:
            self._expect_syncs(now_ms)
        elif self.state is State.PREPARING_REBALANCE:  # a group that was converted, and waits for its members
            self._deadlines.set(JOIN, now_ms + self._rebalance_timeout_ms)
        if len(self.members) > self.limits.max_size:
            self._prepare_rebalance(f"the group is larger than {self.limits.max_size}", now_ms)

    def resume_converted(self, now_ms: float, *, must_rebalance: bool) -> None:
        """Start the timeouts of a group that was a consumer group, and a rebalance if there must be one."""
        self.resume(now_ms)
        if must_rebalance:
            self._rebalance("it was a consumer group", now_ms)

    def give_up(self, error_code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Answer all waiting joins and syncs with the error."""
        for member in self.members.values():
            self._answer_join(member, Joined(error_code=error_code, member_id=member.member_id))
            self._answer_sync(member, Synced(error_code=error_code))

    @property
    def wake_ms(self) -> float:
        """The earliest time at which a timeout may pass."""
        return self._deadlines.next_ms

    def tick(self, now_ms: float) -> None:
        """Handle all timeouts that have passed."""
        while (due := self._deadlines.pop(now_ms)) is not None:
            timer, member_id = due
            if timer is Timer.JOIN:
                self._end_join(now_ms)
            elif timer is Timer.SYNC:
                self._end_sync(now_ms)
            elif timer is Timer.SESSION:
                self._end_session(self.members[member_id], now_ms)
            else:
                self._end_pending(member_id, now_ms)

    # --- Joining ----------------------------------------------------------------------------------------

    def _has_room_for(self, join: Join) -> bool:
        member = self.members.get(join.member_id)
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING_REBALANCE:
            # Count the members that have joined again: if max_size was reduced, the last members to join are rejected.
            is_here = member is not None and member.join_ticket is not None
            return is_here or self._joining < self.limits.max_size
        return member is not None or len(self.members) < self.limits.max_size

    def _supports(self, join: Join) -> bool:
        if self.state is State.EMPTY:
            return bool(join.protocol_type and join.protocols)
        if join.protocol_type != self.protocol_type:
            return False
        return any(self._supported[name] == len(self.members) for name, _ in join.protocols)

    def _join_as_new(self, join: Join, ticket: Ticket, now_ms: float) -> None:
        member_id = self.new_member_id(join.group_instance_id or join.client_id)
        if join.group_instance_id is None and join.can_be_sent_away:
            if len(self._pending) >= self.limits.max_size:
                raise GroupMaxSizeReached
            while len(self._pending) >= self.limits.max_newcomers:
                self._forget_newcomer(next(iter(self._pending)))
            self.log(
                "%(_group)s: assigned member id %(_member)s; the client has to join again with it", member_id
            )
            self._pending[member_id] = None
            self._deadlines.set((Timer.NEWCOMER, member_id), now_ms + join.session_timeout_ms)
            self._answer(ticket, Joined(error_code=MemberIdRequired.error_code, member_id=member_id))
        elif join.group_instance_id in self._static:
            self._replace(self._static[join.group_instance_id], member_id, join, ticket, now_ms)
        else:
            self._add(member_id, join, ticket, now_ms)

    def _add(self, member_id: str, join: Join, ticket: Ticket, now_ms: float) -> None:
        member = Member(
            member_id,
            join.group_instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
            is_new=True,
        )
        self._forget_newcomer(member_id)
        if not self.members:
            self.protocol_type = join.protocol_type
        self.members[member_id] = member
        self._supported.update(member.protocol_names)
        self.leader = self.leader or member_id
        if join.group_instance_id is not None:
            self._static[join.group_instance_id] = member_id
        self._park_join(member, ticket)
        # The client has not received its member id yet, so it cannot send heartbeats.
        self._deadlines.set((Timer.SESSION, member_id), now_ms + self.limits.new_member_join_timeout_ms)
        if self._is_initial and self.state is State.PREPARING_REBALANCE:
            self._has_newcomers = True
        self._rebalance(f"{quoted(member_id)} joins; {_reason(join.reason)}", now_ms)

    def _join_again(self, join: Join, ticket: Ticket, now_ms: float) -> None:
        member = self._find(join.member_id, join.group_instance_id)
        is_leader = member.member_id == self.leader
        has_changed = member.protocols != join.protocols
        if self.state is State.COMPLETING_REBALANCE and not has_changed:
            # The response to its first join may have been lost.
            self._answer(ticket, self._joined(member))
        elif self.state is State.STABLE and not has_changed and not is_leader:
            self._answer(ticket, self._joined(member))
        else:
            # The leader may request a rebalance without changed metadata: it watches the number of partitions.
            self._update(member, join, ticket)
            self._rebalance(f"{quoted(member.member_id)} joins again; {_reason(join.reason)}", now_ms)

    def _update(self, member: Member, join: Join, ticket: Ticket) -> None:
        self._supported.subtract(member.protocol_names)
        member.protocols = join.protocols
        self._supported.update(member.protocol_names)
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        self._park_join(member, ticket)

    def _replace(self, old_id: str, new_id: str, join: Join, ticket: Ticket, now_ms: float) -> None:
        """Give a static member that joins without its member id a new one, and fence the old one."""
        instance_id = quoted(join.group_instance_id or "")
        self.log(
            "%(_group)s: static member %(instance)s has new id %(_member)s instead of %(_replaced)s",
            new_id,
            instance=instance_id,
            replaced=old_id,
            _replaced=quoted(old_id),
        )
        member = self.members[old_id]
        self._answer_join(member, Joined(error_code=FencedInstanceId.error_code, member_id=old_id))
        self._answer_sync(member, Synced(error_code=FencedInstanceId.error_code))
        # Keep the order of members.
        self.members = {(new_id if key == old_id else key): each for key, each in self.members.items()}
        member.member_id = self._static[join.group_instance_id or ""] = new_id
        member.is_new = False
        self._deadlines.clear((Timer.SESSION, old_id))
        if old_id in self._not_synced:
            self._not_synced.remove(old_id)
            self._not_synced.add(new_id)
        previous_leader = self.leader
        if self.leader == old_id:
            self.leader = new_id
        self._update(member, join, ticket)
        self._extend_session(member, now_ms)
        if (
            self.state is State.STABLE
            and selected_protocol(self.members.values(), self._supported) == self.protocol_name
        ):
            self.is_unsaved = True
            self._answer_join(member, self._rejoined(member, join, previous_leader))
        else:
            self._rebalance(f"static member {instance_id} rejoined; {_reason(join.reason)}", now_ms)

    def _rejoined(self, member: Member, join: Join, previous_leader: str | None) -> Joined:
        """Return the answer for a static member that rejoins a Stable group."""
        # If it is the leader, it must not compute assignments: the other members would not receive them, since they
        # do not sync again. From JoinGroup v9 on, skip_assignment prevents it. Before v9 the answer names the
        # member's own previous id as the leader.
        joined = self._joined(member)
        if not join.can_skip_assignment:
            return evolve(joined, leader=previous_leader or "", members=())
        return evolve(joined, skip_assignment=member.member_id == self.leader)

    # --- Rebalancing ------------------------------------------------------------------------------------

    def _rebalance(self, reason: str, now_ms: float) -> None:
        """Start a rebalance; if one is in progress, complete it if all members have joined."""
        if self.state is not State.PREPARING_REBALANCE:
            self._prepare_rebalance(reason, now_ms)
        # The first rebalance always waits for its delay: more members may join.
        elif not self._is_initial and self._all_are_here:
            self._complete_join(now_ms)

    def _prepare_rebalance(self, reason: str, now_ms: float) -> None:
        if self.state is State.COMPLETING_REBALANCE:
            self._give_up_assignment(now_ms)
        self._not_synced.clear()
        self._deadlines.clear(SYNC)
        self._is_initial = self.state is State.EMPTY
        self.log("%(_group)s rebalances: %(reason)s", reason=reason)
        self.state = State.PREPARING_REBALANCE
        if self._is_initial:
            self._has_newcomers = False
            self._initial_delay_ms = self.limits.initial_rebalance_delay_ms
            self._initial_rest_ms = max(self._rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._deadlines.set(JOIN, now_ms + self._initial_delay_ms)
        elif self._all_are_here:
            self._complete_join(now_ms)
        else:
            self._deadlines.set(JOIN, now_ms + self._rebalance_timeout_ms)

    def _give_up_assignment(self, now_ms: float) -> None:
        for member in self.members.values():
            member.assignment = b""
            if self._answer_sync(member, Synced(error_code=ErrorCode.REBALANCE_IN_PROGRESS)):
                self._extend_session(member, now_ms)

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def _all_are_here(self) -> bool:
        return self._joining == len(self.members) and not self._pending

    def _end_join(self, now_ms: float) -> None:
        """Handle the end of the time for joining: extend the initial delay or complete the rebalance."""
        if self._is_initial and self._has_newcomers and self._initial_rest_ms:
            delay_ms = min(self.limits.initial_rebalance_delay_ms, self._initial_rest_ms)
            self._has_newcomers = False
            self._initial_rest_ms = max(self._initial_rest_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay_ms
            self._deadlines.set(JOIN, now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: float) -> None:
        """Begin the next generation with the members that have joined, and static members that have not."""
        self._deadlines.clear(JOIN)
        missing = [m for m in self.members.values() if m.join_ticket is None and m.group_instance_id is None]
        for member in missing:
            self.log("%(_group)s: %(_member)s did not join in time", member.member_id)
            self._remove(member)
        if self.members and not self._has_leader_that_is_here():
            # Only static members are left, and none of them has joined. Wait until they join or their sessions end.
            self._deadlines.set(JOIN, now_ms + max(1, self._rebalance_timeout_ms))
            return
        self.generation_id += 1
        self.is_unsaved = True
        if not self.members:
            self.state, self.protocol_name = State.EMPTY, None
            self.subscribed_topics = self._subscriptions()
            self.log("%(_group)s has no members")
            return
        self.state, self.protocol_name = (
            State.COMPLETING_REBALANCE,
            selected_protocol(self.members.values(), self._supported),
        )
        self.subscribed_topics = self._subscriptions()
        for member in self.members.values():
            member.is_new = False
            self._answer_join(member, self._joined(member))
            self._extend_session(member, now_ms)
        self._expect_syncs(now_ms)
        self.log("%(_group)s waits for its leader %(_member)s", self.leader or "")

    def _has_leader_that_is_here(self) -> bool:
        """Return True if a member that has joined can lead. Replace a leader that has not joined."""
        if self.members[self.leader or ""].join_ticket is not None:
            return True
        here = next((m.member_id for m in self.members.values() if m.join_ticket is not None), None)
        if here is None:
            return False
        self.log(
            "%(_group)s: leader %(_replaced)s did not join in time, %(_member)s takes over",
            here,
            replaced=self.leader,
            _replaced=quoted(self.leader or ""),
        )
        self.leader = here
        return True

    def _joined(self, member: Member) -> Joined:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(each.member_id, each.group_instance_id, each.metadata(self.protocol_name))
                for each in self.members.values()
            )
        return Joined(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            members=members,
        )

    def _subscriptions(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in subscribed_topics(member.metadata(self.protocol_name))
            )
        except ValueError:
            self.log("%(_group)s: cannot parse the subscriptions of its members", level=logging.WARNING)
            return None

    # --- Assignments ------------------------------------------------------------------------------------

    def _expect_syncs(self, now_ms: float) -> None:
        self._not_synced = set(self.members)
        self._deadlines.set(SYNC, now_ms + self._rebalance_timeout_ms)

    def _has_synced(self, member: Member) -> None:
        self._not_synced.discard(member.member_id)
        if not self._not_synced:
            self._deadlines.clear(SYNC)

    def _end_sync(self, now_ms: float) -> None:
        """Remove the members that have not sent SyncGroup in time, and rebalance."""
        missing = [self.members[member_id] for member_id in sorted(self._not_synced)]
        for member in missing:
            self._remove(member)
        names = quoted_list([member.member_id for member in missing])
        self._prepare_rebalance(f"{names} did not sync in time", now_ms)

    def _assign(self, assignments: dict[str, bytes], now_ms: float) -> None:
        self.state = State.STABLE
        self.is_unsaved = True
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if self._answer_sync(member, self._synced(member)):
                self._extend_session(member, now_ms)
        self.log("%(_group)s has its assignments")

    def _synced(self, member: Member) -> Synced:
        return Synced(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    # --- Members ----------------------------------------------------------------------------------------

    def _find(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member. Raises UnknownMemberId, or FencedInstanceId if its instance has another member id.

        A request without a member id does not come from another client of the instance: librdkafka forgets its id
        after a session without an answer, and goes on to send heartbeats. FencedInstanceId would end it for good.
        """
        if member_id == NEW_MEMBER:
            raise UnknownMemberId
        if group_instance_id is not None and self._static.get(group_instance_id, member_id) != member_id:
            present_id = self._static[group_instance_id]
            self.log(
                "%(_group)s: fenced static member %(instance)s with id %(_member)s; its id is %(_present)s now",
                member_id,
                level=logging.WARNING,
                instance=quoted(group_instance_id),
                present=present_id,
                _present=quoted(present_id),
            )
            raise FencedInstanceId
        member = self.members.get(member_id)
        if member is None or (group_instance_id is not None and group_instance_id not in self._static):
            raise UnknownMemberId
        return member

    def _check(self, member_id: str, group_instance_id: str | None, generation_id: int) -> Member:
        member = self._find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGeneration(f"the group's generation is {self.generation_id}, not {generation_id}")
        return member

    def _leave(self, leaving: Leave) -> ErrorCode:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id in self._pending:
            self._forget_newcomer(member_id)
            return ErrorCode.NONE
        if member_id == NEW_MEMBER and instance_id is not None:
            member_id = self._static.get(instance_id, NEW_MEMBER)
        try:
            member = self._find(member_id, instance_id)
        except KafkaError as error:
            return error.error_code
        self.log("%(_group)s: %(_member)s leaves; %(reason)s", member_id, reason=_reason(leaving.reason))
        self._remove(member)
        return ErrorCode.NONE

    def _forget(self, member_id: str) -> None:
        """Remove a client that was rejected because the group is full, as a newcomer or as a member."""
        self._forget_newcomer(member_id)
        if member_id in self.members:
            self._remove(self.members[member_id])

    def _forget_newcomer(self, member_id: str) -> None:
        """Stop waiting for a client to join with that member id."""
        self._pending.pop(member_id, None)
        self._deadlines.clear((Timer.NEWCOMER, member_id))

    def _remove(self, member: Member) -> None:
        """Remove a member and answer its waiting requests with UNKNOWN_MEMBER_ID. The caller starts the rebalance."""
        self._answer_join(member, Joined(error_code=UnknownMemberId.error_code))
        self._answer_sync(member, Synced(error_code=UnknownMemberId.error_code))
        del self.members[member.member_id]
        self._deadlines.clear((Timer.SESSION, member.member_id))
        self._supported.subtract(member.protocol_names)
        self._not_synced.discard(member.member_id)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _end_session(self, member: Member, now_ms: float) -> None:
        is_waiting = member.join_ticket is not None or member.sync_ticket is not None
        if is_waiting and not member.is_new:
            return  # it cannot send heartbeats while it waits; the answer extends its session
        self.log("%(_group)s: the session of %(_member)s timed out", member.member_id)
        self._remove(member)
        if self.state is not State.PREPARING_REBALANCE:
            self._prepare_rebalance(f"the session of {quoted(member.member_id)} timed out", now_ms)
        elif self._all_are_here:
            self._complete_join(now_ms)

    def _end_pending(self, member_id: str, now_ms: float) -> None:
        self.log("%(_group)s: %(_member)s did not join again in time", member_id)
        del self._pending[member_id]
        if self.state is State.PREPARING_REBALANCE and self._all_are_here:
            self._complete_join(now_ms)

    # --- Tickets and time -------------------------------------------------------------------------------

    def _answer(self, ticket: Ticket, answer: Answer) -> None:
        self.answers.append((ticket, answer))

    def _park_join(self, member: Member, ticket: Ticket) -> None:
        """Let a join wait for the next generation."""
        # An earlier join of the same member comes from a connection that its client has abandoned.
        self._answer_join(
            member, Joined(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        )
        member.join_ticket = ticket
        self._joining += 1

    def _answer_join(self, member: Member, joined: Joined) -> None:
        if member.join_ticket is not None:
            self._answer(member.join_ticket, joined)
            member.join_ticket = None
            self._joining -= 1

    def _answer_sync(self, member: Member, synced: Synced) -> bool:
        """Answer the member's sync if one waits. Return True if one did."""
        if member.sync_ticket is None:
            return False
        self._answer(member.sync_ticket, synced)
        member.sync_ticket = None
        return True

    def _extend_session(self, member: Member, now_ms: float) -> None:
        self._deadlines.set((Timer.SESSION, member.member_id), now_ms + member.session_timeout_ms)


def _differ(claimed: str | None, actual: str | None) -> bool:
    """Return True if both values are set and differ."""
    return claimed is not None and actual is not None and claimed != actual


def _reason(reason: str | None) -> str:
    """Return the client's reason, escaped and truncated for the log."""
    return f"client reason: {reason[:LONGEST_REASON]!r}" if reason else "client reason: not provided"
