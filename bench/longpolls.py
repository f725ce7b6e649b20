"""The cost of idle consumers: `python -m bench.longpolls` parks thousands of Fetch requests and measures them.

Each connection sends one Fetch that may wait for half a minute, for one of a hundred partitions. The output has the
broker's resident memory per connection, the processor time of broker and server while idle, and how many requests are
answered, and how soon, when one partition gets a record. Only requests for this partition may be answered.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen

from bench.latency import one_record
from bench.processes import SYSTEMS, Broker, broker, connect, resident_mb, storage_of, temporary_folder
from bench.wire import Wire, create_topic, frame_of, produce_request, produced
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

PARTITIONS = 100
MAX_WAIT_MS = 30_000
GOAL_KB = 40.0
GOAL_CPU = 0.02
# Wrong answers would arrive within this time.
LISTENED_S = 0.5


@frozen
class Cost:
    """The cost of parked Fetch requests."""

    kb_each: float
    cpu: float  # of a core, broker and server together, while nothing happens
    woken: int
    slowest_ms: float  # of those woken

    def __str__(self) -> str:
        return (
            f"{self.kb_each:5.1f} kB a connection (goal {GOAL_KB:g}), idle {self.cpu:.2%} of a core (goal"
            f" {GOAL_CPU:.0%}); {self.woken} woken by a record, the last after {self.slowest_ms:.1f} ms"
        )


@contextmanager
def parked(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open connections with a waiting Fetch each, for the partition of its number modulo `PARTITIONS`."""
    sockets = [connect(("127.0.0.1", port)) for _ in range(count)]
    try:
        for number, each in enumerate(sockets):
            each.sendall(frame_of(waiting_fetch(number % PARTITIONS)))
        yield sockets
    finally:
        for each in sockets:
            each.close()


def waiting_fetch(partition: int) -> FetchRequest:
    """Return a consumer's Fetch at the end of an empty partition."""
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic="polled", partitions=[wanted])],
    )


def answered(sockets: list[socket.socket], port: int) -> tuple[int, float]:
    """Produce a record to partition 0. Return how many requests are answered, and after how many ms the last one."""
    request = frame_of(produce_request("polled", one_record()))
    with selectors.DefaultSelector() as selector, Wire(port) as producer:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        began = last = time.perf_counter()
        producer.send(request)
        count = 0
        while events := selector.select(LISTENED_S):
            last = time.perf_counter()
            for key, _ in events:
                selector.unregister(key.fileobj)
                count += 1
        produced(producer.receive())
    return count, (last - began) * 1000


def measure(running: Broker, count: int, idle_s: float, settings: dict[str, str]) -> Cost:
    """Park the requests, measure while idle, produce a record."""
    create_topic(running.port, "polled", partitions=PARTITIONS, settings=settings)
    before = resident_mb(running.pid)
    with parked(running.port, count) as sockets:
        settle(running)
        kb_each = (resident_mb(running.pid) - before) * 1000 / count
        used = running.cpu_s()
        time.sleep(idle_s)
        cpu = (running.cpu_s() - used) / idle_s
        woken, slowest_ms = answered(sockets, running.port)
    if woken != count // PARTITIONS:
        raise RuntimeError(f"{woken} were answered, and {count // PARTITIONS} waited for that partition")
    return Cost(kb_each, cpu, woken, slowest_ms)


def settle(running: Broker) -> None:
    """Return once the broker has received all requests and is idle."""
    used, now = -1.0, running.cpu_s()
    while now > used + 0.02:
        time.sleep(0.5)
        used, now = now, running.cpu_s()


def main() -> None:
    """Print a line for each system and round."""
    parser = argparse.ArgumentParser(prog="python -m bench.longpolls", description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--idle", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for _ in range(options.rounds):
        for name in options.systems:
            with temporary_folder() as folder, broker(storage_of(name, folder / "data")) as running:
                cost = measure(running, options.connections, options.idle, SYSTEMS[name])
            print(f"{name:<7} {options.connections} fetches: {cost}", flush=True)


if __name__ == "__main__":
    main()
