"""A broker on memory for every test of a handler."""

from __future__ import annotations

import pytest

from korvet.broker import Broker
from tests.handlers.support import new_broker


@pytest.fixture
async def broker() -> Broker:
    return await new_broker()
