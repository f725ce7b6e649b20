"""Groups that move to another broker: their members go on, and the previous coordinator refuses them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
from attrs import define, evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.config import Config
from korvet.groups.coordinator import GroupCoordinator
from korvet.groups.members import Join, Joined, Sync
from korvet.protocol.errors import CoordinatorNotAvailable, NotCoordinator
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from korvet.storage.memory import MemoryStorage

T0 = TopicPartition("t", 0)
SESSION_MS = 10_000


class Settable(Membership):
    """A membership that the test changes."""

    def set(self, *node_ids: int) -> None:
        self._use({node_id: evolve(self.own, node_id=node_id) for node_id in node_ids}, {})

    def end_session(self) -> None:
        self._session_ends_s = -math.inf

    def begin_session(self) -> None:
        self._session_ends_s = math.inf
        self.tenure += 1
        self._notify()


@define
class Broker:
    membership: Settable
    groups: GroupCoordinator

    async def join(self, member_id: str = "") -> Joined:
        join = Join(
            member_id=member_id,
            client_id="a",
            client_host="/a",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=(("range", b""),),
            can_be_sent_away=False,
        )
        return await self.groups.join("g", join, nullcontext)

    async def take_part(self) -> Joined:
        joined = await self.join()
        sync = Sync(
            member_id=joined.member_id,
            generation_id=joined.generation_id,
            assignments={joined.member_id: b"assigned"},
        )
        await self.groups.sync("g", sync, nullcontext)
        return joined

    async def heartbeat(self, joined: Joined) -> None:
        await self.groups.heartbeat("g", joined.member_id, None, joined.generation_id)

    async def commit(self, joined: Joined, offset: int) -> Any:
        outcomes = await self.groups.commit(
            "g",
            {T0: OffsetAndMetadata(offset)},
            member_id=joined.member_id,
            generation_id=joined.generation_id,
        )
        return outcomes[T0]


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Broker, Broker]]:
    """Run two brokers on one store. The first one coordinates the group at the beginning."""
    storage = MemoryStorage()
    await storage.create_topic("t", 1, {})
    config = Config(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=SESSION_MS)
    made = []
    async with trio.open_nursery() as nursery:
        for node_id in (1, 2):
            membership = Settable(Registration(node_id, "", {}))
            membership.set(1)
            made.append(Broker(membership, GroupCoordinator(storage, config, lambda: 0, membership)))
            nursery.start_soon(made[-1].groups.run)
        await wait_all_tasks_blocked()
        yield made[0], made[1]
        nursery.cancel_scope.cancel()


async def test_members_go_on_at_the_next_coordinator(autojump_clock: MockClock) -> None:
    async with cluster() as (first, second):
        joined = await first.take_part()
        with pytest.raises(NotCoordinator):
            await second.heartbeat(joined)
        for broker in (first, second):
            broker.membership.set(2)
        await trio.sleep(SESSION_MS / 1000 - 1)  # its session began again with the takeover
        await second.heartbeat(joined)
        assert await second.commit(joined, 5) is None
        group = await second.groups.group("g")

        assert [1, {joined.member_id}] == [group.generation_id, set(group.members)]
        assert b"assigned" == group.members[joined.member_id].assignment
        for request in (
            first.heartbeat(joined),
            first.commit(joined, 9),
            first.groups.group("g"),
            first.groups.committed("g", None),
            first.groups.delete("g"),
            first.groups.leave("g", []),
            first.join(),
        ):
            with pytest.raises(NotCoordinator):
                await request
        assert [[], ["g"]] == [
            [each.group_id for each in await b.groups.own_groups()] for b in (first, second)
        ]
        assert 5 == (await second.groups.committed("g", [T0]))[T0].offset


async def test_member_that_ended_during_the_takeover_is_removed(autojump_clock: MockClock) -> None:
    async with cluster() as (first, second):
        await first.take_part()
        for broker in (first, second):
            broker.membership.set(2)
        await trio.sleep(SESSION_MS / 1000 + 1)

        assert {} == (await second.groups.group("g")).members


async def test_waiting_join_of_a_group_that_moves_is_answered(autojump_clock: MockClock) -> None:
    async with cluster() as (first, second):
        joined = await first.take_part()
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await first.join())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            for broker in (first, second):
                broker.membership.set(2)
        assert ["NOT_COORDINATOR"] == [answer.error_code.name for answer in answers]
        await second.heartbeat(joined)


async def test_broker_whose_session_has_ended_serves_no_group(autojump_clock: MockClock) -> None:
    async with cluster() as (first, second):
        joined = await first.take_part()
        first.membership.end_session()
        for request in (first.heartbeat(joined), first.commit(joined, 9), first.groups.committed("g", None)):
            with pytest.raises(CoordinatorNotAvailable):
                await request
        await trio.sleep(5 * SESSION_MS / 1000)  # members could not send heartbeats
        first.membership.begin_session()
        await first.heartbeat(joined)

        first.membership.end_session()
        second.membership.set(2)
        await second.heartbeat(joined)
        await second.commit(joined, 5)
        first.membership.begin_session()  # before it has read that the second one coordinates the group
        await wait_all_tasks_blocked()
        await first.heartbeat(joined)
        assert isinstance(await second.commit(joined, 6), NotCoordinator)


async def test_commit_that_was_on_its_way_when_the_group_moved_is_refused(autojump_clock: MockClock) -> None:
    async with cluster() as (first, second):
        joined = await first.take_part()
        storage = first.groups.storage
        going = trio.Event()

        class Delayed:
            async def ack(self, *arguments: Any, **values: Any) -> Any:
                await going.wait()
                return await storage.ack(*arguments, **values)

        first.groups.storage = Delayed()  # type: ignore[assignment]
        outcomes: list[Any] = []

        async def commit() -> None:
            outcomes.append(await first.commit(joined, 3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await wait_all_tasks_blocked()
            second.membership.set(2)
            await second.commit(joined, 7)
            going.set()

        assert [NotCoordinator] == [type(outcome) for outcome in outcomes]
        assert 7 == (await second.groups.committed("g", [T0]))[T0].offset
