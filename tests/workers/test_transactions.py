"""Sharded transactional ids: three coordinators on one store, connected by RPC over real sockets."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, field

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.concurrency.rpc import answer_links, link_to
from korvet.config import Config
from korvet.coordination.routing import answer
from korvet.protocol.errors import CoordinatorNotAvailable, InvalidTransactionTimeout, ProducerFenced
from korvet.storage.interface import TopicPartition
from korvet.transactions.coordinator import VERBS, TransactionCoordinator
from korvet.transactions.document import State
from korvet.workers.groups import LinkedProcesses, owner_of
from tests.groups.test_coordinator import parked
from tests.transactions.support import ID, Producer, World, now_ms

PROCESSES = 3
T0, T1, INPUT = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("input", 0)
OWNER = owner_of(f"transaction:{ID}", PROCESSES)
FIRST, SECOND = (index for index in range(PROCESSES) if index != OWNER)
LIMIT_S = 20.0

# Methods that each process calls without RPC: documents are the truth.
LOCAL = {"add", "verify", "reload", "describe", "listed", "open_since", "run"}


@define
class Family:
    """Processes that a test can end separately, and start again."""

    world: World
    folder: Path
    nursery: trio.Nursery
    ends: dict[int, Callable[[], None]] = field(factory=dict)

    def make(self, index: int) -> TransactionCoordinator:
        links = {each: link_to(self.path(each), self.nursery) for each in range(PROCESSES) if each != index}
        return TransactionCoordinator(
            self.world.storage,
            Config(),
            now_ms,
            Membership(Registration(1, "", {})),
            self.world.allocate,
            processes=LinkedProcesses(index, links),
        )

    def path(self, index: int) -> Path:
        return self.folder / f"{index}.sock"

    async def start(self, index: int) -> None:
        """Start a process, also in the place of one that has ended."""
        self.world.brokers[index] = self.make(index)
        self.ends[index] = await self.nursery.start(work, self.world.brokers[index], self.path(index))

    def producer(self, version: int) -> Producer:
        """Return a producer whose connections are with processes that do not own its id."""
        return Producer(self.world, self.world.brokers[FIRST], self.world.brokers[SECOND], version)


@pytest.fixture
async def family() -> AsyncIterator[Family]:
    world = World()
    await world.create_topic("t")
    await world.create_topic("input")
    async with running(world) as found:
        yield found


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Family]:
    folder = Path(tempfile.mkdtemp(prefix="kl-"))
    try:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                family = Family(world, folder, nursery)
                world.brokers = [family.make(index) for index in range(PROCESSES)]
                for index in range(PROCESSES):
                    await family.start(index)
                yield family
                nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(folder)


async def work(
    transactions: TransactionCoordinator,
    path: Path,
    *,
    task_status: trio.TaskStatus[Callable[[], None]],
) -> None:
    """Run a process: answer RPC requests, and end transactions."""
    async with trio.open_nursery() as nursery:
        await nursery.start(answer_links, path, partial(answer, [transactions]), parked)
        nursery.start_soon(transactions.run)
        task_status.started(nursery.cancel_scope.cancel)


def test_every_request_of_the_coordinator_is_sharded_or_local() -> None:
    public = {
        name
        for name, each in inspect.getmembers(TransactionCoordinator, inspect.iscoroutinefunction)
        if not name.startswith("_")
    } | {"initialize", "end"}

    assert {f"transaction.{name}" for name in public - LOCAL} == set(VERBS.table)


@pytest.mark.parametrize("version", [1, 2])
async def test_transactions_run_through_processes_that_do_not_own_the_id(
    family: Family, version: int
) -> None:
    producer, world = family.producer(version), family.world
    await producer.begin()
    for number in range(6):
        await producer.send(T0, b"%d" % number)
        await producer.send(T1, b"%d" % number)
        await producer.stage({INPUT: number})
        await producer.end(is_commit=number % 2 == 1)
    await world.until(State.COMPLETE_COMMIT)

    assert [b"1", b"3", b"5"] == await world.committed(T0) == await world.committed(T1)
    assert 5 == await world.offset(INPUT)


async def test_errors_of_the_owner_are_raised(family: Family) -> None:
    producer = family.producer(2)
    await producer.begin()
    with pytest.raises(InvalidTransactionTimeout):
        await producer.coordinator.initialize(ID, timeout_ms=0, expected=None)
    await family.producer(2).begin()
    with pytest.raises(ProducerFenced):
        await producer.end()


async def test_owner_that_starts_again_ends_what_it_has_prepared(family: Family) -> None:
    producer, world = family.producer(2), family.world
    await producer.begin()
    await producer.send(T0, b"a")
    family.ends[OWNER]()
    with pytest.raises(CoordinatorNotAvailable):
        await producer.coordinator.initialize(ID, timeout_ms=1000, expected=None)
    # The owner ends between its save and its markers.
    world.brokers[OWNER] = family.make(OWNER)
    await world.brokers[OWNER].end(ID, *producer.producer, is_commit=True, version=2, can_abort=True)
    assert State.PREPARE_COMMIT is (await world.state()).state
    await family.start(OWNER)
    state = await world.until(State.COMPLETE_COMMIT)

    assert [b"a"] == await world.committed(T0)
    assert 1 == state.coordinator_epoch


async def test_process_that_began_a_transaction_aborts_it_after_its_timeout(family: Family) -> None:
    producer, world = family.producer(2), family.world
    producer.timeout_ms = 300
    await producer.begin()
    await producer.send(T0, b"a")
    await world.until(State.COMPLETE_ABORT)

    with pytest.raises(ProducerFenced):
        await producer.end()
