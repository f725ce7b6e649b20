"""Sharded groups: three coordinators on one store, connected by RPC over real sockets."""

from __future__ import annotations

import inspect
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.concurrency.rpc import Question, answer_links, link_to
from korvet.config import Config
from korvet.coordination.routing import answer
from korvet.groups.coordinator import VERBS, GroupCoordinator
from korvet.groups.members import Join, Joined, Leave, State, Sync
from korvet.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidSessionTimeout,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from korvet.storage.interface import OffsetAndMetadata, ProducerTransaction, TopicPartition, TransactionResult
from korvet.storage.memory import MemoryStorage
from korvet.workers.groups import LinkedProcesses, owner_of
from tests.groups.conversation import RANGE
from tests.groups.test_coordinator import Client, parked, together

PROCESSES = 3
T0, NOWHERE = TopicPartition("t", 0), TopicPartition("nowhere", 0)
GROUP = "g"  # that of `Client`
OWNER = owner_of(GROUP, PROCESSES)
OTHERS = [index for index in range(PROCESSES) if index != OWNER]
LIMIT_S = 20.0

# Methods that each process calls only for its own groups, without RPC.
LOCAL = {"committed", "unstable", "groups", "own_groups", "run", "expire_offsets"}


@define
class Family:
    """Processes that a test can end separately."""

    groups: list[GroupCoordinator]
    ends: list[Callable[[], None]] = field(factory=list)

    @property
    def owner(self) -> GroupCoordinator:
        """The process that owns `GROUP`."""
        return self.groups[OWNER]

    @property
    def others(self) -> list[GroupCoordinator]:
        """The processes that do not own `GROUP`."""
        return [self.groups[index] for index in OTHERS]


@asynccontextmanager
async def family(storage: MemoryStorage, **settings: Any) -> AsyncIterator[Family]:
    config = Config(**{"group_initial_rebalance_delay_ms": 0, **settings})
    folder = Path(tempfile.mkdtemp(prefix="kl-"))
    paths = [folder / f"{index}.sock" for index in range(PROCESSES)]
    running = Family([])
    try:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for index in range(PROCESSES):
                    links = {
                        each: link_to(paths[each], nursery) for each in range(PROCESSES) if each != index
                    }
                    membership = Membership(Registration(1, "", {}))
                    running.groups.append(
                        GroupCoordinator(
                            storage,
                            config,
                            lambda: 0,
                            membership,
                            processes=LinkedProcesses(index, links),
                        )
                    )
                for index, groups in enumerate(running.groups):
                    running.ends.append(await nursery.start(work, groups, paths[index]))
                yield running
                nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(folder)


async def work(
    groups: GroupCoordinator, path: Path, *, task_status: trio.TaskStatus[Callable[[], None]]
) -> None:
    """Run a process: answer RPC requests, and handle the timeouts of the groups that it owns."""
    async with trio.open_nursery() as nursery:
        await nursery.start(answer_links, path, partial(answer, [groups]), parked)
        nursery.start_soon(groups.run)
        task_status.started(nursery.cancel_scope.cancel)


async def is_rebalancing(groups: GroupCoordinator) -> bool:
    try:
        return (await groups.group(GROUP)).state is State.PREPARING_REBALANCE
    except GroupIdNotFound:
        return False


@pytest.fixture
async def storage() -> MemoryStorage:
    storage = MemoryStorage()
    await storage.create_topic("t", 2, {})
    return storage


# --- Whose it is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_groups_are_distributed_over_all_processes(processes: int) -> None:
    owners = Counter(owner_of(f"group-{number}", processes) for number in range(700))

    assert set(range(processes)) == set(owners)
    assert min(owners.values()) > 700 / processes / 2


def test_every_request_of_the_coordinator_is_sharded() -> None:
    public = {
        name
        for name, value in vars(GroupCoordinator).items()
        if callable(value) and inspect.iscoroutinefunction(inspect.unwrap(value)) and not name.startswith("_")
    }

    assert {f"group.{name}" for name in public - LOCAL} == set(VERBS.table) - {"group.own_groups"}


# --- Passing on -------------------------------------------------------------------------------------------


async def test_members_at_different_processes_share_a_generation(storage: MemoryStorage) -> None:
    async with family(storage, group_initial_rebalance_delay_ms=300) as processes:
        members = [Client(groups, f"m{index}") for index, groups in enumerate(processes.groups)]
        assignments = await together(*(member.take_part for member in members))

        assert [member.member_id.encode() for member in members] == assignments
        assert {1} == {member.generation_id for member in members}
        assert ["ok"] * PROCESSES == [await member.heartbeat() for member in members]
        assert [None] * PROCESSES == [
            await member.commit(offset=number) for number, member in enumerate(members)
        ]
        assert OffsetAndMetadata(PROCESSES - 1).offset == (await storage.committed(GROUP))[T0].offset


async def test_rebalance_reaches_members_at_other_processes(storage: MemoryStorage) -> None:
    async with family(storage) as processes:
        first, second = (Client(groups, "m") for groups in processes.others)
        await first.take_part()
        answers: list[Joined] = []

        async def join() -> None:
            answers.append(await second.join())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            while await first.heartbeat() != "REBALANCE_IN_PROGRESS":
                await trio.lowlevel.checkpoint()
            answers.append(await first.join())

        assert [2, 2] == [answer.generation_id for answer in answers]
        assert [ErrorCode.NONE] == await second.coordinator.leave(GROUP, [Leave(member_id=first.member_id)])
        assert "UNKNOWN_MEMBER_ID" == await first.heartbeat()


async def test_offsets_are_staged_by_the_owning_process(storage: MemoryStorage) -> None:
    async with family(storage) as processes:
        for number, groups in enumerate(processes.groups, 1):
            outcomes = await groups.stage(
                GROUP, {T0: OffsetAndMetadata(number)}, ProducerTransaction(7, 0, 1)
            )
            assert {T0: None} == outcomes
            assert {T0} == set(await groups.unstable(GROUP, None))
        await storage.settle(GROUP, producer_id=7, number=1, result=TransactionResult.COMMIT)

        assert PROCESSES == (await storage.committed(GROUP))[T0].offset


async def test_errors_are_those_of_the_owning_process(storage: MemoryStorage) -> None:
    async with family(storage) as processes:
        for groups in processes.others:
            with pytest.raises(UnknownMemberId):
                await groups.heartbeat(GROUP, "nobody", None, 1)
            with pytest.raises(InvalidSessionTimeout, match="session timeouts are from 6000 to"):
                await groups.join(GROUP, Join(session_timeout_ms=1, protocols=RANGE), parked)
            with pytest.raises(GroupIdNotFound, match="Group g not found"):
                await groups.group(GROUP)
            with pytest.raises(GroupIdNotFound):
                await groups.delete(GROUP)
            with pytest.raises(GroupIdNotFound):
                await groups.delete_offsets(GROUP, [T0])


async def test_outcomes_of_single_partitions_are_returned(storage: MemoryStorage) -> None:
    async with family(storage) as processes:
        groups = processes.others[0]
        member = Client(groups, "m")
        await member.take_part()
        committed = await groups.commit(
            GROUP,
            {T0: OffsetAndMetadata(1), NOWHERE: OffsetAndMetadata(1)},
            member_id=member.member_id,
            generation_id=member.generation_id,
        )
        deleted = await groups.delete_offsets(GROUP, [T0])

        assert committed[T0] is None
        assert isinstance(committed[NOWHERE], UnknownTopicOrPartition)
        assert isinstance(deleted[T0], GroupSubscribedToTopic)


async def test_groups_are_described_listed_and_deleted_at_any_process(storage: MemoryStorage) -> None:
    names = [f"group-{number}" for number in range(12)]
    async with family(storage) as processes:
        for name in names:
            await processes.groups[0].commit(name, {T0: OffsetAndMetadata(1)})
        member = Client(processes.others[0], "m")
        await member.take_part()
        for groups in processes.groups:
            listed = await groups.groups()
            assert [GROUP, *sorted(names)] == [group.group_id for group in listed]
            described = await groups.group(GROUP)
            assert (State.STABLE, "range", [member.member_id]) == (
                described.state,
                described.protocol_name,
                list(described.members),
            )
            assert described.members[member.member_id].assignment == member.member_id.encode()
            with pytest.raises(NonEmptyGroup):
                await groups.delete(GROUP)
        for name in names:
            await processes.groups[1].delete(name)

        assert [[GROUP]] * PROCESSES == [
            [group.group_id for group in await groups.groups()] for groups in processes.groups
        ]


async def test_each_process_stores_only_the_groups_it_owns(storage: MemoryStorage) -> None:
    async with family(storage) as processes:
        for number in range(12):
            await processes.groups[0].commit(f"group-{number}", {T0: OffsetAndMetadata(1)})
        own = [[group.group_id for group in await groups.own_groups()] for groups in processes.groups]

        for index, names in enumerate(own):
            assert {index} == {owner_of(name, PROCESSES) for name in names}
            assert set(names) == set(processes.groups[index].runtime.held)


# --- What ends a wait -------------------------------------------------------------------------------------


async def test_join_cancelled_at_the_caller_is_answered_by_the_owner(storage: MemoryStorage) -> None:
    async with family(storage, group_initial_rebalance_delay_ms=60_000) as processes:
        join = Join(protocols=RANGE, can_be_sent_away=False)
        with pytest.raises(NotCoordinator):
            await processes.others[0].join(GROUP, join, lambda _: trio.move_on_after(0.2))


async def test_sync_cancelled_at_the_caller_is_answered_by_the_owner(storage: MemoryStorage) -> None:
    async with family(storage, group_initial_rebalance_delay_ms=200) as processes:
        a, b = (Client(groups, "m") for groups in processes.others)
        joined, _ = await together(a.join, b.join)
        assert isinstance(joined, Joined)
        follower = b if joined.leader == a.member_id else a
        sync = Sync(member_id=follower.member_id, generation_id=1)
        with pytest.raises(NotCoordinator):
            await follower.coordinator.sync(GROUP, sync, lambda _: trio.move_on_after(0.2))


async def test_waiting_requests_are_retriable_when_the_owner_ends(storage: MemoryStorage) -> None:
    async with family(storage, group_initial_rebalance_delay_ms=60_000) as processes:
        groups = processes.others[0]
        told: list[str] = []

        async def join() -> None:
            join = Join(protocols=RANGE, can_be_sent_away=False)
            with pytest.raises(CoordinatorNotAvailable) as error:
                await groups.join(GROUP, join, lambda _: trio.move_on_after(math.inf))
            told.append(error.value.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            while not await is_rebalancing(processes.owner):
                await trio.lowlevel.checkpoint()
            processes.ends[OWNER]()

        assert [f"the link to the process at {OWNER}.sock broke before it answered"] == told
        for ask in (
            lambda: groups.heartbeat(GROUP, "m", None, 1),
            lambda: groups.commit(GROUP, {T0: OffsetAndMetadata(1)}),
            lambda: groups.group(GROUP),
            groups.groups,
        ):
            call: Callable[[], Awaitable[object]] = ask
            with pytest.raises(CoordinatorNotAvailable):
                await call()


async def test_unknown_verb_is_refused(storage: MemoryStorage) -> None:
    async with family(storage) as processes:
        with pytest.raises(ValueError, match="unknown verb 'close'"):
            await answer([processes.owner], Question("close"), parked)
