"""Brokers inside other Trio programs: their settings, their storage, and their end."""

from __future__ import annotations

import signal
import threading

import pytest
import trio

import korvet
from korvet.config import Config, Listener
from korvet.server.listeners import ListenError
from korvet.storage.memory import MemoryStorage
from tests.support.wire import create_topic


async def test_broker_serves_until_its_block_ends() -> None:
    async with korvet.open_server() as server:
        host, port = server.bootstrap_servers.split(":")
        await trio.to_thread.run_sync(create_topic, int(port), "orders")

    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(host, int(port))


async def test_given_storage_is_used_and_stays_open() -> None:
    storage = MemoryStorage()
    for name in ("orders", "payments"):
        async with korvet.open_server(storage=storage) as server:
            port = server.listeners[0].listener.port
            await trio.to_thread.run_sync(create_topic, port, name)

    assert {"orders", "payments"} == {*await storage.topics()}


async def test_brokers_run_side_by_side_with_different_settings() -> None:
    config = Config(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),), num_partitions=7)
    async with korvet.open_server(config) as one, korvet.open_server(config) as other:
        assert one.bootstrap_servers != other.bootstrap_servers
        assert 7 == one.broker.config.num_partitions
        with pytest.raises(ListenError):
            async with korvet.open_server(Config(listeners=(one.listeners[0].listener,))):
                pytest.fail("it listens where another broker does")


async def fail_beside_a_broker(ports: list[int]) -> None:
    async with korvet.open_server() as server:
        ports.append(server.listeners[0].listener.port)
        raise ZeroDivisionError


async def test_error_in_the_block_ends_the_broker_and_is_raised_unwrapped() -> None:
    ports: list[int] = []
    with pytest.raises(ZeroDivisionError):
        await fail_beside_a_broker(ports)
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream("localhost", ports[0])


def test_broker_runs_in_any_thread_without_signal_handlers() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    seen: list[str] = []

    async def serve() -> None:
        async with korvet.open_server() as server:
            await trio.to_thread.run_sync(create_topic, server.listeners[0].listener.port, "orders")
            seen.extend(await server.broker._storage.topics())

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    thread.join()

    assert ["orders"] == seen
    assert before == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
