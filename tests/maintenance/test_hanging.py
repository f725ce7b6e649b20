"""The search for transactions that hang: what is logged, when and how often."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from korvet.config import Config
from korvet.maintenance.hanging import INTERVAL_S, SLACK_MS, HangingTransactions
from korvet.maintenance.leases import Leases
from korvet.storage.interface import Storage, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.testing.contract.transactions import ABORT, Client
from korvet.testing.environment import ManualClock

LONGEST_MS = Config().transaction_max_timeout_ms + SLACK_MS


async def opened(storage: Storage, name: str, producer_id: int) -> Client:
    await storage.create_topic(name, 2, {})
    client = Client(storage, TopicPartition(name, 1), producer_id)
    await client.send(b"a")
    return client


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records]
    caplog.clear()
    return found


async def test_hanging_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    worker = HangingTransactions(storage, Config(), Leases(storage), clock)
    hanging = await opened(storage, "orders", 7)
    ended = await opened(storage, "payments", 8)
    clock.now_ms += LONGEST_MS
    await opened(storage, "visits", 9)
    await ended.end(ABORT)
    await worker.search()
    assert [] == messages(caplog)

    clock.now_ms += 1
    with caplog.at_level(logging.WARNING):
        await worker.search()
        await worker.search()
    (line,) = messages(caplog)
    assert line.startswith("orders-1: the transaction of producer 7 from offset 0 on seems to hang: ")

    await hanging.end(ABORT)
    await worker.search()
    assert [] == messages(caplog)


async def test_search_runs_periodically(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    await opened(storage, "orders", 7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HangingTransactions(storage, Config(), Leases(storage), clock).run)
        await trio.sleep(1.5 * INTERVAL_S)
        assert [] == messages(caplog)
        clock.now_ms += LONGEST_MS + 1
        await trio.sleep(INTERVAL_S)
        nursery.cancel_scope.cancel()

    assert 1 == len(messages(caplog))
