"""Conversations of a consumer group's members with a broker, whose answers have to agree with a model of the group.

`korvet.testing.strategies.group_conversations` generates the steps, and `GroupConversation` plays them: every member
has a connection, on which it sends one request at a time, in any version that korvet serves. The model predicts the
error code of every response, and which requests have to wait for other members.

    with GroupConversation.with_broker("localhost:9092", topic="orders", group="billing") as conversation:
        conversation.play(steps)

The topic has to exist, and `group.initial.rebalance.delay.ms` has to be 0. Members are dynamic (without
`group.instance.id`) and support one protocol.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from time import monotonic
from typing import Any, Self

from attrs import define, field, frozen

from korvet.client.groups import CONSUMER
from korvet.client.membership import RANGE, subscription
from korvet.groups.members import State
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from korvet.testing.protocol_machine import ClientConnection, api_of

LIMIT_S = 10
SESSION_MS = 60_000
NO_OFFSET = -1
NOBODY = "nobody"  # the member id of a client that has not joined
COMMIT_BY_NAME = 9  # the last version of OffsetCommit that has names of topics


class GroupAction(Enum):
    """The requests of members."""

    JOIN = "join"
    SYNC = "sync"
    HEARTBEAT = "heartbeat"
    COMMIT = "commit"
    LEAVE = "leave"


@frozen
class GroupStep:
    """One request of a member. A member whose last request still waits sends nothing."""

    member: int
    action: GroupAction
    is_stale: bool = False  # it names the generation before
    offset: int = 0  # to commit
    place: int = 0  # chooses the version: the lowest one that korvet serves, plus this, modulo their number


@define(eq=False)
class GroupMember:
    """A client of the group, as the model knows it."""

    number: int
    connection: ClientConnection
    member_id: str = NOBODY
    generation: int = -1  # of its last answer to a join
    waits_for: GroupAction | None = None  # a join or a sync that has no response yet
    version: int = 0  # of that request


@define(eq=False)
class GroupConversation:
    """The members of one group, and the model: its state, generation, leader, assignments, and committed offset."""

    topic: str
    group: str
    connect: Callable[[], ClientConnection]
    state: State = State.EMPTY
    generation: int = 0
    leader: str | None = None  # None until the first answer of a generation names it
    joined: list[GroupMember] = field(factory=list)  # the members
    assignments: dict[str, bytes] = field(factory=dict)
    committed: int = NO_OFFSET
    members: dict[int, GroupMember] = field(factory=dict)  # and those that have left, or not joined
    _exists: bool = False
    _control: ClientConnection = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._control = self.connect()

    @classmethod
    @contextmanager
    def with_broker(cls, bootstrap_servers: str, *, topic: str, group: str) -> Iterator[Self]:
        """Yield a conversation with a broker, and close its connections at the end."""
        host, _, port = bootstrap_servers.rpartition(":")
        with ExitStack() as sockets:

            def connect() -> ClientConnection:
                address = (host.strip("[]"), int(port))
                return ClientConnection(sockets.enter_context(socket.create_connection(address, LIMIT_S)))

            yield cls(topic, group, connect)

    def play(self, steps: Iterable[GroupStep]) -> None:
        """Do the steps, and then `settle`. Raises AssertionError if the broker differs from the model."""
        for step in steps:
            self.do(step)
        self.settle()

    def do(self, step: GroupStep) -> None:
        """Do one step, and compare its response."""
        member = self.members.get(step.member)
        if member is None:
            member = self.members[step.member] = GroupMember(step.member, self.connect())
        if member.waits_for is None:
            getattr(self, f"_{step.action.value}")(member, step)

    def settle(self) -> None:
        """Let all members join and sync until the group is stable, and check the committed offset."""
        for action in (GroupAction.JOIN, GroupAction.SYNC):
            for member in [*self.joined]:
                if self.state is not State.STABLE:
                    self.do(GroupStep(member.number, action))
        expected = State.STABLE if self.joined else State.EMPTY
        assert self.state is expected, f"the group is {self.state.value}"
        assert not [member for member in self.joined if member.waits_for]
        if self._exists:
            self._until_described()
        wanted = OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0])
        found = self._control.ask(OffsetFetchRequest(group_id=self.group, topics=[wanted]), 7)
        assert self.committed == found.topics[0].partitions[0].committed_offset

    # --- Joining ----------------------------------------------------------------------------------------

    def _join(self, member: GroupMember, step: GroupStep) -> None:
        is_member = member in self.joined
        version = version_of(JoinGroupRequest, step.place)
        if not is_member and version >= 4:
            answer = member.connection.ask(self._join_request(""), version)
            check(member, GroupAction.JOIN, ErrorCode.MEMBER_ID_REQUIRED, answer.error_code)
            member.member_id = answer.member_id
        is_new_id = not is_member and version < 4
        member.connection.send(self._join_request("" if is_new_id else member.member_id), version)
        self._exists, member.version = True, version
        if is_member and (
            self.state is State.COMPLETING_REBALANCE
            or (self.state is State.STABLE and member.member_id != self.leader)
        ):
            self._receive_joined(member)  # the present generation again
            return
        if not is_member:
            self.joined.append(member)
        member.waits_for = GroupAction.JOIN
        if is_new_id:
            member.member_id = ""  # not known before the answer
        self._rebalance()

    def _join_request(self, member_id: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member_id,
            protocol_type=CONSUMER,
            protocols=[JoinGroupRequestProtocol(name=RANGE, metadata=subscription([self.topic]))],
        )

    def _rebalance(self) -> None:
        """Expect a rebalance, and the next generation if all members have joined."""
        if self.state is not State.PREPARING_REBALANCE:
            self.state = State.PREPARING_REBALANCE
            for member in self.joined:
                if member.waits_for is GroupAction.SYNC:
                    self._receive_synced(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if any(member.waits_for is not GroupAction.JOIN for member in self.joined):
            self._until_described()
            return
        self.generation += 1
        self.assignments = {}
        self.state = State.COMPLETING_REBALANCE if self.joined else State.EMPTY
        if self.leader not in [member.member_id for member in self.joined]:
            self.leader = None
        answers = [(member, self._receive_joined(member)) for member in self.joined]
        ids = {member.member_id for member in self.joined}
        for member, answer in answers:
            listed = [each.member_id for each in answer.members]
            assert sorted(ids if member.member_id == self.leader else ()) == sorted(listed)

    def _receive_joined(self, member: GroupMember) -> Any:
        """Receive the answer to a join, which begins a generation or repeats it."""
        answer = member.connection.receive()
        check(member, GroupAction.JOIN, ErrorCode.NONE, answer.error_code)
        assert self.generation == answer.generation_id
        assert RANGE == answer.protocol_name
        assert member.member_id in ("", answer.member_id)
        self.leader = self.leader or answer.leader
        assert self.leader == answer.leader
        member.member_id, member.generation, member.waits_for = answer.member_id, answer.generation_id, None
        return answer

    # --- Syncing ----------------------------------------------------------------------------------------

    def _sync(self, member: GroupMember, step: GroupStep) -> None:
        is_leader = member.member_id == self.leader and self._refusal(member, step) is None
        assigned = {each.member_id: b"%d of %d" % (each.number, self.generation) for each in self.joined}
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._claimed(member, step),
            member_id=member.member_id,
            protocol_type=CONSUMER,
            protocol_name=RANGE,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in (assigned if is_leader else {}).items()
            ],
        )
        member.connection.send(request, version_of(SyncGroupRequest, step.place))
        refusal = self._refusal(member, step)
        if refusal is None and self.state is State.PREPARING_REBALANCE:
            refusal = ErrorCode.REBALANCE_IN_PROGRESS
        if refusal is not None or self.state is State.STABLE:
            self._receive_synced(member, refusal or ErrorCode.NONE)
            return
        member.waits_for = GroupAction.SYNC
        if is_leader:
            self.state, self.assignments = State.STABLE, assigned
            for each in self.joined:
                if each.waits_for is GroupAction.SYNC:
                    self._receive_synced(each, ErrorCode.NONE)

    def _receive_synced(self, member: GroupMember, expected: ErrorCode) -> None:
        answer = member.connection.receive()
        check(member, GroupAction.SYNC, expected, answer.error_code)
        assert (b"" if expected else self.assignments[member.member_id]) == answer.assignment
        member.waits_for = None

    # --- Requests that do not wait ----------------------------------------------------------------------

    def _heartbeat(self, member: GroupMember, step: GroupStep) -> None:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self._claimed(member, step), member_id=member.member_id
        )
        answer = member.connection.ask(request, version_of(HeartbeatRequest, step.place))
        expected = self._refusal(member, step)
        if expected is None and self.state is State.PREPARING_REBALANCE:
            expected = ErrorCode.REBALANCE_IN_PROGRESS
        check(member, step.action, expected or ErrorCode.NONE, answer.error_code)

    def _commit(self, member: GroupMember, step: GroupStep) -> None:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=step.offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self._claimed(member, step),
            member_id=member.member_id,
            topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        version = min(version_of(OffsetCommitRequest, step.place), COMMIT_BY_NAME)
        answer = member.connection.ask(request, version)
        expected = self._refusal(member, step)
        if not self._exists:
            expected = ErrorCode.ILLEGAL_GENERATION if version < 9 else ErrorCode.GROUP_ID_NOT_FOUND
        elif expected is None and self.state is State.COMPLETING_REBALANCE:
            expected = ErrorCode.REBALANCE_IN_PROGRESS
        check(member, step.action, expected or ErrorCode.NONE, answer.topics[0].partitions[0].error_code)
        if expected is None:
            self.committed = step.offset

    def _leave(self, member: GroupMember, step: GroupStep) -> None:
        version = version_of(LeaveGroupRequest, step.place)
        if version < 3:
            request = LeaveGroupRequest(group_id=self.group, member_id=member.member_id)
        else:
            request = LeaveGroupRequest(
                group_id=self.group, members=[MemberIdentity(member_id=member.member_id)]
            )
        answer = member.connection.ask(request, version)
        expected = ErrorCode.NONE if member in self.joined else ErrorCode.UNKNOWN_MEMBER_ID
        code = answer.error_code or next((each.error_code for each in answer.members), ErrorCode.NONE)
        check(member, step.action, expected, code)
        if member in self.joined:
            self.joined.remove(member)
            self._rebalance()

    # --- The model --------------------------------------------------------------------------------------

    def _claimed(self, member: GroupMember, step: GroupStep) -> int:
        """Return the generation that a request names."""
        return max(member.generation, 1) - step.is_stale

    def _refusal(self, member: GroupMember, step: GroupStep) -> ErrorCode | None:
        """Return the error of a client that is no member of the generation that it names."""
        if member not in self.joined:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self._claimed(member, step) != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return None

    def _until_described(self) -> None:
        """Wait until the broker describes the group as the model: a request that waits has been handled then."""
        deadline = monotonic() + LIMIT_S
        while True:
            (found,) = self._control.ask(DescribeGroupsRequest(groups=[self.group]), 0).groups
            described = found.group_state, len(found.members)
            if described == (self.state.value, len(self.joined)):
                return
            assert monotonic() < deadline, (
                f"{described} is not {self.state.value}, {len(self.joined)} members"
            )


def check(member: GroupMember, action: GroupAction, expected: ErrorCode, code: int) -> None:
    """Raise AssertionError unless the error code is the expected one."""
    if code != expected:
        answered = ErrorCode(code).name
        raise AssertionError(
            f"{action.value} of member {member.number}: {answered} instead of {expected.name}"
        )


def version_of(request: type[Any], place: int) -> int:
    """Return the version that `place` chooses."""
    api = api_of(request)
    return api.min_version + place % (api.max_version + 1 - api.min_version)
