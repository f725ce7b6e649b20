"""Brokers are killed, or paused and replaced, around each save of a group that both protocols share.

Clients repeat what was not answered at the next broker. At no time a partition has two owners, and the group ends with
the epochs and assignments that it has without kills: no kill causes another reconciliation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.cluster.registration import Registration
from korvet.config import Config
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import Heartbeat
from korvet.groups.consumer_protocol import read_assignment
from korvet.groups.coordinator import GroupCoordinator
from korvet.groups.members import Join, Sync
from korvet.protocol.errors import (
    GroupIdNotFound,
    KafkaError,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from korvet.storage.interface import GROUP
from korvet.storage.memory import MemoryStorage
from tests.groups.test_mixed_machine import subscription
from tests.groups.test_takeover import Broker, Settable

PARTITIONS = 6
# A client's request timeout, far below every session timeout.
PATIENCE_S = 2
BROKERS = 3
CONFIG = Config(
    group_initial_rebalance_delay_ms=0,
    group_consumer_min_assignment_interval_ms=0,
    group_consumer_assignment_interval_ms=0,
)


@define(eq=False)
class Killing(MemoryStorage):
    """A store in which the saves with these numbers stop their broker, before or after they take effect.

    Saves that have not taken effect do so, too late, when `late` is set.
    """

    stops: set[int] = field(factory=set, kw_only=True)
    is_after: bool = field(default=False, kw_only=True)
    saves: int = field(default=0, init=False)
    late: trio.Event = field(factory=trio.Event, init=False)

    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        plain = super().save
        return await self._around(kind, lambda: plain(kind, key, value, expected_version=expected_version))

    async def save_parts(
        self, kind: str, key: str, value: bytes, parts: Mapping[str, bytes | None], *, expected_version: int
    ) -> int:
        plain = super().save_parts
        return await self._around(
            kind, lambda: plain(kind, key, value, parts, expected_version=expected_version)
        )

    async def _around(self, kind: str, save: Callable[[], Awaitable[int]]) -> int:
        if kind != GROUP:
            return await save()
        self.saves += 1
        if self.saves not in self.stops:
            return await save()
        if self.is_after:
            await save()
            await trio.sleep_forever()
        await self.late.wait()
        return await save()


@define
class Clients:
    """Clients of one group, which send one request after the other to the broker that coordinates it."""

    brokers: list[Broker]
    nursery: trio.Nursery
    present: int = 0
    epochs: dict[str, int] = field(factory=dict)
    owned: dict[str, set[int]] = field(factory=dict)
    ids: dict[str, str] = field(factory=dict)
    topic_id: Any = None

    async def ask(self, send: Callable[[GroupCoordinator], Awaitable[Any]]) -> Any:
        """Send a request until a broker answers it. A broker that does not answer is replaced by the next one."""
        while True:
            answers: list[Any] = []
            done = trio.Event()

            async def run(
                groups: GroupCoordinator, answers: list[Any] = answers, done: trio.Event = done
            ) -> None:
                try:
                    answers.append(await send(groups))
                except KafkaError as error:
                    answers.append(error)
                done.set()

            self.nursery.start_soon(run, self.brokers[self.present].groups)
            with trio.move_on_after(PATIENCE_S):
                await done.wait()
            if not answers:
                self.present += 1
                for broker in self.brokers:
                    broker.membership.set(self.present + 1)
            elif not isinstance(answers[0], NotCoordinator):
                return answers[0]

    def own(self, name: str, partitions: set[int]) -> None:
        self.owned[name] = partitions
        for other, owned in self.owned.items():
            assert other == name or not owned & partitions, "a partition has two owners"

    # --- The consumer protocol --------------------------------------------------------------------------

    async def beat(self, name: str) -> None:
        epoch, owned = self.epochs.get(name, 0), self.owned.get(name, set())
        request = Heartbeat(
            member_id=name,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            names=frozenset({"t"}),
            owned={self.topic_id: frozenset(owned)} if owned else {},
        )
        answer = await self.ask(lambda groups: groups.consumer_heartbeat("g", request))
        self.epochs[name] = answer.beat.member_epoch
        assigned = set((answer.beat.assignment or {}).get(self.topic_id, ()))
        self.own(name, owned & assigned if owned - assigned else assigned)

    async def leave(self, name: str) -> None:
        self.own(name, set())
        answer = await self.ask(
            lambda groups: groups.consumer_heartbeat("g", Heartbeat(member_id=name, member_epoch=-1))
        )
        assert not isinstance(answer, KafkaError) or isinstance(answer, UnknownMemberId | GroupIdNotFound)

    # --- The classic protocol ---------------------------------------------------------------------------

    async def join(self, name: str) -> None:
        """Join, and sync. As the leader, assign everything to itself."""
        while True:
            request = Join(
                member_id=self.ids.get(name, ""),
                client_id=name,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=60_000,
                protocols=(("range", subscription(self.owned.get(name, ()))),),
            )
            joined = await self.ask(lambda groups, request=request: groups.join("g", request, nullcontext))
            if isinstance(joined, UnknownMemberId):
                self.ids.pop(name)
                continue
            self.ids[name] = joined.member_id
            if joined.error_code:
                continue
            self.epochs[name] = joined.generation_id
            if await self.sync(name, is_leader=bool(joined.members)):
                return

    async def sync(self, name: str, *, is_leader: bool) -> bool:
        everything = b"\0\1\0\0\0\1\0\1t" + PARTITIONS.to_bytes(4, "big")
        everything += b"".join(number.to_bytes(4, "big") for number in range(PARTITIONS)) + b"\xff" * 4
        request = Sync(
            member_id=self.ids[name],
            generation_id=self.epochs[name],
            assignments={self.ids[name]: everything} if is_leader else {},
        )
        synced = await self.ask(lambda groups: groups.sync("g", request, nullcontext))
        if isinstance(synced, KafkaError) or synced.error_code:
            return False
        self.own(name, set(read_assignment(synced.assignment).partitions.get("t", ())))
        return True

    async def go_on(self, name: str) -> None:
        """Send a heartbeat, and join again if the answer requires it."""
        member_id, generation_id = self.ids[name], self.epochs[name]
        answer = await self.ask(lambda groups: groups.heartbeat("g", member_id, None, generation_id))
        if isinstance(answer, RebalanceInProgress):
            await self.join(name)
        else:
            assert answer is None

    async def settle(self, *consumers: str, classic: str = "") -> None:
        for _ in range(4):
            for name in consumers:
                await self.beat(name)
            if classic:
                await self.go_on(classic)


@asynccontextmanager
async def clients_on(storage: Killing) -> AsyncIterator[Clients]:
    await storage.create_topic("t", PARTITIONS, {})
    brokers = []
    async with trio.open_nursery() as nursery:
        for node_id in range(1, BROKERS + 1):
            membership = Settable(Registration(node_id, "", {}))
            membership.set(1)
            brokers.append(Broker(membership, GroupCoordinator(storage, CONFIG, lambda: 0, membership)))
            nursery.start_soon(brokers[-1].groups.run)
        await wait_all_tasks_blocked()
        topics = await storage.topics()
        yield Clients(brokers, nursery, topic_id=topics["t"].topic_id)
        nursery.cancel_scope.cancel()


async def played(storage: Killing) -> list[Any]:
    """Play a migration up and down. Return epochs, and who owns how many partitions, after each of its parts."""
    seen: list[Any] = []
    async with clients_on(storage) as clients:

        async def look() -> None:
            group = await clients.ask(lambda groups: groups.group("g"))
            epochs = (
                (group.epoch, group.assignment_epoch)
                if isinstance(group, ConsumerGroup)
                else group.generation_id
            )
            sizes = {name: len(owned) for name, owned in clients.owned.items()}
            seen.append((group.state.value, epochs, sizes))

        await clients.join("c")
        await look()
        await clients.settle("a", classic="c")
        await look()
        await clients.settle("a", "b", classic="c")
        await look()
        await clients.leave("a")
        await clients.settle("b", classic="c")
        await look()
        await clients.leave("b")
        await clients.settle(classic="c")
        await look()
        storage.late.set()
        await wait_all_tasks_blocked()
        await look()
    return seen


async def test_play_without_kills() -> None:
    storage = Killing()

    assert [
        ("Stable", 1, {"c": 6}),
        ("Stable", (2, 2), {"c": 3, "a": 3}),
        ("Stable", (3, 3), {"c": 2, "a": 2, "b": 2}),
        ("Stable", (4, 4), {"c": 3, "a": 0, "b": 3}),
        ("Stable", 5, {"c": 6, "a": 0, "b": 0}),
        ("Stable", 5, {"c": 6, "a": 0, "b": 0}),
    ] == await played(storage)
    assert storage.saves > 15


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kills", [1, 2])
async def test_kill_around_any_save_causes_no_second_reconciliation(
    kills: int,
    is_after: bool,
    autojump_clock: MockClock,
) -> None:
    plain = Killing()
    expected = await played(plain)
    differing = {}
    for number in range(1, plain.saves + 1):
        storage = Killing(stops=set(range(number, number + kills)), is_after=is_after)
        found = await played(storage)
        if found != expected:
            differing[number] = found

    assert not differing
