"""`python -m bench.archive`: costs of archiving that `bench.spark` does not measure.

- Records of 1 kB into Delta, on `local[2]`, from memory and from the batch layout: megabytes a second.
- The memory of `korvet lake archive --once`, all its processes together, for one million and for ten million records.
  The two should be equal.
- The fixed cost of a micro-batch: the duration of a streaming trigger with a single record.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import trio
from attrs import define, field
from pyspark.sql import SparkSession

from bench.processes import broker, children, resident_mb, temporary_folder
from bench.report import Case, Goal, Results
from bench.spark import create
from korvet.client import Record, open_client
from korvet.lake.location import Location
from korvet.pipeline.archive import Archive, ArchiveOptions
from korvet.pipeline.archive_plan import Wanted
from korvet.pipeline.archive_workers import SparkWorkers
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.options import write_options
from korvet.pipeline.session import spark_session
from korvet.pipeline.topic_writing import write_rows

LARGE_BYTES, LARGE_RECORDS = 1_000, 300_000
SMALL_BYTES, SMALL_RECORDS = 100, 1_000_000
MANY = 10
TRIGGERS = 12
LOOK_S = 0.1

LARGE = Case("records of 1 kB archived", "MB/s")
MEMORY = {
    1: Case("memory of the archive, 1 M records", "MB", higher_is_better=False),
    MANY: Case("memory of the archive, 10 M records", "MB", higher_is_better=False),
}
TRIGGER = Case("a trigger with one record", "s", higher_is_better=False)
GOALS = {
    (LARGE, "memory"): (Goal(150),),
    (LARGE, "batch"): (Goal(150),),
    (TRIGGER, "memory"): (Goal(0.4),),
}


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=["large", "memory", "trigger"])
    parser.add_argument("--to", type=Path, help="a JSON file for every round's figures")
    given = parser.parse_args()
    chosen = given.only or ["large", "memory", "trigger"]
    results = Results({}, GOALS)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        addresses = {name: stack.enter_context(running(name, folder)) for name in ("memory", "batch")}
        if "memory" in chosen:
            measure_memory(results, addresses["batch"], folder, given.rounds)
        if "large" in chosen or "trigger" in chosen:
            spark = spark_session("bench archive", master="local[2]", quick_java=True)
            stack.callback(spark.stop)
            if "large" in chosen:
                measure_large(results, addresses, spark, folder, given.rounds)
            if "trigger" in chosen:
                measure_triggers(results, addresses["memory"], spark, folder)
    print(results.table())
    if given.to:
        results.save(given.to)


# --- Megabytes a second -----------------------------------------------------------------------------------


def measure_large(
    results: Results, addresses: Mapping[str, str], spark: SparkSession, folder: Path, rounds: int
) -> None:
    """Archive a topic into a new table, alternating between brokers. The first round of each is a warm-up."""
    for address in addresses.values():
        fill(address, "large", LARGE_BYTES, LARGE_RECORDS)
    for number in range(rounds + 1):
        for name, address in addresses.items():
            lake = Location.parse(str(folder / f"large-{name}-{number}"))
            connecting = Connecting(address)
            options = ArchiveOptions(connecting, Wanted.parse("large"), lake)
            archive = Archive(options, SparkWorkers(connecting, lambda: spark))
            started = time.perf_counter()
            archive.run()
            took_s = time.perf_counter() - started
            count = archive.progress["large"].records
            if count != LARGE_RECORDS:
                raise RuntimeError(f"{count} of {LARGE_RECORDS} records were archived")
            if number:
                results.add(LARGE, name, count * LARGE_BYTES / took_s / 1e6)


# --- Memory -----------------------------------------------------------------------------------------------


@define
class Watch:
    """The peak memory of a process and all its descendants together, in MB."""

    pid: int
    most_mb: float = 0.0
    _ended: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.most_mb = max(self.most_mb, sum(_resident_mb(pid) for pid in tree(self.pid)))

    def end(self) -> None:
        self._ended.set()


def measure_memory(results: Results, address: str, folder: Path, rounds: int) -> None:
    """Run the command, as a user does, on topics of one and of ten million records."""
    for million in MEMORY:
        fill(address, f"small-{million}", SMALL_BYTES, million * SMALL_RECORDS)
    for number in range(rounds):
        for million, case in MEMORY.items():
            lake = folder / f"memory-{million}-{number}"
            command = [sys.executable, "-m", "korvet", "lake", "archive", "-b", address, "--once"]
            process = subprocess.Popen(
                [*command, "-t", f"small-{million}", "--lake", str(lake)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            watch = Watch(process.pid)
            thread = threading.Thread(target=watch.run)
            thread.start()
            status = process.wait()
            watch.end()
            thread.join()
            if status:
                raise RuntimeError(f"the archive ended with {status}")
            results.add(case, "batch", watch.most_mb)


def tree(pid: int) -> Iterator[int]:
    """Yield a process id and those of all its descendants."""
    yield pid
    for child in children(pid):
        yield from tree(child)


def _resident_mb(pid: int) -> float:
    try:
        return resident_mb(pid)
    except subprocess.CalledProcessError:  # it has just ended
        return 0.0


# --- Triggers ---------------------------------------------------------------------------------------------


def measure_triggers(results: Results, address: str, spark: SparkSession, folder: Path) -> None:
    """Produce one record per trigger; each round's figure is the trigger's duration that Spark reports."""
    trio.run(create, address, "drops")
    rows = (
        spark.readStream.format("korvet")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", "drops")
        .option("startingOffsets", "earliest")
        .load()
    )
    stream = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        for number in range(TRIGGERS + 2):
            trio.run(drop, address, number)
            before = stream.lastProgress["batchId"] if stream.lastProgress else -1
            stream.processAllAvailable()
            progress = stream.lastProgress
            if progress and progress["batchId"] != before and progress["numInputRows"] and number > 1:
                results.add(TRIGGER, "memory", progress["durationMs"]["triggerExecution"] / 1000)
    finally:
        stream.stop()


async def drop(address: str, number: int) -> None:
    async with open_client(address) as client:
        await client.produce("drops", [Record(b"%d" % number)])


# --- Brokers ----------------------------------------------------------------------------------------------


@contextmanager
def running(layout: str, folder: Path) -> Iterator[str]:
    """Run a broker and yield its address."""
    settings: Sequence[str] = ["memory.max.bytes=4000000000"]
    storage = "memory://"
    if layout == "batch":
        storage, settings = f"embedded:{folder / layout}", ["storage.layout=batch", "offset.mapping=dense"]
    with broker(storage, *settings) as started:
        yield f"127.0.0.1:{started.port}"


def fill(address: str, topic: str, record_bytes: int, records: int) -> None:
    """Produce that many distinct records, so that identical values do not compress unusually well."""
    trio.run(create, address, topic)
    rows = 5_000
    options = write_options({"kafka.bootstrap.servers": address, "topic": topic})
    write_rows(options, (lot(number, record_bytes, rows) for number in range(records // rows)))


def lot(number: int, record_bytes: int, rows: int) -> pa.RecordBatch:
    values = [b"%020d" % (number * rows + row) * (record_bytes // 20) for row in range(rows)]
    return pa.record_batch({"value": pa.array(values, pa.binary())})


if __name__ == "__main__":
    main()
