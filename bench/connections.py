"""Many clients at once, each with one record in one request, and the next when that is acknowledged.

The clients are one program in C (connections.c), so that what is measured is the broker.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from attrs import frozen

from bench.latency import one_record
from bench.programs import compiled
from bench.rdkafka import WrongCount
from bench.wire import frame_of, produce_request

SOURCE = Path(__file__).with_name("connections.c")
ENDING_LIMIT_S = 120.0


@frozen
class Answered:
    """How many requests, how fast, and how long one took."""

    requests: int
    rate: float
    p50_us: float
    p99_us: float


def requests(port: int, topic: str, *, partitions: int, connections: int, seconds: float) -> Answered:
    """Produce that long, connections spread over the partitions. Raises WrongCount."""
    batch = one_record()
    frames = b"".join(frame_of(produce_request(topic, batch, partition=index)) for index in range(partitions))
    done = subprocess.run(
        [compiled(SOURCE), str(port), str(connections), str(seconds)],
        input=frames,
        capture_output=True,
        timeout=seconds + ENDING_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise WrongCount(f"{connections} connections were not served: {done.stderr.decode(errors='replace')}")
    answered, took_us, p50_us, p99_us = map(int, done.stdout.split())
    return Answered(answered, answered / took_us * 1e6, p50_us, p99_us)
