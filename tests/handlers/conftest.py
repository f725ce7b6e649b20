"""A broker with storage in memory for every handler test."""

from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from tests.handlers.support import new_broker


@pytest.fixture
async def broker() -> Broker:
    return await new_broker()
