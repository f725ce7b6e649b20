"""`korvet serve` that cannot start prints one line with the reason: exit status 2 for wrong usage, 1 for a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.failures.conftest import StartBroker

LIMIT_S = 30.0


def serve(*arguments: str) -> tuple[int, str]:
    """Return exit status and output of `korvet serve`."""
    finished = subprocess.run(
        [sys.executable, "-m", "korvet", "serve", "--listeners", "127.0.0.1:0", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return finished.returncode, finished.stdout


def only_line(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.strip()]
    return line


def test_port_in_use_prints_one_line_and_exits_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, output = serve("--listeners", address)

    assert status == 1
    assert address in only_line(output)


@pytest.mark.parametrize(
    "url, accepted",
    [
        ("http://localhost", "memory://"),
        ("redis", "redis://HOST:PORT/DB"),
        ("memories", "memory://"),
        ("mongodb://x", "memory://"),
        ("", "memory://"),
    ],
)
def test_unknown_storage_prints_one_line_and_exits_with_2(url: str, accepted: str) -> None:
    status, output = serve("--storage", url)

    assert status == 2
    assert accepted in only_line(output)


@pytest.mark.parametrize(
    "setting, words",
    [
        ("num.partitions=many", ["num.partitions", "many"]),
        ("storage.layout=pages", ["storage.layout", "pages", "record, batch"]),
        ("offset.sequence.bits=17", ["offset.sequence.bits", "1 to 16"]),
        ("num.partition=3", ["num.partition"]),
    ],
)
def test_invalid_setting_prints_one_line_and_exits_with_2(setting: str, words: list[str]) -> None:
    status, output = serve("--set", setting)

    assert status == 2
    assert [word for word in words if word not in only_line(output)] == []


def test_all_invalid_settings_are_reported_together() -> None:
    status, output = serve("--set", "num.partitions=many", "--set", "log.retention.ms=soon")

    assert status == 2
    assert "num.partitions" in output
    assert "log.retention.ms" in output


def test_folder_of_another_broker_prints_one_line_and_exits_with_2(
    start_broker: StartBroker, embedded_folder: Path
) -> None:
    start_broker(f"embedded:{embedded_folder}")
    status, output = serve("--storage", f"embedded:{embedded_folder}")

    assert status == 2
    assert str(embedded_folder) in only_line(output)


def test_folder_that_cannot_be_created_prints_one_line_and_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, output = serve("--storage", f"embedded:{tmp_path / 'file' / 'data'}")

    assert status == 2
    assert str(tmp_path / "file") in only_line(output)


def test_failed_start_leaves_no_embedded_server(embedded_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _ = serve("--storage", f"embedded:{embedded_folder}", "--listeners", address)

    assert status == 1
    assert not os.path.lexists(embedded_folder / "redis.sock") or not accepts(embedded_folder / "redis.sock")


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
