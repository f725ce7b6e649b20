from __future__ import annotations

from pathlib import Path

import pytest

from bench import page
from bench.cases import BATCH, KAFKA, MEMORY, SHORT_LOADS, goals
from bench.growth_page import as_table
from bench.growth_results import Growth, Point
from bench.report import Results

PAGE = "# Benchmarks\n\n<!-- results: written by the bench -->\nold\n<!-- end of results -->\n\nbehind\n"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(PAGE)
    monkeypatch.setattr(page, "PAGE", path)
    return path


def test_only_text_between_the_comments_is_replaced(written: Path) -> None:
    page.write("results", "new")

    assert PAGE.replace("old", "\nnew\n") == written.read_text()


def test_page_without_the_comments_is_refused(written: Path) -> None:
    with pytest.raises(ValueError, match="has no <!-- growth: written by the bench -->"):
        page.write("growth", "new")

    assert PAGE == written.read_text()


def test_page_contains_medians_ratios_and_missed_goals(written: Path) -> None:
    into = SHORT_LOADS[0].case("in")
    results = Results({"date": "today", "machine": "2 cores"}, goals(), peer=KAFKA)
    for system, rate in ((MEMORY, 2_000_000.0), (BATCH, 500_000.0), (KAFKA, 1_000_000.0)):
        results.add(into, system, rate)
        results.add(into.processor_time(), system, 0.25)

    page.write_results(results)

    text = written.read_text()
    assert f"| {into.name} | 2.00 M (2.00 M to 2.00 M) | 500 k (500 k to 500 k) | 1.00 M" in text
    assert f"| {into.name} | 0.25 | 0.25 | 0.25 |" in text
    assert f"| {into.name} | 2 of {KAFKA} (≥ 1.3) | **0.5** of {KAFKA} (≥ 0.8) |" in text


def test_ratio_of_growth_is_bold() -> None:
    growth = Growth({})
    for size, rate, latency in ((1, 100.0, 200.0), (10, 90.0, 230.0), (100, 70.0, 300.0)):
        growth.add(Point("partitions", "in", "records/s", "memory", size), rate)
        growth.add(Point("partitions", "acknowledged", "us", "memory", size), latency)

    assert (
        "| partitions | storage | unit | 1 | 10 | 100 |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| in | memory | records/s | 100 | 90 (0.90) | 70 (**0.70**) |\n"
        "| acknowledged | memory | us | 200 | 230 (1.15) | 300 (**1.50**) |"
    ) == as_table(growth)


def test_saved_growth_is_loaded(tmp_path: Path) -> None:
    growth = Growth({"date": "today"})
    growth.add(Point("groups", "commit", "us", "batch", 100), 250.0)
    growth.save(tmp_path / "kept.json")

    assert growth == Growth.load(tmp_path / "kept.json")
