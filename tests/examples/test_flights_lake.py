"""The flights through tables and back, as the example's reader runs it.

It starts Spark several times, which takes three minutes for 10,000 rows, so `make soak` runs it. `make test` has
each of its steps in tests/pipeline.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.soak, pytest.mark.servers, pytest.mark.clients]


def test_flights_are_read_from_the_lake_unchanged(tmp_path: Path) -> None:
    example = subprocess.run(
        [sys.executable, ROOT / "examples/flights_lake.py", "--folder", tmp_path],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert 0 == example.returncode, example.stdout + example.stderr
    assert "Both tables are equal, row for row." == example.stdout.splitlines()[-1]
