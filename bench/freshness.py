"""`python -m bench.freshness`: the time from producing a record to the commit of the tables that have it.

A broker in the batch layout has two topics of JSON records with six partitions each, into all of which a producer
writes ten times a second. `korvet lake run` archives both and decodes them to typed tables, as a user starts it. The
figures are percentiles over the records of each kind of table. A record's time ends with the modification time of the
log entry that names its file. Records of before the first commit, which waited for the start of Spark, do not count.
The goals are a p99 of `--lag` and five seconds, and at most 48 files of a partition and date at any time.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import trio

from bench.processes import broker, temporary_folder, tree_cpu_s
from korvet.client import Client, Record, open_client

TOPICS = ("orders", "payments")
PARTITIONS = 6
RECORDS = 10  # in each partition, each time
EVERY_S = 0.1
WAIT_S = 5.0
STOP_LIMIT_S = 60.0
#: The tables by the names of their folders, with the column that has the time of the record.
TABLES = {"lake": "timestamp", "lake-typed": "_timestamp"}


def main() -> None:
    """Measure, and print a line for each kind of table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lag", type=float, default=5.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long records are produced")
    given = parser.parse_args()
    storage = ("storage.layout=batch", "offset.mapping=dense")
    with temporary_folder() as folder, broker(f"embedded:{folder}/data", *storage) as started:
        address = f"127.0.0.1:{started.port}"
        trio.run(create, address)
        with running(address, folder, given.lag) as process:
            produced = trio.run(produce, address, given.seconds)
            time.sleep(given.lag + WAIT_S)  # for the last records' commits
            used_s, broker_s = tree_cpu_s(process.pid), started.cpu_s()
        print(f"{produced:,} records; processor: run {used_s:.1f} s, broker and its server {broker_s:.1f} s")
        for name, column in TABLES.items():
            tables = [folder / name / topic for topic in TOPICS]
            waits = [wait for table in tables for wait in waits_of(table, column)]
            of_100 = quantiles(waits, n=100)
            print(
                f"{name:<10} {len(waits):>9,} records  p50 {of_100[49]:6.2f} s  p99 {of_100[98]:6.2f} s (goal"
                f" {given.lag + WAIT_S:g})  most {max(waits):6.2f} s; {max(map(most_files, tables))} files (goal 48)"
            )


async def create(address: str) -> None:
    async with open_client(address) as client:
        for topic in TOPICS:
            await client.create_topic(topic, partitions=PARTITIONS)


async def produce(address: str, seconds: float) -> int:
    """Write records for that time; return their number."""
    rounds = round(seconds / EVERY_S)
    async with open_client(address) as client:
        began = trio.current_time()
        for number in range(rounds):
            await trio.sleep_until(began + number * EVERY_S)
            for topic in TOPICS:
                await produce_once(client, topic, number)
    return rounds * len(TOPICS) * PARTITIONS * RECORDS


async def produce_once(client: Client, topic: str, number: int) -> None:
    values = [{"id": number * RECORDS + each, "item": "book", "price": each / 4} for each in range(RECORDS)]
    await client.produce(
        topic,
        [
            Record(json.dumps(value).encode(), partition=partition)
            for partition in range(PARTITIONS)
            for value in values
        ],
    )


@contextmanager
def running(address: str, folder: Path, lag_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run `korvet lake run` until the end of the block."""
    file = folder / "lake.toml"
    sections = "".join(f'[topics.{topic}]\ndecode = "json"\n' for topic in TOPICS)
    file.write_text(f'lake = "{folder}/lake"\n[defaults]\nlag = "{lag_s}s"\n{sections}')
    with (folder / "run.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "korvet", "lake", "run", "-b", address, "--config", str(file)],
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_LIMIT_S)
    if process.returncode:
        raise RuntimeError((folder / "run.txt").read_text()[-2000:])


def entries_of(table: Path) -> Iterator[tuple[float, list[Any]]]:
    """Yield the time of each commit, and its actions."""
    for entry in sorted((table / "_delta_log").glob("*.json")):
        yield entry.stat().st_mtime, [json.loads(line) for line in entry.read_text().splitlines()]


def waits_of(table: Path, column: str) -> Iterator[float]:
    """Yield the seconds from each record's time to its commit, without those of before the first commit."""
    first_s = None
    for committed_s, actions in entries_of(table):
        added = [action["add"] for action in actions if "add" in action]
        files = [add["path"] for add in added if add["dataChange"]]  # not those of joins
        for file in files:
            times = pq.ParquetFile(table / file).read(columns=[column]).column(0)
            times_s = pc.divide(pc.cast(times.cast("timestamp[ms]"), "int64"), 1000.0).to_pylist()
            if first_s is not None:
                yield from (committed_s - each for each in times_s if each > first_s)
        if files and first_s is None:
            first_s = committed_s


def most_files(table: Path) -> int:
    """Return the largest number of files that a partition of the table has had."""
    partitions: dict[str, str] = {}  # by file
    most = 0
    for _, actions in entries_of(table):
        for action in actions:
            if "remove" in action:
                del partitions[action["remove"]["path"]]
            elif "add" in action:
                add = action["add"]
                partition = json.loads(add["stats"])["minValues"].get(
                    "partition"
                )  # an archive's file has one
                partitions[add["path"]] = f"{partition} {add['partitionValues']}"
        most = max([most, *Counter(partitions.values()).values()])
    return most


if __name__ == "__main__":
    main()
