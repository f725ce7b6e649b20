"""A broker with storage in memory for every handler test."""

from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import NOW_MS, new_broker


@pytest.fixture
async def broker() -> Broker:
    return await new_broker()


@pytest.fixture
async def plain() -> Broker:
    """A broker on a store that does not serve transactions."""
    storage = MemoryStorage(clock=lambda: NOW_MS)
    storage.serves_transactions = False
    return await new_broker(storage)
