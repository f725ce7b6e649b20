"""Compare a broker on one Valkey with a broker on a Redis Cluster of three primaries: how is the work spread?

`python -m bench.cluster` prints, for each layout, the processor time per record of the broker and of each server, and
the commands that each primary executed. Wall time says little: on a small machine the servers share its cores. The
processor time shows what a cluster costs the broker, and which part of the load each primary has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis
from attrs import evolve, frozen

from bench import rdkafka
from bench.processes import broker, cpu_s, temporary_folder
from bench.run import embedded_socket, in_turn
from tests.support.wire import await_topic, create_topic, delete_topic

PARTITIONS = 48
RECORDS = {"batch": 1_000_000, "record": 200_000}
RECORD_BYTES = 100
START_LIMIT_S = 60.0


@frozen
class System:
    """A broker and its servers."""

    name: str
    port: int
    broker: int  # process ids
    servers: Sequence[int]
    clients: Sequence[redis.Redis]

    def used_s(self) -> list[float]:
        """Return the processor time so far of the broker, and of each server."""
        return [cpu_s(self.broker), *map(cpu_s, self.servers)]

    def commands(self) -> list[int]:
        """Return the number of commands that each server has processed."""
        return [client.info("stats")["total_commands_processed"] for client in self.clients]

    def measure(self, layout: str, client: rdkafka.RdkafkaPerformance, number: int) -> None:
        """Measure one round, and print a line for each direction."""
        topic, records = f"bench-{layout}-{number}", RECORDS[layout]
        create_topic(self.port, topic, partitions=PARTITIONS)
        await_topic(self.port, topic, partitions=PARTITIONS)
        for direction, act in (("in", client.produce), ("out", client.consume)):
            used, commands = self.used_s(), self.commands()
            rate = act(self.port, topic, partitions=PARTITIONS, records=records, record_bytes=RECORD_BYTES)
            of_broker, *of_servers = (
                (late - early) / records * 1e6 for early, late in zip(used, self.used_s(), strict=True)
            )
            executed = [late - early for early, late in zip(commands, self.commands(), strict=True)]
            print(
                f"{self.name}, {layout} layout, {direction}: {rate:,.0f} records/s; us of processor time per record:"
                f" broker {of_broker:.2f}, servers {' + '.join(f'{each:.2f}' for each in of_servers)};"
                f" commands {' + '.join(f'{each:,}' for each in executed)}"
            )
        delete_topic(self.port, topic)


def server_pid(client: redis.Redis) -> int:
    """Return the server's process id."""
    return int(client.info("server")["process_id"])


@contextmanager
def one_server(layout: str) -> Iterator[System]:
    """Run a broker on a private server."""
    with (
        temporary_folder() as folder,
        broker(f"embedded:{folder / 'data'}", f"storage.layout={layout}") as running,
    ):
        client = redis.Redis(unix_socket_path=embedded_socket(folder / "data"))
        yield System("one server", running.port, running.pid, [server_pid(client)], [client])


@contextmanager
def cluster(layout: str) -> Iterator[System]:
    """Run a broker on three primaries without replicas."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready")
        command = [sys.executable, "-m", "korvet", "dev-cluster", "--brokers", "1", "--nodes", "3"]
        command += ["--first-port", "0", "--ready-file", str(ready), "--set", f"storage.layout={layout}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            found = processes(process)
            ports = [int(address.rpartition(":")[2]) for address in found["node"]]
            (address,) = found["broker"]
            yield System(
                "three primaries",
                int(address.rpartition(":")[2]),
                found["broker"][address],
                list(found["node"].values()),
                [redis.Redis(port=port) for port in ports],
            )
        finally:
            process.terminate()
            process.wait(START_LIMIT_S)


def processes(command: subprocess.Popen[str]) -> Mapping[str, dict[str, int]]:
    """Read the table that `korvet dev-cluster` prints: addresses and process ids, for "broker" and "node"."""
    found: dict[str, dict[str, int]] = {"broker": {}, "node": {}}
    deadline = time.monotonic() + START_LIMIT_S
    while len(found["node"]) < 3 and time.monotonic() < deadline and command.stdout is not None:
        words = command.stdout.readline().split()
        if words and words[0] in found and words[1].isdigit():
            found[words[0]][words[2]] = int(words[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", nargs="+", choices=sorted(RECORDS), default=sorted(RECORDS))
    options = parser.parse_args()
    # By default the producer stays with one partition for some milliseconds, and so for many thousand records.
    client = evolve(rdkafka.build(), settings=("sticky.partitioning.linger.ms=0",))
    for layout in options.layouts:
        with one_server(layout) as single, cluster(layout) as three:
            systems = {each.name: each for each in (single, three)}
            for number in range(options.rounds):
                print(f"round {number + 1} (load {os.getloadavg()[0]:.1f})")
                for name in in_turn(list(systems), number):
                    systems[name].measure(layout, client, number)


if __name__ == "__main__":
    main()
