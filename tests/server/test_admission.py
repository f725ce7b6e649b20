"""The number of connections, and the rate at which they are created, over sockets and on fakes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.config import Config, ConfigError, Listener, load_config
from korvet.server import server as module
from korvet.server.admission import Admission, canonical
from korvet.server.assembly import open_server
from korvet.server.server import Server
from tests.handlers.quotas import set_quotas
from tests.handlers.support import new_broker

LIMIT_S = 10.0
LOCAL = Listener("PLAINTEXT", "127.0.0.1", 0)


async def admission(**settings: Any) -> Admission:
    return Admission(Config(listeners=(LOCAL,), **settings), (await new_broker()).quotas)


async def created(limits: Admission, count: int, listener: Listener = LOCAL) -> float:
    """Create connections one after the other, and return how long that takes on Trio's clock."""
    began = trio.current_time()
    for _ in range(count):
        await limits.wait_for_rate(listener)
    return trio.current_time() - began


async def test_rate_of_new_connections_is_limited(autojump_clock: MockClock) -> None:
    limits = await admission(max_connection_creation_rate=10, quota_window_num=2)

    assert 0 == await created(limits, 10)
    assert 10 == pytest.approx(await created(limits, 100), rel=0.1)


async def test_listener_has_its_own_rate(autojump_clock: MockClock) -> None:
    config = load_config(
        flags={
            "listeners": "A://:0,B://:0",
            "listener.name.a.max.connection.creation.rate": "5",
            "max.connection.creation.rate": "20",
        }
    )
    limits = Admission(config, (await new_broker()).quotas)
    first, second = config.listeners

    assert 0 == await created(limits, 60, second)
    assert 0 == await created(limits, 50, first)
    assert 0 < await created(limits, 1, first)


async def test_every_process_has_a_share_of_the_rate(autojump_clock: MockClock) -> None:
    limits = await admission(max_connection_creation_rate=10, processes=2, storage="redis://localhost")

    assert 0 == await created(limits, 50)
    assert 0 < await created(limits, 1)


async def test_listener_has_its_own_number(autojump_clock: MockClock) -> None:
    config = load_config(flags={"listeners": "A://:0,B://:0", "listener.name.a.max.connections": "1"})
    limits = Admission(config, (await new_broker()).quotas)
    first, second = config.listeners
    limits.opened("A", "127.0.0.1:1")
    await limits.wait_for_place(second)
    with trio.move_on_after(5) as waiting:
        await limits.wait_for_place(first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.wait_for_place, first)
        await wait_all_tasks_blocked()
        limits.closed("A", "127.0.0.1:1")

    assert waiting.cancelled_caught
    assert 0 == limits.open


@pytest.mark.parametrize(
    "peer, limit",
    [("127.0.0.1:5", 2), ("[::ffff:127.0.0.1]:5", 2), ("10.0.0.1:5", 3), ("[::1]:5", 1), ("[::2]:5", 2)],
)
async def test_address_has_its_number_of_connections(peer: str, limit: int) -> None:
    config = load_config(
        flags={"max.connections.per.ip": "2", "max.connections.per.ip.overrides": "10.0.0.1:3,[::1]:1"}
    )
    limits = Admission(config, (await new_broker()).quotas)
    listener = config.listeners[0]
    for _ in range(limit):
        assert limits.refused_for_s(listener, peer) is None
        limits.opened(listener.name, peer)
    refused = limits.refused_for_s(listener, peer)
    limits.closed(listener.name, peer)

    assert 0 == refused
    assert limits.refused_for_s(listener, peer) is None


async def test_address_above_its_quota_is_refused_and_is_not_charged(autojump_clock: MockClock) -> None:
    broker = await new_broker(quota_window_num=2)
    await set_quotas(broker, {"ip": None}, connection_creation_rate=5)
    await set_quotas(broker, {"ip": "::ffff:10.0.0.1"}, connection_creation_rate=2)
    limits = Admission(broker.config, broker.quotas)
    listener = broker.config.listeners[0]

    def accepted(peer: str) -> int:
        return [limits.refused_for_s(listener, peer) for _ in range(10)].count(None)

    assert (5, 5, 2) == (accepted("10.0.0.2:1"), accepted("10.0.0.3:1"), accepted("10.0.0.1:1"))
    await trio.sleep(2)
    assert 5 == accepted("10.0.0.2:1")


async def test_refusals_are_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    limits = await admission(max_connections_per_ip=1)
    limits.opened("PLAINTEXT", "10.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            limits.refused_for_s(LOCAL, "10.0.0.1:2")

    assert 10 == len(caplog.messages)
    assert "10.0.0.1:2: connection refused: its address has the maximum of 1" == caplog.messages[0]


@pytest.mark.parametrize(
    "name, value",
    [
        ("max.connections.per.ip.overrides", "10.0.0.1"),
        ("max.connections.per.ip.overrides", "somewhere:5"),
        ("max.connections.per.ip.overrides", "10.0.0.1:-1"),
        ("max.connections.per.ip", "0"),
        ("max.connection.creation.rate", "0"),
    ],
)
def test_invalid_limit_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"[$].{name}"):
        load_config(flags={name: value})


def test_notation_of_an_address_does_not_matter() -> None:
    assert canonical("::ffff:10.0.0.1") == canonical("10.0.0.1")
    assert canonical("0:0:0:0:0:0:0:1") == canonical("::1")


# --- Over sockets -------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    async with open_server(Config(listeners=(LOCAL,), **settings)) as server:
        yield server


async def connect(server: Server) -> trio.SocketStream:
    host, port = server.bootstrap_servers.split(":")
    return await trio.open_tcp_stream(host, int(port))


async def is_closed(stream: trio.SocketStream) -> bool:
    """Return True once the broker has closed the connection."""
    with trio.fail_after(LIMIT_S):
        return await stream.receive_some() == b""


async def test_connection_above_the_number_of_its_address_is_closed() -> None:
    async with serving(max_connections_per_ip=1) as server, await connect(server):
        async with await connect(server) as second:
            assert await is_closed(second)
        assert 1 == server._admission.open


async def test_connection_above_the_quota_of_its_address_is_closed_later() -> None:
    async with serving(quota_window_num=2) as server:
        await set_quotas(server.broker, {"ip": "127.0.0.1"}, connection_creation_rate=1)
        async with await connect(server), await connect(server) as second:
            with trio.fail_after(LIMIT_S):
                while not server._refused:
                    await trio.lowlevel.checkpoint()
            assert await is_closed(second)
            assert (0, 1) == (server._refused, server._admission.open)


async def test_refused_connection_does_not_delay_the_end_of_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_REFUSED", 1)
    monkeypatch.setattr(Admission, "refused_for_s", lambda *_: 1000.0)
    with trio.fail_after(LIMIT_S):
        async with serving() as server:
            first, second = await connect(server), await connect(server)
            async with first, second:
                assert await is_closed(second), "since one waits already"
                assert 1 == server._refused
                server.stop()
                assert await is_closed(first)
