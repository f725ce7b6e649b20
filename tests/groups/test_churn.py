"""Simulate an hour of a group with failing members, brokers and storage, in seconds, reproducible by its seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.concurrency.tasks import supervise
from korvet.config import Config
from korvet.groups.coordinator import GroupCoordinator
from korvet.groups.members import Join, Leave, State, Sync
from korvet.protocol.errors import ErrorCode, KafkaError, KafkaStorageError, RebalanceInProgress
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from korvet.storage.memory import MemoryStorage
from tests.groups.conversation import subscription
from tests.handlers.support import Shim

PARTITIONS = 8
MEMBERS = 6
HOUR_S = 3600.0
PAUSE_S = 1.0


@define
class Cluster:
    """The current broker, and shared state of the members for the assertions."""

    random: Random
    storage: MemoryStorage = field(factory=MemoryStorage)
    coordinator: GroupCoordinator = field(init=False)
    asking: set[trio.CancelScope] = field(factory=set)
    # The owner of each partition, per generation.
    owners: dict[tuple[int, int], str] = field(factory=dict)
    committed: dict[int, int] = field(factory=dict)
    generations: list[int] = field(factory=list)
    rebalances: int = 0
    failures: int = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Replace the broker. Requests to the previous one are never answered."""
        for scope in self.asking:
            scope.cancel()
        self.coordinator = GroupCoordinator(
            self.storage,
            Config(),
            lambda: int(trio.current_time() * 1000) + 1_750_000_000_000,
            Membership(Registration(1, "", {})),
        )
        self.coordinator.storage = Shim(self.storage, save=self.save)
        nursery.start_soon(self._run, self.coordinator)

    async def _run(self, coordinator: GroupCoordinator) -> None:
        with self.until_killed():
            await supervise("groups", coordinator.run)

    @contextmanager
    def until_killed(self) -> Iterator[trio.CancelScope]:
        with trio.CancelScope() as scope:
            self.asking.add(scope)
            try:
                yield scope
            finally:
                self.asking.discard(scope)

    async def save(self, *arguments: Any, **values: Any) -> int:
        """A storage that is sometimes slow or unavailable. A failed save may have been executed."""
        await trio.sleep(self.random.choice([0, 0, 0.001, 0.2]))
        if self.random.random() < 0.02:
            self.failures += 1
            if self.random.random() < 0.5:
                await self.storage.save(*arguments, **values)
            raise KafkaStorageError
        return await self.storage.save(*arguments, **values)

    def history(self) -> tuple[object, ...]:
        """Return the recorded events."""
        return self.owners, self.committed, self.generations, self.rebalances, self.failures

    def note_assignment(self, name: str, generation_id: int, partitions: bytes) -> None:
        for partition in partitions:
            assert name == self.owners.setdefault((generation_id, partition), name)

    async def ask(self, function: str, *arguments: Any, **values: Any) -> Any:
        """Send a request. If the broker is killed meanwhile, the connection breaks, and the outcome is unknown."""
        with self.until_killed():
            return await getattr(self.coordinator, function)("g", *arguments, **values)
        raise KafkaStorageError("the connection was lost")


@define
class Consumer:
    """A member that behaves like real clients."""

    cluster: Cluster
    name: str
    instance: str | None
    member_id: str = ""
    generation_id: int = -1
    partitions: bytes = b""

    async def live(self) -> None:
        """Run a member until the end: join, assign, heartbeat, commit, and sometimes crash or leave."""
        random = self.cluster.random
        while True:
            with trio.move_on_after(random.expovariate(1 / 120)):
                await self.take_part()
            await self._end(random.choice(["crash", "leave", "crash"]))
            await trio.sleep(random.uniform(0, 60))

    async def take_part(self) -> None:
        """Join repeatedly."""
        while True:
            try:
                await self._join()
                while True:
                    await trio.sleep(3)
                    await self.cluster.ask("heartbeat", self.member_id, self.instance, self.generation_id)
                    await self._commit()
            except RebalanceInProgress:
                continue
            except KafkaError as error:
                self._note(error.error_code)
                await trio.sleep(PAUSE_S)

    def _note(self, code: ErrorCode) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""

    async def _join(self) -> None:
        self.partitions = b""
        join = Join(
            member_id=self.member_id,
            group_instance_id=self.instance,
            client_id=self.name,
            rebalance_timeout_ms=30_000,
            protocols=(("range", subscription("t")),),
        )
        joined = await self.cluster.ask("join", join, trio.move_on_after)
        if joined.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return await self._join()
        self._note(joined.error_code)
        if joined.error_code:
            await trio.sleep(PAUSE_S)
            return await self._join()
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        self.cluster.generations.append(joined.generation_id)
        members = [] if joined.skip_assignment else [member.member_id for member in joined.members]
        assignments = {
            member_id: bytes(range(number, PARTITIONS, len(members)))
            for number, member_id in enumerate(sorted(members))
        }
        sync = Sync(
            member_id=self.member_id,
            generation_id=self.generation_id,
            group_instance_id=self.instance,
            assignments=assignments,
        )
        synced = await self.cluster.ask("sync", sync, trio.move_on_after)
        if synced.error_code:
            self._note(synced.error_code)
            await trio.sleep(PAUSE_S)
            return await self._join()
        self.cluster.rebalances += 1
        self.partitions = synced.assignment
        self.cluster.note_assignment(self.instance or self.name, self.generation_id, self.partitions)
        return None

    async def _commit(self) -> None:
        """Read one record after the committed offset, as at-least-once delivery requires."""
        committed = await self.cluster.storage.committed("g")
        for partition in self.partitions:
            tp = TopicPartition("t", partition)
            offset = committed[tp].offset + 1 if tp in committed else 1
            outcome = await self.cluster.ask(
                "commit",
                {tp: OffsetAndMetadata(offset)},
                member_id=self.member_id,
                group_instance_id=self.instance,
                generation_id=self.generation_id,
            )
            if outcome[tp] is None:
                assert self.cluster.committed.get(partition, 0) <= offset
                self.cluster.committed[partition] = offset

    async def _end(self, how: str) -> None:
        if how == "leave" and self.member_id:
            with trio.move_on_after(5):
                with suppress(KafkaError):
                    await self.cluster.ask("leave", [Leave(self.member_id, self.instance)])
        self.member_id, self.generation_id, self.partitions = "", -1, b""


def consumers(cluster: Cluster) -> Iterator[Consumer]:
    for number in range(MEMBERS):
        yield Consumer(cluster, f"m{number}", f"i{number}" if number % 3 == 0 else None)


def made_reproducible(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Seed Trio's order of runnable tasks, and the member ids, which determine the assignment."""
    ids = Random(seed)
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    monkeypatch.setattr("trio._core._run._r", Random(seed))
    monkeypatch.setattr("korvet.groups.classic.uuid4", lambda: UUID(int=ids.getrandbits(128)))


async def churn(monkeypatch: pytest.MonkeyPatch, seed: int) -> Cluster:
    """Run an hour with failures, then a calm end without."""
    made_reproducible(monkeypatch, seed)
    cluster = Cluster(Random(seed))
    await cluster.storage.create_topic("t", PARTITIONS, {})
    async with trio.open_nursery() as nursery:
        cluster.start(nursery)
        with trio.move_on_after(HOUR_S):
            async with trio.open_nursery() as members:
                for consumer in consumers(cluster):
                    members.start_soon(consumer.live)
                while True:
                    await trio.sleep(cluster.random.uniform(60, 1200))
                    cluster.start(nursery)
        generation_id = max(cluster.generations)
        calm = [Consumer(cluster, f"c{number}", None) for number in range(MEMBERS)]
        for consumer in calm:
            nursery.start_soon(consumer.take_part)
        # Time for the last sessions to end, a rebalance, and the delays by storage failures.
        await trio.sleep(120)
        group = await cluster.coordinator.group("g")
        nursery.cancel_scope.cancel()

    assert (State.STABLE, MEMBERS) == (group.state, len(group.members))
    assert list(range(PARTITIONS)) == sorted(partition for each in calm for partition in each.partitions)
    assert group.generation_id > generation_id
    assert cluster.rebalances > 50
    assert cluster.failures > 1
    assert set(range(PARTITIONS)) == set(cluster.committed)
    return cluster


def churned(monkeypatch: pytest.MonkeyPatch, seed: int) -> Cluster:
    """Run `churn` with a new clock.

    Times that are equal after one start may differ in their last bit after another one, and so come in another order.
    """
    return trio.run(churn, monkeypatch, seed, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
def test_group_survives_an_hour_of_churn_reproducibly(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = [churned(monkeypatch, seed) for seed in (7, 7, 8)]

    assert first.history() == again.history()
    assert first.history() != other.history()
