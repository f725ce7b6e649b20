"""`python -m bench.spark`: read and write topics with Spark, with our data source and with Spark's own.

A million records of 100 bytes in four partitions, on `local[2]`: read all columns and discard them, sum the lengths of
the values, write all columns to Parquet, archive everything to a new Delta table (Spark's connector, which cannot do
this, writes Parquet once more), and write Parquet to a topic. Each data source has its own session. Both run all the
time, their rounds alternate, and the first round of each is a warm-up. With `--peer`, the other data source is Spark
4.0's Kafka connector on Apache Kafka; both are downloaded at their first use. Processor time is that of Spark, its
workers and the broker together; on a busy machine it is more reliable than rates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import trio
from attrs import frozen

from bench.processes import broker, temporary_folder, tree_cpu_s
from bench.report import Case, Goal, Results
from korvet.client import open_client
from korvet.pipeline.options import write_options
from korvet.pipeline.session import SETTINGS
from korvet.pipeline.topic_writing import write_rows

RECORDS = 1_000_000
RECORD_BYTES = 100
PARTITIONS = 4
ROWS = 20_000
PROGRAM = Path(__file__).with_name("spark_program.py")

CASES = {
    "columns": Case("topic to DataFrame, all columns", "records/s"),
    "lengths": Case("topic to DataFrame, sum of lengths", "records/s"),
    "parquet": Case("topic to Parquet", "records/s"),
    "delta": Case("topic archived to Delta; the other: to Parquet", "records/s"),
    "topic": Case("Parquet to topic", "records/s"),
}
USED = {case: Case(f"{case.name}, processor", "us/record", higher_is_better=False) for case in CASES.values()}
#: Goals as multiples of Spark's own connector on Apache Kafka, by layout.
GOALS = {
    "columns": {"memory": 3.0, "batch": 3.0},
    "lengths": {"memory": 2.5, "batch": 2.5},
    "delta": {"memory": 4.5, "batch": 4.5},
    "topic": {"memory": 3.5, "batch": 2.0},
}
PEER = "Spark 4.0's own, Apache Kafka"


class WrongCount(Exception):  # noqa: N818  the message has the counts
    """A case did not process every record."""


class Session:
    """A Spark session with one data source, in a separate process."""

    def __init__(self, python: Path, source: str, settings: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [python, PROGRAM, source, json.dumps(settings), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        )

    def measure(self, case: str, address: str, topic: str) -> float:
        """Run a case and return records per second. Raises WrongCount."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a session without pipes")
        self._process.stdin.write(f"{case} {address} {topic}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("took "):
                took_s, counted = line.split()[1:]
                if case == "lengths" and int(counted) != RECORDS * RECORD_BYTES:
                    raise WrongCount(f"{case}: {counted} bytes of {RECORDS * RECORD_BYTES}")
                return RECORDS / float(took_s)
        raise WrongCount(f"{case}: the session ended with {self._process.wait()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=60)


@frozen
class System:
    """A session, and the broker it reads from and writes to."""

    name: str
    session: Session
    address: str
    broker_pid: int

    def measure(self, case: str, number: int) -> tuple[float, float]:
        """Return records per second, and microseconds of processor time per record."""
        topic = "in"
        if case == "topic":
            topic = f"back-{number}"
            trio.run(create, self.address, topic)
        before_s = self._used_s()
        rate = self.session.measure(case, self.address, topic)
        return rate, (self._used_s() - before_s) / RECORDS * 1e6

    def _used_s(self) -> float:
        return sum(tree_cpu_s(pid) for pid in (self.session.pid, self.broker_pid))


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--peer", action="store_true", help="compare with Spark's own connector on Apache Kafka"
    )
    parser.add_argument("--layouts", default="memory,batch,record", help="of memory, batch, record")
    parser.add_argument("--cases", default="columns,lengths,parquet,delta,topic")
    parser.add_argument("--to", type=Path, help="a JSON file for every round's figures")
    given = parser.parse_args()
    cases = given.cases.split(",")
    goals = {
        (CASES[case], layout): (Goal(ratio, PEER),)
        for case in cases
        for layout, ratio in GOALS.get(case, {}).items()
    }
    results = Results({"records": str(RECORDS), "bytes": str(RECORD_BYTES)}, goals, peer=PEER)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        ours = stack.enter_context(Session(Path(sys.executable), "korvet", dict(SETTINGS), folder / "ours"))
        systems = [
            System(layout, ours, *stack.enter_context(running(layout, folder)))
            for layout in given.layouts.split(",")
        ]
        if given.peer:
            systems.append(System(PEER, *stack.enter_context(peer(folder))))
        for number in range(given.rounds + 1):
            for case in cases:
                for system in systems:
                    rate, used_us = system.measure(case, number)
                    if number:
                        results.add(CASES[case], system.name, rate)
                        results.add(USED[CASES[case]], system.name, used_us)
    print(results.table())
    if given.to:
        results.save(given.to)


@contextmanager
def running(layout: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Run a broker with that layout and a filled topic. Yield its address and process id."""
    storage = "memory://" if layout == "memory" else f"embedded:{folder / layout}"
    settings = ["storage.layout=batch", "offset.mapping=dense"] if layout == "batch" else []
    with broker(storage, *settings) as started:
        address = f"127.0.0.1:{started.port}"
        fill(address)
        yield address, started.pid


@contextmanager
def peer(folder: Path) -> Iterator[tuple[Session, str, int]]:
    """Run Apache Kafka with a filled topic, and a session with Spark's own connector."""
    # Imported here because only the comparison needs it.
    from conformance.apache_kafka import ApacheKafka, jars  # noqa: PLC0415
    from conformance.spark_connector import POM, environment  # noqa: PLC0415

    settings = {"spark.jars": ",".join(str(jar) for jar in sorted(jars(POM).glob("*.jar")))}
    with ApacheKafka() as kafka, Session(environment(), "kafka", settings, folder / "peer") as session:
        fill(kafka.bootstrap_servers)
        yield session, kafka.bootstrap_servers, kafka.process.pid if kafka.process else 0


def fill(address: str) -> None:
    """Produce the records with our own writer."""
    trio.run(create, address, "in")
    rows = pa.record_batch({"value": pa.array([b"x" * RECORD_BYTES] * ROWS, pa.binary())})
    options = write_options({"kafka.bootstrap.servers": address, "topic": "in"})
    write_rows(options, iter([rows] * (RECORDS // ROWS)))


async def create(address: str, topic: str) -> None:
    async with open_client(address) as client:
        await client.create_topic(topic, partitions=PARTITIONS)


if __name__ == "__main__":
    main()
