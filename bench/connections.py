"""Many concurrent clients, each of which sends one record per request and waits for its acknowledgement.

The clients are one C program (connections.c), so that the broker is the bottleneck.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from attrs import frozen

from bench.latency import one_record
from bench.programs import compiled
from bench.rdkafka import WrongCount
from tests.support.wire import frame_of, produce_request

SOURCE = Path(__file__).with_name("connections.c")
ENDING_LIMIT_S = 120.0


@frozen
class Answered:
    """Number, rate and latencies of requests."""

    requests: int
    rate: float
    p50_us: float
    p99_us: float


def requests(port: int, topic: str, *, partitions: int, connections: int, seconds: float) -> Answered:
    """Produce for `seconds` on connections spread over the partitions. Raises WrongCount."""
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
