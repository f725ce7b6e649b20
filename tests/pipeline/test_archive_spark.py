from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from attrs import define, field
from pyspark.sql import SparkSession

from korvet.lake.location import Location
from korvet.pipeline import archive_workers
from korvet.pipeline.archive import Archive, ArchiveOptions
from korvet.pipeline.archive_plan import Wanted
from korvet.pipeline.archive_task import Piece
from korvet.pipeline.archive_workers import SparkWorkers
from korvet.pipeline.cluster import Connecting
from tests.lake.replay import Row, headers_of, live_files, rows_of
from tests.pipeline.archiving import archived, growing, log_of, values, without_times
from tests.pipeline.support import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def spark_archive(spark: SparkSession, cluster: Cluster, topic: str, lake: Path) -> Archive:
    connecting = Connecting(cluster.bootstrap_servers)
    options = ArchiveOptions(connecting, Wanted.parse(topic), Location.parse(str(lake)))
    return Archive(options, SparkWorkers(connecting, lambda: spark))


def rows_by_spark(spark: SparkSession, table: Path) -> list[Row]:
    """Return the table's rows as Spark reads them from its files."""
    columns = ["topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"]
    found = spark.read.parquet(*live_files(table)).select(*columns).orderBy("partition", "offset").collect()
    return [
        Row._make(
            (
                *row[:4],
                *(None if data is None else bytes(data) for data in row[4:6]),
                headers_of([header.asDict() for header in row.headers or ()]),
            )
        )
        for row in found
    ]


def test_spark_and_duckdb_read_the_same_archived_records(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic, partitions=3)
    memory.produce(topic, values(1000, headers=(("origin", b"here"), ("origin", None))))
    archive = spark_archive(spark, memory, topic, tmp_path)
    archive.run()

    assert archive.progress[topic].records == 1000
    assert without_times(rows_of(tmp_path / topic)) == log_of(memory, topic)
    assert rows_by_spark(spark, tmp_path / topic) == rows_of(tmp_path / topic)


def test_killed_worker_is_replaced_and_no_record_is_lost(
    spark: SparkSession, memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create(topic)
    memory.produce(topic, values(500))
    lived = tmp_path / "killed"
    work = archive_workers.work

    def killed_once(
        connecting: Connecting, tasks: Sequence[Sequence[Piece]], numbers: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for outcome in work(connecting, tasks, numbers):
            if not lived.exists():
                lived.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome

    monkeypatch.setattr(archive_workers, "work", killed_once)
    spark_archive(spark, memory, topic, tmp_path / "lake").run()

    assert lived.exists()
    assert len(list((tmp_path / "lake" / topic).glob("date=*/*.parquet"))) == 2
    assert without_times(rows_of(tmp_path / "lake" / topic)) == log_of(memory, topic)


@define
class Running:
    """`korvet lake archive` as its users run it."""

    process: subprocess.Popen[str]
    lines: list[str] = field(factory=list)
    collecting: threading.Thread = field(factory=threading.Thread)
    _changed: threading.Condition = field(factory=threading.Condition)

    @classmethod
    def start(cls, cluster: Cluster, topic: str, lake: Path) -> Running:
        command = [sys.executable, "-m", "korvet", "lake", "archive", "--topics", topic, "--lake", str(lake)]
        process = subprocess.Popen(
            [*command, "--every", "100ms", "--json", "--bootstrap-servers", cluster.bootstrap_servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running = cls(process)
        running.collecting = threading.Thread(target=running.collect, daemon=True)
        running.collecting.start()
        return running

    def collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()

    def wait_for(self, pattern: str) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: any(re.search(pattern, line) for line in self.lines), 600)
            assert found, self.lines

    def java(self) -> int:
        """Return the process id of the JVM that the command has started."""
        children = subprocess.run(
            ["ps", "-o", "pid=,comm=", "--ppid", str(self.process.pid)],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        return int(children[children.index("java") - 1])

    def end(self) -> tuple[int, str]:
        """Wait for the end of the command, and return its exit status and output."""
        assert self.process.stdout is not None
        status = self.process.wait(timeout=120)
        self.collecting.join(timeout=120)
        return status, self.process.stdout.read()


@pytest.fixture
def start(memory: Cluster, topic: str, tmp_path: Path) -> Iterator[Callable[[], Running]]:
    running: list[Running] = []

    def start_one() -> Running:
        running.append(Running.start(memory, topic, tmp_path))
        return running[-1]

    yield start_one
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            assert stream is not None
            stream.close()


def test_archive_is_exact_after_java_and_the_command_were_killed(
    memory: Cluster, topic: str, tmp_path: Path, start: Callable[[], Running]
) -> None:
    memory.create(topic, partitions=2)
    with growing(memory, topic):
        without_java = start()
        without_java.wait_for("archived [1-9]")
        os.kill(without_java.java(), signal.SIGKILL)
        status, _ = without_java.end()
        assert status == 1
        assert any("Java process has ended" in line for line in without_java.lines), without_java.lines

        killed = start()
        killed.wait_for("archived [1-9]")
        orphan = killed.java()
        killed.process.kill()
        assert killed.process.wait() == -signal.SIGKILL

        stopped = start()
        stopped.wait_for("archived [1-9]")
        stopped.process.send_signal(signal.SIGTERM)
        status, out = stopped.end()
        assert status == 0
        assert json.loads(out)[0]["error"] is None
    archived(memory.bootstrap_servers, topic, tmp_path)

    assert without_times(rows_of(tmp_path / topic)) == log_of(memory, topic)
    assert not is_java(orphan)


def is_java(pid: int) -> bool:
    """Return True if a process with this id is Java."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except FileNotFoundError:
        return False
