"""Clients make a broker use as much memory as they can: its budgets limit it, and it returns memory afterwards."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from bench.processes import resident_mb
from korvet.protocol.record_batch import build_batch
from tests.failures.conftest import StartBroker
from tests.support.frames import connect
from tests.support.wire import Wire, create_topic, fetch_request, fetched, frame_of, produce_request, produced

MB = 1_000_000
BUDGET = 24 * MB
FRAME = 8 * MB
STORED = 24 * MB
CLIENTS = 16
# Memory beyond the budget: one request above it, buffers, partly used pages.
SLACK_MB = 40
LIMIT_S = 20.0
SETTINGS = {"queued.max.request.bytes": str(BUDGET), "queued.max.response.bytes": str(BUDGET)}


def test_large_frames_and_slow_readers_stay_within_the_budgets(
    start_broker: StartBroker, embedded_folder: Path, report: Callable[[str], None]
) -> None:
    broker = start_broker(f"embedded:{embedded_folder}", SETTINGS)
    create_topic(broker.port, "large", settings={"storage.layout": "batch"})
    batch = bytes(build_batch([(0, 1, None, b"x" * 900_000, ())]))
    with Wire(broker.port) as wire:
        for _ in range(STORED // len(batch)):
            wire.send(frame_of(produce_request("large", batch)))
            produced(wire.receive())
        # The memory after sixteen of these requests is compared with the memory after this one.
        wire.send(frame_of(fetch_request("large", 0, max_wait_ms=100, max_bytes=2 * STORED)))
        assert fetched(wire.receive())
    idle_mb = lowest_mb(broker.pid)
    with unfinished_frames(broker.port):
        frames_mb = highest_mb(broker.pid)
    with slow_readers(broker.port):
        readers_mb = highest_mb(broker.pid)
        with Wire(broker.port) as wire:
            wire.send(frame_of(fetch_request("large", 0, max_wait_ms=100)))
            assert fetched(wire.receive())
    after_mb = awaited_mb(broker.pid, 1.2 * idle_mb)
    report(
        f"resident: idle {idle_mb:.0f} MB, frames {frames_mb:.0f}, readers {readers_mb:.0f}, after {after_mb:.0f}"
    )

    assert frames_mb < idle_mb + BUDGET / MB + SLACK_MB < idle_mb + CLIENTS * FRAME / MB
    assert readers_mb < idle_mb + BUDGET / MB + CLIENTS + SLACK_MB < idle_mb + CLIENTS * STORED / MB
    assert after_mb <= 1.2 * idle_mb


@contextmanager
def unfinished_frames(port: int) -> Iterator[None]:
    """Open clients that send a large request without its end."""
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(closing(connect(("127.0.0.1", port))))
            client.settimeout(0.2)
            with suppress(TimeoutError):  # the broker has stopped reading
                client.sendall(struct.pack(">i", FRAME) + b"\0\0\0\x0b" + bytes(FRAME - 1000))
        yield


@contextmanager
def slow_readers(port: int) -> Iterator[None]:
    """Open clients that request everything and read nothing."""
    request = frame_of(fetch_request("large", 0, max_wait_ms=100, max_bytes=2 * STORED))
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(closing(connect(("127.0.0.1", port))))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.sendall(request)
        yield


def highest_mb(pid: int) -> float:
    """Return the peak of resident memory, once it has not grown for a second."""
    highest, since = 0.0, time.monotonic()
    while time.monotonic() < since + 1:
        now = resident_mb(pid)
        if now > highest + 1:
            highest, since = now, time.monotonic()
        time.sleep(0.02)  # the system sends no event for this
    return highest


def lowest_mb(pid: int) -> float:
    """Return the least resident memory, once it has not fallen for two seconds."""
    lowest, since = resident_mb(pid), time.monotonic()
    while time.monotonic() < since + 2:
        now = resident_mb(pid)
        if now < lowest - 1:
            lowest, since = now, time.monotonic()
        time.sleep(0.02)  # the system sends no event for this
    return lowest


def awaited_mb(pid: int, wanted: float) -> float:
    """Return the resident memory once it is at most `wanted`, or after the time limit."""
    ends = time.monotonic() + LIMIT_S
    while (now := resident_mb(pid)) > wanted and time.monotonic() < ends:
        time.sleep(0.05)  # as above
    return now
