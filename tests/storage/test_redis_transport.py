"""Sending lists of buffers, and receiving in place, over either kind of transport."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import trio
import trio.testing

from korvet.storage.redis.client.transport import SocketTransport, StreamTransport, Transport, unsent


def plain() -> tuple[Transport, Transport]:
    ours, theirs = socket.socketpair()
    return SocketTransport(ours), SocketTransport(theirs)


def streams() -> tuple[Transport, Transport]:
    ours, theirs = trio.testing.memory_stream_pair()
    return StreamTransport(ours), StreamTransport(theirs)


@pytest.mark.parametrize("pair", [plain, streams])
async def test_all_buffers_are_received_in_order_before_the_end(
    pair: Callable[[], tuple[Transport, Transport]],
) -> None:
    buffers = [bytes([n % 256]) * (n * 100) for n in range(700)]
    ours, theirs = pair()
    received = bytearray()

    async def receive() -> None:
        buffer = bytearray(1 << 16)
        while count := await theirs.receive_into(buffer):
            received.extend(buffer[:count])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await ours.send(buffers)
        await ours.aclose()
    await theirs.aclose()

    assert b"".join(buffers) == received


@pytest.mark.parametrize("pair", [plain, streams])
async def test_close_ends_a_pending_receive(pair: Callable[[], tuple[Transport, Transport]]) -> None:
    ours, theirs = pair()

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_into(bytearray(10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()
    await theirs.aclose()


@pytest.mark.parametrize("sent", range(7))
def test_unsent_returns_the_rest_after_a_partial_write(sent: int) -> None:
    rest = unsent([b"ab", b"c", b"def"], sent)

    assert b"abcdef"[sent:] == b"".join(rest)
