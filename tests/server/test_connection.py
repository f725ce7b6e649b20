"""Handling a connection's requests, tested without sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from korvet.broker.broker import open_broker
from korvet.broker.limits import ByteBudget
from korvet.config import Config
from korvet.server.connection import (
    BUFFERS_AT_ONCE,
    BYTES_AT_ONCE,
    Patience,
    Reader,
    ServedConnection,
    Shared,
    portion,
    watched,
)
from korvet.storage.memory import MemoryStorage


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


@pytest.fixture
async def connection(sock: socket.socket) -> ServedConnection:
    broker = await open_broker(MemoryStorage(), Config())
    shared = Shared(broker, {}, ByteBudget(-1), lambda _: None)
    connection = ServedConnection(sock, "peer", "PLAINTEXT", shared)
    connection._active = 1000.0
    return connection


def overdue(connection: ServedConnection, now: float, *, is_memory_scarce: bool = False) -> str:
    patience = Patience(idle_s=60, progress_s=10, min_rate=100, is_memory_scarce=is_memory_scarce)
    return connection.overdue(now, patience)


async def test_connection_without_requests_becomes_idle(connection: ServedConnection) -> None:
    assert "" == overdue(connection, 1060)
    assert "idle for 61 s" == overdue(connection, 1061)


async def test_connection_with_a_pending_request_is_not_idle(connection: ServedConnection) -> None:
    connection._taken = 1

    assert "" == overdue(connection, 1e9)


async def test_connection_that_does_not_read_its_response_becomes_idle(connection: ServedConnection) -> None:
    connection._taken = 1
    connection._is_sending = True

    assert "idle for 61 s" == overdue(connection, 1061)


async def test_partial_request_must_arrive_at_a_minimum_rate(connection: ServedConnection) -> None:
    connection.connection.receive_data(b"\0\0\x10\0")
    assert ["", ""] == [overdue(connection, now) for now in (1000, 1010)]
    connection.connection.receive_data(bytes(1000))
    assert "" == overdue(connection, 1011)
    connection.connection.receive_data(bytes(900))
    assert "900 bytes of its request arrived in 11 s" == overdue(connection, 1022)


async def test_arrival_rate_is_measured_for_each_request(connection: ServedConnection) -> None:
    connection.connection.receive_data(b"\0")
    overdue(connection, 1000)
    connection._taken = connection._answered = 1
    assert ["", ""] == [overdue(connection, now) for now in (1011, 1021)]
    assert "0 bytes of its request arrived in 11 s" == overdue(connection, 1022)


async def test_time_while_the_broker_does_not_read_is_not_counted(connection: ServedConnection) -> None:
    connection.connection.receive_data(b"\0")
    overdue(connection, 1000)
    connection._is_waiting_for_room = True
    assert "" == overdue(connection, 1100)
    connection._is_waiting_for_room = False
    connection._active = 1100
    assert ["", ""] == [overdue(connection, now) for now in (1101, 1110)]


async def test_large_request_must_arrive_in_time_while_memory_is_scarce(
    connection: ServedConnection,
) -> None:
    connection.connection.receive_data(b"\0\x10\0\0" + bytes(70_000))
    overdue(connection, 1000, is_memory_scarce=True)
    for number in range(1, 11):
        connection.connection.receive_data(bytes(1000))
        assert "" == overdue(connection, 1000 + number, is_memory_scarce=True)

    said = "its request took 11 s to arrive while others waited for memory"
    assert said == overdue(connection, 1011, is_memory_scarce=True)


async def test_repr_contains_request_counts(connection: ServedConnection) -> None:
    connection._taken = 2

    assert "<ServedConnection peer requests=2 answered=0>" == repr(connection)


async def test_sent_buffers_are_released_while_sending(connection: ServedConnection) -> None:
    ours, theirs = trio.socket.socketpair()
    connection.sock = socket.socket(fileno=ours.detach())
    connection.sock.setblocking(False)
    buffers = [b"head", b"a" * (3 * BYTES_AT_ONCE), bytearray(b"b" * 10)]
    expected = b"".join(buffers)
    received = bytearray()

    async def receive() -> None:
        while len(received) < len(expected):
            received.extend(await theirs.recv(BYTES_AT_ONCE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        assert len(expected) == await connection._send(buffers, Reader())
    connection.sock.close()
    theirs.close()

    assert expected == received
    assert [b"", b"", b""] == buffers


def test_portion_limits_the_bytes_and_buffers_sent_at_a_time() -> None:
    small, large = b"s" * 10, b"l" * BYTES_AT_ONCE

    assert [small, small] == portion([small, small], 0)
    assert [small] == portion([small, small], 1)
    assert [large] == portion([large, small], 0)
    assert [small, large[:-10]] == portion([small, large, small], 0)
    assert BUFFERS_AT_ONCE == len(portion([small] * 5000, 0))


async def test_long_polls_count_for_busy_polling_only_with_local_storage() -> None:
    storage = MemoryStorage()
    broker = await open_broker(storage, Config())
    counts = []
    for storage.is_elsewhere in (False, True):
        counts.append(Shared(broker, {}, ByteBudget(-1), lambda _: None).vigil.counts_those_that_waited)

    assert [True, False] == counts


async def test_watched_reports_each_wait_and_returns_the_result(autojump_clock: MockClock) -> None:
    told = []

    async def work() -> str:
        told.append("begun")
        await trio.sleep(1)
        told.append("slept")
        await trio.sleep(1)
        return "result"

    assert "result" == await watched(work(), lambda: told.append("waits"))
    assert ["begun", "waits", "slept", "waits"] == told


async def test_watched_reports_no_wait_when_work_does_not_wait() -> None:
    async def work() -> str:
        return "result"

    assert "result" == await watched(work(), pytest.fail)


async def test_watched_propagates_errors_and_cancellation(autojump_clock: MockClock) -> None:
    ended = []

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("wrong")

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="wrong"):
        await watched(fail(), lambda: None)
    with trio.move_on_after(1) as scope:
        await watched(wait(), lambda: None)

    assert scope.cancelled_caught
    assert ["cancelled"] == ended
