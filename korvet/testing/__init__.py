"""Tests with a real broker, and tests of storage backends. The extra `korvet[testing]` installs what they require.

With pytest, the plugin `korvet.testing.plugin` provides the fixture `korvet_broker`. Without pytest:

    with running_broker() as broker:  # in a thread of this process, in memory, on a free port
        broker.produce("orders", "first")
        assert [b"first"] == [record.value for record in broker.records("orders")]

    async with serving() as broker:  # in a Trio program
        await broker.produce("orders", "first")

`storage_contract.StorageContract` is a test class for authors of storage backends to inherit. `storage_machine`
compares a backend with a Python model step by step. Both take an `environment.Environment`, which opens the storage.

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def environment(self) -> Environment:
            return MyEnvironment()

    def test_my_storage_matches_the_model():
        run_storage_machine(MyEnvironment)

The tests of storage are asynchronous: set `trio_mode = true` for pytest-trio.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from korvet.faults.kinds import Delay as Delay
    from korvet.faults.kinds import Drop as Drop
    from korvet.faults.kinds import Error as Error
    from korvet.faults.kinds import Fault as Fault
    from korvet.faults.kinds import Freeze as Freeze
    from korvet.faults.kinds import MoveCoordinator as MoveCoordinator
    from korvet.faults.kinds import RaiseLeaderEpoch as RaiseLeaderEpoch
    from korvet.faults.kinds import Throttle as Throttle
    from korvet.faults.kinds import Truncate as Truncate
    from korvet.testing.broker import ReceivedRecord as ReceivedRecord
    from korvet.testing.broker import ServedBroker as ServedBroker
    from korvet.testing.broker import serving as serving
    from korvet.testing.clients import ClientMissing as ClientMissing
    from korvet.testing.threads import BrokerEnded as BrokerEnded
    from korvet.testing.threads import RunningBroker as RunningBroker
    from korvet.testing.threads import running_broker as running_broker

FAULTS = (
    "Delay",
    "Drop",
    "Error",
    "Fault",
    "Freeze",
    "MoveCoordinator",
    "RaiseLeaderEpoch",
    "Throttle",
    "Truncate",
)
MODULES = {
    **dict.fromkeys(FAULTS, "korvet.faults.kinds"),
    "ClientMissing": "korvet.testing.clients",
    "ReceivedRecord": "korvet.testing.broker",
    "ServedBroker": "korvet.testing.broker",
    "serving": "korvet.testing.broker",
    "BrokerEnded": "korvet.testing.threads",
    "RunningBroker": "korvet.testing.threads",
    "running_broker": "korvet.testing.threads",
}

if "pytest" in sys.modules:
    import pytest

    pytest.register_assert_rewrite(
        "korvet.testing.contract", "korvet.testing.storage_contract", "korvet.testing.storage_machine"
    )


def __getattr__(name: str) -> object:
    # pytest imports this package at every start, so nothing here may import the broker.
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
