"""A signal before the broker serves ends everything that was started, in particular the private server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from korvet.storage.embedded.binary import find_binary
from tests.failures.conftest import assert_nothing_runs
from tests.support.wire import first_answer

# A server that does not start until a signal.
HESITANT = """#!/bin/sh
case "$*" in *--version*) ;; *) echo $$ > {noted}; kill -STOP $$ ;; esac
exec {binary} "$@"
"""
EACH_NUMBER_OF_PROCESSES = pytest.mark.parametrize("processes", ["1", "2"])


@EACH_NUMBER_OF_PROCESSES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_broker_ended_while_its_embedded_server_starts_leaves_no_server(
    embedded_folder: Path, tmp_path: Path, processes: str, number: signal.Signals
) -> None:
    hesitant, noted = tmp_path / "hesitant-server", tmp_path / "pid"
    hesitant.write_text(HESITANT.format(noted=noted, binary=find_binary(None)))
    hesitant.chmod(0o700)
    settings = ("--processes", processes, "--set", f"embedded.server={hesitant}")
    with beginning(embedded_folder, 0, *settings) as broker:
        wait_for(lambda: noted.exists() and is_stopped(noted.read_text().strip()))
        broker.send_signal(number)
        os.kill(int(noted.read_text()), signal.SIGCONT)

        assert_ended(broker, 128 + number)
    assert_nothing_runs(embedded_folder)


@EACH_NUMBER_OF_PROCESSES
def test_broker_ended_after_its_first_response_leaves_no_embedded_server(
    embedded_folder: Path, processes: str
) -> None:
    """With several processes, some may not serve yet."""
    for _ in range(3):
        with held_port() as port, beginning(embedded_folder, port, "--processes", processes) as broker:
            wait_for(lambda: is_serving(port))
            broker.send_signal(signal.SIGTERM)

            assert_ended(broker, 0, 128 + signal.SIGTERM)
        assert_nothing_runs(embedded_folder)


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a loopback port. The broker may listen on it, and the system gives it to no other program.

    If the first response came from another program, the signal could reach the broker before its handlers exist.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def beginning(folder: Path, port: int, *options: str) -> subprocess.Popen[str]:
    """Start a broker with a private server, and return immediately."""
    command = [sys.executable, "-m", "korvet", "serve", "--storage", f"embedded:{folder}"]
    return subprocess.Popen(
        [*command, "--listeners", f"127.0.0.1:{port}", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_stopped(pid: str) -> bool:
    """Return True if a process is stopped, waiting for SIGCONT."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return shown.stdout.startswith("T")


def is_serving(port: int) -> bool:
    try:
        first_answer(port)
    except OSError:
        return False
    return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)  # there is no notification


def assert_ended(broker: subprocess.Popen[str], *statuses: int) -> None:
    """Check that the broker exits by itself with one of these statuses and without a traceback."""
    said, _ = broker.communicate(timeout=20)
    assert broker.returncode in statuses, said
    assert "Traceback" not in said
