from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.config import Config
from korvet.groups.classic import ClassicGroup
from korvet.groups.coordinator import GroupCoordinator
from korvet.groups.document import UnreadableDocument, read
from korvet.groups.members import GroupLimits, Join, Joined, Leave, State, Sync, Synced
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    KafkaStorageError,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from korvet.storage.interface import OffsetAndMetadata, ProducerTransaction, TopicPartition, TransactionResult
from korvet.storage.memory import MemoryStorage
from tests.groups.conversation import RANGE, subscription
from tests.handlers.support import Shim

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
U0 = TopicPartition("u", 0)
DAY_MS = 86_400_000
HOUR_S = 3_600.0
COMMITTED = OffsetAndMetadata(5)


def parked(seconds: float) -> AbstractContextManager[Any]:
    return trio.move_on_after(seconds)


@define
class Clock:
    """A wall clock that follows Trio's."""

    began_ms: int = 1_750_000_000_000

    def __call__(self) -> int:
        return self.began_ms + int(trio.current_time() * 1000)


@define
class Client:
    """A member that calls the coordinator."""

    coordinator: GroupCoordinator
    name: str
    member_id: str = ""
    generation_id: int = -1
    instance: str | None = None
    topics: tuple[str, ...] = ("t",)
    responses: list[Joined | Synced] = field(factory=list)

    async def join(self, **values: Any) -> Joined:
        join = Join(
            **{
                "member_id": self.member_id,
                "group_instance_id": self.instance,
                "client_id": self.name,
                "protocols": (("range", subscription(*self.topics)),),
                "can_be_sent_away": False,
                **values,
            }
        )
        joined = await self.coordinator.join("g", join, parked)
        self.responses.append(joined)
        if not joined.error_code:
            self.member_id, self.generation_id = joined.member_id, joined.generation_id
        return joined

    async def sync(self, **assignments: bytes) -> Synced:
        synced = await self.coordinator.sync(
            "g",
            Sync(
                member_id=self.member_id,
                generation_id=self.generation_id,
                group_instance_id=self.instance,
                assignments=assignments,
            ),
            parked,
        )
        self.responses.append(synced)
        return synced

    async def take_part(self) -> bytes:
        """Join, send the assignments if this is the leader, and return its own assignment."""
        joined = await self.join()
        assert not joined.error_code
        return (await self.sync(**{m.member_id: m.member_id.encode() for m in joined.members})).assignment

    async def heartbeat(self) -> str:
        try:
            await self.coordinator.heartbeat("g", self.member_id, self.instance, self.generation_id)
        except KafkaError as error:
            return error.error_code.name
        return "ok"

    async def commit(self, tp: TopicPartition = T0, offset: int = 5) -> KafkaError | None:
        outcomes = await self.coordinator.commit(
            "g",
            {tp: OffsetAndMetadata(offset)},
            member_id=self.member_id,
            group_instance_id=self.instance,
            generation_id=self.generation_id,
        )
        return outcomes[tp]


@define
class World:
    """A store, and brokers that start and end on it."""

    storage: MemoryStorage = field(factory=lambda: MemoryStorage(clock=Clock()))
    settings: dict[str, Any] = field(factory=lambda: {"group_initial_rebalance_delay_ms": 0})

    async def create_topics(self) -> None:
        await self.storage.create_topic("t", 2, {})
        await self.storage.create_topic("u", 1, {})

    def coordinator(self, **settings: Any) -> GroupCoordinator:
        config = Config(**{**self.settings, **settings})
        return GroupCoordinator(self.storage, config, Clock(), Membership(Registration(1, "", {})))

    @asynccontextmanager
    async def broker(self, **settings: Any) -> AsyncIterator[GroupCoordinator]:
        """Run a coordinator, and kill it at the end of the block."""
        coordinator = self.coordinator(**settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.run)
            nursery.start_soon(coordinator.expire_offsets)
            yield coordinator
            nursery.cancel_scope.cancel()


@pytest.fixture
async def world() -> World:
    world = World()
    await world.create_topics()
    return world


async def together(*functions: Callable[[], Awaitable[object]]) -> list[object]:
    """Return the results of functions that run concurrently."""
    results: dict[int, object] = {}

    async def run(number: int) -> None:
        results[number] = await functions[number]()

    async with trio.open_nursery() as nursery:
        for number in range(len(functions)):
            nursery.start_soon(run, number)
    return [results[number] for number in range(len(functions))]


# --- Members ---------------------------------------------------------------------------------------------


async def test_members_that_join_concurrently_share_a_generation(
    autojump_clock: MockClock,
    world: World,
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=3000) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        assignments = await together(a.take_part, b.take_part)

        assert [a.member_id.encode(), b.member_id.encode()] == assignments
        assert [1, 1] == [a.generation_id, b.generation_id]
        assert ["ok", "ok"] == [await a.heartbeat(), await b.heartbeat()]


async def test_silent_member_is_removed_and_others_get_rebalance_in_progress(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=1000) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        await together(a.take_part, b.take_part)
        for _ in range(3):
            await trio.sleep(4)
            responses = await a.heartbeat()

        assert "REBALANCE_IN_PROGRESS" == responses
        assert a.member_id.encode() == await a.take_part()
        assert "UNKNOWN_MEMBER_ID" == await b.heartbeat()


async def test_cancelled_join_is_answered_with_not_coordinator(
    autojump_clock: MockClock, world: World
) -> None:
    limits = []

    def note(seconds: float) -> AbstractContextManager[Any]:
        limits.append(seconds)
        return trio.move_on_after(1)

    broker = world.coordinator(group_initial_rebalance_delay_ms=3000)
    with pytest.raises(NotCoordinator):
        await broker.join("g", Join(protocols=RANGE, can_be_sent_away=False), note)

    assert [math.inf] == limits


async def test_cancelled_sync_is_answered_with_not_coordinator(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=100) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        joined, _ = await together(a.join, b.join)
        assert isinstance(joined, Joined)
        follower = b if joined.leader == a.member_id else a
        sync = Sync(member_id=follower.member_id, generation_id=1)
        with pytest.raises(NotCoordinator):
            await broker.sync("g", sync, lambda _: trio.move_on_after(1))


async def test_empty_group_id_cannot_have_members(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    for call in (
        lambda: broker.join("", Join(protocols=RANGE), parked),
        lambda: broker.sync("", Sync(member_id="", generation_id=0), parked),
        lambda: broker.heartbeat("", "", None, 0),
        lambda: broker.leave("", []),
        lambda: broker.delete_offsets("", []),
    ):
        with pytest.raises(InvalidGroupId):
            await call()


@pytest.mark.parametrize("timeout_ms", [5999, 1_800_001, -1])
async def test_session_timeout_is_bounded(autojump_clock: MockClock, world: World, timeout_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeout):
        await Client(world.coordinator(), "a").join(session_timeout_ms=timeout_ms)


async def test_metadata_and_assignments_are_bounded(autojump_clock: MockClock, world: World) -> None:
    client = Client(world.coordinator(group_max_metadata_bytes=100), "a")
    for protocols in ((("range", b"x" * 50), ("other", b"x" * 31)), (("r" * 90, b""),), (("", b""),) * 13):
        with pytest.raises(InvalidRequest):
            await client.join(protocols=protocols)
    with pytest.raises(InvalidRequest):
        await client.join(protocol_type="c" * 100)
    await client.join()
    with pytest.raises(InvalidRequest):
        await client.sync(a=b"x" * 101)


async def test_requests_for_unknown_groups_create_no_group(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    with pytest.raises(UnknownMemberId):
        await broker.heartbeat("made-up", "m", None, 1)
    with pytest.raises(UnknownMemberId):
        await broker.join("made-up", Join(member_id="m", protocols=RANGE), parked)
    with pytest.raises(GroupIdNotFound):
        await broker.group("made-up")

    assert [ErrorCode.UNKNOWN_MEMBER_ID] == await broker.leave("made-up", [Leave("m")])
    assert (
        UnknownMemberId.error_code
        == (await broker.sync("made-up", Sync(member_id="m", generation_id=1), parked)).error_code
    )
    assert {} == broker.runtime.held
    assert [] == await broker.groups()


# --- Groups outlive brokers ------------------------------------------------------------------------------


async def test_members_continue_their_generation_after_the_broker_was_killed(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=100) as broker:
        a, b = Client(broker, "a"), Client(broker, "b", instance="b")
        before = await together(a.take_part, b.take_part)
    async with world.broker() as broker:
        a.coordinator = b.coordinator = broker
        responses = [await a.heartbeat(), await b.heartbeat(), await a.commit(), await b.commit(T1)]
        group = await broker.group("g")

        assert isinstance(group, ClassicGroup)
        assert ["ok", "ok", None, None] == responses
        assert (State.STABLE, 1) == (group.state, group.generation_id)
        assert before == [(await a.sync()).assignment, (await b.sync()).assignment]
        members = list(group.members.values())
        assert {(None, "a"), ("b", "b")} == {(each.group_instance_id, each.client_id) for each in members}
        assert frozenset({"t"}) == group.subscribed_topics


async def test_members_that_died_with_the_broker_are_removed_after_their_session(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=100) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        await together(a.take_part, b.take_part)
    await trio.sleep(3600)
    async with world.broker() as broker:
        await trio.sleep(9)
        before = (await broker.group("g")).state
        await trio.sleep(2)
        after = (await broker.group("g")).state

        assert (State.STABLE, State.EMPTY) == (before, after)


async def test_started_generation_continues_after_a_restart(autojump_clock: MockClock, world: World) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=100) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        await together(a.join, b.join)
    async with world.broker() as broker:
        a.coordinator = b.coordinator = broker
        joined = [await a.join(), await b.join()]
        leader, follower = (a, b) if joined[0].leader == a.member_id else (b, a)

        assert [1, 1] == [each.generation_id for each in joined]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.sync)
            await trio.sleep(1)
            await leader.sync(**{follower.member_id: b"yours"})
        assert b"yours" == follower.responses[-1].assignment  # type: ignore[union-attr]


async def test_empty_group_keeps_its_generation(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()
    await broker.leave("g", [Leave(a.member_id)])
    b = Client(world.coordinator(), "b")
    joined = await b.join()

    assert 3 == joined.generation_id


async def test_new_member_id_of_a_static_member_survives_a_restart(
    autojump_clock: MockClock, world: World
) -> None:
    a = Client(world.coordinator(), "a", instance="i")
    await a.take_part()
    old, a.member_id = a.member_id, ""
    joined = await a.join()
    again = Client(world.coordinator(), "a", a.member_id, 1, "i")
    former = Client(again.coordinator, "a", old, 1, "i")

    assert joined.skip_assignment
    assert ["ok", "FENCED_INSTANCE_ID"] == [await again.heartbeat(), await former.heartbeat()]


async def test_stored_group_is_json_with_format_and_type(autojump_clock: MockClock, world: World) -> None:
    a = Client(world.coordinator(), "a")
    await a.take_part()
    document = await world.storage.load("group", "g")
    assert document is not None
    values = json.loads(document.value)

    assert [1, "classic", "Stable", 1, "consumer", "range", a.member_id] == [
        values[key]
        for key in ("format", "type", "state", "generation_id", "protocol_type", "protocol_name", "leader")
    ]


@pytest.mark.parametrize("change", [{"format": 2}, {"type": "consumer"}])
async def test_group_document_of_a_newer_format_is_not_modified(
    autojump_clock: MockClock, world: World, change: dict[str, object]
) -> None:
    await Client(world.coordinator(), "a").take_part()
    document = await world.storage.load("group", "g")
    assert document is not None
    newer = json.dumps({**json.loads(document.value), **change}).encode()
    await world.storage.save("group", "g", newer, expected_version=document.version)
    broker = world.coordinator()

    with pytest.raises(UnreadableDocument):
        read("g", newer, GroupLimits())
    with pytest.raises(CoordinatorNotAvailable):
        await Client(broker, "b").join()
    assert [] == await broker.groups()


async def test_group_that_exceeds_max_size_after_a_restart_rebalances(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=100) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        await together(a.take_part, b.take_part)
    a.coordinator = b.coordinator = world.coordinator(group_max_size=1)

    assert "REBALANCE_IN_PROGRESS" == await a.heartbeat()


# --- A store that fails, and other brokers ---------------------------------------------------------------


async def test_generation_that_could_not_be_saved_is_not_returned(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")

    async def fail(*_: object, **__: object) -> int:
        raise KafkaStorageError

    broker.storage = Shim(world.storage, save=fail)
    with pytest.raises(KafkaStorageError):
        await a.join()
    broker.storage = world.storage
    assert 1 == (await a.join()).generation_id


async def test_waiting_members_are_asked_to_retry_when_a_group_cannot_be_saved(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_initial_rebalance_delay_ms=100) as broker:
        a, b = Client(broker, "a"), Client(broker, "b")
        await together(a.join, b.join)
        leader, follower = (a, b) if a.responses[0].leader == a.member_id else (b, a)  # type: ignore[union-attr]

        async def fail(*_: object, **__: object) -> int:
            raise KafkaStorageError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.sync)
            await trio.sleep(1)
            broker.storage = Shim(world.storage, save=fail)
            with pytest.raises(KafkaStorageError):
                await leader.sync()
            broker.storage = world.storage

        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == follower.responses[-1].error_code
        assert [1, 1] == [(await a.join()).generation_id, (await b.join()).generation_id]


async def test_broker_reloads_a_group_saved_by_another_broker(
    autojump_clock: MockClock, world: World
) -> None:
    ours, others = world.coordinator(), world.coordinator()
    a = Client(ours, "a")
    await a.take_part()
    await others.leave("g", [Leave(a.member_id)])
    with pytest.raises(NotCoordinator):
        await ours.leave("g", [Leave(a.member_id)])

    assert (State.EMPTY, 2) == ((await ours.group("g")).state, (await ours.group("g")).generation_id)


async def test_replaced_coordinator_fences_no_static_member(autojump_clock: MockClock, world: World) -> None:
    """FENCED_INSTANCE_ID ends a client for good; the member's present id is known to the new coordinator only."""
    ours, others = world.coordinator(), world.coordinator()
    await Client(ours, "a", instance="a").take_part()
    member = Client(others, "a", instance="a")
    await member.join()
    heartbeat = "g", member.member_id, "a", member.generation_id
    with pytest.raises(NotCoordinator):
        await ours.heartbeat(*heartbeat)

    await others.group("g")
    await ours.heartbeat(*heartbeat)


async def test_member_that_joins_a_group_during_its_deletion_starts_a_new_group(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()
    await broker.leave("g", [Leave(a.member_id)])
    release = trio.Event()

    async def forget(*_: object) -> None:
        await release.wait()

    broker.storage = Shim(world.storage, forget=forget)
    b = Client(broker, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.delete, "g")
        await trio.sleep(1)
        nursery.start_soon(b.join)
        await trio.sleep(1)
        release.set()

    assert 1 == b.generation_id


# --- Committed offsets -----------------------------------------------------------------------------------


async def test_only_members_of_the_current_generation_commit(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()

    assert await a.commit() is None
    with pytest.raises(IllegalGeneration):
        await Client(broker, "a", a.member_id, 0).commit()
    with pytest.raises(UnknownMemberId):
        await Client(broker, "x", "made-up", 1).commit()
    with pytest.raises(UnknownMemberId):
        await broker.commit("g", {T0: COMMITTED})
    await a.join()
    with pytest.raises(RebalanceInProgress):
        await a.commit()
    assert {T0: COMMITTED} == await world.storage.committed("g")


async def test_members_of_no_group_cannot_commit(autojump_clock: MockClock, world: World) -> None:
    with pytest.raises(GroupIdNotFound):
        await Client(world.coordinator(), "a", "m", 1).commit()


async def test_group_with_offsets_only_exists(autojump_clock: MockClock, world: World) -> None:
    await world.coordinator().commit("g", {T0: COMMITTED})
    broker = world.coordinator()
    (group,) = await broker.groups()

    assert ("g", State.EMPTY, None, 0) == (
        group.group_id,
        group.state,
        group.protocol_type,
        group.generation_id,
    )


async def test_new_generation_waits_for_commits_in_flight(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()
    order = []

    async def slow_ack(*arguments: Any, **values: Any) -> Any:
        await trio.sleep(2)
        order.append("commit")
        return await world.storage.ack(*arguments, **values)

    broker.storage = Shim(world.storage, ack=slow_ack)

    async def rejoin() -> None:
        await trio.sleep(1)
        await a.join()
        order.append("generation")

    await together(a.commit, rejoin)

    assert ["commit", "generation"] == order


async def test_commit_after_the_join_timeout_does_not_wait_for_itself(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.coordinator()  # no task handles its timeouts before the commit does
    a, b = Client(broker, "a"), Client(broker, "b")
    await a.join(rebalance_timeout_ms=5000)
    await a.sync()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(b.join, rebalance_timeout_ms=5000))
        await trio.sleep(6)
        with trio.fail_after(1), pytest.raises(UnknownMemberId):
            await a.commit()

    assert (ErrorCode.NONE, 2) == (b.responses[0].error_code, b.generation_id)
    assert {} == await world.storage.committed("g")


# --- Staged offsets --------------------------------------------------------------------------------------

TRANSACTION = ProducerTransaction(7, 0, 1)


async def test_members_of_the_current_generation_stage_offsets_also_while_it_begins(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()
    await a.join()  # it waits for assignments now

    async def stage(**member: Any) -> KafkaError | None:
        return (await broker.stage("g", {T0: COMMITTED}, TRANSACTION, **member))[T0]

    assert await stage(member_id=a.member_id, generation_id=a.generation_id) is None
    assert await stage() is None  # a producer without a consumer's member id
    with pytest.raises(IllegalGeneration):
        await stage(member_id=a.member_id, generation_id=a.generation_id - 1)
    with pytest.raises(UnknownMemberId):
        await stage(member_id="made-up", generation_id=a.generation_id)
    assert {T0} == set(await broker.unstable("g", None))
    await world.storage.settle("g", producer_id=7, number=1, result=TransactionResult.COMMIT)
    assert {T0: COMMITTED} == await broker.committed("g", None)


async def test_staging_creates_a_group_without_members(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    with pytest.raises(GroupIdNotFound):
        await broker.stage("g", {T0: COMMITTED}, TRANSACTION, member_id="m", generation_id=1)
    assert [] == await broker.groups()
    for member_id in ("", "m"):  # as Apache Kafka 4.4.0 answers to both
        assert {T0: None} == await broker.stage("g", {T0: COMMITTED}, TRANSACTION, member_id=member_id)
    with pytest.raises(UnknownMemberId):
        await broker.stage("g", {T0: COMMITTED}, TRANSACTION, member_id="m", generation_id=1)

    assert ["g"] == [group.group_id for group in await world.coordinator().groups()]


async def test_offsets_are_not_staged_in_the_group_without_a_name(world: World) -> None:
    with pytest.raises(InvalidGroupId):  # as Apache Kafka 4.4.0 answers, although it accepts plain commits
        await world.coordinator().stage("", {T0: COMMITTED}, TRANSACTION)


async def test_group_with_staged_offsets_does_not_expire(autojump_clock: MockClock, world: World) -> None:
    async with world.broker() as broker:
        await broker.commit("g", {T0: COMMITTED, T1: COMMITTED})
        await broker.stage("g", {T0: COMMITTED}, TRANSACTION)
        await sleep_days(8)
        kept = set(await world.storage.committed("g"))
        await world.storage.settle("g", producer_id=7, number=1, result=TransactionResult.ABORT)
        await sleep_days(1)

        assert {T0} == kept
        assert [] == await broker.groups()


async def test_storage_fences_staging_of_a_coordinator_that_lost_the_group(
    autojump_clock: MockClock, world: World
) -> None:
    lost = world.coordinator()
    await lost.commit("g", {T0: COMMITTED})
    await world.coordinator().commit("g", {T0: COMMITTED})
    outcomes = await lost.stage("g", {T0: OffsetAndMetadata(9)}, TRANSACTION)

    assert isinstance(outcomes[T0], NotCoordinator)
    assert not await world.storage.unstable("g")


async def test_storage_fences_commits_of_a_coordinator_that_lost_the_group(
    autojump_clock: MockClock, world: World
) -> None:
    ours, others = world.coordinator(), world.coordinator()
    a = Client(ours, "a")
    await a.take_part()
    await Client(others, "a", a.member_id, 1).commit(offset=9)

    assert isinstance(await a.commit(offset=4), NotCoordinator)
    assert {T0: OffsetAndMetadata(9)} == await world.storage.committed("g")


async def test_offsets_of_unsubscribed_topics_are_deleted(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()
    await a.commit(T0)
    await a.commit(U0)
    outcomes = await broker.delete_offsets("g", [T0, U0])

    assert isinstance(outcomes[T0], GroupSubscribedToTopic)
    assert outcomes[U0] is None
    assert {T0} == set(await world.storage.committed("g"))
    with pytest.raises(GroupIdNotFound):
        await broker.delete_offsets("made-up", [T0])


async def test_offsets_of_non_consumer_groups_with_members_are_kept(
    autojump_clock: MockClock, world: World
) -> None:
    broker = world.coordinator()
    await Client(broker, "worker").join(protocol_type="connect")
    with pytest.raises(NonEmptyGroup):
        await broker.delete_offsets("g", [T0])


async def test_only_groups_without_members_are_deleted(autojump_clock: MockClock, world: World) -> None:
    broker = world.coordinator()
    a = Client(broker, "a")
    await a.take_part()
    await a.commit()
    with pytest.raises(NonEmptyGroup):
        await broker.delete("g")
    await broker.leave("g", [Leave(a.member_id)])
    await broker.delete("g")

    assert {} == await world.storage.committed("g")
    assert [] == list(await world.storage.documents("group"))
    with pytest.raises(GroupIdNotFound):
        await broker.delete("g")
    assert [] == await world.coordinator().groups()


# --- Expiry ----------------------------------------------------------------------------------------------


async def sleep_days(days: float) -> None:
    await trio.sleep(days * DAY_MS / 1000)


async def test_offsets_expire_a_week_after_the_group_became_empty(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker() as broker:
        a = Client(broker, "a")
        await a.take_part()
        await a.commit()
        await trio.sleep(5)
        await a.heartbeat()
        await trio.sleep(20)
        assert State.EMPTY == (await broker.group("g")).state
        await sleep_days(6.9)
        before = await world.storage.committed("g")
        await sleep_days(0.2)

        assert {T0} == set(before)
        assert {} == await world.storage.committed("g")
        assert [] == await broker.groups()
        assert [] == list(await world.storage.documents("group"))


async def test_offsets_of_an_empty_group_expire_across_restarts(
    autojump_clock: MockClock,
    world: World,
) -> None:
    async with world.broker() as broker:
        a = Client(broker, "a")
        await a.take_part()
        await a.commit()
        await broker.leave("g", [Leave(a.member_id)])
        await sleep_days(4)
    async with world.broker() as broker:
        await sleep_days(2.9)
        before = await world.storage.committed("g")
        await sleep_days(0.2)

        assert ({T0}, {}) == (set(before), await world.storage.committed("g"))


async def test_offsets_of_a_simple_group_expire_a_week_after_their_commit(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker() as broker:
        await broker.commit("g", {T0: COMMITTED})
        await sleep_days(4)
        await broker.commit("g", {T1: COMMITTED})
        await sleep_days(3.1)
        after_a_week = set(await world.storage.committed("g"))
        await sleep_days(4)

        assert {T1} == after_a_week
        assert {} == await world.storage.committed("g")
        assert [] == await broker.groups()


async def test_group_with_members_keeps_offsets_of_subscribed_topics(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.broker(group_max_session_timeout_ms=2**31 - 1) as broker:
        a = Client(broker, "a")
        joined = await a.join(session_timeout_ms=20 * DAY_MS)
        await a.sync(**{joined.member_id: b""})
        await a.commit(T0)
        await a.commit(U0)
        await sleep_days(7.1)

        assert {T0} == set(await world.storage.committed("g"))
        assert State.STABLE == (await broker.group("g")).state


async def test_deletion_of_a_group_without_topics_logs_no_expired_offsets(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.broker() as broker:
        a = Client(broker, "a")
        await a.take_part()
        await a.commit()
        for name in ("t", "u"):
            topic = await world.storage.topic(name)
            assert topic is not None
            await world.storage.delete_topic(topic)
        with caplog.at_level(logging.INFO):
            await sleep_days(8)

    said = [each.getMessage() for each in caplog.records if "is deleted" in each.getMessage()]
    assert ["group 'g' is deleted: it has no members, and no committed offsets"] == said
