"""Transactions that are open while Redis restarts, and may have lost records that it has acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from korvet.protocol.errors import ProducerFenced, TransactionAbortable
from korvet.storage.interface import TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.transactions.document import State
from tests.servers import VALKEY, RedisServer, start_server
from tests.transactions.support import ID, Producer, World, patiently, running

pytestmark = [pytest.mark.servers, pytest.mark.slow]

T0 = TopicPartition("t", 0)
EACH_VERSION = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(params=["everysec"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    options = {"appendonly": "yes", "appendfsync": request.param}
    server = start_server(VALKEY, options=options)
    yield server
    server.remove()


@asynccontextmanager
async def open_transaction(server: RedisServer, version: int) -> AsyncIterator[tuple[World, Producer]]:
    """Run a broker and a producer, whose transaction has a record that was acknowledged."""
    with trio.fail_after(60):
        async with open_redis_storage(server.url) as storage:
            world = World(storage)
            await world.create_topic("t")
            broker = world.add_broker()
            async with running(broker):
                producer = Producer(world, broker, broker, version)
                await producer.begin()
                await producer.send(T0, b"a")
                with server.client() as client:
                    client.execute_command("WAITAOF", 1, 0, 10_000)  # the test needs the document
                yield world, producer


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


@EACH_VERSION
async def test_transaction_that_may_have_lost_records_is_only_aborted(
    server: RedisServer, version: int
) -> None:
    async with open_transaction(server, version) as (world, producer):
        restart(server)
        with pytest.raises(TransactionAbortable):
            await producer.end()
        assert State.ONGOING is (await world.state()).state
        await producer.end(is_commit=False)
        await world.until(State.COMPLETE_ABORT)
        await producer.send(T0, b"b")
        await producer.end()
        await world.until(State.COMPLETE_COMMIT)

        assert [b"b"] == await world.committed(T0)


async def test_client_that_cannot_abort_is_fenced(server: RedisServer) -> None:
    async with open_transaction(server, 1) as (world, producer):
        restart(server)
        with pytest.raises(ProducerFenced):
            await patiently(
                lambda: producer.coordinator.end(
                    ID, *producer.producer, is_commit=True, version=1, can_abort=False
                )
            )
        await world.until(State.COMPLETE_ABORT)

        assert [] == await world.committed(T0)


@EACH_VERSION
async def test_commit_that_waits_for_the_server_is_refused(server: RedisServer, version: int) -> None:
    async with open_transaction(server, version) as (world, producer):
        server.kill()
        refused: list[bool] = []

        async def end() -> None:
            with pytest.raises(TransactionAbortable):
                await producer.end()
            refused.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await wait_all_tasks_blocked()  # the decision was made, and the store does not answer
            server.start()

        assert [True] == refused
        assert State.ONGOING is (await world.state()).state


@EACH_VERSION
@pytest.mark.parametrize("server", ["always"], indirect=True)
async def test_server_that_loses_nothing_commits_after_a_restart(server: RedisServer, version: int) -> None:
    async with open_transaction(server, version) as (world, producer):
        restart(server)
        await producer.end()
        await world.until(State.COMPLETE_COMMIT)

        assert [b"a"] == await world.committed(T0)


async def test_next_owner_commits_what_was_prepared_before_the_restart(server: RedisServer) -> None:
    """The decision has survived, and so have the records, which are older."""
    async with open_redis_storage(server.url) as storage:
        world = World(storage)
        await world.create_topic("t")
        broker, other = world.add_broker(), world.add_broker()
        producer = Producer(world, broker, broker)
        await producer.begin()
        await producer.send(T0, b"a")
        await producer.end()
        with server.client() as client:
            client.execute_command("WAITAOF", 1, 0, 10_000)
        restart(server)
        world.give_to(2)
        async with running(other):
            await world.until(State.COMPLETE_COMMIT)

        assert [b"a"] == await world.committed(T0)
