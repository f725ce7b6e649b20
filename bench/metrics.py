"""The cost of metrics: small produces with and without them, in turn. `python -m bench.metrics`.

Processor time per request is compared, because other programs on the machine affect it less than the rate.
"""

from __future__ import annotations

import argparse
import time
from itertools import repeat
from statistics import median

from bench.latency import one_record
from bench.processes import Broker, broker
from bench.wire import Wire, await_topic, create_topic, frame_of, produce_all, produce_request

TOPIC = "t"


def cost_us(running: Broker, requests: int) -> tuple[float, float]:
    """Return the broker's processor time, and the elapsed time, per produce of one record, in microseconds."""
    frame = frame_of(produce_request(TOPIC, one_record()))
    with Wire(running.port) as wire:
        before_s, began_s = running.cpu_s(), time.perf_counter()
        for _ in produce_all(wire, repeat(frame, requests)):
            pass
        elapsed_s = time.perf_counter() - began_s
        return (running.cpu_s() - before_s) / requests * 1e6, elapsed_s / requests * 1e6


def main() -> None:
    """Print the median costs and their difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--storage", default="memory://")
    given = parser.parse_args()
    with (
        broker(given.storage) as without,
        broker(given.storage, "metrics.listener=localhost:0") as counted,
    ):
        costs: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
        for running in (without, counted):
            create_topic(running.port, TOPIC, partitions=1)
            await_topic(running.port, TOPIC, partitions=1)
            cost_us(running, given.requests // 4)
        for number in range(given.rounds):
            pair = [("without", without), ("with", counted)]
            for name, running in pair if number % 2 else reversed(pair):
                costs[name].append(cost_us(running, given.requests))
    for index, what in enumerate(("processor time", "elapsed time")):
        one, other = (median(each[index] for each in costs[name]) for name in ("without", "with"))
        print(f"{what}: {one:.2f} us without, {other:.2f} us with metrics: {other / one - 1:+.1%}")


if __name__ == "__main__":
    main()
