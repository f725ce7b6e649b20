"""The command line of `make bench`: options, the table, the JSON file, the page in docs/."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import korvet
from bench import kafka, rdkafka
from bench.cases import BROKERS, FLOORS, KAFKA, goals
from bench.java import JavaTools
from bench.page import write_results
from bench.processes import DidNotStart, valkey_binary
from bench.programs import ClientUnavailable
from bench.report import Results
from bench.run import SECTIONS, SHORT_SECTIONS, measure
from korvet.storage.embedded.allocator import environment

RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure korvet beside Apache Kafka and the floor."
    )
    parser.add_argument(
        "--full", action="store_true", help="all sections, more loads and larger ones; half an hour"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default 5)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections to run")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=BROKERS,
        default=BROKERS,
        metavar="SYSTEM",
        help=f"brokers to measure: {', '.join(repr(system) for system in BROKERS)} (default all)",
    )
    parser.add_argument("--seek-records", type=int, default=5_000_000, help="records for ListOffsets by time")
    parser.add_argument(
        "--json", type=Path, help="where every round is kept (default bench/results/<date>.json)"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="put the tables into docs/benchmarks.md as well"
    )
    parser.add_argument(
        "--from",
        type=Path,
        dest="saved",
        metavar="JSON",
        help="measure nothing: show (and write) what an earlier run has kept",
    )
    options = parser.parse_args()
    if options.only is None:
        options.only = SECTIONS if options.full else SHORT_SECTIONS
    return options


def about(client: rdkafka.RdkafkaPerformance, options: argparse.Namespace) -> dict[str, str]:
    """Return machine, versions and date."""
    valkey = subprocess.run([valkey_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    described = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        **machine(),
        "korvet": korvet.__version__,
        "server": " ".join(valkey.split()[:3]) + f", {allocator()}",
        "client": f"rdkafka_performance, librdkafka {client.library_version}",
        "command": f"python -m bench{' --full' if options.full else ''} --rounds {options.rounds}",
    }
    if KAFKA in options.systems:
        described["peer"] = f"Apache Kafka {kafka.VERSION}, {java_version()}"
    return described


def allocator() -> str:
    """Return the memory allocator of the private servers."""
    preloaded = environment().get("LD_PRELOAD")
    return "the C library's allocator" if preloaded is None else Path(preloaded).name


def machine() -> dict[str, str]:
    """Return the processor, and the Python version that korvet runs on."""
    return {
        "machine": f"{cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def cpu() -> str:
    """Return the name of the processor, if the system provides it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def java_version() -> str:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return said.partition("\n")[0].replace('"', "").replace("version", "").replace("  ", " ")


def main() -> None:
    """Measure, print the table, and save every round."""
    options = arguments()
    empty = Results(about={}, goals=goals(), floors=FLOORS, peer=KAFKA)
    if options.saved:
        show(empty.load(options.saved), options)
        return
    try:
        client = rdkafka.build()
        measured = Results(about(client, options), goals(), FLOORS, KAFKA)
        for name, value in measured.about.items():
            print(f"{name + ':':<9} {value}")
        path = options.json or RESULTS / f"{measured.about['date'].replace(':', '')}.json"
        started = time.monotonic()
        try:
            measure(measured, {"throughput": client, "java": JavaTools()}, options)
        finally:
            measured.save(path)  # also after a failure
    except (ClientUnavailable, DidNotStart) as error:
        sys.exit(str(error))
    show(measured, options)
    print(f"\n{time.monotonic() - started:.0f} s; every round: {path}")


def show(results: Results, options: argparse.Namespace) -> None:
    """Print the table, and write the page if requested."""
    print(f"\n{results.table()}")
    if options.write_docs:
        write_results(results)
