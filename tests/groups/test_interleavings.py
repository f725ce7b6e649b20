"""Invariants of a group under any order of requests, broker failures and timeouts."""

from __future__ import annotations

import itertools
from contextlib import suppress

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from korvet.groups.classic import ClassicGroup
from korvet.groups.document import read, written
from korvet.groups.members import GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.protocol.errors import ErrorCode, KafkaError

NAMES = st.sampled_from("abcdef")
LIMITS = GroupLimits(initial_rebalance_delay_ms=3000, max_size=4)
PROTOCOLS = st.sampled_from([(("r", b"1"),), (("r", b"2"), ("s", b"2")), (("s", b"3"), ("r", b"3"))])
LONGEST_WAIT_MS = 300_000  # a newcomer's; all other timeouts are shorter
PATIENCE_S = 2 * LONGEST_WAIT_MS // 1000


@define
class Peer:
    """A client's own state: the request that waits, its start, and the membership that it was given."""

    name: str
    is_static: bool
    member_id: str = ""
    generation_id: int = -1
    waits_for: str = ""
    since_ms: int = 0
    members: list[str] = field(factory=list)  # the members to assign, if it is the leader
    assigned_in: int = -1  # the generation of its last assignment
    is_refused: bool = False  # the group was full


class Interleavings(RuleBasedStateMachine):
    """The group, saved as the coordinator does, and loaded again after a broker is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()
        self.now_ms = 0
        self.stored: bytes | None = None
        self.group = self.new_group()
        self.peers = {name: Peer(name, is_static=name in "ef") for name in "abcdef"}
        self.tickets: dict[object, Peer] = {}
        # The leaders and the assignments of each generation.
        self.leaders: dict[int, set[str]] = {}
        self.owners: dict[tuple[int, bytes], str] = {}
        self.newest_generation = 0
        self.committed_in: list[int] = []
        # Previous identities of clients: member id, instance, generation.
        self.former: list[tuple[str, str | None, int]] = []

    def new_group(self) -> ClassicGroup:
        return ClassicGroup("g", LIMITS, lambda prefix: f"{prefix}-{next(self.numbers)}")

    # --- What may happen --------------------------------------------------------------------------------

    @rule(name=NAMES, protocols=PROTOCOLS, forgetful=st.booleans(), can_be_sent_away=st.booleans())
    def join(
        self, name: str, protocols: tuple[tuple[str, bytes], ...], forgetful: bool, can_be_sent_away: bool
    ) -> None:
        peer = self.peers[name]
        if forgetful:
            peer.member_id = ""
        if peer.member_id and not self.exists():
            peer.member_id = ""
        join = Join(
            member_id=peer.member_id,
            group_instance_id=name if peer.is_static else None,
            client_id=name,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            protocols=protocols,
            can_be_sent_away=can_be_sent_away,
        )
        peer.is_refused = False
        self.group.join(join, self.ticket(peer, "join"), self.now_ms)
        self.settle()

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        peer = self.peers[name]
        sync = Sync(
            member_id=peer.member_id,
            generation_id=peer.generation_id,
            group_instance_id=name if peer.is_static else None,
            assignments={member: member.encode() for member in peer.members},
        )
        self.group.sync(sync, self.ticket(peer, "sync"), self.now_ms)
        self.settle()

    @rule(name=NAMES)
    def heartbeat(self, name: str) -> None:
        peer = self.peers[name]
        try:
            self.group.heartbeat(
                peer.member_id, name if peer.is_static else None, peer.generation_id, self.now_ms
            )
        except KafkaError:
            pass
        else:
            assert peer.generation_id == self.group.generation_id
        self.settle()

    @rule(name=NAMES)
    def commit(self, name: str) -> None:
        peer = self.peers[name]
        if peer.generation_id < 0:
            return
        try:
            self.group.check_commit(
                peer.member_id, name if peer.is_static else None, peer.generation_id, self.now_ms
            )
        except KafkaError:
            return
        assert peer.member_id in self.group.members
        assert peer.generation_id == self.group.generation_id
        self.committed_in.append(peer.generation_id)
        self.settle()

    @precondition(lambda self: self.former)
    @rule(data=st.data())
    def commit_of_a_former_member(self, data: st.DataObject) -> None:
        """Let a removed, replaced or fenced member commit and send a heartbeat."""
        member_id, instance, generation_id = data.draw(st.sampled_from(self.former))
        is_fenced = generation_id != self.group.generation_id or member_id not in self.group.members
        for ask in (self.group.check_commit, self.group.heartbeat):
            try:
                ask(member_id, instance, generation_id, self.now_ms)
            except KafkaError:
                continue
            assert not is_fenced
        self.settle()

    @rule(names=st.lists(NAMES, min_size=1, max_size=3, unique=True))
    def leave(self, names: list[str]) -> None:
        leaving = [Leave(self.peers[name].member_id) for name in names]
        self.group.leave(leaving, self.now_ms)
        for name in names:
            self.peers[name].member_id = ""
        self.settle()

    @rule(ms=st.sampled_from([1, 500, 3_000, 9_999, 10_000, 30_000]))
    def wait(self, ms: int) -> None:
        self.pass_time(ms)

    @rule()
    def killed(self) -> None:
        """Kill the broker, and let another one load the saved group."""
        for peer in self.tickets.values():
            peer.waits_for = ""
        self.tickets.clear()
        self.group = self.new_group()
        if self.stored is not None:
            new_member_id = self.group.new_member_id
            self.group, _ = read("g", self.stored, LIMITS)
            self.group.new_member_id = new_member_id
            self.group.resume(self.now_ms)
        self.settle()

    @precondition(lambda self: self.group.state is State.STABLE)
    @rule()
    def live_members_remain_stable(self) -> None:
        """Check that members that send heartbeats remain members, without a rebalance."""
        generation_id = self.group.generation_id
        if self.group.has_newcomers or self.group._not_synced:
            return
        for _ in range(10):
            for member in self.group.members.values():
                self.group.heartbeat(member.member_id, member.group_instance_id, generation_id, self.now_ms)
            self.pass_time(9_000)

        assert (State.STABLE, generation_id) == (self.group.state, self.group.generation_id)

    @precondition(lambda self: self.group.state is State.COMPLETING_REBALANCE)
    @rule()
    def missing_syncs_do_not_block(self) -> None:
        """Check that members that never send SyncGroup do not block the others forever."""
        generation_id = self.group.generation_id
        for _ in range(5):
            for member in list(self.group.members.values()):
                with suppress(KafkaError):
                    self.group.heartbeat(
                        member.member_id, member.group_instance_id, generation_id, self.now_ms
                    )
            self.pass_time(9_000)

        assert (State.COMPLETING_REBALANCE, generation_id) != (self.group.state, self.group.generation_id)

    @rule()
    def retrying_clients_are_assigned(self) -> None:
        """Check that all clients that keep retrying are assigned in one generation, from any state."""
        for _ in range(PATIENCE_S):
            for peer in self.peers.values():
                self.retry_as_client(peer)
            if self.all_are_assigned():
                return
            self.pass_time(1000)
        raise AssertionError(f"{self.group!r}: {self.peers}")

    def retry_as_client(self, peer: Peer) -> None:
        """Do one step of a client that joins, except one that was rejected because the group is full."""
        if peer.waits_for or peer.is_refused:
            return
        if not peer.member_id or peer.generation_id < 0:
            self.join(peer.name, (("r", b"1"),), forgetful=False, can_be_sent_away=True)
        elif peer.assigned_in != peer.generation_id:
            self.sync(peer.name)
        else:
            try:
                instance = peer.name if peer.is_static else None
                self.group.heartbeat(peer.member_id, instance, peer.generation_id, self.now_ms)
            except KafkaError as error:
                if error.error_code is not ErrorCode.REBALANCE_IN_PROGRESS:
                    peer.member_id = ""
                peer.generation_id = -1
            self.settle()

    def all_are_assigned(self) -> bool:
        living = [peer for peer in self.peers.values() if not peer.is_refused]
        if not living:
            return True  # clients that filled the group and disconnected were rejected when they joined again
        return (
            self.group.state is State.STABLE
            and {peer.member_id for peer in living} == set(self.group.members)
            and {peer.assigned_in for peer in living} == {self.group.generation_id}
        )

    # --- How the coordinator goes about it --------------------------------------------------------------

    def exists(self) -> bool:
        return self.stored is not None or self.group.state is not State.EMPTY or self.group.has_newcomers

    def ticket(self, peer: Peer, kind: str) -> object:
        ticket = object()
        self.tickets[ticket] = peer
        peer.waits_for, peer.since_ms = kind, self.now_ms
        return ticket

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, int(self.group.wake_ms))
            self.settle()
        self.now_ms = end_ms

    def settle(self) -> None:
        self.group.tick(self.now_ms)
        if self.group.is_unsaved:
            self.stored = written(self.group, 0)
            self.group.is_unsaved = False
        answers, self.group.answers = self.group.answers, []
        for ticket, answer in answers:
            peer = self.tickets.pop(ticket)
            peer.waits_for = ""
            if isinstance(answer, Joined):
                self.note_joined(peer, answer)
            else:
                self.note_synced(peer, answer)

    def note_joined(self, peer: Peer, joined: Joined) -> None:
        if joined.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            peer.member_id = joined.member_id
        else:
            peer.member_id = ""
        peer.is_refused = joined.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        if joined.error_code:
            return
        peer.generation_id = joined.generation_id
        self.former.append((peer.member_id, peer.name if peer.is_static else None, peer.generation_id))
        peer.members = [] if joined.skip_assignment else [member.member_id for member in joined.members]
        assert self.group.generation_id == joined.generation_id
        if joined.leader == joined.member_id:
            leaders = self.leaders.setdefault(joined.generation_id, set())
            leaders.add(self.instance_of(joined.member_id))
            assert 1 == len(leaders)
            assert joined.member_id in {member.member_id for member in joined.members}
        else:
            assert not joined.members

    def note_synced(self, peer: Peer, synced: Synced) -> None:
        if synced.error_code:
            peer.generation_id = -1
            if synced.error_code is not ErrorCode.REBALANCE_IN_PROGRESS:
                peer.member_id = ""
            return
        peer.assigned_in = peer.generation_id
        if not synced.assignment:
            return
        owner = self.owners.setdefault((peer.generation_id, synced.assignment), peer.name)
        assert owner == peer.name

    def instance_of(self, member_id: str) -> str:
        """Check that a static member keeps its assignment under a new member id."""
        return member_id.rpartition("-")[0]

    # --- What must hold ---------------------------------------------------------------------------------

    @invariant()
    def generations_do_not_decrease(self) -> None:
        assert self.newest_generation <= self.group.generation_id
        self.newest_generation = self.group.generation_id
        assert sorted(self.committed_in) == self.committed_in

    @invariant()
    def leader_is_a_member_and_size_is_bounded(self) -> None:
        group = self.group
        assert bool(group.members) == (group.leader is not None) or group.state is State.EMPTY
        assert group.leader is None or group.leader in group.members
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            assert group.members
            assert len(group.members) <= LIMITS.max_size + 2  # absent static members count additionally
        assert group.state is not State.EMPTY or not group.members

    @invariant()
    def leader_was_returned_to_its_client(self) -> None:
        if self.group.state is State.COMPLETING_REBALANCE:
            assert self.group.leader is not None
            assert {self.instance_of(self.group.leader)} == self.leaders[self.group.generation_id]

    @invariant()
    def counters_match_members(self) -> None:
        group = self.group
        assert group._joining == sum(m.join_ticket is not None for m in group.members.values())
        assert group._joining == 0 or group.state is State.PREPARING_REBALANCE
        for name, count in group._supported.items():
            assert count == sum(name in member.protocol_names for member in group.members.values())
        static = {m.group_instance_id: m.member_id for m in group.members.values() if m.group_instance_id}
        assert static == group._static
        assert group._not_synced <= set(group.members)

    @invariant()
    def no_request_waits_forever(self) -> None:
        waiting = {m.join_ticket for m in self.group.members.values()}
        waiting |= {m.sync_ticket for m in self.group.members.values()}
        assert set(self.tickets) <= waiting
        for peer in self.tickets.values():
            assert self.now_ms - peer.since_ms <= LONGEST_WAIT_MS
        assert not self.tickets or self.group.wake_ms < float("inf")

    def teardown(self) -> None:
        """Check that, from any state, every request gets an answer and absent clients are removed."""
        self.pass_time(2 * LONGEST_WAIT_MS)

        assert not self.tickets
        assert State.EMPTY is self.group.state


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40)
