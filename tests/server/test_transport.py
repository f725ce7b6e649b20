"""Bytes over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from korvet.server.transport import BUFFERS_AT_ONCE, BYTES_AT_ONCE, PlainTransport, portion


@pytest.fixture
def ends() -> Iterator[tuple[PlainTransport, socket.socket]]:
    """A transport, and the client's socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield PlainTransport(ours), theirs


async def test_receives_what_has_arrived(ends: tuple[PlainTransport, socket.socket]) -> None:
    transport, client = ends
    buffer = bytearray(10)
    assert not transport.has_arrived()
    with pytest.raises(BlockingIOError):
        transport.receive_into(buffer)
    client.send(b"abc")
    await transport.wait_readable()

    assert transport.has_arrived()
    assert (3, b"abc") == (transport.receive_into(buffer), bytes(buffer[:3]))


async def test_receives_nothing_from_a_client_that_has_closed(
    ends: tuple[PlainTransport, socket.socket],
) -> None:
    transport, client = ends
    client.close()
    await transport.wait_readable()

    assert transport.has_arrived()
    assert 0 == transport.receive_into(bytearray(10))


async def test_sends_as_much_as_the_client_has_room_for(ends: tuple[PlainTransport, socket.socket]) -> None:
    transport, client = ends
    while transport.send([b"x" * BYTES_AT_ONCE], 0):
        pass
    with trio.move_on_after(0.01) as scope:
        await transport.wait_writable()
    assert scope.cancelled_caught
    client.recv(8 * BYTES_AT_ONCE)
    await transport.wait_writable()

    assert 3 == transport.send([b"sent", b"abc"], 1)


def test_one_call_sends_a_limited_part_of_the_buffers() -> None:
    small, large = b"s" * 10, b"l" * BYTES_AT_ONCE

    assert [small, small] == portion([small, small], 0)
    assert [small] == portion([small, small], 1)
    assert [large] == portion([large, small], 0)
    assert [small, large[:-10]] == portion([small, large, small], 0)
    assert BUFFERS_AT_ONCE == len(portion([small] * 5000, 0))
