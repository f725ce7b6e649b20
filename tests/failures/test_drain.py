"""SIGTERM and SIGHUP: accepted requests are answered, waiting ones are released, and the process exits."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from korvet.protocol.record_batch import build_batch
from tests.failures.conftest import Report, StartBroker, assert_nothing_runs
from tests.processes import ADDRESS, START_LIMIT_S, KorvetProcess
from tests.servers import VALKEY, StartServer, start_server
from tests.support.wire import (
    Wire,
    create_topic,
    fetch_request,
    fetched,
    first_answer,
    frame_of,
    produce_request,
    produced,
)

BATCH = build_batch([(0, 1, None, b"value", ())])
PROMPTLY_S = 5.0


@pytest.fixture(params=["memory", "redis"])
def broker(request: pytest.FixtureRequest, start_broker: StartBroker) -> Iterator[KorvetProcess]:
    if request.param == "memory":
        yield start_broker()
        return
    server = start_server(VALKEY)
    yield start_broker(server.url)
    server.remove()


def test_parked_fetches_are_answered_and_the_process_ends_with_status_0(
    broker: KorvetProcess, topic: str
) -> None:
    create_topic(broker.port, topic)
    with ExitStack() as stack:
        waiting = [stack.enter_context(Wire(broker.port)) for _ in range(20)]
        for wire in waiting:
            wire.send(frame_of(fetch_request(topic, 0, max_wait_ms=60_000)))
        for _ in range(3):
            first_answer(broker.port)
        started = time.monotonic()
        status = broker.stop()

        assert [b""] * 20 == [fetched(wire.receive()) for wire in waiting]
    assert status == 0
    assert time.monotonic() - started < PROMPTLY_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_connections_do_not_delay_the_drain(broker: KorvetProcess, number: signal.Signals) -> None:
    with Wire(broker.port) as idle:
        first_answer(broker.port)
        started = time.monotonic()
        status = broker.end(number)

        assert status == 0
        assert time.monotonic() - started < PROMPTLY_S
        assert idle.socket.recv(1) == b""


def test_requests_accepted_before_the_signal_are_answered(
    new_server: StartServer, start_broker: StartBroker, topic: str, report: Report
) -> None:
    server = new_server()
    broker = start_broker(server.url)
    create_topic(broker.port, topic)
    request = frame_of(produce_request(topic, BATCH))
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.port)) for _ in range(10)]
        for wire in wires:
            wire.send(request * 20)
        os.kill(broker.pid, signal.SIGTERM)
        answered = sorted(offset for wire in wires for offset in answers(wire))
        assert broker.process is not None
        status = broker.process.wait(30)
    with server.client() as client:
        stored = client.xlen(f"korvet:{topic}:0")
    report(f"{len(answered)} of 200 requests were answered")

    assert status == 0
    assert stored == len(answered)
    assert len(set(answered)) == len(answered)


def answers(wire: Wire) -> Iterator[int]:
    """Yield base offsets until the broker closes the connection, which it never does in the middle of a response."""
    while True:
        # Unread requests cause a reset at the end.
        with suppress(ConnectionResetError):
            if wire.socket.recv(1, socket.MSG_PEEK):
                yield produced(wire.receive())
                continue
        return


def test_second_signal_ends_the_broker_immediately(
    new_server: StartServer, start_broker: StartBroker, topic: str
) -> None:
    server = new_server()
    broker = start_broker(server.url, {"shutdown.deadline.ms": "60000"})
    create_topic(broker.port, topic)
    with Wire(broker.port) as wire:
        server.pause()
        wire.send(frame_of(produce_request(topic, BATCH, timeout_ms=60_000)))
        wait_until_handled(broker)
        os.kill(broker.pid, signal.SIGTERM)
        wait_until_refused(broker)
        started = time.monotonic()
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.process is not None
        broker.process.wait(PROMPTLY_S)

    server.resume()
    assert time.monotonic() - started < PROMPTLY_S


def test_request_in_flight_is_finished_within_the_deadline(
    new_server: StartServer, start_broker: StartBroker, topic: str
) -> None:
    server = new_server()
    broker = start_broker(server.url)
    create_topic(broker.port, topic)
    with Wire(broker.port) as wire:
        server.pause()
        wire.send(frame_of(produce_request(topic, BATCH)))
        wait_until_handled(broker)
        os.kill(broker.pid, signal.SIGTERM)
        wait_until_refused(broker)
        server.resume()

        assert produced(wire.receive()) >= 0
    assert broker.process is not None
    assert broker.process.wait(PROMPTLY_S) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_hangup_drains_the_broker_and_ends_its_embedded_server(embedded_folder: Path, processes: str) -> None:
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "korvet", "serve", "--storage", f"embedded:{embedded_folder}"]
    command += ["--listeners", "127.0.0.1:0", "--processes", processes]
    broker = subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    try:
        port = int(read_until(controller, ADDRESS)[1])
        create_topic(port, "orders")
        with Wire(port) as wire:
            wire.send(frame_of(fetch_request("orders", 0, max_wait_ms=60_000)))
            for _ in range(3):
                first_answer(port)
            os.close(controller)

            assert fetched(wire.receive()) == b""
        assert broker.wait(30) == 0
    finally:
        broker.kill()
        broker.wait()
    assert_nothing_runs(embedded_folder)


def test_nohup_keeps_the_broker_running() -> None:
    with KorvetProcess(runner=["nohup"]) as broker:
        os.kill(broker.pid, signal.SIGHUP)

        first_answer(broker.port)
        assert broker.stop() == 0


def read_until(terminal: int, pattern: re.Pattern[str]) -> re.Match[str]:
    """Return the first match in the output of a program on a terminal."""
    shown = ""
    deadline = time.monotonic() + START_LIMIT_S
    while (match := pattern.search(shown)) is None:
        readable, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert readable, shown
        shown += os.read(terminal, 4096).decode(errors="replace")
    return match


def wait_until_handled(broker: KorvetProcess) -> None:
    """Return once the broker has begun all requests sent before: it serves connections in turn."""
    for _ in range(3):
        first_answer(broker.port)


def wait_until_refused(broker: KorvetProcess) -> None:
    """Return once the broker refuses connections, because it drains."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            Wire(broker.port).socket.close()
        except OSError:
            return
    raise AssertionError("the broker goes on accepting connections")
