"""Attacks on the authentication; `tests/soak/test_sasl.py` makes a hundred thousand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from tests.hostile.sasl import SCRAM, attack, attacked, record

SEED = 17


@pytest.mark.slow
@pytest.mark.parametrize("protocol,count", [("SASL_PLAINTEXT", 1000), ("SASL_SSL", 250)])
async def test_altered_conversations_are_refused(
    protocol: str,
    count: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    report: Callable[[str], None],
) -> None:
    caplog.set_level(logging.WARNING)
    async with attacked(protocol, tmp_path, 120.0) as target:
        began = monotonic()
        await attack(target, range(count), SEED)
        report(f"{count:,} altered conversations in {monotonic() - began:.1f} s")
        await record(target, SCRAM[0])

    assert [] == [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
