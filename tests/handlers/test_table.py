from __future__ import annotations

import subprocess
import sys

from trio.testing import MockClock

from korvet.handlers import APIS, Apis


def test_a_broker_starts_without_importing_what_nobody_has_asked_for() -> None:
    program = "import sys, korvet.server.server; print(*(name for name in sys.modules if 'korvet.handlers.' in name))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ["korvet.handlers.api_versions"] == found.stdout.split()


async def test_the_rest_is_imported_once_it_serves(autojump_clock: MockClock) -> None:
    apis = Apis(*APIS.served)
    first = apis[1]
    await apis.load()

    assert list(APIS) == sorted(apis._apis)
    assert apis[1] is first


def test_what_is_not_served_is_not_there() -> None:
    assert APIS.get(99) is None
    assert 99 not in APIS
