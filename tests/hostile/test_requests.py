"""Requests that never arrive, or hardly: what they cost clients that send theirs."""

from __future__ import annotations

import struct

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from korvet.protocol.messages.api_versions import ApiVersionsRequest
from tests.hostile.measuring import API_VERSIONS, client_of, resident_bytes
from tests.processes import KorvetProcess
from tests.talk import Client, connect, seen, serving

ANNOUNCED = struct.pack(">i", 100_000_000)
PRODUCE_9 = struct.pack(">hhi", 0, 9, 1)


async def ask_in_two_pieces(client: Client) -> None:
    """Send a request in two pieces, the second one when the broker waits for it, and receive the answer."""
    data = client.frame_of(API_VERSIONS, 3)
    await client.send(data[:10])
    await wait_all_tasks_blocked(0.02)
    await client.send(data[10:])
    await client.answer(ApiVersionsRequest, 3)


async def test_announced_bytes_do_not_delay_new_clients() -> None:
    async with (
        serving() as server,
        connect(server) as first,
        connect(server) as second,
        connect(server) as third,
        connect(server) as new,
    ):
        for client in (first, second, third):
            await client.send(ANNOUNCED + PRODUCE_9)
        for _ in range(3):
            await wait_all_tasks_blocked(0.02)
            for client in (first, second, third):
                await client.send(b"\0")
        with trio.fail_after(5):
            await ask_in_two_pieces(new)


async def test_small_requests_do_not_wait_for_large_ones() -> None:
    async with (
        serving(queued_max_request_bytes=100_000) as server,
        connect(server) as first,
        connect(server) as second,
        connect(server) as new,
    ):
        for client in (first, second):
            await client.send(ANNOUNCED + PRODUCE_9 + bytes(300_000))
        await wait_all_tasks_blocked(0.02)
        with trio.fail_after(5):
            await ask_in_two_pieces(new)


@pytest.mark.parametrize("piece", [b"\0" * 3, ANNOUNCED, ANNOUNCED + bytes(100_000)])
async def test_request_arriving_byte_by_byte_times_out(piece: bytes) -> None:
    async with (
        serving(request_timeout_ms=200, sweep_interval_s=0.02) as server,
        connect(server) as client,
    ):
        await client.ask(API_VERSIONS, 3)
        await client.send(piece)

        async def trickle() -> None:
            try:
                while True:
                    await client.send(b"\0")
                    await trio.sleep(0.02)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        async with trio.open_nursery() as nursery:
            if len(piece) > 3:  # a fourth byte would complete the size
                nursery.start_soon(trickle)
            with trio.fail_after(10):
                await seen(server).until(lambda: seen(server).connections == 0)
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_announced_bytes_take_no_memory() -> None:
    """200 connections announce requests of 4 MB, which is less than what is mapped, and send 1 kB of each."""
    with KorvetProcess() as broker, trio.fail_after(60):
        async with client_of(broker) as client:
            await client.ask(API_VERSIONS, 3)
            before = resident_bytes(broker.pid)
            streams = [await trio.open_tcp_stream(broker.host, broker.port) for _ in range(200)]
            for each in streams:
                await each.send_all(struct.pack(">i", 4_000_000) + PRODUCE_9 + bytes(1000))
            for _ in range(3):
                await client.ask(API_VERSIONS, 3)
            took = resident_bytes(broker.pid) - before
            for each in streams:
                await each.aclose()

    assert took < 30_000_000
