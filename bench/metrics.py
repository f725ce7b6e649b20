"""The cost of metrics for small produces. `python -m bench.metrics`.

One process has the broker and its client, and switches counting on and off every few milliseconds. So other programs
on the machine affect both alike. The difference of processor time per produce is compared with the processor time that
a broker in a process of its own needs for one.
"""

from __future__ import annotations

import argparse
from itertools import repeat
from statistics import median
from time import thread_time

import trio

from bench.latency import one_record
from bench.processes import broker
from bench.wire import Wire, await_topic, create_topic, frame_of, produce_all, produce_request
from korvet.broker.counters import Counters
from korvet.metrics.recorder import Recorder
from korvet.server.assembly import open_server
from korvet.server.server import Server

TOPIC = "t"
IN_FLIGHT = 20
SLICE = 400  # requests between two switches


async def difference_us(pairs: int) -> tuple[float, float]:
    """Return the additional processor time per produce with metrics, in microseconds.

    First the median of the differences between two neighbouring slices, then the difference of the fastest slices.
    """
    async with open_server() as server:
        await trio.to_thread.run_sync(create, server.listeners[0].listener.port)
        stream = await trio.open_tcp_stream("localhost", server.listeners[0].listener.port)
        async with stream:
            took: dict[bool, list[float]] = {False: [], True: []}
            order: list[Counters] = [Counters(), Recorder(10)]
            for number in range(pairs):
                for counters in order if number % 2 else reversed(order):
                    took[counters.is_counting].append(await produce(server, stream, counters))
    differences = [on - off for on, off in zip(took[True], took[False], strict=True)]
    return median(differences) / SLICE * 1e6, (min(took[True]) - min(took[False])) / SLICE * 1e6


def create(port: int) -> None:
    """Create the topic."""
    create_topic(port, TOPIC, partitions=1)
    await_topic(port, TOPIC, partitions=1)


async def produce(server: Server, stream: trio.SocketStream, counters: Counters) -> float:
    """Return the processor time of SLICE produces."""
    server.broker.counters = counters
    frame = frame_of(produce_request(TOPIC, one_record()))
    began_s, answer_bytes = thread_time(), 0
    for _ in range(SLICE // IN_FLIGHT):
        await stream.send_all(frame * IN_FLIGHT)
        received = 0
        while not answer_bytes or received < answer_bytes * IN_FLIGHT:
            data = await stream.receive_some()
            answer_bytes = answer_bytes or 4 + int.from_bytes(data[:4], "big")
            received += len(data)
    return thread_time() - began_s


def cost_us(requests: int) -> float:
    """Return the processor time of a broker in its own process per produce, in microseconds."""
    frame = frame_of(produce_request(TOPIC, one_record()))
    costs = []
    with broker("memory://") as running:
        create(running.port)
        for _ in range(5):
            with Wire(running.port) as wire:
                before_s = running.cpu_s()
                for _ in produce_all(wire, repeat(frame, requests)):
                    pass
                costs.append(running.cpu_s() - before_s)
    return min(costs) / requests * 1e6


def main() -> None:
    """Print the cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    (added, least), whole = trio.run(difference_us, given.pairs), cost_us(given.requests)
    print(
        f"a small produce takes {whole:.1f} us of processor time; metrics add {added:.2f} us, {added / whole:.1%}"
        f" (between the fastest slices {least:.2f} us, {least / whole:.1%})"
    )


if __name__ == "__main__":
    main()
