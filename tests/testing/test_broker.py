"""Brokers inside a Trio program."""

from __future__ import annotations

import pytest
import trio

from korvet.config import ConfigError
from korvet.server.listeners import PortInUse
from korvet.testing import serving


async def test_broker_serves_for_the_time_of_the_block() -> None:
    async with serving() as broker:
        assert [0] == await broker.produce("orders", "a")
        assert [b"a"] == [each.value for each in await broker.records("orders")]
        host, port = broker.bootstrap_servers.split(":")
        async with await trio.open_tcp_stream(host, int(port)):
            pass

    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(host, int(port))


async def test_committed_offsets_are_returned_by_partition() -> None:
    async with serving() as broker:
        assert {} == await broker.committed("readers", "orders")


async def test_wait_until_names_the_condition_that_did_not_become_true() -> None:
    async def never() -> bool:
        return False

    async with serving() as broker:
        with pytest.raises(TimeoutError, match=r"never did not become true within 0\.01 s"):
            await broker.wait_until(never, timeout_s=0.01)


async def test_errors_of_the_start_are_raised_as_they_are() -> None:
    with pytest.raises(ConfigError, match="num.partitions"):
        async with serving(settings={"num.partitions": "x"}):
            pass
    async with serving() as broker:
        with pytest.raises(PortInUse):
            async with serving(settings={"listeners": broker.bootstrap_servers}):
                pass
