"""Members of groups for scenarios: requests in any version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from conformance.talk import Connection, Talk, newest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

#: The first versions with these fields.
INSTANCE_JOINS, INSTANCE_SYNCS, INSTANCE_COMMITS = 5, 3, 7
LEAVE_TOGETHER = 3
FETCH_GROUPS = 8
#: A consumer's subscription: version 0, one topic `orders`, no user data.
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\6orders" + b"\xff\xff\xff\xff"


def join(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: Sequence[str] = ("range",),
    protocol_type: str = "consumer",
    session_timeout_ms: int = 30_000,
    rebalance_timeout_ms: int = 30_000,
    metadata: bytes = SUBSCRIPTION,
) -> JoinGroupRequest:
    """Return a request to join a group."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols],
    )


def sync(
    group: str,
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    """Return a request for a member's assignment; the leader's has the assignments of all members."""
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=member, assignment=data)
            for member, data in (assignments or {}).items()
        ],
    )


def heartbeat(
    group: str, member_id: str, generation: int, *, instance: str | None = None
) -> HeartbeatRequest:
    """Return a member's heartbeat."""
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
    )


def leave(version: int, group: str, *members: str, instance: str | None = None) -> LeaveGroupRequest:
    """Return a request of members to leave; before version 3, of the first one."""
    if version < LEAVE_TOGETHER:
        return LeaveGroupRequest(group_id=group, member_id=members[0])
    going = [MemberIdentity(member_id=member, group_instance_id=instance) for member in members]
    return LeaveGroupRequest(group_id=group, members=going)


def commit(
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = "",
    epoch: int = -1,
) -> OffsetCommitRequest:
    """Return a request to commit one offset."""
    data = OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        committed_metadata=metadata,
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[data])],
    )


def committed(version: int, group: str, *topics: str, partitions: Sequence[int] = (0,)) -> OffsetFetchRequest:
    """Return a request for a group's committed offsets of topics; without topics, of all (from version 2)."""
    if version < FETCH_GROUPS:
        wanted = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions)) for topic in topics]
        return OffsetFetchRequest(group_id=group, topics=wanted or (None if version >= 2 else []))
    asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions)) for topic in topics]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked or None)])


@define
class Member:
    """A client that is, or joins as, a member of a group; steps have its name."""

    talk: Talk
    who: str
    group: str
    instance: str | None = None
    join_version: int = field(factory=lambda: newest(JoinGroupRequest))
    session_timeout_ms: int = 30_000
    rebalance_timeout_ms: int = 30_000
    protocols: Sequence[str] = ("range",)
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    protocol_name: str | None = None
    client: Connection = field(init=False)
    _asked: Any = None

    def __attrs_post_init__(self) -> None:
        self.client = self.talk.client(f"client-{self.who}")

    def ask_to_join(self) -> None:
        """Send a join request, to be received with `joined`."""
        # From version 4, the broker first hands out a member id.
        if not self.member_id and self.join_version >= 4 and self.instance is None:
            told = self.talk.ask(self._join(), self.join_version, f"{self.who} knocks", on=self.client)
            self.member_id = told.member_id
        self._asked = self._join()
        self.talk.send(self._asked, self.join_version, on=self.client)

    def joined(self, what: str = "joins") -> Any:
        """Receive the response to `ask_to_join`."""
        answer = self.talk.receive(self._asked, self.join_version, f"{self.who} {what}", on=self.client)
        if not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.leads, self.protocol_name = answer.leader == answer.member_id, answer.protocol_name
        return answer

    def ask_to_sync(self, assignments: dict[str, bytes] | None = None) -> None:
        """Send a sync request, to be received with `synced`."""
        self._asked = sync(
            self.group,
            self.member_id,
            self.generation,
            assignments,
            instance=self.instance,
            protocol_name=self.protocol_name,
        )
        self.talk.send(self._asked, on=self.client)

    def synced(self, what: str = "syncs") -> Any:
        """Receive the response to `ask_to_sync`."""
        return self.talk.receive(self._asked, None, f"{self.who} {what}", on=self.client)

    def heartbeat(self, what: str = "is alive") -> Any:
        """Send a heartbeat and return the response."""
        request = heartbeat(self.group, self.member_id, self.generation, instance=self.instance)
        return self.talk.ask(request, label=f"{self.who} {what}", on=self.client)

    def commit(self, topic: str, offset: int, what: str = "commits") -> Any:
        """Commit one offset as a member."""
        request = commit(
            self.group,
            topic,
            offset,
            member_id=self.member_id,
            generation=self.generation,
            instance=self.instance,
        )
        return self.talk.ask(request, label=f"{self.who} {what}", on=self.client)

    def leave(self, what: str = "leaves") -> Any:
        """Leave the group."""
        request = leave(LEAVE_TOGETHER, self.group, self.member_id)
        return self.talk.ask(request, label=f"{self.who} {what}", on=self.client)

    def _join(self) -> JoinGroupRequest:
        return join(
            self.group,
            self.member_id,
            instance=self.instance,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
        )


def form(*members: Member) -> Member:
    """Let members join a new group and share assignments. Return the leader."""
    join_together(*members)
    return share(*members)


def join_together(*members: Member) -> None:
    """Let members join a new group one after the other."""
    for number, member in enumerate(members, 1):
        member.ask_to_join()
        if len(members) > 1:
            _until_members(member, number)
    for member in members:
        member.joined()


def _until_members(member: Member, count: int) -> None:
    """Return once the group has that many members, so that the first of them will lead."""
    request = DescribeGroupsRequest(groups=[member.group])
    seen = f"{member.who} is seen in its group"
    member.talk.wait_until(lambda: len(member.talk.tell(request).groups[0].members) >= count, seen)


def share(*members: Member) -> Member:
    """Let joined members sync. Return the leader."""
    (leader,) = (member for member in members if member.leads)
    assignments = {member.member_id: f"for {member.who}".encode() for member in members}
    for member in members:
        member.ask_to_sync(assignments if member is leader else None)
    for member in members:
        member.synced()
    return leader
