"""A hundred thousand attacks on the authentication: no crash, no hang, no growth."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable

import pytest

from korvet.config import Listener
from tests.hostile.measuring import resident_bytes
from tests.hostile.sasl import SCRAM, SETTINGS, attack, record, storage_with_user
from tests.talk import serving

SEED = 17
WARM_UP, CONVERSATIONS = 10_000, 100_000
MOST_GROWTH_BYTES = 10_000_000


async def test_altered_conversations_are_refused_without_growth(
    caplog: pytest.LogCaptureFixture, report: Callable[[str], None]
) -> None:
    caplog.set_level(logging.ERROR)
    listeners = (Listener("SASL_PLAINTEXT", "localhost", 0),)
    storage = await storage_with_user()
    async with serving(storage=storage, listeners=listeners, limit_s=1800.0, **SETTINGS) as server:
        await attack(server, range(WARM_UP), SEED)
        gc.collect()
        before = resident_bytes(os.getpid())
        await attack(server, range(WARM_UP, CONVERSATIONS), SEED)
        await record(server, SCRAM[0])
        gc.collect()
        growth = resident_bytes(os.getpid()) - before
    report(f"{CONVERSATIONS:,} altered conversations: the process grew by {growth / 1e6:.1f} MB")

    assert [] == [each.getMessage() for each in caplog.records]
    assert growth < MOST_GROWTH_BYTES
