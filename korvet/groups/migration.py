"""Conversions of groups with members between the classic protocol and the consumer protocol (KIP-848). Pure.

A classic group becomes a consumer group when a member of the consumer protocol joins it: the epochs are the generation,
and what the leader has assigned is the current and the target assignment. A consumer group becomes a classic group when
its last member of the consumer protocol leaves, or is replaced by a classic static member: the generation is the group
epoch, and the members join again. `group.consumer.migration.policy` allows both, one or neither.

The rules are those of Apache Kafka's `ConsumerGroup.fromClassicGroup` and `ClassicGroup.fromConsumerGroup`.
Differences from Kafka:

- User data in an assignment only prevents the conversion if it is not that of the member's subscription.
- If the leader has assigned a partition to two members, the first of them keeps it.
- A group that was rebalancing, or whose leader has not assigned all partitions, gets a new target even if a static
  member with the same subscription is replaced.
- If a static member replaces the last one of the consumer protocol, the group rebalances unless each member has its
  target; in Kafka only if the target is older than the group epoch.
- A group that was loaded with classic members only is converted on the next request of one of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from korvet.groups.classic import ClassicGroup
from korvet.groups.consumer import ConsumerGroup, Downgrade
from korvet.groups.consumer_members import ClassicSide, ConsumerLimits, ConsumerMember, Details
from korvet.groups.consumer_protocol import ClassicAssignment, read_assignment, read_subscription
from korvet.groups.members import CONSUMER, Member, State, selected_protocol
from korvet.groups.mixed import assigned
from korvet.groups.reconciliation import Current, MemberState
from korvet.groups.subscriptions import Subscription, Topics
from korvet.protocol.errors import GroupIdNotFound

# The hash of topics of a group that must have a new target, whatever its topics are. No topics have it.
UNASSIGNED = -1


def upgraded(classic: ClassicGroup, limits: ConsumerLimits, topics: Topics, now_ms: float) -> ConsumerGroup:
    """Return the consumer group that a classic group becomes. The classic group does not change.

    Raises GroupIdNotFound, as Kafka does, if the group cannot be converted.
    """
    _check_upgrade(classic, limits)
    generation_id = classic.generation_id
    group = ConsumerGroup(classic.group_id, limits, epoch=generation_id, assignment_epoch=generation_id)
    taken: set[tuple[UUID, int]] = set()
    for member in classic.members.values():
        try:
            found = _upgraded_member(member, classic, topics, taken)
        except ValueError:
            reason = "the embedded consumer protocol is malformed"
            raise _refusal(classic, reason, level=logging.WARNING) from None
        group.members[member.member_id] = found
        group.targets[member.member_id] = found.current.partitions
    group.resume(now_ms)
    group.downgrade = None
    group.subscriptions.see(topics)
    wanted = sum(group.subscriptions.counts().values())
    if classic.state is not State.STABLE or len(taken) != wanted:
        group.topics_hash = UNASSIGNED
    group.log("%(_group)s was converted from a classic group")
    return group


def downgraded(group: ConsumerGroup, downgrade: Downgrade, now_ms: float) -> ClassicGroup:
    """Return the classic group that a consumer group becomes whose members all use the classic protocol.

    The group has seen the existing topics, whose names are needed.

    Raises ValueError if one does not.
    """
    topics = group.subscriptions.topics
    members: dict[str, Member] = {}
    for member_id, member in group.members.items():
        details, side = member.details, member.classic
        if side is None:
            raise ValueError(f"{member_id} does not use the classic protocol")
        members[member_id] = Member(
            member_id,
            details.instance_id,
            details.client_id,
            details.client_host,
            side.session_timeout_ms,
            details.rebalance_timeout_ms,
            side.protocols,
            assigned(group.targets.get(member_id, {}), topics, side),
        )
    supported = Counter(name for member in members.values() for name in member.protocol_names)
    classic = ClassicGroup(
        group.group_id,
        group.limits.classic,
        state=State.STABLE,
        generation_id=group.epoch if downgrade.generation_id is None else downgrade.generation_id,
        protocol_type=CONSUMER,
        protocol_name=selected_protocol(members.values(), supported),
        leader=next(iter(members)),
        members=members,
    )
    classic.resume_converted(now_ms, must_rebalance=downgrade.must_rebalance)
    group.log("%(_group)s was converted to a classic group")
    return classic


def _check_upgrade(classic: ClassicGroup, limits: ConsumerLimits) -> None:
    if not limits.can_upgrade:
        raise _refusal(classic, "online upgrade is disabled")
    if not classic.is_consumer_group:
        raise _refusal(classic, "the group does not use the consumer embedded protocol")
    if len(classic.members) > limits.max_size:
        raise _refusal(classic, "the group size exceeds the consumer group maximum size")


def _refusal(classic: ClassicGroup, reason: str, *, level: int = logging.INFO) -> GroupIdNotFound:
    text = f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}."
    classic.log("%(_group)s stays a classic group: %(reason)s", level=level, reason=reason)
    return GroupIdNotFound(text)


def _upgraded_member(
    member: Member, classic: ClassicGroup, topics: Topics, taken: set[tuple[UUID, int]]
) -> ConsumerMember:
    """Return the member with its assignment, without what is in `taken`. Raises ValueError, GroupIdNotFound."""
    # Before its first generation a group has no protocol.
    name = classic.protocol_name or member.protocols[0][0]
    subscription, assignment = read_subscription(member.metadata(name)), read_assignment(member.assignment)
    # A leader of librdkafka returns the user data of each member's subscription.
    if assignment.user_data not in (b"", subscription.user_data):
        raise _refusal(
            classic,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default"
            " assignor before re-attempting the upgrade",
        )
    generation_id = classic.generation_id
    return ConsumerMember(
        member.member_id,
        Details(
            member.group_instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            classic=ClassicSide(member.session_timeout_ms, member.protocols),
        ),
        Subscription(frozenset(subscription.topics)),
        Current(
            MemberState.STABLE,
            generation_id,
            generation_id,
            _granted(assignment, generation_id, topics, taken),
        ),
    )


def _granted(
    assignment: ClassicAssignment, epoch: int, topics: Topics, taken: set[tuple[UUID, int]]
) -> Mapping[UUID, Mapping[int, int]]:
    granted: dict[UUID, dict[int, int]] = {}
    for name, partitions in assignment.partitions.items():
        topic = topics.get(name)
        if topic is None:
            continue
        free = [number for number in sorted(partitions) if (topic.topic_id, number) not in taken]
        taken.update((topic.topic_id, number) for number in free)
        if free:
            granted[topic.topic_id] = dict.fromkeys(free, epoch)
    return granted
