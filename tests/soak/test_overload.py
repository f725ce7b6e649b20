"""Twice as many requests as the machine can process, for five minutes, with as much memory as clients can take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import overload
from bench.processes import SYSTEMS

SECONDS = 300.0


@pytest.mark.parametrize("system", SYSTEMS)
def test_excess_requests_wait_without_loss_or_duplicates(system: str, report: Callable[[str], None]) -> None:
    found = overload.measure(system, SECONDS, overload.CONNECTIONS)
    report(str(found))

    assert 0 == found.lost == found.twice
    assert found.after_mb <= overload.MEMORY_GOAL * found.idle_mb
    assert max(found.outcome.shares) < 2 * min(found.outcome.shares)
