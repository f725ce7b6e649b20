"""What is measured, in which order, against which goals.

A *round* takes every system once; rounds follow each other, so that the figures of one round saw the same
machine. Between two figures the embedded server has to be done with what the last one left behind: freeing
memory, rewriting its append-only file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import redis
from attrs import define, field, frozen

import korvet
from bench import floor, latency, rdkafka, times, wire
from bench.processes import Broker, broker, plain_valkey, temporary_folder, valkey_binary
from bench.report import Case, Results

MEMORY = "memory"
BATCH = "Redis, batch layout"
RECORD = "Redis, record layout"
ECHO = "echo"
RAW_BATCH = "raw Redis, batches"
RAW_RECORD = "raw Redis, records"

SETTINGS = {
    MEMORY: {},
    BATCH: {"storage.layout": "batch"},
    RECORD: {"storage.layout": "record"},
}
RAW = {BATCH: RAW_BATCH, RECORD: RAW_RECORD, MEMORY: ECHO}
# Two partitions of five million records are more than the default gigabyte.
MEMORY_SETTING = "memory.max.bytes=4000000000"
SETTLE_LIMIT_S = 30.0


@frozen
class Load:
    """A load, and how many records of it make a figure: about a second's worth."""

    record_bytes: int
    partitions: int
    batch_bytes: int
    records: int
    records_in_record_layout: int

    def records_for(self, system: str) -> int:
        return self.records_in_record_layout if system in {RECORD, RAW_RECORD} else self.records

    def case(self, direction: str) -> Case:
        size = f"{self.record_bytes} B" if self.record_bytes < 1000 else f"{self.record_bytes // 1000} kB"
        batch = "1 MB" if self.batch_bytes == 1_000_000 else f"{self.batch_bytes // 1000} kB"
        return Case(f"{direction}, {size} ×{self.partitions}, {batch} batches", "records/s")


SHORT_LOADS = (
    Load(100, 1, 1_000_000, 1_000_000, 500_000),
    Load(100, 12, 1_000_000, 1_000_000, 500_000),
)
FULL_LOADS = (
    Load(100, 1, 1_000_000, 3_000_000, 1_000_000),
    Load(100, 12, 1_000_000, 3_000_000, 1_000_000),
    Load(100, 1, 16_000, 1_000_000, 500_000),
    Load(100, 12, 16_000, 1_000_000, 500_000),
    Load(1_000, 1, 1_000_000, 400_000, 200_000),
    Load(1_000, 12, 1_000_000, 400_000, 200_000),
)

PRODUCED_P50 = Case("one record acknowledged, p50", "us", higher_is_better=False)
PRODUCED_P99 = Case("one record acknowledged, p99", "us", higher_is_better=False)
DELIVERED_P50 = Case("produced to consumed, p50", "us", higher_is_better=False)
DELIVERED_P99 = Case("produced to consumed, p99", "us", higher_is_better=False)
START = Case("start to first answer", "s", higher_is_better=False)
IDLE = Case("resident memory, idle", "MB", higher_is_better=False)
LOADED = Case("resident memory, after load", "MB", higher_is_better=False)
SEEK_P50 = Case("ListOffsets by time, p50", "us", higher_is_better=False)
SEEK_P99 = Case("ListOffsets by time, p99", "us", higher_is_better=False)
SEEK_2100_P50 = Case("the same, first record of 2100, p50", "us", higher_is_better=False)
SEEK_2100_P99 = Case("the same, first record of 2100, p99", "us", higher_is_better=False)

# On 2 cores with client, broker and Redis together: 0.7 of what docs/benchmarks.md aims at in the end.
GOALS = {
    (SHORT_LOADS[0].case("in"), MEMORY): 1_000_000,
    (SHORT_LOADS[0].case("out"), MEMORY): 2_000_000,
    (SHORT_LOADS[0].case("in"), BATCH): 700_000,
    (SHORT_LOADS[0].case("out"), BATCH): 700_000,
    (SHORT_LOADS[0].case("in"), RECORD): 250_000,
    (SHORT_LOADS[0].case("out"), RECORD): 400_000,
    (PRODUCED_P50, MEMORY): 200,
    (START, MEMORY): 0.6,
    (START, BATCH): 0.6,
    (IDLE, MEMORY): 60,
    (IDLE, BATCH): 60,
    (SEEK_P50, MEMORY): 2_000,
    (SEEK_P50, BATCH): 2_000,
    (SEEK_P50, RECORD): 2_000,
    (SEEK_2100_P50, MEMORY): 2_000,
    (SEEK_2100_P50, BATCH): 2_000,
    (SEEK_2100_P50, RECORD): 2_000,
}


@define
class Bench:
    """The running systems, and what was measured of them."""

    results: Results
    client: rdkafka.RdkafkaPerformance
    memory: Broker
    embedded: Broker
    embedded_folder: Path
    raw: floor.RawRedis
    echo_port: int
    _names: Iterator[int] = field(factory=count)

    def port(self, system: str) -> int:
        return self.memory.port if system == MEMORY else self.embedded.port

    @contextmanager
    def topic(self, system: str, *, partitions: int = 1) -> Iterator[str]:
        """A new topic; afterwards it is deleted, and everything quiet again."""
        name = f"bench-{next(self._names)}"
        wire.create_topic(self.port(system), name, partitions=partitions, settings=SETTINGS[system])
        yield name
        # Not after an error: the brokers end then, and with them all topics.
        wire.delete_topic(self.port(system), name)
        self.settle()

    @contextmanager
    def cpu(self, case: Case, system: str, records: int) -> Iterator[None]:
        """Note what broker and server use meanwhile: a figure that a busy machine alters less."""
        running = self.memory if system == MEMORY else self.embedded
        before = running.cpu_s()
        yield
        used_s = running.cpu_s() - before
        if used_s:
            of_it = Case(f"processor time {case.name}", "us/record", higher_is_better=False)
            self.results.add(of_it, system, used_s / records * 1e6)

    def settle(self) -> None:
        """Return once the embedded server has freed and rewritten what it had to."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        with redis.Redis(unix_socket_path=embedded_socket(self.embedded_folder)) as server:
            while time.monotonic() < deadline:
                info = server.info()
                if not info["lazyfree_pending_objects"] and not info["aof_rewrite_in_progress"]:
                    return
                time.sleep(0.02)  # the server is what we wait for, and it has no event for it


def embedded_socket(folder: Path) -> str:
    """Where an embedded server listens: in its folder, or where that folder's file says."""
    elsewhere = folder / "socket"
    return elsewhere.read_text().strip() if elsewhere.is_file() else str(folder / "redis.sock")


def throughput(bench: Bench, load: Load) -> None:
    """One round of a load: korvet in and out on every storage, then the floors."""
    into, out = load.case("in"), load.case("out")
    for system in SETTINGS:
        port, records = bench.port(system), load.records_for(system)
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
    if (load.partitions, load.batch_bytes) == (1, 1_000_000):
        floors(bench, load)


def floors(bench: Bench, load: Load) -> None:
    """The same bytes without a broker."""
    into, out, size = load.case("in"), load.case("out"), load.record_bytes
    echoed = floor.echo(bench.echo_port, records=load.records, record_bytes=size)
    bench.results.add(into, ECHO, echoed)
    bench.results.add(out, ECHO, echoed)
    bench.results.add(into, RAW_BATCH, bench.raw.write_batches(records=load.records, record_bytes=size))
    bench.results.add(out, RAW_BATCH, bench.raw.read_batches(records=load.records, record_bytes=size))
    records = load.records_for(RAW_RECORD)
    bench.results.add(into, RAW_RECORD, bench.raw.write_records(records=records, record_bytes=size))
    bench.results.add(out, RAW_RECORD, bench.raw.read_records(records=records))
    bench.raw.forget()


def latencies(bench: Bench, repetitions: int) -> None:
    """One round of one-record requests."""
    for system in SETTINGS:
        port = bench.port(system)
        with bench.topic(system) as topic:
            produced = latency.produce_round_trips(port, topic, repetitions)
            delivered = latency.delivery(port, topic, repetitions)
        bench.results.add(PRODUCED_P50, system, produced.p50_us)
        bench.results.add(PRODUCED_P99, system, produced.p99_us)
        bench.results.add(DELIVERED_P50, system, delivered.p50_us)
        bench.results.add(DELIVERED_P99, system, delivered.p99_us)


def seeks(bench: Bench, records: int, rounds: int) -> None:
    """Fill each storage once, with and without a first record of the year 2100, then ask in turns."""
    with ExitStack() as stack:
        filled = []
        for system in SETTINGS:
            for first_in_2100 in (False, True):
                topic = stack.enter_context(bench.topic(system))
                port = bench.port(system)
                content = times.fill(port, topic, records=records, first_in_2100=first_in_2100)
                filled.append((system, topic, content))
        bench.settle()
        for seed in range(rounds):
            for system, topic, content in filled:
                found = times.seek(bench.port(system), topic, content, count=200, seed=seed)
                plain = content.offset_of_2100 is None
                bench.results.add(SEEK_P50 if plain else SEEK_2100_P50, system, found.p50_us)
                bench.results.add(SEEK_P99 if plain else SEEK_2100_P99, system, found.p99_us)


def starts(results: Results) -> None:
    """One round of starting a broker on nothing and on a folder of its own, asking it once, stopping it."""
    with temporary_folder() as folder:
        for system, storage in ((MEMORY, "memory://"), (BATCH, f"embedded:{folder}/data")):
            with broker(storage) as running:
                wire.first_answer(running.port)
                results.add(START, system, time.perf_counter() - running.started)
                results.add(IDLE, system, running.resident_mb())


def resident_after_load(bench: Bench) -> None:
    bench.results.add(LOADED, MEMORY, bench.memory.resident_mb())
    bench.results.add(LOADED, BATCH, bench.embedded.resident_mb())


@contextmanager
def running(results: Results, client: rdkafka.RdkafkaPerformance) -> Iterator[Bench]:
    """Everything that takes part, started; and stopped at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder()) / "data"
        memory = stack.enter_context(broker("memory://", MEMORY_SETTING))
        embedded = stack.enter_context(broker(f"embedded:{folder}"))
        raw = floor.RawRedis(stack.enter_context(plain_valkey()))
        yield Bench(
            results=results,
            client=client,
            memory=memory,
            embedded=embedded,
            embedded_folder=folder,
            raw=raw,
            echo_port=stack.enter_context(floor.echo_server()),
        )


def measure(bench: Bench, options: argparse.Namespace) -> None:
    """All sections that were asked for."""
    if "throughput" in options.only:
        for load in FULL_LOADS if options.full else SHORT_LOADS:
            for _ in range(options.rounds):
                throughput(bench, load)
        resident_after_load(bench)
    if "latency" in options.only:
        for _ in range(options.rounds):
            latencies(bench, 5_000 if options.full else 1_000)
    if "start" in options.only:
        for _ in range(options.rounds):
            starts(bench.results)
    if "times" in options.only:
        seeks(bench, options.seek_records, options.rounds)


def about(client: rdkafka.RdkafkaPerformance) -> dict[str, str]:
    """Machine, versions, date."""
    valkey = subprocess.run([valkey_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "korvet": korvet.__version__,
        "python": platform.python_version(),
        "server": " ".join(valkey.split()[:3]),
        "client": f"rdkafka_performance, librdkafka {client.library_version}",
    }


def cpu() -> str:
    """The processor's name, where the system says it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


SECTIONS = ("throughput", "latency", "start", "times")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure korvet beside the floor.")
    parser.add_argument("--full", action="store_true", help="more loads and larger ones; half an hour")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default 5)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to run")
    parser.add_argument("--seek-records", type=int, default=5_000_000, help="records for ListOffsets by time")
    parser.add_argument(
        "--json", type=Path, help="where every round is kept (default bench/results/<date>.json)"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, save every round."""
    options = arguments()
    try:
        client = rdkafka.build()
    except rdkafka.ClientUnavailable as error:
        sys.exit(str(error))
    floors_of = {
        load.case(direction): RAW for load in (*SHORT_LOADS, *FULL_LOADS) for direction in ("in", "out")
    }
    results = Results(about=about(client), goals=GOALS, floors=floors_of)
    for name, value in results.about.items():
        print(f"{name + ':':<9} {value}")
    started = time.monotonic()
    path = (
        options.json or Path(__file__).parent / "results" / f"{results.about['date'].replace(':', '')}.json"
    )
    try:
        with running(results, client) as bench:
            measure(bench, options)
    finally:
        results.save(path)  # also what there was before something failed
    print(f"\n{results.table()}\n\n{time.monotonic() - started:.0f} s; every round: {path}")
