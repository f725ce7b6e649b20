"""Brokers on one store, and transactional producers that use their coordinators as the handlers do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import trio
from attrs import define, evolve, field
from trio.testing import wait_all_tasks_blocked

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.config import Config
from korvet.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
)
from korvet.storage.interface import (
    IsolationLevel,
    OffsetAndMetadata,
    ProducerTransaction,
    Storage,
    TopicPartition,
    TransactionEnded,
    TransactionNumber,
)
from korvet.storage.memory import MemoryStorage
from korvet.testing.contract.transactions import YOUNG, committed_in
from korvet.testing.records import Producer as Idempotence
from korvet.testing.records import Record, batch, read
from korvet.transactions.coordinator import TransactionCoordinator
from korvet.transactions.document import Partition, State, Transaction

ID, GROUP = "payments", "g"
START_MS = 1_700_000_000_000
# Handlers answer the errors of a store that is away as COORDINATOR_NOT_AVAILABLE.
RETRIED = (ConcurrentTransactions, CoordinatorNotAvailable, KafkaStorageError, RequestTimedOut)
T = TypeVar("T")
Add = Callable[[TransactionCoordinator], Awaitable[TransactionNumber]]


def now_ms() -> int:
    return START_MS + round(trio.current_time() * 1000)


class Settable(Membership):
    """A membership that the test changes."""

    def set(self, *node_ids: int) -> None:
        self._use({node_id: evolve(self.own, node_id=node_id) for node_id in node_ids}, {})


@define(eq=False)
class World:
    """Brokers on one store. Broker 1 coordinates all ids at the beginning."""

    storage: Storage = field(factory=lambda: MemoryStorage(clock=now_ms))
    brokers: list[TransactionCoordinator] = field(factory=list)
    members: list[Settable] = field(factory=list)
    topic_ids: dict[str, Any] = field(factory=dict)
    _ids: count[int] = field(factory=lambda: count(YOUNG))

    async def allocate(self) -> int:
        """Return an unused producer id."""
        return next(self._ids)

    def add_broker(self, storage: Storage | None = None, **settings: Any) -> TransactionCoordinator:
        membership = Settable(Registration(len(self.brokers) + 1, "", {}))
        membership.set(1)
        broker = TransactionCoordinator(
            storage or self.storage, Config(**settings), now_ms, membership, self.allocate
        )
        self.brokers.append(broker)
        self.members.append(membership)
        return broker

    def give_to(self, node_id: int) -> None:
        """Let that broker coordinate all ids."""
        for member in self.members:
            member.set(node_id)

    async def create_topic(self, name: str, partitions: int = 2) -> None:
        self.topic_ids[name] = (await self.storage.create_topic(name, partitions, {})).topic_id

    def partition(self, tp: TopicPartition) -> Partition:
        return Partition(*tp, self.topic_ids[tp.topic])

    async def state(self, transactional_id: str = ID) -> Transaction:
        saved = await patiently(lambda: self.brokers[0].states.read(transactional_id))
        assert saved is not None
        return saved.transaction

    async def committed(self, tp: TopicPartition) -> list[bytes | None]:
        """Return the values that a consumer with `read_committed` gets."""
        offset = (await self.storage.earliest(tp)).offset
        result = await read(self.storage, tp, offset, isolation_level=IsolationLevel.READ_COMMITTED)
        return committed_in(result, offset)

    async def offset(self, tp: TopicPartition, group: str = GROUP) -> int:
        """Return the committed offset of a partition, or -1."""
        found = (await self.storage.committed(group, [tp])).get(tp)
        return -1 if found is None else found.offset

    async def until(self, state: State, transactional_id: str = ID) -> Transaction:
        """Wait until the id is in that state."""
        with trio.fail_after(30):
            while True:
                found = await self.state(transactional_id)
                if found.state is state:
                    return found
                await trio.sleep(0.001)


@asynccontextmanager
async def running(*brokers: TransactionCoordinator) -> AsyncIterator[None]:
    """Run the brokers for the block."""
    async with trio.open_nursery() as nursery:
        for broker in brokers:
            nursery.start_soon(broker.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


@define(eq=False)
class Producer:
    """A transactional producer of one process. `coordinator` is its broker, `leader` that of all partitions."""

    world: World
    coordinator: TransactionCoordinator
    leader: TransactionCoordinator
    version: int = 2
    transactional_id: str = ID
    timeout_ms: int = 60_000
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[TopicPartition, int] = field(factory=dict)

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    async def begin(self, expected: tuple[int, int] | None = None) -> None:
        """Get a producer id and an epoch, which fence earlier producers."""
        self.producer_id, self.epoch = await patiently(
            lambda: self.coordinator.initialize(
                self.transactional_id, timeout_ms=self.timeout_ms, expected=expected
            )
        )
        self.sequences.clear()

    async def add(self, *tps: TopicPartition) -> TransactionNumber:
        """Add partitions as AddPartitionsToTxn (version 1) or Produce (version 2) does."""
        partitions = [self.world.partition(tp) for tp in tps]
        broker = self.coordinator if self.version == 1 else self.leader
        return await patiently(
            lambda: broker.add(
                self.transactional_id, *self.producer, partitions=partitions, version=self.version
            )
        )

    async def send(self, tp: TopicPartition, *values: bytes) -> None:
        """Append a batch to the transaction, which begins with the first one."""
        if self.version == 1:
            await self.add(tp)
            await self._append(tp, values, self._verified)
        else:
            await self._append(tp, values, self.add)

    async def _verified(self, tp: TopicPartition) -> TransactionNumber:
        partitions = [self.world.partition(tp)]
        return await self.leader.verify(self.transactional_id, *self.producer, partitions=partitions)

    async def _append(
        self,
        tp: TopicPartition,
        values: tuple[bytes, ...],
        number_of: Callable[[TopicPartition], Awaitable[TransactionNumber]],
    ) -> None:
        sequence = self.sequences.get(tp, 0)
        for is_last in (False, True):
            number = await number_of(tp)
            records = batch(
                [Record(value) for value in values],
                producer=Idempotence(*self.producer, sequence),
                is_transactional=True,
            )
            result = (await self.leader.storage.append({tp: records}, transactions={tp: number}))[tp]
            if isinstance(result, TransactionEnded) and not is_last:
                await self.leader.reload(self.transactional_id)
                continue
            if isinstance(result, KafkaError):
                raise result
            break
        self.sequences[tp] = sequence + len(values)

    async def stage(self, offsets: Mapping[TopicPartition, int], group: str = GROUP) -> None:
        """Stage offsets of a group, as AddOffsetsToTxn and TxnOffsetCommit do."""
        number = await patiently(
            lambda: self.leader.add(
                self.transactional_id, *self.producer, groups=[group], version=self.version
            )
        )
        found = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        transaction = ProducerTransaction(*self.producer, number.number)
        for error in (await self.leader.storage.stage(group, found, transaction)).values():
            if error is not None:
                raise error

    async def end(self, *, is_commit: bool = True) -> None:
        """Commit or abort the transaction."""
        self.producer_id, self.epoch = await patiently(
            lambda: self.coordinator.end(
                self.transactional_id,
                *self.producer,
                is_commit=is_commit,
                version=self.version,
                can_abort=True,
            )
        )
        if self.version == 2:
            self.sequences.clear()


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call, which is repeated after errors that clients repeat it for."""
    with trio.fail_after(60):
        while True:
            try:
                return await call()
            except RETRIED:
                await trio.sleep(0.02)
