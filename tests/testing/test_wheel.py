"""The plugin from the built wheel, in an environment that has only korvet[testing]."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEST = """
def test_orders(korvet_broker):
    korvet_broker.produce("orders", "a")
    assert 1 == len(korvet_broker.records("orders"))
"""


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_wheel_brings_all_that_a_test_with_a_broker_needs(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, folder=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, folder=tmp_path)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-compile", f"{wheel}[testing]", folder=tmp_path)
    tmp_path.joinpath("test_orders.py").write_text(TEST, encoding="utf-8")

    assert "1 passed" in run(python, "-m", "pytest", "test_orders.py", folder=tmp_path)
