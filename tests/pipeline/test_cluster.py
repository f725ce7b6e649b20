"""The archive on a standalone cluster of Spark: two workers, an executor that is killed, and every record once."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attrs import evolve, frozen

from korvet.lake.location import Location
from korvet.pipeline.archive_task import Outcome, Piece, write_pieces
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.session import QUICK_JAVA
from tests.lake.replay import rows_of
from tests.pipeline.archiving import archive_of, growing, log_of, values, without_times
from tests.pipeline.standalone import Running, Standalone, standalone
from tests.pipeline.support import Cluster


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


def start(cluster: Standalone, broker: Cluster, topic: str, lake: Path, *how: str) -> Running:
    return Running.start(
        [
            *(sys.executable, "-m", "korvet", "lake", "archive", "--topics", topic, "--lake", str(lake)),
            *("--master", cluster.url, "--bootstrap-servers", broker.bootstrap_servers, "--json", *how),
            *("--spark-conf", "spark.executor.memory=512m"),
            *("--spark-conf", f"spark.executor.extraJavaOptions={QUICK_JAVA}"),
        ],
        cluster.folder,
    )


@pytest.mark.spark
@pytest.mark.soak  # six Javas take a minute to start on two cores
def test_killed_executor_loses_and_duplicates_no_record(
    spark_cluster: Standalone, memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic, partitions=4)
    memory.produce(topic, values(4000))
    with growing(memory, topic):
        running = start(spark_cluster, memory, topic, tmp_path, "--every", "100ms")
        running.wait_for("archived [1-9]")
        executors = spark_cluster.executors()
        assert executors, running.lines
        killed = executors[0]
        os.kill(killed, signal.SIGKILL)
        running.wait_for_lines(len(running.lines) + 3)
        status = running.end()
        assert running.process.stdout is not None
        told = json.loads(running.process.stdout.read())
        running.close()
    once = start(spark_cluster, memory, topic, tmp_path, "--once")
    assert 0 == once.wait(), once.lines
    once.close()

    assert (0, None) == (status, told[0]["error"]), running.lines
    assert killed not in spark_cluster.executors()
    assert without_times(rows_of(tmp_path / topic)) == log_of(memory, topic)
    assert all(spark_cluster.tasks()), spark_cluster.tasks()


@frozen
class RemoteWorkers:
    """Workers that have another folder at the lake's path, as other machines have."""

    connecting: Connecting
    folder: Path
    cores: int = 1

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        pieces = [
            evolve(piece, location=Location.parse(str(self.folder / piece.tp.topic)))
            for task in tasks
            for piece in task
        ]
        return list(write_pieces(self.connecting, pieces))


def test_files_that_workers_wrote_to_local_folders_are_not_committed(
    memory: Cluster, topic: str, tmp_path: Path
) -> None:
    memory.create(topic)
    memory.produce(topic, values(3))
    archive = archive_of(memory.bootstrap_servers, topic, tmp_path / "here")
    archive.workers = RemoteWorkers(Connecting(memory.bootstrap_servers), tmp_path / "there")
    archive.run()

    assert 1 == len(list((tmp_path / "there" / topic).glob("date=*/*.parquet")))
    assert [] == rows_of(tmp_path / "here" / topic)
    assert re.match(
        f"a worker has written .*/here/{topic}/date=.*, which is not on this machine: workers on other machines need",
        archive.progress[topic].error,
    )
