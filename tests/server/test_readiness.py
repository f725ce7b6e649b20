"""The task that waits for the bytes of all clients, over real sockets."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from korvet.server.readiness import EVENTS_AT_ONCE, Readiness, open_readiness
from korvet.server.transport import PlainTransport


@define
class Client:
    """A socket, and the broker's end of it."""

    sock: socket.socket
    transport: PlainTransport
    received: list[bytes] = field(factory=list)

    def take(self, most: int = 100) -> Callable[[], bool]:
        """Return a function that receives bytes, and returns False once there were `most` of them."""

        def serve() -> bool:
            buffer = bytearray(100)
            self.received.append(bytes(buffer[: self.transport.receive_into(buffer)]))
            return sum(map(len, self.received)) < most

        return serve


@pytest.fixture
async def readiness() -> AsyncIterator[Readiness]:
    with open_readiness() as readiness:
        assert readiness is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.run)
            yield readiness
            nursery.cancel_scope.cancel()


@pytest.fixture
def connect(readiness: Readiness) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def connect() -> Client:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        clients.append(Client(theirs, PlainTransport(ours, readiness)))
        return clients[-1]

    yield connect
    for client in clients:
        client.transport.close()
        client.sock.close()


async def test_serves_a_client_until_there_is_more_to_do(connect: Callable[[], Client]) -> None:
    client = connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.transport.serve_readable, client.take(4))
        for data in (b"a", b"b", b"cd"):
            await wait_all_tasks_blocked()
            client.sock.send(data)

    assert [b"a", b"b", b"cd"] == client.received


async def test_error_is_raised_where_the_client_is_waited_for(connect: Callable[[], Client]) -> None:
    client, other = connect(), connect()

    def fail() -> bool:
        raise OSError("lost")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.transport.serve_readable, other.take(1))
        client.sock.send(b"a")
        with pytest.raises(OSError, match="lost"):
            await client.transport.serve_readable(fail)
        other.sock.send(b"b")

    assert [b"b"] == other.received


async def test_client_that_is_not_waited_for_does_not_keep_the_task_busy(
    connect: Callable[[], Client],
) -> None:
    client = connect()
    client.sock.send(b"a")
    await client.transport.serve_readable(client.take(1))
    client.sock.send(b"b")
    await wait_all_tasks_blocked()  # fails with a timeout of the test if the task never blocks
    await client.transport.serve_readable(client.take(2))

    assert [b"a", b"b"] == client.received


async def test_cancelled_wait_leaves_the_bytes_to_the_next_one(connect: Callable[[], Client]) -> None:
    client = connect()
    with trio.move_on_after(0):
        await client.transport.serve_readable(client.take())
    client.sock.send(b"a")
    await wait_all_tasks_blocked()
    assert [] == client.received
    await client.transport.serve_readable(client.take(1))

    assert [b"a"] == client.received


async def test_wait_may_be_cancelled_by_what_it_serves(connect: Callable[[], Client]) -> None:
    client = connect()
    with trio.CancelScope() as scope:

        def end() -> bool:
            scope.cancel()
            return False

        client.sock.send(b"a")
        await client.transport.serve_readable(end)

    assert scope.cancelled_caught


async def test_closed_client_is_served_once(connect: Callable[[], Client]) -> None:
    client = connect()
    client.sock.close()
    await client.transport.serve_readable(client.take(0))

    assert [b""] == client.received


async def test_other_tasks_run_while_many_clients_send(connect: Callable[[], Client]) -> None:
    clients = [connect() for _ in range(3 * EVENTS_AT_ONCE)]
    served: list[int] = []
    rounds = 0

    def serve_of(number: int) -> Callable[[], bool]:
        def serve() -> bool:
            served.append(rounds)
            return clients[number].take(1)()

        return serve

    async def count(task_status: trio.TaskStatus[None]) -> None:
        nonlocal rounds
        task_status.started()
        while len(served) < len(clients):
            await trio.lowlevel.checkpoint()
            rounds += 1

    for client in clients:
        client.sock.send(b"a")
    async with trio.open_nursery() as nursery:
        await nursery.start(count)
        for number, client in enumerate(clients):
            nursery.start_soon(client.transport.serve_readable, serve_of(number))

    # Trio runs the tasks of a round in any order, so two parts may follow one another.
    assert max(Counter(served).values()) <= 2 * EVENTS_AT_ONCE
