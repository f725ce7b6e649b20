"""What options cost: `python -m bench.options` compares brokers with metrics, ACLs, a quota, TLS and a bare one.

For each storage, a broker of each kind serves the same small requests on the same number of connections, in turns, and
its processor time for each request is compared with that of the bare broker in the same round. A second bare broker
shows what differs by chance. The ratios are medians over all rounds; a busy machine alters them less than a rate.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from attrs import frozen

from bench.latency import one_record
from bench.processes import SYSTEMS, cpu_s, family, storage_of, temporary_folder
from bench.tls import LISTENER_MAP, LISTENERS, keystore_in, tls_port
from conformance.secured_kafka import certify
from tests.processes import KorvetProcess
from tests.support.frames import connect, receive_frame
from tests.support.wire import (
    await_topic,
    create_topic,
    fetch_request,
    fetched,
    frame_of,
    produce_request,
    produced,
)

TOPIC = "options"
PARTITIONS = 12
LIMIT_S = 60.0
BARE = "bare"
METRICS = ("--metrics", "127.0.0.1:0")
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ACL = ("acls", "add", "--topic", TOPIC, "--allow-principal", "User:ANONYMOUS", "--operation", "all")
# A rate that these requests never reach.
QUOTA = ("quotas", "set", "--default-client-id", "producer_byte_rate=1e12", "consumer_byte_rate=1e12")


@frozen
class Kind:
    """The options and settings of a broker, the commands that prepare it, and whether its clients use TLS."""

    options: Sequence[str] = ()
    settings: Mapping[str, str] = {}
    commands: Sequence[Sequence[str]] = ()
    has_tls: bool = False


KINDS = {
    BARE: Kind(),
    "bare again": Kind(),
    "metrics": Kind(options=METRICS),
    "ACLs": Kind(settings=AUTHORIZER, commands=[ACL]),
    "quota": Kind(commands=[QUOTA]),
    "all three": Kind(METRICS, AUTHORIZER, [ACL, QUOTA]),
    "TLS": Kind(has_tls=True),
}


@frozen
class Measured:
    """A running broker, its process and the one of its server, and connections to it."""

    pids: Sequence[int]
    connections: Sequence[socket.socket]

    def us(self, frames: Sequence[bytes], turns: int) -> float:
        """Return the microseconds of processor time that a request takes. All connections send one in each turn."""
        before_s = self.cpu_s()
        for _ in range(turns):
            for connection, frame in zip(self.connections, frames, strict=True):
                connection.sendall(frame)
            for connection in self.connections:
                receive_frame(connection)
        return (self.cpu_s() - before_s) * 1e6 / (turns * len(self.connections))

    def cpu_s(self) -> float:
        """Return the processor time of the broker and its server so far, in seconds."""
        return sum(map(cpu_s, self.pids))


@contextmanager
def running(system: str, kind: Kind, connections: int) -> Iterator[Measured]:
    """Run a broker of that kind, with a topic, and connect to it."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        settings, options = {**kind.settings}, [*kind.options]
        if kind.has_tls:
            certify(folder)
            settings |= LISTENER_MAP | keystore_in(folder)
            options += ["--listeners", LISTENERS]
        process = KorvetProcess(storage_of(system, folder / "data"), settings, options)
        stack.enter_context(process)
        create_topic(process.port, TOPIC, partitions=PARTITIONS, settings=SYSTEMS[system])
        await_topic(process.port, TOPIC, partitions=PARTITIONS)
        for words in kind.commands:
            command = [sys.executable, "-m", "korvet", *words, "-b", process.bootstrap_servers]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        secured = tls_port(process) if kind.has_tls else None
        opened = [
            stack.enter_context(opened_connection(process.port, secured, folder)) for _ in range(connections)
        ]
        yield Measured([*family(process.pid)], opened)


def opened_connection(port: int, secured: int | None, folder: Path) -> socket.socket:
    """Connect to the port, or with TLS to the secured one."""
    if secured is None:
        return connect(("127.0.0.1", port), LIMIT_S)
    trusting = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    return trusting.wrap_socket(connect(("127.0.0.1", secured), LIMIT_S), server_hostname="127.0.0.1")


def requests(measured: Measured) -> dict[str, list[bytes]]:
    """Return the requests of each connection: Produce with one record, and a Fetch of one. Checks an answer of each."""
    numbers = range(len(measured.connections))
    first = measured.connections[0]
    produce = [
        frame_of(produce_request(TOPIC, one_record(), partition=number % PARTITIONS)) for number in numbers
    ]
    first.sendall(produce[0])
    offset = produced(receive_frame(first))
    fetch = frame_of(fetch_request(TOPIC, offset, max_wait_ms=0, max_bytes=1))
    first.sendall(fetch)
    if not fetched(receive_frame(first)):
        sys.exit("A Fetch returned no record.")
    return {"produce": produce, "fetch": [fetch for _ in numbers]}


def measure(system: str, rounds: int, connections: int, turns: int) -> dict[str, dict[str, list[float]]]:
    """Return the processor time of each request, by request and kind of broker; the first round is a warm-up."""
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        brokers = {
            name: stack.enter_context(running(system, kind, connections)) for name, kind in KINDS.items()
        }
        sent = {name: requests(measured) for name, measured in brokers.items()}
        names = list(KINDS)
        for number in range(rounds + 1):
            start = number % len(names)
            for name in names[start:] + names[:start]:
                for request, frames in sent[name].items():
                    took_us = brokers[name].us(frames, turns)
                    if number:
                        found.setdefault(request, {}).setdefault(name, []).append(took_us)
    return found


def report(system: str, found: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """Yield a line for each request and kind of broker."""
    for request, kinds in found.items():
        for name, times in kinds.items():
            ratios = sorted(mine / bare for mine, bare in zip(times, kinds[BARE], strict=True))
            yield (
                f"{system:<8} {request:<8} {name:<12} {median(times):>8.1f}"
                f" {median(ratios):>7.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


def main() -> None:
    """Measure, and print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["memory", "batch"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--connections", type=int, default=24)
    parser.add_argument("--turns", type=int, default=150, help="requests of each connection in a round")
    parser.add_argument("--json", type=Path, help="where every round is kept")
    options = parser.parse_args()
    kept = {}
    print(f"{'storage':<8} {'request':<8} {'broker':<12} {'us':>8} {'of bare':>7}")
    for system in options.systems:
        kept[system] = measure(system, options.rounds, options.connections, options.turns)
        print("\n".join(report(system, kept[system])), flush=True)
    print("load", *(f"{value:.1f}" for value in os.getloadavg()))
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
