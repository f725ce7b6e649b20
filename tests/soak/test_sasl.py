"""A hundred thousand attacks on the authentication: no crash, no hang, no growth."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.measuring import resident_bytes
from tests.hostile.sasl import SCRAM, attack, attacked, record

SEED = 17
MOST_GROWTH_BYTES = 10_000_000


@pytest.mark.parametrize("protocol,count", [("SASL_PLAINTEXT", 100_000), ("SASL_SSL", 20_000)])
async def test_altered_conversations_are_refused_without_growth(
    protocol: str,
    count: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    report: Callable[[str], None],
) -> None:
    caplog.set_level(logging.ERROR)
    warm_up = count // 10
    async with attacked(protocol, tmp_path, 1800.0) as target:
        await attack(target, range(warm_up), SEED)
        gc.collect()
        before = resident_bytes(os.getpid())
        await attack(target, range(warm_up, count), SEED)
        await record(target, SCRAM[0])
        gc.collect()
        growth = resident_bytes(os.getpid()) - before
    report(f"{count:,} altered conversations: the process grew by {growth / 1e6:.1f} MB")

    assert [] == [each.getMessage() for each in caplog.records]
    assert growth < MOST_GROWTH_BYTES
