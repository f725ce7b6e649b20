"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup. Pure functions of a group.

While a group is converted from one protocol to the other, its members use both, and the broker assigns the partitions
of all. A classic member reports what it owns when it joins; the answer comes immediately, without a leader, and its
generation is the member's epoch. SyncGroup returns the assigned partitions. A heartbeat returns REBALANCE_IN_PROGRESS
if the member has to join again: its target is newer, it has to revoke partitions, or those that another member owned
are free.

The rules are those of Apache Kafka's GroupMetadataManager. Answers to joins and syncs are appended to the group's
`answers`, as `ClassicGroup` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from korvet.groups.consumer import ConsumerGroup, Downgrade, Timer
from korvet.groups.consumer_members import ClassicSide, ConsumerMember, Details
from korvet.groups.consumer_protocol import ClassicSubscription, read_subscription, written_assignment
from korvet.groups.members import CONSUMER, NEW_MEMBER, Join, Joined, Leave, Sync, Synced, Ticket
from korvet.groups.reconciliation import MemberState
from korvet.groups.subscriptions import Assignment, Subscription, Topics
from korvet.protocol.errors import (
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from korvet.protocol.text import quoted


def join(group: ConsumerGroup, request: Join, topics: Topics, ticket: Ticket, now_ms: float) -> None:
    """Add or update a classic member, and move it to its target.

    If it replaces the last member that uses the consumer protocol, `group.downgrade` is set.
    """
    member_id = request.member_id
    try:
        if not group.limits.can_mix:
            raise InconsistentGroupProtocol("the migration of groups is disabled")
        group.check_room(member_id)
        _check_protocols(group, request)
        if member_id == NEW_MEMBER:
            member_id = str(uuid4())
        if request.needs_member_id:
            joined = Joined(error_code=MemberIdRequired.error_code, member_id=member_id)
        else:
            joined = _join(group, member_id, request, topics, now_ms)
    except KafkaError as error:
        joined = Joined(error_code=error.error_code)
    group.answers.append((ticket, joined))


def sync(group: ConsumerGroup, request: Sync, topics: Topics, ticket: Ticket, now_ms: float) -> None:
    """Return what is assigned to a classic member."""
    try:
        member, classic = _checked(group, request.member_id, request.group_instance_id, request.generation_id)
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, classic.name):
            raise InconsistentGroupProtocol
        if group.assignment_epoch > member.epoch and member.current.state is not MemberState.UNREVOKED:
            _must_join(group, member, now_ms)
            raise RebalanceInProgress
    except KafkaError as error:
        group.answers.append((ticket, Synced(error_code=error.error_code)))
        return
    group.clear_timer(Timer.SYNC, member)
    group.extend_session(member, now_ms)
    assignment = assigned(member.current.partitions, topics, classic)
    answer = Synced(
        protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
    )
    group.answers.append((ticket, answer))


def heartbeat(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    topics: Topics,
    now_ms: float,
) -> None:
    """Extend the session of a classic member.

    Raises RebalanceInProgress if the member has to join again, and UnknownMemberId, FencedInstanceId or
    IllegalGeneration if it is not a classic member of that epoch.
    """
    member, _ = _checked(group, member_id, instance_id, generation_id)
    group.extend_session(member, now_ms)
    group.subscriptions.see(topics)
    if group.downgrade is None and group.are_all_classic:
        # In other groups, heartbeats of the consumer protocol do it.
        group.follow(topics, is_changed=False)
        group.assign_if_small(now_ms)
    state = member.current.state
    if (
        member.epoch < group.assignment_epoch
        or state is MemberState.UNREVOKED
        or (state is MemberState.UNRELEASED and not group.waits_for_others(member))
    ):
        _must_join(group, member, now_ms)
        raise RebalanceInProgress


def leave(group: ConsumerGroup, leaving: Sequence[Leave]) -> list[ErrorCode]:
    """Remove members, of either protocol. Return one error code for each."""
    going: dict[str, ConsumerMember] = {}
    outcomes: list[ErrorCode] = []
    for each in leaving:
        try:
            member = _leaving(group, each)
            if member.member_id in going:
                raise UnknownMemberId
        except KafkaError as error:
            outcomes.append(error.error_code)
        else:
            going[member.member_id] = member
            outcomes.append(ErrorCode.NONE)
    if going:
        group.remove(list(going.values()), "leaves")
    return outcomes


def assigned(assignment: Assignment, topics: Topics, classic: ClassicSide) -> bytes:
    """Return an assignment as a classic member reads it. Topics that do not exist are left out."""
    by_id = {topic.topic_id: topic.name for topic in topics.values() if topic.topic_id in assignment}
    partitions = {by_id[topic_id]: each for topic_id, each in assignment.items() if topic_id in by_id}
    return written_assignment(partitions, read_subscription(classic.metadata).version)


def owned(subscription: ClassicSubscription, topics: Topics) -> Assignment:
    """Return the partitions of existing topics that a classic member reports to own."""
    return {topics[name].topic_id: each for name, each in subscription.owned.items() if name in topics}


# --- Joining ------------------------------------------------------------------------------------------------


def _check_protocols(group: ConsumerGroup, request: Join) -> None:
    """Raise InconsistentGroupProtocol unless all classic members support one of the client's protocols."""
    sides = [member.classic for member in group.members.values() if member.classic is not None]
    names = {name for name, _ in request.protocols}
    for side in sides:
        names &= {name for name, _ in side.protocols}
    if request.protocol_type != CONSUMER or not names:
        raise InconsistentGroupProtocol


def _join(group: ConsumerGroup, member_id: str, request: Join, topics: Topics, now_ms: float) -> Joined:
    try:
        subscription = read_subscription(request.protocols[0][1])
    except ValueError:
        raise InconsistentGroupProtocol("the subscription cannot be parsed") from None
    existing = _existing(group, member_id, request)
    replaced = existing if existing is not None and existing.member_id != member_id else None
    member = group.admit(member_id, existing)
    is_changed = _update(group, member, request, subscription)
    group.follow(topics, is_changed=is_changed)
    ends = replaced is not None and replaced.classic is None and group.can_downgrade
    if not ends:
        group.assign_if_small(now_ms)
    reported = owned(subscription, topics)
    group.reconcile(member, reported, now_ms, is_subscription_changed=is_changed)
    if ends:
        group.downgrade = Downgrade(group.epoch, must_rebalance=not group.is_reconciled)
    group.clear_timer(Timer.JOIN, member)
    group.extend_session(member, now_ms)
    group.set_timer(Timer.SYNC, member, now_ms + request.rebalance_timeout_ms)
    return Joined(
        member_id=member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0][0],
    )


def _existing(group: ConsumerGroup, member_id: str, request: Join) -> ConsumerMember | None:
    """Return the member that joins again, or the static member that the client replaces; None if it is new."""
    if request.group_instance_id is None:
        return group.members.get(member_id)
    if request.member_id != NEW_MEMBER:
        return group.find(member_id, request.group_instance_id)
    holder = group.static_member(request.group_instance_id)
    if holder is not None:
        group.log("%(_group)s: a classic client takes the place of %(_member)s", holder.member_id)
    return holder


def _update(
    group: ConsumerGroup, member: ConsumerMember, request: Join, subscription: ClassicSubscription
) -> bool:
    """Update what the join says about the member. Return True if its subscription has changed."""
    before = member.details
    instance_id, rack_id = request.group_instance_id, subscription.rack_id
    details = Details(
        before.instance_id if instance_id is None else instance_id,
        before.rack_id if rack_id is None else rack_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        before.assignor,
        ClassicSide(request.session_timeout_ms, request.protocols),
    )
    if details != before:
        group.set_details(member, details)
    if before.classic is None:
        group.clear_timer(Timer.REBALANCE, member)
    return group.subscribe(member, Subscription(frozenset(subscription.topics)))


# --- Other requests -----------------------------------------------------------------------------------------


def _checked(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[ConsumerMember, ClassicSide]:
    if member_id == NEW_MEMBER:
        raise UnknownMemberId  # not FencedInstanceId, which is fatal for its client: see `ClassicGroup`
    member = group.find(member_id, instance_id)
    if member.classic is None:
        raise UnknownMemberId(f"member {quoted(member_id)} does not use the classic protocol")
    if generation_id != member.epoch:
        raise IllegalGeneration(f"the member's epoch is {member.epoch}, not {generation_id}")
    return member, member.classic


def _must_join(group: ConsumerGroup, member: ConsumerMember, now_ms: float) -> None:
    """Give the member its rebalance timeout to join again, from the first answer that requests it."""
    group.start_timer(Timer.JOIN, member, now_ms + member.details.rebalance_timeout_ms)


def _leaving(group: ConsumerGroup, request: Leave) -> ConsumerMember:
    if request.member_id != NEW_MEMBER or request.group_instance_id is None:
        return group.find(request.member_id, request.group_instance_id)
    member = group.static_member(request.group_instance_id)
    if member is None:
        raise UnknownMemberId
    return member
