from __future__ import annotations

import subprocess
import sys

from trio.testing import MockClock

from korvet.handlers import APIS, Apis


def test_broker_starts_without_importing_all_handlers() -> None:
    program = "import sys, korvet.server.assembly; print(*(name for name in sys.modules if 'korvet.handlers.' in name))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ["korvet.handlers.api_versions"] == found.stdout.split()


async def test_load_imports_the_remaining_handlers(autojump_clock: MockClock) -> None:
    apis = Apis(*APIS.served)
    first = apis[1]
    await apis.load()

    assert list(APIS) == sorted(apis._apis)
    assert apis[1] is first


def test_unknown_api_key_is_missing() -> None:
    assert APIS.get(99) is None
    assert 99 not in APIS
