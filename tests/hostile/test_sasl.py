"""A thousand attacks on the authentication; `tests/soak/test_sasl.py` makes a hundred thousand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

import pytest

from korvet.config import Listener
from tests.hostile.sasl import SCRAM, SETTINGS, attack, record, storage_with_user
from tests.talk import serving

SEED = 17


@pytest.mark.slow
async def test_altered_conversations_are_refused(
    caplog: pytest.LogCaptureFixture, report: Callable[[str], None]
) -> None:
    caplog.set_level(logging.WARNING)
    listeners = (Listener("SASL_PLAINTEXT", "localhost", 0),)
    storage = await storage_with_user()
    async with serving(storage=storage, listeners=listeners, limit_s=120.0, **SETTINGS) as server:
        began = monotonic()
        await attack(server, range(1000), SEED)
        report(f"1,000 altered conversations in {monotonic() - began:.1f} s")
        await record(server, SCRAM[0])

    assert [] == [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
