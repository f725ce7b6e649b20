"""Compare one broker process with several: `python -m bench.processes_case` prints every round, in two minutes.

Systems alternate from round to round. The load comes from several concurrent clients, each with its own topic, because
a connection is served by a single process. The output also has the processor time of the broker's processes and of
their Valkey. On a machine of two cores, which clients and Valkey share, it is more reliable than wall time; on larger
machines it shows how far wall time can improve.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from attrs import define, field

from bench import connections, rdkafka
from bench.processes import Broker, broker, children, cpu_s, temporary_folder
from bench.run import in_turn, settle
from bench.wire import await_topic, create_topic, delete_topic

CLIENTS = 4
RECORDS = {"batch": 300_000, "record": 30_000}  # of each client
RECORD_BYTES = 100
REQUEST_CONNECTIONS, REQUEST_PARTITIONS, REQUEST_S = 100, 12, 2.0


@define
class System:
    """A broker with a number of processes."""

    processes: int
    layout: str
    running: Broker
    folder: Path
    client: rdkafka.RdkafkaPerformance
    _names: Iterator[int] = field(factory=count)

    @property
    def name(self) -> str:
        return f"{self.layout} layout, {self.processes} process{'' if self.processes == 1 else 'es'}"

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
            answered = connections.requests(
                self.running.port,
                topics[0],
                partitions=REQUEST_PARTITIONS,
                connections=REQUEST_CONNECTIONS,
                seconds=REQUEST_S,
            )
            text = f"{answered.rate:,.0f} requests/s, p99 {answered.p99_us / 1000:.1f} ms"
            figures.append((text, answered.requests))

    def _produce(self, topic: str) -> float:
        return self.client.produce(
            self.running.port, topic, partitions=1, records=RECORDS[self.layout], record_bytes=RECORD_BYTES
        )

    def _consume(self, topic: str) -> float:
        return self.client.consume(
            self.running.port, topic, partitions=1, records=RECORDS[self.layout], record_bytes=RECORD_BYTES
        )

    @contextmanager
    def topics(self, number: int, *, partitions: int = 1) -> Iterator[Sequence[str]]:
        """Create topics for the block; afterwards delete them and wait until the servers are idle."""
        names = [f"bench-{next(self._names)}" for _ in range(number)]
        for name in names:
            create_topic(self.running.port, name, partitions=partitions)
            await_topic(self.running.port, name, partitions=partitions)
        yield names
        for name in names:
            delete_topic(self.running.port, name)
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
                f"{self.name}: {case}: {text}; {broker_us:.2f} us of processor time in the broker,"
                f" {server_us:.2f} in Valkey"
            )

    def _used_s(self) -> tuple[float, float]:
        """Return the processor time so far of the broker's processes, and of their server."""
        everybody = descendants(self.running.pid)
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
def system(processes: int, layout: str, client: rdkafka.RdkafkaPerformance) -> Iterator[System]:
    """Run a broker with a number of processes on an embedded server."""
    settings = (f"processes={processes}", f"storage.layout={layout}", "offset.mapping=dense")
    with temporary_folder() as folder, broker(f"embedded:{folder}/data", *settings) as running:
        yield System(processes, layout, running, folder / "data", client)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.processes_case", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--layouts", nargs="+", choices=sorted(RECORDS), default=sorted(RECORDS))
    options = parser.parse_args()
    client = rdkafka.build()
    for layout in options.layouts:
        with ExitStack() as stack:
            systems = [stack.enter_context(system(number, layout, client)) for number in options.processes]
            for number in range(options.rounds):
                print(f"round {number + 1} (load {os.getloadavg()[0]:.1f})")
                for name in in_turn([each.name for each in systems], number):
                    next(each for each in systems if each.name == name).measure()


if __name__ == "__main__":
    main()
