"""The measurements and their order.

A *round* measures every system once. Rounds begin with a different system each, and the figures of one round were taken
under the same conditions. Before each figure, the embedded servers must have finished what the last one caused: freeing
memory, rewriting their append-only files. Apache Kafka is warmed up before its figures count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

import redis
from attrs import define, evolve, field

from bench import cold, connections, floor, latency, rdkafka, times, tls, transactions
from bench.cases import (
    BATCH,
    BROKERS,
    COLD_P50,
    COLD_P99,
    COMMITTED,
    DELIVERED_P50,
    DELIVERED_P99,
    ECHO,
    FULL_LOADS,
    IDLE,
    IDLE_SERVER,
    JAVA_LOADS,
    KAFKA,
    LOADED,
    LOADED_SERVER,
    MEMORY,
    PRODUCED_P50,
    PRODUCED_P99,
    RAW_BATCH,
    RAW_RECORD,
    RECORD,
    REQUEST_P99,
    REQUESTS,
    SEEK_2100_P50,
    SEEK_2100_P99,
    SEEK_P50,
    SEEK_P99,
    SHORT_LOADS,
    START,
    TLS_LOAD,
    TRANSACTION_P50,
    TRANSACTIONS,
    TWO,
    Load,
)
from bench.kafka import apache_kafka
from bench.processes import Broker, broker, plain_valkey, temporary_folder
from bench.report import Case, Results
from tests.support import wire

LAYOUTS = {BATCH: "batch", RECORD: "record", TWO: "batch"}
# Two partitions of five million records exceed the default of one gigabyte.
MEMORY_SETTING = "memory.max.bytes=4000000000"
SETTLE_LIMIT_S = 30.0
CONNECTIONS = 100
CONNECTIONS_PARTITIONS = 12
# Runs of a load on Kafka before it counts: Java compiles code that runs often.
WARM_UPS = 2

SECTIONS = ("throughput", "java", "latency", "transactions", "connections", "cold", "start", "tls", "times")
WITH_ALL_RUNNING = {"throughput", "java", "latency", "transactions", "connections", "times"}
SHORT_SECTIONS = ("throughput", "latency", "transactions", "connections", "cold", "start", "tls")
TRANSACTION_PARTITIONS = 3


class Client(Protocol):
    """A client that produces and consumes. Both methods return records per second, and raise WrongCount."""

    def produce(
        self, port: int, topic: str, *, partitions: int, records: int, record_bytes: int, batch_bytes: int
    ) -> float: ...

    def consume(
        self, port: int, topic: str, *, partitions: int, records: int, record_bytes: int
    ) -> float: ...


@define
class Bench:
    """The running systems and their results."""

    results: Results
    client: Client
    brokers: Mapping[str, Broker]
    folders: Mapping[str, Path]  # of systems with an embedded server
    raw: floor.RawRedis
    echo_port: int
    _names: Iterator[int] = field(factory=count)

    def in_turn(self, number: int) -> list[str]:
        """Return the systems in the order of this round, without the one with two processes."""
        # A client has one connection, which one process serves, so a second process makes no difference.
        return in_turn([system for system in self.brokers if system != TWO], number)

    @contextmanager
    def topic(self, system: str, *, partitions: int = 1) -> Iterator[str]:
        """Create a topic for the block; afterwards delete it and wait until the servers are idle."""
        name, port = f"bench-{next(self._names)}", self.brokers[system].port
        wire.create_topic(port, name, partitions=partitions)
        wire.await_topic(port, name, partitions=partitions)
        yield name
        # Not after an error, which ends the brokers and their topics.
        wire.delete_topic(port, name)
        self.settle()

    @contextmanager
    def cpu(self, case: Case, system: str, records: int) -> Iterator[None]:
        """Add the processor time of broker and server in the block: a busy machine affects it less than wall time."""
        running = self.brokers[system]
        before = running.cpu_s()
        yield
        if used_s := running.cpu_s() - before:
            self.results.add(case.processor_time(), system, used_s / records * 1e6)

    def settle(self) -> None:
        """Return once the embedded servers have freed memory and rewritten files."""
        for folder in self.folders.values():
            settle(folder)


def in_turn(systems: Sequence[str], number: int) -> list[str]:
    """Return the systems in the order of this round: each round begins with a different one."""
    start = number % len(systems)
    return [*systems[start:], *systems[:start]]


def settle(folder: Path, limit_s: float = SETTLE_LIMIT_S) -> None:
    """Return once the embedded server in `folder` is idle, or after `limit_s`."""
    deadline = time.monotonic() + limit_s
    with redis.Redis(unix_socket_path=embedded_socket(folder)) as server:
        while time.monotonic() < deadline:
            info = server.info()
            if not info["lazyfree_pending_objects"] and not info["aof_rewrite_in_progress"]:
                return
            time.sleep(0.02)  # the server sends no event for this


def embedded_socket(folder: Path) -> str:
    """Return the socket of an embedded server: in its folder, or the path in the folder's file `socket`."""
    elsewhere = folder / "socket"
    return elsewhere.read_text().strip() if elsewhere.is_file() else str(folder / "redis.sock")


# --- Throughput -------------------------------------------------------------------------------------------


def throughput(bench: Bench, load: Load, number: int) -> None:
    """Measure one round of a load: every broker in and out, then the floors."""
    for system in bench.in_turn(number):
        in_and_out(bench, load, system)
    if not load.client:
        floors(bench, load)


def in_and_out(bench: Bench, load: Load, system: str) -> None:
    """Produce a load into a new topic, and consume it."""
    into, out = load.case("in"), load.case("out")
    port, records = bench.brokers[system].port, load.records_for(system)
    with bench.topic(system, partitions=load.partitions) as topic:
        with bench.cpu(into, system, records):
            into_rate = bench.client.produce(
                port,
                topic,
                partitions=load.partitions,
                records=records,
                record_bytes=load.record_bytes,
                batch_bytes=load.batch_bytes,
            )
        bench.results.add(into, system, into_rate)
        with bench.cpu(out, system, records):
            out_rate = bench.client.consume(
                port, topic, partitions=load.partitions, records=records, record_bytes=load.record_bytes
            )
        bench.results.add(out, system, out_rate)


def floors(bench: Bench, load: Load) -> None:
    """Measure the same bytes without a broker."""
    into, out, size, records = load.case("in"), load.case("out"), load.record_bytes, load.records
    echoed = floor.echo(bench.echo_port, records=records, record_bytes=size)
    bench.results.add(into, ECHO, echoed)
    bench.results.add(out, ECHO, echoed)
    for case, work in ((into, bench.raw.write_batches), (out, bench.raw.read_batches)):
        rate = work(
            records=records, record_bytes=size, batch_bytes=load.batch_bytes, partitions=load.partitions
        )
        bench.results.add(case, RAW_BATCH, rate)
    if (load.partitions, load.batch_bytes, size) == (1, 1_000_000, 100):
        records = load.records_for(RAW_RECORD)
        bench.results.add(into, RAW_RECORD, bench.raw.write_records(records=records, record_bytes=size))
        bench.results.add(out, RAW_RECORD, bench.raw.read_records(records=records))
    bench.raw.forget(partitions=load.partitions)


def loads(bench: Bench, loads: Sequence[Load], rounds: int) -> None:
    """Measure all rounds of each load."""
    for load in loads:
        for _ in range(WARM_UPS):
            warm_up(bench, load)
        for number in range(rounds):
            throughput(bench, load, number)


def warm_up(bench: Bench, load: Load) -> None:
    """Run a load on Kafka once without counting it."""
    if KAFKA in bench.brokers:
        in_and_out(evolve(bench, results=bench.results.quietly()), load, KAFKA)


# --- Requests ---------------------------------------------------------------------------------------------


def latencies(bench: Bench, repetitions: int, number: int) -> None:
    """Measure one round of one-record requests."""
    for system in bench.in_turn(number):
        port = bench.brokers[system].port
        with bench.topic(system) as topic:
            produced = latency.produce_round_trips(port, topic, repetitions)
            delivered = latency.delivery(port, topic, repetitions)
        bench.results.add(PRODUCED_P50, system, produced.p50_us)
        bench.results.add(PRODUCED_P99, system, produced.p99_us)
        bench.results.add(DELIVERED_P50, system, delivered.p50_us)
        bench.results.add(DELIVERED_P99, system, delivered.p99_us)


def in_transactions(bench: Bench, count: int, number: int) -> None:
    """Measure one round of transactions, and of reading what is committed."""
    for system in bench.in_turn(number):
        port = bench.brokers[system].port
        with bench.topic(system, partitions=TRANSACTION_PARTITIONS) as topic:
            rate = transactions.rate(port, topic, partitions=TRANSACTION_PARTITIONS, count=count)
            bench.results.add(TRANSACTIONS, system, rate)
            bench.results.add(TRANSACTION_P50, system, transactions.round_trips_us(port, topic, count))
        with bench.topic(system) as topic:
            ratio = transactions.committed_by_uncommitted(port, topic, 5 * count)
            bench.results.add(COMMITTED, system, ratio)


def many_connections(bench: Bench, client: Client, seconds: float, number: int) -> None:
    """Measure one round of many concurrent producers, then consume what they produced."""
    for system in in_turn(list(bench.brokers), number):
        running = bench.brokers[system]
        with bench.topic(system, partitions=CONNECTIONS_PARTITIONS) as topic:
            before = running.cpu_s()
            answered = connections.requests(
                running.port,
                topic,
                partitions=CONNECTIONS_PARTITIONS,
                connections=CONNECTIONS,
                seconds=seconds,
            )
            if used_s := running.cpu_s() - before:
                bench.results.add(REQUESTS.processor_time(), system, used_s / answered.requests * 1e6)
            bench.results.add(REQUESTS, system, answered.rate)
            bench.results.add(REQUEST_P99, system, answered.p99_us)
            client.consume(
                running.port,
                topic,
                partitions=CONNECTIONS_PARTITIONS,
                records=answered.requests,
                record_bytes=100,
            )


def seeks(bench: Bench, records: int, rounds: int) -> None:
    """Fill each storage once with and without a first record of the year 2100, then measure, alternating."""
    with ExitStack() as stack:
        filled = []
        for system in (MEMORY, BATCH, RECORD):
            for first_in_2100 in (False, True):
                topic = stack.enter_context(bench.topic(system))
                port = bench.brokers[system].port
                content = times.fill(port, topic, records=records, first_in_2100=first_in_2100)
                filled.append((system, topic, content))
        bench.settle()
        for seed in range(rounds):
            for system, topic, content in filled:
                found = times.seek(bench.brokers[system].port, topic, content, count=200, seed=seed)
                plain = content.offset_of_2100 is None
                bench.results.add(SEEK_P50 if plain else SEEK_2100_P50, system, found.p50_us)
                bench.results.add(SEEK_P99 if plain else SEEK_2100_P99, system, found.p99_us)


def cold_fetches(results: Results, rounds: int) -> None:
    """Fetch archived records through the broker."""
    with temporary_folder() as folder, cold.archived(folder / "lake") as archived:
        for _ in range(rounds):
            found = archived.fetches(200)
            results.add(COLD_P50, MEMORY, found.p50_us / 1000)
            results.add(COLD_P99, MEMORY, found.p99_us / 1000)


def encrypted(results: Results, rounds: int) -> None:
    """Measure all rounds over TLS."""
    load = {
        "records": TLS_LOAD.records,
        "record_bytes": TLS_LOAD.record_bytes,
        "batch_bytes": TLS_LOAD.batch_bytes,
    }
    with tls.systems(rdkafka.build(), MEMORY, KAFKA) as running:
        for system, produced, consumed in tls.rounds(running, rounds, WARM_UPS, load):
            results.add(TLS_LOAD.case("in"), system, produced)
            results.add(TLS_LOAD.case("out"), system, consumed)


# --- Starting, memory -------------------------------------------------------------------------------------


@contextmanager
def started(system: str, folder: Path) -> Iterator[Broker]:
    """Run one of the systems; an embedded server has its data in `folder`."""
    if system == KAFKA:
        opened = apache_kafka()
    elif system == MEMORY:
        opened = broker("memory://", MEMORY_SETTING)
    else:
        several = ("processes=2",) if system == TWO else ()
        opened = broker(f"embedded:{folder}", f"storage.layout={LAYOUTS[system]}", *several)
    with opened as running:
        yield running


def starts(results: Results, systems: Sequence[str]) -> None:
    """Measure one round of starting each broker on empty storage, sending it a request, and stopping it."""
    for system in systems:
        with temporary_folder() as folder, started(system, folder / "data") as running:
            wire.first_answer(running.port)
            results.add(START, system, time.perf_counter() - running.started)
            resident(results, system, running, IDLE, IDLE_SERVER)


def resident_after_load(bench: Bench) -> None:
    for system, running in bench.brokers.items():
        resident(bench.results, system, running, LOADED, LOADED_SERVER)


def resident(results: Results, system: str, running: Broker, own: Case, servers: Case) -> None:
    """Add the memory of a broker, and of the server that it started."""
    results.add(own, system, running.resident_mb())
    if system in LAYOUTS:
        results.add(servers, system, running.server_resident_mb())


# --- All of it --------------------------------------------------------------------------------------------


@contextmanager
def everything(results: Results, client: Client, systems: Sequence[str]) -> Iterator[Bench]:
    """Run all systems and floors, and stop them on exit."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        folders = {system: folder / str(number) for number, system in enumerate(systems) if system in LAYOUTS}
        yield Bench(
            results=results,
            client=client,
            brokers={
                system: stack.enter_context(started(system, folders.get(system, folder)))
                for system in BROKERS
                if system in systems
            },
            folders=folders,
            raw=floor.RawRedis(stack.enter_context(plain_valkey())),
            echo_port=stack.enter_context(floor.echo_server()),
        )


def measure(results: Results, clients: Mapping[str, Client], options: argparse.Namespace) -> None:
    """Run the requested sections; `clients` are those of the sections throughput and java."""
    sections, rounds = set(options.only), options.rounds
    if sections & WITH_ALL_RUNNING:
        with everything(results, clients["throughput"], options.systems) as bench:
            measure_running(bench, clients["java"], options)
    if "cold" in sections:
        cold_fetches(results, rounds)
    if "tls" in sections and {MEMORY, KAFKA} <= set(options.systems):
        encrypted(results, rounds)
    if "start" in sections:
        for number in range(rounds):
            starts(results, in_turn(options.systems, number))


def measure_running(bench: Bench, java: Client, options: argparse.Namespace) -> None:
    """Run the sections that use all running brokers."""
    rounds, sections = options.rounds, options.only
    if "throughput" in sections:
        loads(bench, FULL_LOADS if options.full else SHORT_LOADS, rounds)
    if "java" in sections:
        loads(evolve(bench, client=java), JAVA_LOADS, rounds)
    if "throughput" in sections or "java" in sections:
        resident_after_load(bench)
    quiet = evolve(bench, results=bench.results.quietly())
    if "latency" in sections:
        repetitions = 5_000 if options.full else 1_000
        latencies(quiet, repetitions, 0)
        for number in range(rounds):
            latencies(bench, repetitions, number)
    if "transactions" in sections:
        count = 1_000 if options.full else 200
        in_transactions(quiet, count, 0)
        for number in range(rounds):
            in_transactions(bench, count, number)
    if "connections" in sections:
        seconds = 5.0 if options.full else 1.5
        many_connections(quiet, bench.client, seconds, 0)
        for number in range(rounds):
            many_connections(bench, bench.client, seconds, number)
    if "times" in sections:
        seeks(bench, options.seek_records, rounds)
