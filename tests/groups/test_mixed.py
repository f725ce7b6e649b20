"""Classic members in a consumer group, and the conversions between the types of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from attrs import define, evolve, field

from korvet.groups import classic_requests
from korvet.groups.classic import ClassicGroup
from korvet.groups.classic_requests import ClassicBeat
from korvet.groups.commits import check_commit
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import ConsumerLimits, Heartbeat
from korvet.groups.consumer_protocol import read_assignment, written_assignment
from korvet.groups.consumer_requests import consumer_beat
from korvet.groups.machine import GroupMachine, new_machine, read_machine, type_of
from korvet.groups.members import GroupLimits, Join, Leave, Member, State, Sync
from korvet.groups.migration import upgraded
from korvet.groups.subscriptions import Topic
from korvet.protocol.errors import GroupIdNotFound, IllegalGeneration, KafkaError
from korvet.storage.parts import Parted, updated
from tests.groups.test_mixed_machine import NAME, TOPIC_ID, subscription

LIMITS = ConsumerLimits(
    assignment_interval_ms=0, classic=GroupLimits(initial_rebalance_delay_ms=0), session_timeout_ms=100_000
)
REBALANCE_MS = 30_000


@define
class Mixed:
    """A conversation with a group of a topic of four partitions. Answers are texts."""

    limits: ConsumerLimits = LIMITS
    now_ms: float = 0.0
    partitions: int = 4
    machine: GroupMachine = field(init=False)
    stored: tuple[bytes, dict[str, bytes]] = (b"", {})
    ids: dict[str, str] = field(factory=dict)
    epochs: dict[str, int] = field(factory=dict)
    answers: dict[object, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.machine = new_machine("g", self.limits.classic, lambda: 0)

    @property
    def topics(self) -> dict[str, Topic]:
        return {NAME: Topic(NAME, TOPIC_ID, self.partitions)}

    @property
    def consumer(self) -> ConsumerGroup:
        assert isinstance(self.machine.group, ConsumerGroup)
        return self.machine.group

    @property
    def classic(self) -> ClassicGroup:
        assert isinstance(self.machine.group, ClassicGroup)
        return self.machine.group

    def settle(self) -> None:
        self.machine.tick(self.now_ms)
        self.answers |= dict(self.machine.answers)
        self.machine.answers.clear()

    def save(self) -> None:
        saved = self.machine.written()
        if isinstance(saved, Parted):
            self.stored = saved.head, updated(self.stored[1], saved.changes)
        else:
            self.stored = saved, {}

    def load(self) -> None:
        head, parts = self.stored
        self.machine = read_machine("g", head, parts, self.limits.classic, self.limits, lambda: 0)
        self.machine.resume(self.now_ms)

    def join(
        self, name: str, *, instance: str | None = None, owned: tuple[int, ...] = (), **fields: Any
    ) -> str:
        given: dict[str, Any] = {"protocols": (("range", subscription(owned)),), "can_be_sent_away": False}
        request = Join(
            member_id=self.ids.get(name, ""),
            group_instance_id=instance,
            client_id=name,
            session_timeout_ms=50_000,
            rebalance_timeout_ms=REBALANCE_MS,
            **(given | fields),
        )
        classic_requests.join(self.machine, request, self.topics, self.limits, f"{name} joins", self.now_ms)
        self.settle()
        return self.joined(name)

    def joined(self, name: str) -> str:
        answer = self.answers.pop(f"{name} joins", None)
        if answer is None:
            return "waits"
        if answer.error_code:
            return str(answer.error_code.name)
        self.ids[name], self.epochs[name] = answer.member_id, answer.generation_id
        return f"{answer.generation_id}"

    def sync(self, name: str, shares: dict[str, tuple[int, ...]] | None = None) -> str:
        assignments = {
            self.ids[key]: written_assignment({NAME: share}, 1) for key, share in (shares or {}).items()
        }
        request = Sync(member_id=self.ids[name], generation_id=self.epochs[name], assignments=assignments)
        classic_requests.sync(self.machine.group, request, self.topics, f"{name} syncs", self.now_ms)
        self.settle()
        answer = self.answers.pop(f"{name} syncs")
        if answer.error_code:
            return str(answer.error_code.name)
        return " ".join(map(str, sorted(read_assignment(answer.assignment).partitions.get(NAME, ()))))

    def beat(self, name: str) -> str:
        beat = ClassicBeat(self.ids[name], None, self.epochs[name])
        return self.outcome(
            lambda: classic_requests.heartbeat(self.machine.group, beat, self.topics, self.now_ms)
        )

    def leave(self, *names: str) -> list[str]:
        leaving = [Leave(self.ids.get(name, name)) for name in names]
        outcomes = classic_requests.leave(self.machine.group, leaving, self.now_ms)
        self.settle()
        return [each.name for each in outcomes]

    def consume(
        self, name: str, *, epoch: int | None = None, owned: tuple[int, ...] = (), instance: str | None = None
    ) -> str:
        """Send a heartbeat of the consumer protocol; the first one joins."""
        number = self.epochs.get(name, 0) if epoch is None else epoch
        request = Heartbeat(
            member_id=name,
            member_epoch=number,
            instance_id=instance,
            rebalance_timeout_ms=REBALANCE_MS,
            names=frozenset({NAME}),
            owned={TOPIC_ID: frozenset(owned)} if owned else {},
        )

        def send() -> str:
            beat = consumer_beat(self.machine, request, self.topics, self.limits, self.now_ms)
            self.epochs[name] = beat.member_epoch
            found = sorted((beat.assignment or {}).get(TOPIC_ID, ()))
            return " ".join(map(str, (f"{beat.member_epoch}:", *found)))

        return self.outcome(send)

    def outcome(self, send: Callable[[], Any]) -> str:
        try:
            answer = send()
        except KafkaError as error:
            return error.error_code.name
        finally:
            self.settle()
        return answer or "ok"

    def wait(self, ms: float) -> None:
        self.now_ms += ms
        self.settle()


def classic_group(talk: Mixed | None = None, **shares: tuple[int, ...]) -> Mixed:
    """A Stable classic group of generation 1 whose leader has assigned these partitions."""
    talk = talk or Mixed()
    members = {
        name: Member(
            name,
            None,
            name,
            f"/{name}",
            50_000,
            REBALANCE_MS,
            (("range", subscription(())),),
            written_assignment({NAME: share}, 1),
        )
        for name, share in shares.items()
    }
    group = ClassicGroup(
        "g",
        talk.limits.classic,
        state=State.STABLE,
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader=next(iter(members)),
        members=members,
    )
    group.resume(talk.now_ms)
    talk.machine.group = group
    talk.ids |= {name: name for name in shares}
    talk.epochs |= dict.fromkeys(shares, 1)
    return talk


def test_empty_consumer_group_changes_its_type_when_a_client_joins_with_its_id() -> None:
    talk = Mixed()
    talk.consume("new")
    talk.consume("new", epoch=-1)

    assert "MEMBER_ID_REQUIRED" == talk.join("a", can_be_sent_away=True)
    assert "INCONSISTENT_GROUP_PROTOCOL" == talk.join("b", protocols=())
    assert "consumer" == type_of(talk.machine.group)
    talk.ids["a"] = "a-with-the-id"
    assert "4" == talk.join("a", can_be_sent_away=True)
    assert "classic" == type_of(talk.machine.group)


# --- Up ---------------------------------------------------------------------------------------------------


def test_classic_group_with_members_becomes_a_consumer_group() -> None:
    talk = classic_group(a=(0, 1), b=(2, 3))

    assert "2:" == talk.consume("new")
    assert {"a", "b", "new"} == talk.consumer.members.keys()
    assert "REBALANCE_IN_PROGRESS" == talk.beat("a") == talk.beat("b")
    assert "1" == talk.join("b", owned=(2, 3))
    assert "2" == talk.sync("b")
    assert "REBALANCE_IN_PROGRESS" == talk.beat("b")
    assert "2" == talk.join("b", owned=(2,))
    assert "2: 3" == talk.consume("new")
    assert "2" == talk.join("a", owned=(0, 1))
    assert "0 1" == talk.sync("a")
    assert ["ok", "ok"] == [talk.beat("a"), talk.beat("b")]
    assert "Stable" == talk.consumer.state.value


def test_requests_that_wait_are_answered_when_the_group_is_upgraded() -> None:
    talk = classic_group(a=(0, 1), b=(2, 3))

    assert "waits" == talk.join("a")
    assert "2:" == talk.consume("new")
    assert "REBALANCE_IN_PROGRESS" == talk.joined("a")


def test_group_that_was_rebalancing_gets_a_new_target_for_a_replaced_static_member() -> None:
    talk = Mixed()
    talk.join("a", instance="i")

    assert "2: 0 1 2 3" == talk.consume("new", instance="i")


def test_partition_that_a_leader_gave_to_two_members_has_one_owner() -> None:
    talk = classic_group(a=(0, 1, 2), b=(2, 3))
    talk.consume("new")
    granted = {name: set(talk.consumer.members[name].current.assigned[TOPIC_ID]) for name in ("a", "b")}

    assert {"a": {0, 1, 2}, "b": {3}} == granted


def test_user_data_of_the_subscription_does_not_prevent_the_upgrade() -> None:
    talk = classic_group(a=(0, 1, 2, 3))
    member = talk.classic.members["a"]
    member.assignment = member.assignment[:-4] + b"\0\0\0\1x"

    with pytest.raises(GroupIdNotFound, match="unsupported custom assignor"):
        upgraded(talk.classic, LIMITS, talk.topics, 0)
    member.protocols = (("range", b"\0\0\0\0\0\1\0\1t\0\0\0\1x"),)
    assert {"a"} == upgraded(talk.classic, LIMITS, talk.topics, 0).members.keys()


@pytest.mark.parametrize(
    "limits, metadata, protocol_type",
    [
        (evolve(LIMITS, can_upgrade=False), subscription(()), "consumer"),
        (evolve(LIMITS, max_size=1), subscription(()), "consumer"),
        (LIMITS, b"\0", "consumer"),
        (LIMITS, subscription(()), "connect"),
    ],
    ids=["policy", "size", "malformed", "protocol type"],
)
def test_group_that_cannot_be_upgraded_does_not_change(
    limits: ConsumerLimits, metadata: bytes, protocol_type: str
) -> None:
    talk = classic_group(a=(0, 1), b=(2, 3))
    talk.limits = limits
    talk.classic.protocol_type = protocol_type
    talk.classic.members["a"].protocols = (("range", metadata),)

    assert "GROUP_ID_NOT_FOUND" == talk.consume("new")
    assert "GROUP_ID_NOT_FOUND" == talk.consume("new", epoch=3)
    assert "ok" == talk.beat("b")


# --- Mixed ------------------------------------------------------------------------------------------------


def mixed() -> Mixed:
    """A Stable group of the classic member a, with partitions 2 and 3, and the consumer new."""
    talk = Mixed()
    talk.consume("new")
    talk.join("a")
    talk.consume("new", owned=(0, 1))
    talk.join("a")
    assert "2 3" == talk.sync("a")
    assert "Stable" == talk.consumer.state.value
    return talk


def test_member_that_does_not_join_again_in_time_is_removed() -> None:
    talk = mixed()
    talk.consume("other")
    assert "REBALANCE_IN_PROGRESS" == talk.beat("a")
    talk.wait(REBALANCE_MS - 1)
    assert "REBALANCE_IN_PROGRESS" == talk.beat("a")
    talk.wait(1)

    assert "UNKNOWN_MEMBER_ID" == talk.beat("a")
    assert "consumer" == type_of(talk.machine.group)


def test_member_that_does_not_sync_in_time_is_removed() -> None:
    talk = mixed()
    talk.join("a", owned=(2, 3))
    talk.wait(REBALANCE_MS)

    assert "UNKNOWN_MEMBER_ID" == talk.beat("a")


def test_classic_member_has_its_own_session_timeout() -> None:
    talk = mixed()
    talk.wait(49_999)
    talk.consume("new", owned=(0, 1))
    assert "ok" == talk.beat("a")
    talk.wait(50_000)

    assert "UNKNOWN_MEMBER_ID" == talk.beat("a")


def test_member_with_an_older_generation_commits_what_it_has_owned_since() -> None:
    talk = mixed()
    talk.consume("other")
    talk.join("a", owned=(2, 3))
    talk.sync("a")
    talk.join("a", owned=(2,))
    generation = talk.epochs["a"]
    errors = check_commit(
        talk.consumer, talk.ids["a"], generation - 1, [(TOPIC_ID, 2), (TOPIC_ID, 0), (UUID(int=9), 0)]
    )

    assert {(TOPIC_ID, 0), (UUID(int=9), 0)} == errors.keys()
    assert {IllegalGeneration} == {type(error) for error in errors.values()}
    with pytest.raises(IllegalGeneration):
        check_commit(talk.consumer, talk.ids["a"], generation + 1, [(TOPIC_ID, 2)])


def test_joins_that_no_member_supports_are_refused() -> None:
    talk = mixed()

    for fields in (
        {"protocols": (("other", subscription(())),)},
        {"protocols": ()},
        {"protocol_type": "connect"},
        {"protocols": (("range", b"\0"),)},
    ):
        assert "INCONSISTENT_GROUP_PROTOCOL" == talk.join("b", **fields)
    talk.limits = evolve(LIMITS, max_size=2)
    assert "GROUP_MAX_SIZE_REACHED" == talk.join("b")
    talk.limits = evolve(LIMITS, can_upgrade=False, can_downgrade=False)
    assert "INCONSISTENT_GROUP_PROTOCOL" == talk.join("b")
    assert 2 == len(talk.consumer.members)


def test_client_changes_its_protocol_with_its_member_id() -> None:
    talk = mixed()
    member_id = talk.ids["a"]
    talk.join("a", owned=(2, 3))

    assert "3: 2 3" == talk.consume(member_id, epoch=0)
    talk.wait(REBALANCE_MS)
    assert "3: 2 3" == talk.consume(member_id, owned=(2, 3)), "no timeout of the classic protocol is left"
    assert talk.consumer.members[member_id].classic is None


def test_members_of_both_protocols_are_removed_by_leave_group() -> None:
    talk = mixed()
    talk.consume("other")
    epoch = talk.consumer.epoch

    assert ["NONE", "NONE", "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"] == talk.leave("a", "other", "a", "?")
    assert (epoch + 1, ["new"]) == (talk.consumer.epoch, list(talk.consumer.members))


# --- Down -------------------------------------------------------------------------------------------------


def test_group_becomes_classic_when_its_last_consumer_leaves() -> None:
    talk = mixed()
    talk.consume("new", epoch=-1)

    assert (3, State.PREPARING_REBALANCE) == (talk.classic.generation_id, talk.classic.state)
    assert "REBALANCE_IN_PROGRESS" == talk.beat("a")
    assert "4" == talk.join("a", owned=(2, 3))
    assert "0 1 2 3" == talk.sync("a", {"a": (0, 1, 2, 3)})


def test_group_becomes_classic_when_the_session_of_its_last_consumer_ends() -> None:
    talk = mixed()
    for _ in range(3):
        talk.wait(40_000)
        talk.beat("a")

    assert "classic" == type_of(talk.machine.group)


def test_group_stays_a_consumer_group_if_the_policy_forbids_the_downgrade() -> None:
    talk = mixed()
    talk.limits = evolve(LIMITS, can_downgrade=False)
    talk.consume("new", owned=(0, 1))
    talk.consume("new", epoch=-1)

    assert "REBALANCE_IN_PROGRESS" == talk.beat("a")
    assert "4" == talk.join("a", owned=(2, 3))
    assert "0 1 2 3" == talk.sync("a")
    talk.save()
    talk.limits = LIMITS
    talk.load()
    assert "consumer" == type_of(talk.machine.group), "it has no names of topics yet"
    talk.beat("a")
    assert "classic" == type_of(talk.machine.group)


def test_classic_client_takes_the_place_of_the_last_consumer() -> None:
    talk = Mixed()
    talk.consume("new", instance="i")
    talk.join("a", instance="i")

    assert (State.STABLE, 2) == (talk.classic.state, talk.epochs["a"])
    assert "0 1 2 3" == talk.sync("a")


def test_rebalance_that_was_not_over_goes_on_after_the_downgrade() -> None:
    talk = Mixed()
    talk.consume("new", instance="i")
    talk.join("b")
    talk.join("a", instance="i")

    assert State.PREPARING_REBALANCE is talk.classic.state


def test_converted_group_that_was_loaded_waits_for_its_members() -> None:
    talk = mixed()
    talk.consume("new", epoch=-1)
    talk.save()
    talk.load()
    assert "REBALANCE_IN_PROGRESS" == talk.beat("a")
    talk.wait(REBALANCE_MS)

    assert State.EMPTY is talk.classic.state, "its member sent heartbeats and did not join"


def test_parts_of_members_from_before_two_conversions_are_removed() -> None:
    talk = mixed()
    talk.save()
    talk.consume("new", epoch=-1)
    talk.consume("other")
    talk.leave("a")
    talk.save()

    assert {"m:other", "c:other", "t:other"} == talk.stored[1].keys()
    talk.load()
    assert ["other"] == list(talk.consumer.members)
