"""A thousand virtual hours of churn, on two processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from korvet.testing.simulation import Result, seeds, simulate

# Ten hours each; tests/testing/test_simulation.py runs the first ones.
SEEDS = 100


def test_thousand_hours_of_churn_violate_no_guarantee(report: Callable[[str], None]) -> None:
    began = time.monotonic()
    with ProcessPoolExecutor(2) as processes:
        results: list[Result] = list(processes.map(simulate, seeds(SEEDS)))
    took_s = time.monotonic() - began

    faults, records = (sum(getattr(each, name) for each in results) for name in ("faults", "records"))
    report(f"{10 * len(results)} virtual hours in {took_s:.0f} s: {faults} faults, {records} records")
    assert all(each.generations > 3 for each in results)
