"""The first page of docs/pipeline.md, command by command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import KorvetProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
SECTION = "## Topic to table in five minutes\n"
OTHER_TERMINAL = "# in a terminal of its own"


def blocks() -> Iterator[str]:
    """Yield the blocks of commands of the section."""
    section = PAGE.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    for block in re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section, re.MULTILINE):
        yield re.sub(r"^    ", "", block, flags=re.MULTILINE)


def test_commands_of_the_page_make_the_tables_that_it_promises(tmp_path: Path) -> None:
    first, *others, endless = blocks()
    serve, *rest = first.splitlines()
    assert serve.endswith(OTHER_TERMINAL)
    assert "korvet serve --storage memory:// " in serve
    outputs = []
    with KorvetProcess() as broker:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "KORVET_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        for commands in ("\n".join(rest), *others):
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", commands],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert 0 == done.returncode, done.stderr
            outputs.append(done.stdout)

    assert "orders: current, 1,000 records, " in outputs[-1]
    assert "; 1,000 typed, 0 bad\n" in outputs[-1]
    assert re.search(r"\bbook\W+1000\b", outputs[-1])
    assert "korvet lake run --config lake.toml --metrics localhost:9100\n" == endless
