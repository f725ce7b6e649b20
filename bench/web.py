"""The load times of the web page. `python -m bench.web`.

A broker in memory has 5,000 topics with two partitions each and serves the page from its own process. Each page is
loaded once first, and then several times: while the broker is idle, and while 100,000 records a second arrive.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from statistics import median

from bench.processes import broker, connect, free_port
from bench.wire import Wire, await_topic, create_topic, frame_of, produce_request
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.requests import encode_request
from korvet.testing.records import Record, batch

BUSY = "busy"
BATCH = 100
PAGES: Mapping[str, str] = {
    "list of topics": "/topics",
    "list of topics, refreshed": "/topics.json",
    "last page of the list": "/topics?page=1000",
    "a topic": f"/topics/{BUSY}",
    "its newest records": f"/topics/{BUSY}/records",
    "its first records": f"/topics/{BUSY}/records?from=start",
    "groups": "/groups",
    "a group": "/group?id=billing",
    "brokers": "/brokers",
    "a broker": "/brokers/1",
}


def load_s(port: int, path: str) -> float:
    """Load a page. Return the seconds until it is complete."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    began_s = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    took_s = time.perf_counter() - began_s
    connection.close()
    if answer.status != 200:
        print(f"{path}: {answer.status}", file=sys.stderr)
    return took_s


def fill(port: int, topics: int) -> None:
    """Create the topics, and a group that has committed an offset."""
    create_topic(port, BUSY, partitions=2)
    await_topic(port, BUSY, partitions=2)
    with Wire(port) as wire:
        for first in range(0, topics, 500):
            wanted = [
                CreatableTopic(name=f"topic-{number:05}", num_partitions=2, replication_factor=1)
                for number in range(first, min(first + 500, topics))
            ]
            wire.call(CreateTopicsRequest(topics=wanted, timeout_ms=60_000))
        committed = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        topic = OffsetCommitRequestTopic(name=BUSY, partitions=[committed])
        wire.send(
            b"".join(encode_request(OffsetCommitRequest(group_id="billing", topics=[topic]), 8, 1, "bench"))
        )
        wire.receive()


def produce(port: int, records_per_s: int) -> None:
    """Produce that many records a second until the process is ended."""
    data = bytes(batch([Record(bytes(100), timestamp=time.time_ns() // 1_000_000)] * BATCH).buffer)
    frames = [frame_of(produce_request(BUSY, data, partition=number)) for number in range(2)]
    with Wire(port) as wire:
        began_s, sent = time.perf_counter(), 0
        while True:
            due = int((time.perf_counter() - began_s) * records_per_s / BATCH)
            for number in range(sent, min(due, sent + 20)):
                wire.send(frames[number % 2])
            count = max(min(due, sent + 20) - sent, 0)
            for _ in range(count):
                wire.receive()
            sent += count
            if not count:
                time.sleep(0.001)
            elif sent % 2000 < count:
                print(f"{sent * BATCH / (time.perf_counter() - began_s):,.0f} records/s", flush=True)


@contextmanager
def load(port: int, records_per_s: int) -> Iterator[None]:
    """Produce in another process during the block."""
    command = [sys.executable, "-m", "bench.web", "--produce", str(port), "--rate", str(records_per_s)]
    process = subprocess.Popen(command)
    try:
        time.sleep(3)
        yield
    finally:
        process.kill()
        process.wait()


def measure(port: int, times: int) -> dict[str, tuple[float, float, float]]:
    """Return the first, the median and the longest load of each page, in seconds."""
    found = {}
    for name, path in PAGES.items():
        took = [load_s(port, path) for _ in range(times)]
        found[name] = took[0], median(took[1:]), max(took[1:])
    return found


def main() -> None:
    """Print the load times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--produce", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.produce:
        produce(given.produce, given.rate)
        return
    web = free_port()
    limits = ("log.retention.bytes=50000000", f"max.partitions={given.topics * 2 + 100}")
    with broker("memory://", *limits, options=("--web", f"127.0.0.1:{web}")) as running:
        fill(running.port, given.topics)
        connect(("127.0.0.1", web)).close()
        for title in ("idle", f"{given.rate:,} records/s arrive"):
            if title == "idle":
                found = measure(web, given.times)
            else:
                with load(running.port, given.rate):
                    found = measure(web, given.times)
            print(f"\n{title}: milliseconds, first, median, longest")
            for name, times in found.items():
                print(f"{name:<28}" + "".join(f"{each * 1000:8.0f}" for each in times), flush=True)


if __name__ == "__main__":
    main()
