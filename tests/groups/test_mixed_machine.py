"""A group whose clients use the classic and the consumer protocol, in any order, with conversions between both types.

The clients revoke late, lose answers, pause, crash and change their protocol. At any time, at most one client that owns
a partition may commit for it; epochs and generations do not fall; the stored document, read back, is the same group.
After quiet each partition has one owner, and the group is a consumer group if and only if a client uses that protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from uuid import UUID

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from korvet.groups import classic_requests
from korvet.groups.classic import ClassicGroup
from korvet.groups.classic_requests import ClassicBeat
from korvet.groups.commits import check_commit
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import Beat, ConsumerLimits, Heartbeat
from korvet.groups.consumer_protocol import read_assignment, read_subscription, written_assignment
from korvet.groups.consumer_requests import consumer_beat
from korvet.groups.document import written
from korvet.groups.machine import GroupMachine, new_machine, read_machine, type_of
from korvet.groups.members import GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.groups.parts import all_parts, written_head
from korvet.groups.subscriptions import Assignment, Topic
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.storage.parts import Parted, updated

CLASSIC_LIMITS = GroupLimits(initial_rebalance_delay_ms=0)
LIMITS = ConsumerLimits(assignment_interval_ms=0, classic=CLASSIC_LIMITS)
SESSION_MS, REBALANCE_MS = 45_000, 30_000
NAME, TOPIC_ID, PARTITIONS = "t", UUID(int=1), 5
TOPICS = {NAME: Topic(NAME, TOPIC_ID, PARTITIONS)}
CLIENTS = 4
clients = st.integers(0, CLIENTS - 1)


def assignment(owned: Iterable[int]) -> Assignment:
    found = frozenset(owned)
    return {TOPIC_ID: found} if found else {}


def subscription(owned: Iterable[int]) -> bytes:
    numbers = sorted(owned)
    topics = struct.pack(">hih1si", 1, 1, 1, b"t", -1)
    if not numbers:
        return topics + struct.pack(">i", 0)
    return topics + struct.pack(f">ih1si{len(numbers)}i", 1, 1, b"t", len(numbers), *numbers)


def shares(members: dict[str, set[int]]) -> dict[str, set[int]]:
    """Return what a cooperative leader assigns: balanced, without partitions that another member still owns."""
    rest, target = set(range(PARTITIONS)), {key: set[int]() for key in members}
    least, extra = divmod(PARTITIONS, len(members))
    for number, (key, owned) in enumerate(sorted(members.items())):
        target[key] = set(sorted(owned & rest)[: least + (number < extra)])
        rest -= target[key]
    for number, key in enumerate(sorted(members)):
        while rest and len(target[key]) < least + (number < extra):
            target[key].add(rest.pop())
    for key, owned in members.items():
        for other in members:
            if other != key:
                target[other] -= owned
    return target


@define
class Client:
    """A client of either protocol. `is_lost` drops the answer to its next request."""

    number: int
    instance_id: str | None
    is_classic: bool = True
    is_alive: bool = False
    incarnation: int = 0
    member_id: str = ""
    epoch: int = 0
    owned: set[int] = field(factory=set)
    target: set[int] = field(factory=set)
    has_joined: bool = False  # it has synced in this generation, or its first heartbeat was answered
    must_join: bool = True
    waits: object = None

    def abandon(self) -> None:
        self.owned, self.target, self.epoch = set(), set(), 0
        self.has_joined, self.must_join, self.waits = False, True, None

    def start(self, *, is_classic: bool) -> None:
        self.abandon()
        self.incarnation += 1
        self.is_alive, self.is_classic = True, is_classic
        self.member_id = "" if is_classic else f"c{self.number}-{self.incarnation}"


class MixedGroup(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.machine: GroupMachine = new_machine("g", CLASSIC_LIMITS, lambda: 0)
        self.document: tuple[bytes, dict[str, bytes]] | None = None
        self.clients = [Client(number, "i" if number == 0 else None) for number in range(CLIENTS)]
        self.is_eager = False
        self.generation = 0

    @initialize(is_eager=st.booleans())
    def choose_assignor(self, is_eager: bool) -> None:
        self.is_eager = is_eager

    # --- The clients ------------------------------------------------------------------------------------

    @rule(number=clients, is_classic=st.booleans())
    def start(self, number: int, is_classic: bool) -> None:
        """Start a client, or start it again, maybe with the other protocol, after it has crashed."""
        self.clients[number].start(is_classic=is_classic)
        self.step(self.clients[number])

    @rule(number=clients, is_lost=st.booleans())
    def go_on(self, number: int, is_lost: bool) -> None:
        if self.clients[number].is_alive:
            self.step(self.clients[number], is_lost=is_lost)

    @rule(number=clients)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if not client.is_alive or not client.member_id:
            return
        client.is_alive = False
        client.abandon()
        if client.is_classic:
            classic_requests.leave(self.machine.group, [Leave(client.member_id)], self.now_ms)
        else:
            request = Heartbeat(member_id=client.member_id, member_epoch=-1, instance_id=client.instance_id)
            self.send_beat(client, request, is_lost=True)
        self.settle_machine()

    @rule(number=clients)
    def crash(self, number: int) -> None:
        self.clients[number].is_alive = False
        self.clients[number].abandon()

    @rule(ms=st.sampled_from([500, 5_000, 20_000, 29_000]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.settle_machine()

    @rule()
    def take_over(self) -> None:
        """Load the group at another broker. Requests that wait at the previous one are sent again."""
        for client in self.clients:
            if client.waits is not None:
                client.waits, client.must_join = None, True
        self.machine = self.loaded()
        self.machine.resume(self.now_ms)

    def step(self, client: Client, *, is_lost: bool = False) -> None:
        """Let a client send its next request."""
        if not client.is_classic:
            self.step_consumer(client, is_lost=is_lost)
        elif client.waits is None:
            self.step_classic(client, is_lost=is_lost)
        self.settle_machine()

    # --- The classic protocol ---------------------------------------------------------------------------

    def step_classic(self, client: Client, *, is_lost: bool) -> None:
        if client.must_join:
            self.join(client, is_lost=is_lost)
        elif not client.has_joined:
            self.sync(client, {}, is_lost=is_lost)
        else:
            beat = ClassicBeat(client.member_id, client.instance_id, client.epoch)
            try:
                classic_requests.heartbeat(self.machine.group, beat, TOPICS, self.now_ms)
            except KafkaError as error:
                if not is_lost:
                    self.refuse(client, error.error_code)

    def join(self, client: Client, *, is_lost: bool) -> None:
        if self.is_eager:
            client.owned = set()
        request = Join(
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocols=(("range", subscription(client.owned)),),
            can_be_sent_away=False,
        )
        ticket = object() if is_lost else (client, client.incarnation)
        client.waits = None if is_lost else ticket
        classic_requests.join(self.machine, request, TOPICS, LIMITS, ticket, self.now_ms)

    def sync(self, client: Client, assignments: dict[str, bytes], *, is_lost: bool = False) -> None:
        request = Sync(
            member_id=client.member_id,
            generation_id=client.epoch,
            group_instance_id=client.instance_id,
            assignments=assignments,
        )
        ticket = object() if is_lost else (client, client.incarnation)
        client.waits = None if is_lost else ticket
        classic_requests.sync(self.machine.group, request, TOPICS, ticket, self.now_ms)

    def refuse(self, client: Client, error_code: ErrorCode) -> None:
        """Do as a client does that gets an error."""
        if error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.abandon()
            client.member_id = ""
        elif error_code is ErrorCode.ILLEGAL_GENERATION:
            client.abandon()
        client.must_join, client.has_joined = True, False

    def take_joined(self, client: Client, joined: Joined) -> None:
        if joined.error_code:
            self.refuse(client, joined.error_code)
            return
        client.member_id, client.epoch = joined.member_id, joined.generation_id
        client.must_join, client.has_joined = False, False
        assignments: dict[str, bytes] = {}
        if joined.members:
            owned = {
                each.member_id: set(read_subscription(each.metadata).owned.get(NAME, ()))
                for each in joined.members
            }
            assignments = {key: written_assignment({NAME: share}, 1) for key, share in shares(owned).items()}
        self.sync(client, assignments)

    def take_synced(self, client: Client, synced: Synced) -> None:
        if synced.error_code:
            self.refuse(client, synced.error_code)
            return
        found = set(read_assignment(synced.assignment).partitions.get(NAME, ()))
        client.has_joined, client.must_join = True, bool(client.owned - found)
        client.owned = found

    # --- The consumer protocol --------------------------------------------------------------------------

    def step_consumer(self, client: Client, *, is_lost: bool) -> None:
        client.owned &= client.target
        is_full = client.epoch == 0 or client.must_join
        request = Heartbeat(
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
            names=frozenset({NAME}) if is_full else None,
            owned=assignment(client.owned),
        )
        self.send_beat(client, request, is_lost=is_lost)

    def send_beat(self, client: Client, request: Heartbeat, *, is_lost: bool) -> None:
        client.must_join |= is_lost
        try:
            beat = consumer_beat(self.machine, request, TOPICS, LIMITS, self.now_ms)
        except KafkaError as error:
            if not is_lost and error.error_code is not ErrorCode.UNRELEASED_INSTANCE_ID:
                client.abandon()
            return
        if not is_lost:
            self.take_beat(client, beat)

    def take_beat(self, client: Client, beat: Beat) -> None:
        client.epoch, client.must_join = beat.member_epoch, False
        if beat.assignment is not None:
            client.target = set(beat.assignment.get(TOPIC_ID, ()))
        if client.owned <= client.target:
            client.owned = set(client.target)

    # --- The broker -------------------------------------------------------------------------------------

    def settle_machine(self) -> None:
        """Do as the runtime does after each request: handle timeouts, save, send answers, until nothing is left."""
        while True:
            self.machine.tick(self.now_ms)
            if self.machine.is_unsaved:
                self.save()
            answers = list(self.machine.answers)
            self.machine.answers.clear()
            if not answers:
                return
            for ticket, answer in answers:
                self.take(ticket, answer)

    def take(self, ticket: object, answer: object) -> None:
        match ticket, answer:
            case (Client() as client, int()), Joined() if client.waits == ticket:
                client.waits = None
                self.take_joined(client, answer)
            case (Client() as client, int()), Synced() if client.waits == ticket:
                client.waits = None
                self.take_synced(client, answer)

    def save(self) -> None:
        saved = self.machine.written()
        if isinstance(saved, Parted):
            before = self.document[1] if self.document else {}
            self.document = saved.head, updated(before, saved.changes)
        else:
            self.document = saved, {}

    def loaded(self) -> GroupMachine:
        if self.document is None:
            return new_machine("g", CLASSIC_LIMITS, lambda: 0)
        head, parts = self.document
        return read_machine("g", head, parts, CLASSIC_LIMITS, LIMITS, lambda: 0)

    # --- What holds at any time -------------------------------------------------------------------------

    @invariant()
    def document_is_the_group(self) -> None:
        if self.document is None or self.machine.is_unsaved:
            return
        group, read = self.machine.group, self.loaded().group
        if isinstance(group, ConsumerGroup):
            assert isinstance(read, ConsumerGroup)
            assert (written_head(group, 0), all_parts(group)) == (written_head(read, 0), all_parts(read))
        else:
            assert isinstance(read, ClassicGroup)
            assert group.generation_id == read.generation_id
            if group.state is not State.PREPARING_REBALANCE:  # joins that wait are not saved
                assert written(group, 0) == written(read, 0)

    @invariant()
    def generation_does_not_fall(self) -> None:
        group = self.machine.group
        generation = group.epoch if isinstance(group, ConsumerGroup) else group.generation_id
        assert generation >= self.generation
        if not self.machine.is_unsaved:
            self.generation = generation

    @invariant()
    def one_owner_may_commit(self) -> None:
        owners: dict[int, Client] = {}
        for client in self.clients:
            for partition in client.owned:
                if client.is_alive and self.may_commit(client, partition):
                    assert client is owners.setdefault(partition, client), partition

    def may_commit(self, client: Client, partition: int) -> bool:
        group = self.machine.group
        if isinstance(group, ClassicGroup):
            return client.member_id in group.members and client.epoch == group.generation_id
        try:
            return not check_commit(group, client.member_id, client.epoch, [(TOPIC_ID, partition)])
        except KafkaError:
            return False

    # --- Quiet ------------------------------------------------------------------------------------------

    @precondition(lambda self: any(client.is_alive for client in self.clients))
    @rule()
    def settle(self) -> None:
        """When crashed members are gone, some rounds of requests settle the group.

        The last member with the consumer protocol may be a crashed one. When its session ends, the group becomes a
        classic group. Then other crashed members get a whole session again, and a rebalance waits for them.
        """
        settled_ms = self.now_ms + 2 * SESSION_MS + REBALANCE_MS
        while self.now_ms <= settled_ms:
            for _ in range(4):
                self.round()
            self.wait(20_000)
        for _ in range(12):
            self.round()
        alive = [client for client in self.clients if client.is_alive]
        assert sorted(range(PARTITIONS)) == sorted(each for client in alive for each in client.owned)
        is_classic = all(client.is_classic for client in alive)
        assert ("classic" if is_classic else "consumer") == type_of(self.machine.group)
        assert "Stable" == self.machine.group.state.value

    def round(self) -> None:
        for client in self.clients:
            if client.is_alive:
                self.step(client)


TestMixedGroup = MixedGroup.TestCase
