"""The contract suite on every backend, layout and mapping."""

from __future__ import annotations

import pytest

from korvet.testing.environment import Environment
from korvet.testing.memory import MemoryEnvironment
from korvet.testing.storage_contract import (
    ClockContract,
    StagedOffsetContract,
    StorageContract,
    TransactionContract,
)


class TestMemoryStorage(StorageContract, TransactionContract, StagedOffsetContract, ClockContract):
    @pytest.fixture(params=["dense", "timestamp"])
    def environment(self, request: pytest.FixtureRequest) -> Environment:
        return MemoryEnvironment({"offset.mapping": request.param})
