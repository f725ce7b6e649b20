"""ConsumerGroupHeartbeat: the requests of members that use the consumer protocol (KIP-848). Pure functions of a group.

The errors and their order are those of Apache Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from korvet.groups.consumer import ConsumerGroup, Timer
from korvet.groups.consumer_members import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    Beat,
    ConsumerMember,
    Details,
    Heartbeat,
)
from korvet.groups.reconciliation import Current, MemberState
from korvet.groups.subscriptions import Subscription, Topics, is_subset
from korvet.protocol.errors import FencedMemberEpoch, UnreleasedInstanceId, UnsupportedAssignor


def heartbeat(group: ConsumerGroup, request: Heartbeat, topics: Topics, now_ms: float) -> Beat:
    """Add or update a member, and move it to its target; or let it leave.

    The caller has passed the topics that match a new expression to `group.resolve`. Raises the errors of `check`.
    """
    group.subscriptions.see(topics)
    if request.member_epoch < JOIN_EPOCH:
        return _leave(group, request)
    existing = _existing(group, request)
    member = group.admit(request.member_id, existing)
    before = member.current.assigned
    is_changed = _update(group, member, request, now_ms)
    group.follow(topics, is_changed=is_changed)
    group.assign_if_small(now_ms)
    group.reconcile(member, request.owned, now_ms, is_subscription_changed=is_changed)
    group.extend_session(member, now_ms)
    has_changed = request.is_full or member.current.assigned != before
    return Beat(member.member_id, member.epoch, member.current.partitions if has_changed else None)


def check(group: ConsumerGroup, request: Heartbeat) -> None:
    """Raise the error with which `heartbeat` would reject the request, if there is one. Change nothing.

    Raises UnsupportedAssignor, GroupMaxSizeReached, UnknownMemberId, UnreleasedInstanceId, FencedInstanceId or
    FencedMemberEpoch.
    """
    if request.member_epoch < JOIN_EPOCH:
        group.find(request.member_id, request.instance_id)
    else:
        _existing(group, request)


def _existing(group: ConsumerGroup, request: Heartbeat) -> ConsumerMember | None:
    """Return the member that sent a heartbeat, or the one that its client replaces; None if it is new."""
    if request.assignor is not None and request.assignor not in group.limits.assignors:
        raise UnsupportedAssignor
    group.check_room(request.member_id)
    if request.member_epoch != JOIN_EPOCH:
        member = group.find(request.member_id, request.instance_id)
        _check_epoch(member, request)
        return member
    holder = group.static_member(request.instance_id)
    if holder is None:
        return group.members.get(request.member_id)
    if holder.classic is None and not holder.has_left_for_a_while:
        raise UnreleasedInstanceId
    return holder


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    """Raise FencedMemberEpoch unless the epoch is the member's, or the previous one if the answer may be lost."""
    if request.member_epoch == member.epoch:
        return
    is_previous = (
        request.member_epoch == member.current.previous_epoch and request.member_epoch < member.epoch
    )
    if is_previous and request.owned is not None and is_subset(request.owned, member.current.assigned):
        return
    raise FencedMemberEpoch(f"the member's epoch is {member.epoch}, not {request.member_epoch}")


def _update(group: ConsumerGroup, member: ConsumerMember, request: Heartbeat, now_ms: float) -> bool:
    """Update what the heartbeat says about the member. Return True if its subscription has changed."""
    timeout_ms = request.rebalance_timeout_ms
    before = member.details
    details = Details(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        before.assignor if request.assignor is None else request.assignor,
    )
    if details != before:
        group.set_details(member, details)
    if before.classic is not None:
        group.clear_timer(Timer.JOIN, member)
        group.clear_timer(Timer.SYNC, member)
        if member.current.state is MemberState.UNREVOKED:
            group.set_timer(Timer.REBALANCE, member, now_ms + details.rebalance_timeout_ms)
    names, expression = request.names, request.expression
    if names is None and expression is None:
        return False
    present = member.subscription
    names = present.names if names is None else names
    expression = present.expression if expression is None else expression
    return group.subscribe(member, Subscription(names, expression))


def _leave(group: ConsumerGroup, request: Heartbeat) -> Beat:
    member = group.find(request.member_id, request.instance_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        _leave_for_a_while(group, member)
    else:
        group.remove([member], "leaves")
    return Beat(request.member_id, request.member_epoch)


def _leave_for_a_while(group: ConsumerGroup, member: ConsumerMember) -> None:
    """Keep a static member and its partitions until its session times out. Another client may take its place."""
    group.log("%(_group)s: static member %(_member)s leaves for a while", member.member_id)
    kept = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.current.assigned.items()}
    previous_epoch = member.current.previous_epoch
    group.set_current(member, Current(MemberState.STABLE, STATIC_LEAVE_EPOCH, previous_epoch, kept))
    group.clear_timer(Timer.REBALANCE, member)
