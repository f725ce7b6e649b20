"""Compare a broker of one process with several processes, and with several brokers on the same Valkey.

`python -m bench.scaling` prints every round, in some four minutes. Systems alternate from round to round. The load
comes from several concurrent clients, each with its own topic, because a connection is served by a single process.
Clients connect to the leader of their topic's partition, and leaders are spread over the brokers.

The output also has the processor time of the brokers and of their Valkey. On a machine of two cores, which clients and
Valkey share, it is more reliable than wall time; on larger machines it shows where the next limit is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from attrs import define, field

from bench import connections, rdkafka
from bench.processes import Broker, broker, children, cpu_s, temporary_folder
from bench.run import in_turn, settle
from tests.support.wire import await_topic, create_topic, delete_topic

CLIENTS = 4
RECORDS = {"batch": 300_000, "record": 30_000}  # of each client
RECORD_BYTES = 100
REQUEST_CONNECTIONS, REQUEST_PARTITIONS, REQUEST_S = 100, 12, 2.0


@define
class System:
    """Brokers with a number of processes each, on one Valkey, which the first one has started."""

    name: str
    layout: str
    running: Sequence[Broker]
    folder: Path
    client: rdkafka.RdkafkaPerformance
    _names: Iterator[int] = field(factory=count)

    @property
    def port(self) -> int:
        """The port by which clients find all brokers."""
        return self.running[0].port

    def measure(self) -> None:
        """Measure one round and print its lines."""
        records = RECORDS[self.layout]
        with self.topics(CLIENTS) as topics:
            for direction, act in (("in", self._produce), ("out", self._consume)):
                with self.processor_time(f"{direction}, {CLIENTS} clients") as figures:
                    with ThreadPoolExecutor(CLIENTS) as clients:
                        rates = list(clients.map(act, topics))
                    figures.append((f"{sum(rates):,.0f} records/s", CLIENTS * records))
        with (
            self.topics(1, partitions=REQUEST_PARTITIONS) as topics,
            self.processor_time(f"{REQUEST_CONNECTIONS} connections, one record a request") as figures,
        ):
            with ThreadPoolExecutor(len(self.running)) as loads:
                answered = list(loads.map(partial(self._request, topics[0]), self.running))
            rate, p99_us = sum(each.rate for each in answered), max(each.p99_us for each in answered)
            text = f"{rate:,.0f} requests/s, p99 {p99_us / 1000:.1f} ms"
            figures.append((text, sum(each.requests for each in answered)))

    def _request(self, topic: str, broker: Broker) -> connections.Answered:
        """Send requests on this broker's part of the connections. Every broker serves every partition."""
        return connections.requests(
            broker.port,
            topic,
            partitions=REQUEST_PARTITIONS,
            connections=REQUEST_CONNECTIONS // len(self.running),
            seconds=REQUEST_S,
        )

    def _produce(self, topic: str) -> float:
        return self.client.produce(
            self.port, topic, partitions=1, records=RECORDS[self.layout], record_bytes=RECORD_BYTES
        )

    def _consume(self, topic: str) -> float:
        return self.client.consume(
            self.port, topic, partitions=1, records=RECORDS[self.layout], record_bytes=RECORD_BYTES
        )

    @contextmanager
    def topics(self, number: int, *, partitions: int = 1) -> Iterator[Sequence[str]]:
        """Create topics for the block; afterwards delete them and wait until the servers are idle."""
        names = [f"bench-{next(self._names)}" for _ in range(number)]
        for name in names:
            create_topic(self.port, name, partitions=partitions)
            await_topic(self.port, name, partitions=partitions)
        yield names
        for name in names:
            delete_topic(self.port, name)
        settle(self.folder)

    @contextmanager
    def processor_time(self, case: str) -> Iterator[list[tuple[str, int]]]:
        """Print the figures that the block adds as (text, number), with the block's processor time per `number`."""
        figures: list[tuple[str, int]] = []
        before = self._used_s()
        yield figures
        after = self._used_s()
        for text, number in figures:
            broker_us, server_us = (
                (late - early) / number * 1e6 for early, late in zip(before, after, strict=True)
            )
            print(
                f"{self.name}: {case}: {text}; {broker_us:.2f} us of processor time in the brokers,"
                f" {server_us:.2f} in Valkey"
            )

    def _used_s(self) -> tuple[float, float]:
        """Return the processor time so far of the broker's processes, and of their server."""
        everybody = [pid for each in self.running for pid in descendants(each.pid)]
        servers = [pid for pid in everybody if "valkey" in Path(f"/proc/{pid}/comm").read_text()]
        brokers = [pid for pid in everybody if pid not in servers]
        return sum(map(cpu_s, brokers)), sum(map(cpu_s, servers))


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and its running descendants."""
    return [
        pid,
        *(each for child in children(pid) for each in descendants(child) if Path(f"/proc/{each}").exists()),
    ]


@contextmanager
def system(brokers: int, processes: int, layout: str, client: rdkafka.RdkafkaPerformance) -> Iterator[System]:
    """Run brokers with a number of processes each. The first one starts the server that all of them use."""
    settings = (f"processes={processes}", f"storage.layout={layout}", "offset.mapping=dense")
    name = f"{layout} layout, " + (
        _counted(brokers, "broker") if processes == 1 else f"{processes} processes"
    )
    with temporary_folder() as folder, ExitStack() as stack:
        data = folder / "data"
        running = [stack.enter_context(broker(f"embedded:{data}", *settings))]
        others = f"unix://{data / 'redis.sock'}"
        running += [stack.enter_context(broker(others, *settings)) for _ in range(brokers - 1)]
        yield System(name, layout, running, data, client)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--layouts", nargs="+", choices=sorted(RECORDS), default=sorted(RECORDS))
    options = parser.parse_args()
    client = rdkafka.build()
    numbers = [(brokers, 1) for brokers in options.brokers] + [(1, each) for each in options.processes]
    for layout in options.layouts:
        with ExitStack() as stack:
            systems = [
                stack.enter_context(system(brokers, processes, layout, client))
                for brokers, processes in numbers
            ]
            for number in range(options.rounds):
                print(f"round {number + 1} (load {os.getloadavg()[0]:.1f})")
                for name in in_turn([each.name for each in systems], number):
                    next(each for each in systems if each.name == name).measure()


if __name__ == "__main__":
    main()
