"""Overload: `python -m bench.overload` sends twice as many requests as the broker can process.

First, connections that wait for each response find the maximum rate. Then twice as many requests are due, on a schedule
that does not wait for responses. Requests that cannot be sent when due are sent as soon as the broker reads again. The
output has latencies since a request was due, the share of each connection, the broker's resident memory during and
after the load, and whether each acknowledged record is stored exactly once.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import time
from collections import Counter, deque
from statistics import median, quantiles

from attrs import define, field, frozen

from bench.processes import SYSTEMS, Broker, broker, resident_mb, storage_of, temporary_folder
from korvet.protocol.record_batch import build_batch, decode_records, parse_batches
from tests.support.frames import SIZE, connect
from tests.support.wire import (
    Wire,
    create_topic,
    delete_topic,
    fetch_request,
    fetched,
    frame_of,
    produce_request,
    produced,
)

CONNECTIONS = 40
RECORD_BYTES = 200
FACTOR = 2.0
CALIBRATED_S = 2.0
# After the load: the longest time without a response to what was sent (sockets hold a million requests), and the
# longest time until the broker is idle.
SILENT_S = 30.0
RESTED_S = 3.0
# The largest memory after the load, relative to the memory before.
MEMORY_GOAL = 1.2


@define(eq=False)
class Load:
    """One connection with its requests: due, sent, and answered."""

    sock: socket.socket
    number: int
    record_bytes: int
    due: deque[float] = field(factory=deque)  # due times of requests not yet passed to the socket
    sent: deque[tuple[float, bytes]] = field(factory=deque)  # when they were due, and the record
    unsent: memoryview = field(factory=lambda: memoryview(b""))
    received: bytearray = field(factory=bytearray)
    acknowledged: list[bytes] = field(factory=list)
    count: int = 0

    def send(self) -> None:
        """Send as many due requests as the socket accepts."""
        while self.unsent or self.due:
            if not self.unsent:
                record = b"%d-%d" % (self.number, self.count)
                self.count += 1
                self.sent.append((self.due.popleft(), record))
                self.unsent = memoryview(request_of(record, self.record_bytes))
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except BlockingIOError:
                return

    def receive(self, latencies_s: list[float]) -> None:
        """Receive responses; raise the first error in one."""
        self.received += self.sock.recv(65536)
        while len(self.received) >= 4:
            size = SIZE.unpack_from(self.received)[0]
            if len(self.received) < 4 + size:
                return
            produced(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            due, record = self.sent.popleft()
            latencies_s.append(time.monotonic() - due)
            self.acknowledged.append(record)


def request_of(record: bytes, record_bytes: int) -> bytes:
    """Return a Produce request with one record."""
    batch = build_batch([(0, int(time.time() * 1000), None, record.ljust(record_bytes), ())])
    return frame_of(produce_request("loaded", batch))


@frozen
class Outcome:
    """Result of a load."""

    rate: float  # answers in a second
    latencies_s: list[float]
    shares: list[int]
    highest_mb: float
    acknowledged: list[bytes]


@frozen
class Measured:
    """A load, with measurements before and after."""

    system: str
    possible: float  # requests in a second
    outcome: Outcome
    idle_mb: float
    after_mb: float
    lost: int  # of the acknowledged records
    twice: int

    def __str__(self) -> str:
        times_ms = [each * 1000 for each in self.outcome.latencies_s]
        shares = self.outcome.shares
        return (
            f"{self.system:<7} {self.possible:,.0f} requests/s possible, {FACTOR * self.possible:,.0f} due,"
            f" {self.outcome.rate:,.0f} answered; latency p50 {median(times_ms):,.0f}"
            f" p99 {quantiles(times_ms, n=100)[98]:,.0f} ms;"
            f" shares of a connection {min(shares):,} to {max(shares):,};"
            f" resident {self.idle_mb:.0f} MB before, up to {self.outcome.highest_mb:.0f},"
            f" {self.after_mb:.0f} after; {self.lost} of {len(self.outcome.acknowledged):,} acknowledged"
            f" lost, {self.twice} twice"
        )


def run(running: Broker, loads: list[Load], rate: float, seconds: float) -> Outcome:
    """Schedule `rate` requests per second, over all connections in turn; with 0, send the next after each response."""
    latencies_s: list[float] = []
    before = [len(load.acknowledged) for load in loads]
    began = looked = heard = time.monotonic()
    answered = 0
    highest_mb = resident_mb(running.pid)
    made = 0
    with selectors.DefaultSelector() as selector:
        for load in loads:
            selector.register(load.sock, selectors.EVENT_READ, load)
        while (now := time.monotonic()) < began + seconds or any(load.sent for load in loads):
            is_over = now >= began + seconds
            if len(latencies_s) != answered:
                answered, heard = len(latencies_s), now
            elif is_over and now > heard + SILENT_S:
                raise RuntimeError("what was sent is not answered")
            if not rate and not is_over:
                for load in loads:
                    if not load.sent and not load.due:
                        load.due.append(now)
            while rate and not is_over and began + made / rate < now:
                loads[made % len(loads)].due.append(began + made / rate)
                made += 1
            for load in loads:
                if is_over:
                    load.due.clear()
                if load.due or load.unsent:
                    load.send()
            for key, _ in selector.select(0.001):
                key.data.receive(latencies_s)
            if now > looked + 0.25:
                looked, highest_mb = now, max(highest_mb, resident_mb(running.pid))
    shares = [len(load.acknowledged) - count for load, count in zip(loads, before, strict=True)]
    acknowledged = [record for load in loads for record in load.acknowledged]
    return Outcome(
        len(latencies_s) / (time.monotonic() - began), latencies_s, shares, highest_mb, acknowledged
    )


def stored(port: int) -> Counter[bytes]:
    """Return how often each record is stored."""
    found: Counter[bytes] = Counter()
    offset = 0
    with Wire(port) as wire:
        while True:
            wire.send(frame_of(fetch_request("loaded", offset, max_wait_ms=0, max_bytes=4 << 20)))
            batches = parse_batches(fetched(wire.receive()))
            if not batches:
                return found
            for batch in batches:
                found.update(bytes(value or b"").rstrip() for _, _, _, value, _ in decode_records(batch))
            offset = batches[-1].last_offset + 1


def measure(name: str, seconds: float, connections: int, record_bytes: int = RECORD_BYTES) -> Measured:
    """Measure one system."""
    with (
        temporary_folder() as folder,
        broker(storage_of(name, folder / "data"), "memory.max.bytes=3000000000") as running,
    ):
        create_topic(running.port, "loaded", settings=SYSTEMS[name])
        loads = [
            Load(connect(("127.0.0.1", running.port)), number, record_bytes) for number in range(connections)
        ]
        for load in loads:
            load.sock.settimeout(0)  # non-blocking
        possible = run(running, loads, 0.0, CALIBRATED_S)
        idle_mb = resident_mb(running.pid)
        outcome = run(running, loads, FACTOR * possible.rate, seconds)
        for load in loads:
            load.sock.close()
        there = stored(running.port)
        delete_topic(running.port, "loaded")
        time.sleep(RESTED_S)
        after_mb = resident_mb(running.pid)
    return Measured(
        name,
        possible.rate,
        outcome,
        idle_mb,
        after_mb,
        lost=sum(not there[record] for record in outcome.acknowledged),
        twice=sum(count > 1 for count in there.values()),
    )


def main() -> None:
    """Print a line for each system."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--record-bytes", type=int, default=RECORD_BYTES)
    options = parser.parse_args()
    for name in options.systems:
        print(measure(name, options.seconds, options.connections, options.record_bytes), flush=True)


if __name__ == "__main__":
    main()
