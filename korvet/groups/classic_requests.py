"""Requests of classic members to a group of any type. Pure functions of a group and a request.

A share group has no classic members.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from korvet.groups import mixed
from korvet.groups.classic import ClassicGroup, new_member_id
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import ConsumerLimits
from korvet.groups.machine import Group, GroupMachine
from korvet.groups.members import Join, Joined, Leave, Sync, Ticket
from korvet.groups.share import ShareGroup
from korvet.groups.subscriptions import Topics
from korvet.protocol.errors import ErrorCode, InconsistentGroupProtocol, MemberIdRequired, UnknownMemberId


@frozen
class ClassicBeat:
    """The fields of Heartbeat."""

    member_id: str
    instance_id: str | None
    generation_id: int


def join(
    machine: GroupMachine,
    request: Join,
    topics: Topics,
    limits: ConsumerLimits,
    ticket: Ticket,
    now_ms: float,
) -> None:
    """Handle JoinGroup. A consumer group without members becomes a classic one."""
    group = machine.group
    if isinstance(group, ClassicGroup):
        group.join(request, ticket, now_ms)
    elif isinstance(group, ShareGroup):
        raise InconsistentGroupProtocol("the group is a share group")
    elif group.members:
        group.limits = limits
        mixed.join(group, request, topics, ticket, now_ms)
    else:
        _join_empty(machine, group, request, limits, ticket, now_ms)


def _join_empty(
    machine: GroupMachine,
    empty: ConsumerGroup,
    request: Join,
    limits: ConsumerLimits,
    ticket: Ticket,
    now_ms: float,
) -> None:
    if request.needs_member_id:
        # The group remains a consumer group until the client has joined with the id.
        answer = Joined(error_code=MemberIdRequired.error_code, member_id=new_member_id(request.client_id))
        empty.answers.append((ticket, answer))
        return
    # Stored commits are fenced by the generation, so that it must not fall. Kafka begins with generation 1 again.
    new = ClassicGroup(empty.group_id, limits.classic, generation_id=empty.epoch)
    new.expect(request.member_id)
    new.join(request, ticket, now_ms)
    if new.members:
        machine.convert(new)
    else:
        empty.answers += new.answers


def sync(group: Group, request: Sync, topics: Topics, ticket: Ticket, now_ms: float) -> None:
    """Handle SyncGroup."""
    if isinstance(group, ClassicGroup):
        group.sync(request, ticket, now_ms)
    elif isinstance(group, ShareGroup):
        raise UnknownMemberId
    else:
        mixed.sync(group, request, topics, ticket, now_ms)


def heartbeat(group: Group, beat: ClassicBeat, topics: Topics, now_ms: float) -> None:
    """Handle Heartbeat. Raises the errors of `ClassicGroup.heartbeat` and `mixed.heartbeat`."""
    if isinstance(group, ClassicGroup):
        group.heartbeat(beat.member_id, beat.instance_id, beat.generation_id, now_ms)
    elif isinstance(group, ShareGroup):
        raise UnknownMemberId
    else:
        mixed.heartbeat(group, beat.member_id, beat.instance_id, beat.generation_id, topics, now_ms)


def leave(group: Group, leaving: Sequence[Leave], now_ms: float) -> list[ErrorCode]:
    """Handle LeaveGroup. Return one error code for each member."""
    if isinstance(group, ClassicGroup):
        return group.leave(leaving, now_ms)
    if isinstance(group, ShareGroup):
        return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
    return mixed.leave(group, leaving)
