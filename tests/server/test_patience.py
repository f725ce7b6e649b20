"""The limits of the time that clients may keep the broker waiting."""

from __future__ import annotations

import pytest
from attrs import define, field

from korvet.protocol.connection import Connection
from korvet.server.patience import Patience, Progress


@define
class Client:
    """A connection as the sweep sees it: active at 1000 s, with the bytes that have arrived."""

    progress: Progress = field(factory=lambda: Progress(active=1000.0))
    incoming: Connection = field(factory=lambda: Connection({}, max_frame_bytes=2**31 - 1))


@pytest.fixture
def client() -> Client:
    return Client()


def overdue(client: Client, now: float, *, is_memory_scarce: bool = False) -> str:
    patience = Patience(idle_s=60, progress_s=10, min_rate=100, is_memory_scarce=is_memory_scarce)
    return client.progress.overdue(now, patience, client.incoming.frames)


def test_connection_without_requests_becomes_idle(client: Client) -> None:
    assert "" == overdue(client, 1060)
    assert "idle for 61 s" == overdue(client, 1061)


def test_connection_with_a_pending_request_is_not_idle(client: Client) -> None:
    client.progress.taken = 1

    assert "" == overdue(client, 1e9)


def test_connection_that_does_not_read_its_response_becomes_idle(client: Client) -> None:
    client.progress.taken = 1
    client.progress.is_sending = True

    assert "idle for 61 s" == overdue(client, 1061)


def test_partial_request_must_arrive_at_a_minimum_rate(client: Client) -> None:
    client.incoming.frames.receive_data(b"\0\0\x10\0")
    assert ["", ""] == [overdue(client, now) for now in (1000, 1010)]
    client.incoming.frames.receive_data(bytes(1000))
    assert "" == overdue(client, 1011)
    client.incoming.frames.receive_data(bytes(900))
    assert "900 bytes of its request arrived in 11 s" == overdue(client, 1022)


def test_arrival_rate_is_measured_for_each_request(client: Client) -> None:
    client.incoming.frames.receive_data(b"\0")
    overdue(client, 1000)
    client.progress.taken = client.progress.answered = 1
    assert ["", ""] == [overdue(client, now) for now in (1011, 1021)]
    assert "0 bytes of its request arrived in 11 s" == overdue(client, 1022)


def test_time_while_the_broker_does_not_read_is_not_counted(client: Client) -> None:
    client.incoming.frames.receive_data(b"\0")
    overdue(client, 1000)
    client.progress.is_waiting_for_room = True
    assert "" == overdue(client, 1100)
    client.progress.is_waiting_for_room = False
    client.progress.active = 1100
    assert ["", ""] == [overdue(client, now) for now in (1101, 1110)]


def test_large_request_must_arrive_in_time_while_memory_is_scarce(
    client: Client,
) -> None:
    client.incoming.frames.receive_data(b"\0\x10\0\0" + bytes(70_000))
    overdue(client, 1000, is_memory_scarce=True)
    for number in range(1, 11):
        client.incoming.frames.receive_data(bytes(1000))
        assert "" == overdue(client, 1000 + number, is_memory_scarce=True)

    said = "its request took 11 s to arrive while others waited for memory"
    assert said == overdue(client, 1011, is_memory_scarce=True)
