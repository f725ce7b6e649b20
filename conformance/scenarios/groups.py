"""Groups, request by request: joining, syncing, heartbeats, leaving, and their administration."""

from __future__ import annotations

from conformance.scenario import scenario
from conformance.scenarios.members import (
    INSTANCE_JOINS,
    INSTANCE_SYNCS,
    LEAVE_TOGETHER,
    SUBSCRIPTION,
    Member,
    commit,
    form,
    heartbeat,
    join,
    leave,
    sync,
)
from conformance.talk import Ended, Talk, Unexpected
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.sync_group import SyncGroupRequest


def joined(talk: Talk, group: str, *, instance: str | None = None) -> Member:
    """Return the only member of a new group, in its first generation, with its assignment."""
    member = Member(talk, "the member", talk.name(group), instance=instance)
    form(member)
    if talk.steps[-1].answer.error_code:
        raise Unexpected(f"{talk.peer.name} forms no group: {talk.steps[-1]}")
    talk.steps.clear()  # another scenario compares how a group forms
    return member


@scenario(JoinGroupRequest)
def joining_alone(talk: Talk, version: int) -> None:
    group = talk.name("g")
    first = talk.ask(join(group), version, "without an id")
    if version >= 4 and not isinstance(first, Ended):
        first = talk.ask(join(group, first.member_id), version, "with the id that was given")
    talk.ask(sync(group, first.member_id, first.generation_id, {first.member_id: b"all"}), label="syncs")
    talk.ask(join(group, first.member_id), version, "joins again")
    talk.ask(DescribeGroupsRequest(groups=[group]), label="and is seen")


@scenario(JoinGroupRequest)
def invalid_joins(talk: Talk, version: int) -> None:
    group = talk.name("g")
    talk.ask(join(""), version, "a group of no name")
    talk.ask(join(group, "nobody"), version, "a member id that nobody gave")
    for timeout in (0, 999, 60_001, -1):
        talk.ask(join(group, session_timeout_ms=timeout), version, f"a session of {timeout} ms")
    talk.ask(join(group, protocols=()), version, "no protocols")
    talk.ask(join(group, protocol_type=""), version, "no protocol type")
    talk.ask(
        join(group, protocols=("range", "range"), rebalance_timeout_ms=0),
        version,
        "a protocol twice",
        limit_s=3,
    )


@scenario(JoinGroupRequest)
def inconsistent_joins(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    talk.ask(join(member.group, protocols=("other",)), version, "another protocol")
    talk.ask(join(member.group, protocol_type="connect"), version, "another protocol type")
    talk.ask(join(member.group, "nobody"), version, "a member id that nobody gave")


@scenario(JoinGroupRequest, INSTANCE_JOINS)
def static_members(talk: Talk, version: int) -> None:
    group = talk.name("g")
    first = talk.ask(join(group, instance="one"), version, "joins")
    talk.ask(
        sync(group, first.member_id, first.generation_id, {first.member_id: b"all"}, instance="one"),
        label="syncs",
    )
    again = talk.ask(join(group, instance="one"), version, "comes again")
    talk.ask(sync(group, again.member_id, again.generation_id, instance="one"), label="syncs again")
    fenced = heartbeat(group, first.member_id, first.generation_id, instance="one")
    talk.ask(fenced, label="the former one's heartbeat")
    nameless = heartbeat(group, "", again.generation_id, instance="one")
    talk.ask(nameless, label="a heartbeat without a member id")
    talk.ask(join(group, first.member_id, instance="one"), version, "the former one joins")
    talk.ask(join(group, again.member_id, instance="two"), version, "an instance that it is not")
    talk.ask(join(group, again.member_id, instance="one"), version, "the present one joins")
    talk.ask(DescribeGroupsRequest(groups=[group]), label="and is seen")


@scenario(SyncGroupRequest)
def syncing(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    group, who, generation = member.group, member.member_id, member.generation
    talk.ask(sync(group, who, generation), version, "once more")
    talk.ask(sync(group, who, generation, {who: b"other"}), version, "with another assignment")
    talk.ask(sync(group, "nobody", generation), version, "a member that there is not")
    talk.ask(sync(group, "", generation), version, "a member of no name")
    for wrong in (generation + 1, generation - 1, -1):
        talk.ask(sync(group, who, wrong), version, f"generation {wrong}")
    talk.ask(sync(talk.name("nowhere"), who, generation), version, "an unknown group")
    talk.ask(sync("", who, generation), version, "a group of no name")
    if version >= INSTANCE_SYNCS:
        talk.ask(sync(group, who, generation, instance="one"), version, "an instance that there is not")
    if version >= 5:
        request = sync(group, who, generation, protocol_type=None, protocol_name=None)
        talk.ask(request, version, "no protocol")
        request = sync(group, who, generation, protocol_type="connect", protocol_name="range")
        talk.ask(request, version, "another protocol type")
        request = sync(group, who, generation, protocol_type="consumer", protocol_name="other")
        talk.ask(request, version, "another protocol")


@scenario(HeartbeatRequest)
def heartbeats(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    group, who, generation = member.group, member.member_id, member.generation
    talk.ask(heartbeat(group, who, generation), version, "good")
    for wrong in (generation + 1, generation - 1, -1):
        talk.ask(heartbeat(group, who, wrong), version, f"generation {wrong}")
    talk.ask(heartbeat(group, "nobody", generation), version, "a member that there is not")
    talk.ask(heartbeat(talk.name("nowhere"), who, generation), version, "an unknown group")
    talk.ask(heartbeat("", who, generation), version, "a group of no name")
    if version >= INSTANCE_SYNCS:
        talk.ask(heartbeat(group, who, generation, instance="one"), version, "an instance that there is not")


@scenario(LeaveGroupRequest)
def leaving(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    talk.ask(leave(version, member.group, "nobody"), version, "a member that there is not")
    talk.ask(leave(version, talk.name("nowhere"), "nobody"), version, "an unknown group")
    talk.ask(leave(version, "", "nobody"), version, "a group of no name")
    talk.ask(leave(version, member.group, member.member_id), version, "the member")
    talk.ask(leave(version, member.group, member.member_id), version, "the member again")
    talk.ask(DescribeGroupsRequest(groups=[member.group]), label="an empty group")


@scenario(LeaveGroupRequest, LEAVE_TOGETHER)
def leaving_together(talk: Talk, version: int) -> None:
    member = joined(talk, "g", instance="one")
    by_instance = [MemberIdentity(member_id="", group_instance_id=name) for name in ("two", "one", "one")]
    talk.ask(LeaveGroupRequest(group_id=member.group, members=by_instance), version, "by instance")
    other = joined(talk, "h", instance="one")
    wrong = [MemberIdentity(member_id="wrong", group_instance_id="one")]
    talk.ask(LeaveGroupRequest(group_id=other.group, members=wrong), version, "with a wrong member id")
    talk.ask(LeaveGroupRequest(group_id=other.group, members=[]), version, "nobody")
    talk.ask(leave(version, other.group, other.member_id, "nobody"), version, "one that is, one that is not")


@scenario(DescribeGroupsRequest)
def describing_groups(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    talk.ask(DescribeGroupsRequest(groups=[member.group]), version, "a group")
    talk.ask(DescribeGroupsRequest(groups=[talk.name("nowhere")]), version, "an unknown group")
    talk.ask(DescribeGroupsRequest(groups=[""]), version, "a group of no name")
    talk.ask(
        DescribeGroupsRequest(groups=[member.group, talk.name("nowhere"), member.group]), version, "three"
    )
    talk.ask(DescribeGroupsRequest(groups=[]), version, "none")
    if version >= 3:
        request = DescribeGroupsRequest(groups=[member.group], include_authorized_operations=True)
        talk.ask(request, version, "with operations")
    talk.tell(leave(LEAVE_TOGETHER, member.group, member.member_id))
    talk.ask(DescribeGroupsRequest(groups=[member.group]), version, "an empty group")
    topic = talk.topic("orders")
    talk.tell(commit(talk.name("simple"), topic, 5))
    talk.ask(DescribeGroupsRequest(groups=[talk.name("simple")]), version, "a group that only commits")


@scenario(ListGroupsRequest)
def listing_groups(talk: Talk, version: int) -> None:
    joined(talk, "stable")
    gone = joined(talk, "empty")
    talk.tell(leave(LEAVE_TOGETHER, gone.group, gone.member_id))
    talk.tell(commit(talk.name("simple"), talk.topic("orders"), 5))
    talk.ask(ListGroupsRequest(), version, "all")
    if version >= 4:
        for states in (["Stable"], ["Empty"], ["stable"], ["Dead"], ["Nonsense"], ["Stable", "Empty"]):
            talk.ask(ListGroupsRequest(states_filter=states), version, f"states {states}")
    if version >= 5:
        for types in (["classic"], ["Classic"], ["consumer"], ["nonsense"]):
            talk.ask(ListGroupsRequest(types_filter=types), version, f"types {types}")


@scenario(DeleteGroupsRequest)
def deleting_groups(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    talk.ask(DeleteGroupsRequest(groups_names=[member.group]), version, "with a member")
    talk.tell(leave(LEAVE_TOGETHER, member.group, member.member_id))
    talk.ask(DeleteGroupsRequest(groups_names=[member.group]), version, "empty")
    talk.ask(DeleteGroupsRequest(groups_names=[member.group]), version, "again")
    talk.ask(DeleteGroupsRequest(groups_names=[""]), version, "of no name")
    talk.ask(DeleteGroupsRequest(groups_names=[]), version, "none")
    talk.tell(commit(talk.name("simple"), talk.topic("orders"), 5))
    twice = [talk.name("simple"), talk.name("nowhere"), talk.name("simple")]
    talk.ask(DeleteGroupsRequest(groups_names=twice), version, "one twice, and an unknown one")


@scenario()
def a_refused_join_leaves_no_group(talk: Talk, _version: int) -> None:
    talk.ask(join(talk.name("g"), protocols=()), label="no protocols")
    talk.ask(join(talk.name("h")), label="knocks")
    talk.ask(join(talk.name("i"), "nobody"), label="a member id that nobody gave")
    talk.ask(DescribeGroupsRequest(groups=[talk.name(short) for short in "ghi"]))


@scenario()
def group_max_size(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    members = [Member(talk, f"number {number}", group, join_version=3) for number in range(4)]
    form(*members)
    talk.ask(join(group), 3, "a fifth that brings no id", on=talk.client())
    talk.ask(join(group), label="a fifth that knocks", on=talk.client())


@scenario()
def huge_metadata(talk: Talk, _version: int) -> None:
    long_name = join(talk.name("h"), metadata=SUBSCRIPTION, protocols=("x" * 1000,))
    talk.ask(long_name, 3, "a protocol of a long name")
    talk.ask(join(talk.name("g"), metadata=b"x" * 100_000), 3, "100 kB", limit_s=3)
