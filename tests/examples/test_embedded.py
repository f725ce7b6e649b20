"""The example of a broker inside another program, as its reader runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.clients]


def test_program_with_an_embedded_broker_produces_and_consumes() -> None:
    example = subprocess.run(
        [sys.executable, ROOT / "examples/embedded.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (0, "apple, banana, cherry\n") == (example.returncode, example.stdout), example.stderr
