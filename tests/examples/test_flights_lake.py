"""The flights through tables and back, as the example's reader runs it: some of them here, all in `make soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# It starts Spark by itself, one session after the other, so it need not wait for the tests that share one.
pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.clients]


@pytest.mark.parametrize(
    "rows",
    [pytest.param(["--rows", "10000"], id="10000"), pytest.param([], id="all", marks=pytest.mark.soak)],
)
def test_flights_are_read_from_the_lake_unchanged(tmp_path: Path, rows: list[str]) -> None:
    example = subprocess.run(
        [sys.executable, ROOT / "examples/flights_lake.py", "--folder", tmp_path, *rows],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert 0 == example.returncode, example.stdout + example.stderr
    assert "Both tables are equal, row for row." == example.stdout.splitlines()[-1]
