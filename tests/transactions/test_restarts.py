"""Producers that commit and abort through brokers on one Redis, which are restarted and killed in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Literal

import pytest
import trio
from attrs import define, field

from korvet.broker.broker import Broker, now_in_ms, open_broker, registration_of
from korvet.cluster.registered import new_incarnation, registered
from korvet.concurrency.tasks import supervise
from korvet.config import Config
from korvet.protocol.errors import ErrorCode
from korvet.storage.interface import IsolationLevel, Storage, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.transactions import committed_in
from korvet.testing.records import read
from tests.handlers.transactional import TransactionalProducer
from tests.servers import VALKEY, RedisServer, start_server

pytestmark = [pytest.mark.servers, pytest.mark.slow]

NODE_IDS = (1, 2, 3)
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
INPUT = "input"
SESSION_S = 1.0
LIMIT_S = 90
RESTARTS = 2  # of each broker, at least


@define(eq=False)
class Node:
    """A broker that a test restarts: by a clean end, or as if it were killed."""

    node_id: int
    url: str
    broker: Broker | None = None
    starts: int = 0
    _life: trio.CancelScope = field(factory=trio.CancelScope)
    _scopes: set[trio.CancelScope] = field(factory=set)  # of requests
    _stopping: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        """Serve forever, with a pause after each stop."""
        while True:
            self._life, self._stopping = trio.CancelScope(), trio.Event()
            with self._life:
                await self._serve()
            self._end_requests()
            await trio.sleep(0.1)

    async def _serve(self) -> None:
        config = Config(group_initial_rebalance_delay_ms=0)
        own = registration_of(
            config, {"PLAINTEXT": (f"b{self.node_id}", 9092)}, now_in_ms(), incarnation=new_incarnation()
        )
        async with (
            open_redis_storage(self.url) as storage,
            registered(storage, own, node_id=self.node_id, session_s=SESSION_S, registers=True) as membership,
        ):
            broker = await open_broker(storage, config, membership=membership)
            async with trio.open_nursery() as nursery:
                await nursery.start(supervise, "groups", broker.groups.run)
                await nursery.start(supervise, "transactions", broker.transactions.run)
                self.broker = broker
                self.starts += 1
                await self._stopping.wait()
                await membership.leave()
                self.broker = None
                self._end_requests()
                nursery.cancel_scope.cancel()

    def stop(self, how: Literal["leave", "kill"]) -> None:
        if how == "leave":
            self._stopping.set()
        else:
            self.broker = None
            self._life.cancel()
            self._end_requests()

    def _end_requests(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def ask(self, request: Callable[[], Awaitable[int]]) -> ErrorCode | None:
        """Return the response's error, or None if the broker ended before it."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return ErrorCode(await request())
            finally:
                self._scopes.discard(scope)
        return None


@define(eq=False)
class Client:
    """A producer of one transactional id, which sends the number of each transaction to all partitions."""

    nodes: list[Node]
    transactional_id: str
    version: int
    random: Random
    committed: list[bytes] = field(factory=list)

    async def until_answered(
        self, producer: TransactionalProducer, request: Callable[[], Awaitable[int]]
    ) -> None:
        """Repeat a request at any broker until one executes it."""
        while True:
            node = self.random.choice(self.nodes)
            if node.broker is not None:
                producer.broker = node.broker
                error = await node.ask(request)
                if error is ErrorCode.NONE:
                    return
                assert error is None or error.retriable, error
            await trio.sleep(0.005)

    async def run(self, broker: Broker, transactions: int, is_enough: Callable[[], bool]) -> None:
        """Make this many transactions, and then others until `is_enough`."""
        producer = TransactionalProducer(broker, self.transactional_id, self.version)

        async def init() -> int:
            return (await producer.init()).error_code

        await self.until_answered(producer, init)
        for number in count():
            if number >= transactions and is_enough():
                break
            await self.transact(producer, number)

    async def transact(self, producer: TransactionalProducer, number: int) -> None:
        value, is_commit = f"{self.transactional_id}:{number}".encode(), self.random.random() < 0.7

        async def add(tp: TopicPartition) -> int:
            return (await producer.add(tp))[0]

        async def send(tp: TopicPartition) -> int:
            return (await producer.try_send(value, tps=[tp]))[0].error_code

        async def add_group() -> int:
            return await producer.add_group(self.transactional_id)

        async def stage() -> int:
            return await producer.stage(number, group_id=self.transactional_id, tp=TopicPartition(INPUT, 0))

        async def end() -> int:
            return (await producer.end(commit=is_commit)).error_code

        for tp in PARTITIONS:
            if self.version < 2:
                await self.until_answered(producer, partial(add, tp))
            await self.until_answered(producer, partial(send, tp))
        if self.version < 2:
            await self.until_answered(producer, add_group)
        await self.until_answered(producer, stage)
        await self.until_answered(producer, end)
        if is_commit:
            self.committed.append(value)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = start_server(VALKEY, tcp=True)
    yield server
    server.remove()


@asynccontextmanager
async def cluster(url: str) -> AsyncIterator[list[Node]]:
    nodes = [Node(node_id, url) for node_id in NODE_IDS]
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.run)
            while not all(node.starts for node in nodes):  # noqa: ASYNC110
                await trio.sleep(0.01)
            yield nodes
            nursery.cancel_scope.cancel()


async def restart(nodes: list[Node], hows: tuple[Literal["leave", "kill"], ...]) -> None:
    """Restart one broker after the other, forever."""
    while True:
        for how in hows:
            for node in nodes:
                starts = node.starts
                node.stop(how)
                while node.starts == starts:  # noqa: ASYNC110
                    await trio.sleep(0.01)


async def committed_values(storage: Storage, tp: TopicPartition) -> list[bytes | None]:
    """Wait until no transaction is open in the partition. Return what a consumer with `read_committed` gets."""
    while True:
        bounds = await storage.latest(tp)
        if bounds.last_stable_offset == bounds.high_watermark:
            break
        await trio.sleep(0.01)
    values: list[bytes | None] = []
    offset = (await storage.earliest(tp)).offset
    result = await read(storage, tp, offset, isolation_level=IsolationLevel.READ_COMMITTED)
    values += committed_in(result, offset)
    return values


@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("hows", [("leave",), ("leave", "kill")], ids=["rolling", "killed"])
async def test_transactions_are_whole_while_brokers_restart(
    redis_server: RedisServer, hows: tuple[Literal["leave", "kill"], ...], layout: str
) -> None:
    async with open_redis_storage(redis_server.url) as storage, cluster(redis_server.url) as nodes:
        await storage.create_topic("t", len(PARTITIONS), {"storage.layout": layout})
        await storage.create_topic(INPUT, 1, {})

        def are_all_restarted() -> bool:
            return all(node.starts > RESTARTS for node in nodes)

        clients = [Client(nodes, f"id-{number}", 1 + number % 2, Random(number)) for number in range(6)]
        async with trio.open_nursery() as restarting:
            restarting.start_soon(restart, nodes, hows)
            async with trio.open_nursery() as working:
                for client in clients:
                    assert nodes[0].broker is not None or nodes[1].broker is not None
                    broker = next(node.broker for node in nodes if node.broker is not None)
                    working.start_soon(client.run, broker, 25, are_all_restarted)
            restarting.cancel_scope.cancel()

        for tp in PARTITIONS:
            values = await committed_values(storage, tp)
            for client in clients:
                prefix = f"{client.transactional_id}:".encode()
                assert client.committed == [each for each in values if each and each.startswith(prefix)]
        for client in clients:
            committed = await storage.committed(client.transactional_id)
            number = int(client.committed[-1].rpartition(b":")[2])
            assert {TopicPartition(INPUT, 0): number} == {tp: each.offset for tp, each in committed.items()}
