"""A consumer group with clients that revoke late, lose answers, repeat requests, pause and crash, in any order.

The invariants are those of the design: (a) one owner per partition, (b) ordered epochs, (c) convergence, (d) no more
moves than needed, (e) the group as it is saved continues identically, (f) a client that lost a partition cannot commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from attrs import define, evolve, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from korvet.groups.commits import check_commit
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_heartbeats import check, heartbeat
from korvet.groups.consumer_members import Beat, Changes, ConsumerLimits, ConsumerState, Heartbeat
from korvet.groups.subscriptions import Assignment, Subscriptions, Topic
from korvet.protocol.errors import KafkaError, UnreleasedInstanceId

LIMITS = ConsumerLimits(assignment_interval_ms=1000)
REBALANCE_MS = 30_000
NAMES = ["t", "u", "v"]
EXPRESSION = "[uv]"
CLIENTS = 4
# Topics, and whether the client also subscribes by the expression.
subscriptions = st.tuples(st.frozensets(st.sampled_from(NAMES)), st.booleans())
clients = st.integers(0, CLIENTS - 1)

Partition = tuple[UUID, int]


def flat(assigned: Mapping[UUID, Any]) -> set[Partition]:
    return {(topic_id, each) for topic_id, partitions in assigned.items() for each in partitions}


def assignment(partitions: set[Partition]) -> Assignment:
    topics = {topic_id for topic_id, _ in partitions}
    return {key: frozenset(number for topic, number in partitions if topic == key) for key in topics}


@define
class Client:
    """A client as Kafka's behaves. `target` is the last assignment that it received."""

    number: int
    instance_id: str | None
    member_id: str = ""
    incarnation: int = 0
    epoch: int = 0
    owned: set[Partition] = field(factory=set)
    target: set[Partition] = field(factory=set)
    names: frozenset[str] = frozenset()
    expression: str = ""
    is_member: bool = False
    is_unsure: bool = False  # an answer may be lost: the next request has all fields

    def begin(self, names: frozenset[str], expression: str) -> None:
        self.incarnation += 1
        self.member_id = f"c{self.number}-{self.incarnation}"
        self.names, self.expression = names, expression
        self.abandon()

    def abandon(self) -> None:
        self.epoch, self.owned, self.target, self.is_member = 0, set(), set(), True

    def revoke(self) -> None:
        self.owned &= self.target

    def request(self, *, does_report: bool = True) -> Heartbeat:
        is_full = self.epoch == 0 or self.is_unsure
        return Heartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
            names=self.names if is_full else None,
            expression=self.expression if is_full else None,
            owned=assignment(self.owned) if does_report or is_full else None,
        )

    def take(self, beat: Beat) -> None:
        """Take an answer. Partitions are added only when all others are revoked."""
        self.epoch = beat.member_epoch
        self.is_unsure = False
        if beat.assignment is not None:
            self.target = flat(beat.assignment)
        if self.owned <= self.target:
            self.owned = set(self.target)


def loaded(group: ConsumerGroup, now_ms: float) -> ConsumerGroup:
    """Return the group as another broker loads it from its document."""
    copy = ConsumerGroup(
        group.group_id,
        group.limits,
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assigned_ms=group.assigned_ms,
        topics_hash=group.topics_hash,
        members={key: evolve(member) for key, member in group.members.items()},
        targets=dict(group.targets),
        subscriptions=Subscriptions(dict(group.resolved)),
    )
    copy.resume(now_ms)
    return copy


def parts(group: ConsumerGroup) -> dict[str, Any]:
    """Return the parts of the group's document."""
    head = (group.epoch, group.assignment_epoch, group.assigned_ms, group.topics_hash)
    members = {f"m:{key}": (member.details, member.subscription) for key, member in group.members.items()}
    currents = {f"c:{key}": member.current for key, member in group.members.items()}
    targets = {f"t:{key}": target for key, target in group.targets.items() if target}
    return {"head": head, "r": dict(group.resolved), **members, **currents, **targets}


def changed(changes: Changes) -> set[str]:
    """Return the names of the parts that have changed."""
    sides = {"m": changes.members, "c": changes.currents, "t": changes.targets}
    names = {f"{side}:{each}" for side, ids in sides.items() for each in ids}
    return names | ({"head"} if changes.has_head else set()) | ({"r"} if changes.has_resolved else set())


class Consumers(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.group = ConsumerGroup("g", LIMITS)
        self.saved = parts(self.group)
        self.clients = [Client(number, "i" if number == 0 else None) for number in range(CLIENTS)]
        self.topics: dict[str, Topic] = {}
        self.ids = 0
        self.claims: dict[tuple[Partition, int], int] = {}
        self.epochs: dict[str, int] = {}
        self.create("t", 3)

    # --- The topics -------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int) -> None:
        self.ids += 1
        self.topics = {**self.topics, name: Topic(name, UUID(int=self.ids), partitions)}

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 4))
    def create_or_enlarge(self, name: str, partitions: int) -> None:
        topic = self.topics.get(name)
        if topic is None:
            self.create(name, partitions)
        else:
            self.topics = {**self.topics, name: evolve(topic, partitions=topic.partitions + 1)}

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.topics = {key: topic for key, topic in self.topics.items() if key != name}

    # --- The clients ------------------------------------------------------------------------------------

    @rule(number=clients, subscription=subscriptions)
    def join(self, number: int, subscription: tuple[frozenset[str], bool]) -> None:
        """Start the client, or start it again after a crash."""
        names, has_expression = subscription
        client = self.clients[number]
        client.begin(names, EXPRESSION if has_expression else "")
        self.send(client, client.request())

    @rule(number=clients, does_report=st.booleans(), is_lost=st.booleans(), repeats=st.booleans())
    def beat(self, number: int, does_report: bool, is_lost: bool, repeats: bool) -> None:
        client = self.clients[number]
        if not client.is_member:
            return
        if repeats:
            self.send(client, client.request(does_report=does_report), is_lost=True)
        self.send(client, client.request(does_report=does_report), is_lost=is_lost)

    @rule(number=clients, subscription=subscriptions, is_lost=st.booleans())
    def subscribe(self, number: int, subscription: tuple[frozenset[str], bool], is_lost: bool) -> None:
        client = self.clients[number]
        client.names, has_expression = subscription
        client.expression = EXPRESSION if has_expression else ""
        client.is_unsure = True
        if client.is_member:
            self.send(client, client.request(), is_lost=is_lost)

    @rule(number=clients)
    def revoke(self, number: int) -> None:
        self.clients[number].revoke()

    @rule(number=clients, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.clients[number]
        if client.is_member and client.epoch > 0:
            epoch = -2 if for_a_while and client.instance_id else -1
            client.owned, client.is_member = set(), False
            self.send(client, evolve(client.request(), member_epoch=epoch, owned=None))

    @rule(number=clients)
    def crash(self, number: int) -> None:
        client = self.clients[number]
        client.owned, client.is_member = set(), False

    @rule(ms=st.sampled_from([500, 1000, 5_000, 20_000, 29_000]))
    def wait(self, ms: int) -> None:
        """Let time pass: clients that send nothing meanwhile are paused, and time out some day."""
        self.now_ms += ms
        self.group.tick(self.now_ms)

    # --- The broker -------------------------------------------------------------------------------------

    def resolve(self, group: ConsumerGroup) -> None:
        group.resolve(EXPRESSION, frozenset(name for name in self.topics if name in EXPRESSION))

    def send(self, client: Client, request: Heartbeat, *, is_lost: bool = False) -> None:
        client.is_unsure |= is_lost
        try:
            check(self.group, request)
        except KafkaError as error:
            # A client that is fenced abandons its partitions, and joins again with its next heartbeat.
            if not is_lost and request.member_epoch >= 0 and not isinstance(error, UnreleasedInstanceId):
                client.abandon()
            return
        twin = loaded(self.group, self.now_ms)
        beat, same = (self.answer(group, request) for group in (self.group, twin))
        assert same == beat, "(e): an answer of a loaded group"
        assert parts(self.group) == parts(twin), "(e): a loaded group"
        if not is_lost and request.member_epoch >= 0:
            client.take(beat)

    def answer(self, group: ConsumerGroup, request: Heartbeat) -> Beat:
        if request.expression or any(m.subscription.expression for m in group.members.values()):
            self.resolve(group)
        before, previous_epoch = dict(group.targets), group.assignment_epoch
        beat = heartbeat(group, request, self.topics, self.now_ms)
        if group.assignment_epoch > previous_epoch:
            self.check_moves(group, before)
        return beat

    @rule()
    def take_over(self) -> None:
        """Load the group at another broker."""
        self.group = loaded(self.group, self.now_ms)

    def check_moves(self, group: ConsumerGroup, before: Mapping[str, Assignment]) -> None:
        """(d): members of equal subscriptions keep as much as a balanced target allows."""
        subscribed = {group.subscriptions.ids(member.subscription) for member in group.members.values()}
        if len(subscribed) != 1 or set(before) - set(group.members):
            return
        exists = {(t.topic_id, n) for t in self.topics.values() for n in range(t.partitions)}
        wanted = {(topic_id, n) for topic_id, n in exists if topic_id in next(iter(subscribed))}
        kept = [flat(before.get(key, {})) & wanted for key in group.members]
        least, rest = divmod(len(wanted), len(kept))
        above = sum(len(each) > least for each in kept)
        fewest = sum(max(len(each) - least, 0) for each in kept) - min(rest, above)
        now = [flat(group.targets[key]) for key in group.members]
        assert fewest == sum(len(was - after) for was, after in zip(kept, now, strict=True))
        assert set(map(len, now)) <= {least, least + 1}

    # --- What holds at any time -------------------------------------------------------------------------

    @invariant()
    def partitions_have_one_owner(self) -> None:
        owners: dict[Partition, str] = {}
        for member in self.group.members.values():
            for partition in flat(member.current.assigned) | flat(member.current.revoking):
                assert member.member_id == owners.setdefault(partition, member.member_id), "(a)"
        for client in self.clients:
            for partition in client.owned:
                claim = self.claims.setdefault((partition, client.epoch), client.number)
                assert claim == client.number, "(a): two live clients at one epoch"

    @invariant()
    def epochs_are_ordered(self) -> None:
        group = self.group
        assert group.assignment_epoch <= group.epoch, "(b)"
        epochs = {"": group.epoch, " ": group.assignment_epoch}
        for member in group.members.values():
            assert member.epoch <= group.assignment_epoch, "(b)"
            if not member.has_left_for_a_while:
                assert member.current.previous_epoch <= member.epoch, "(b)"
                epochs[member.member_id] = member.epoch
        for key, epoch in epochs.items():
            assert self.epochs.get(key, 0) <= epoch, "(b): an epoch fell"
        self.epochs = epochs

    @invariant()
    def fenced_clients_cannot_commit(self) -> None:
        owners = {
            partition: member.member_id
            for member in self.group.members.values()
            for partition in flat(member.current.assigned) | flat(member.current.revoking)
        }
        for client in self.clients:
            for partition in client.owned:
                if owners.get(partition, client.member_id) != client.member_id:
                    assert not self.may_commit(client, partition), "(f)"

    def may_commit(self, client: Client, partition: Partition) -> bool:
        try:
            return not check_commit(self.group, client.member_id, client.epoch, [partition])
        except KafkaError:
            return False

    @invariant()
    def changes_name_all_that_has_changed(self) -> None:
        now = parts(self.group)
        different = {key for key in now.keys() | self.saved.keys() if now.get(key) != self.saved.get(key)}
        assert different <= changed(self.group.changes), "(e)"
        self.saved, self.group.changes = now, Changes()

    # --- Quiet ------------------------------------------------------------------------------------------

    @precondition(lambda self: any(client.is_member for client in self.clients))
    @rule()
    def settle(self) -> None:
        """(c): when crashed members are gone, three heartbeats of each client settle the group."""
        for _ in range(4):
            self.wait(20_000)
            self.round()
        for _ in range(3):
            self.round()
        assert self.group.state is ConsumerState.STABLE, "(c)"
        wanted: set[Partition] = set()
        for member in self.group.members.values():
            ids = self.group.subscriptions.ids(member.subscription)
            wanted |= {
                (t.topic_id, n)
                for t in self.topics.values()
                if t.topic_id in ids
                for n in range(t.partitions)
            }
        owned = [partition for client in self.clients for partition in client.owned if client.is_member]
        assert sorted(wanted) == sorted(owned), "(c)"

    def round(self) -> None:
        for client in self.clients:
            if client.is_member:
                client.revoke()
                self.send(client, client.request())
                if client.epoch == 0:
                    self.send(client, client.request())
                client.revoke()


TestConsumers = Consumers.TestCase
