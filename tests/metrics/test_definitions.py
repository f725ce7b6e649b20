from __future__ import annotations

from pathlib import Path

import pytest

from korvet.metrics.definitions import METRICS, Kind, Metric
from korvet.metrics.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_page_of_the_metrics_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page()), (
        "write it: .venv/bin/python -m korvet.metrics.reference > docs/metrics.md"
    )


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert metric.name.startswith(("korvet_", "process_"))
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith("_seconds")
    assert metric.help[0].isupper() or metric.help[0].isdecimal()
    assert metric.help.endswith(".")
