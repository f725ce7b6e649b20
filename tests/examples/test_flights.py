"""The flights example as its reader runs it, on a broker in memory and on an embedded server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import KorvetProcess

ROOT = Path(__file__).parent.parent.parent

ALL = 336_776

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.mark.parametrize(
    "kind, settings, rows",
    [
        ("memory", {}, ALL),
        pytest.param("embedded", {"storage.layout": "record"}, 100_000, marks=pytest.mark.servers),
        pytest.param(
            "embedded",
            {"storage.layout": "batch", "offset.mapping": "dense"},
            100_000,
            marks=pytest.mark.servers,
        ),
    ],
    ids=["memory", "embedded-record", "embedded-batch"],
)
def test_flights_are_consumed_unchanged(
    kind: str, settings: dict[str, str], rows: int, tmp_path: Path
) -> None:
    storage = "memory://" if kind == "memory" else f"embedded:{tmp_path / 'data'}"
    with KorvetProcess(storage=storage, settings=settings) as korvet:
        example = subprocess.run(
            [sys.executable, ROOT / "examples/flights.py", "--bootstrap-servers", korvet.bootstrap_servers]
            + ([] if rows == ALL else ["--rows", str(rows)]),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert 0 == example.returncode, example.stderr
    assert f"{rows:,} rows came back as they went in." == example.stdout.splitlines()[-1]
