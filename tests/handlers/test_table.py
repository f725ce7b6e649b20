from __future__ import annotations

import subprocess
import sys

from trio.testing import MockClock

from korvet.broker.broker import Broker
from korvet.handlers import APIS, Apis, apis_on


def test_broker_starts_without_importing_all_handlers() -> None:
    program = "import sys, korvet.server.assembly, korvet.cli.serve; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    handlers, messages = (
        {name.removeprefix(package) for name in found.stdout.split() if name.startswith(package)}
        for package in ("korvet.handlers.", "korvet.protocol.messages.")
    )

    assert {"api_versions"} == handlers
    assert {"api_versions", "header"} == messages
    assert "cattrs" not in found.stdout.split()


async def test_load_imports_the_remaining_usual_handlers(autojump_clock: MockClock) -> None:
    apis = Apis(*APIS.served)
    first = apis[1]
    await apis.load()

    assert {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 22, 68} == apis._apis.keys()
    assert apis[1] is first


async def test_store_without_transactions_lacks_their_apis(plain: Broker) -> None:
    apis = apis_on(plain.store)

    assert {24, 25, 26, 27, 28, 61, 65, 66} == set(APIS) - set(apis)
    assert len(apis) == len(list(apis))
    assert apis.get(24) is None
    assert 24 not in apis
    assert apis.get(99) is None
    assert (3, 11) == (apis[0].min_version, apis[0].max_version)
    assert apis[0] is apis.get(0)
    assert apis[1] is APIS[1]


async def test_store_with_transactions_has_all_apis(broker: Broker) -> None:
    assert apis_on(broker.store) is APIS


def test_unknown_api_key_is_missing() -> None:
    assert APIS.get(99) is None
    assert 99 not in APIS
