"""Counting a topic while it grows, is archived, and is trimmed behind the archive."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from attrs import define, field
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from korvet.cli.times import NAMED
from korvet.client import TopicPartition
from korvet.lake.location import Location
from korvet.pipeline.query import united
from korvet.pipeline.views import Lake
from tests.pipeline.archiving import archive_of, values
from tests.pipeline.support import Cluster
from tests.processes import KorvetProcess

pytestmark = pytest.mark.spark

QUERIES = 2
LIMIT_S = 120.0
PAUSE_S = 0.1  # between lots, or the machine has no time for anything else
# A broker in memory trims whole megabytes: with small records there would be tens of thousands to count until then.
PADDING = (("padding", bytes(2000)),)


@define
class Growth:
    """A producer of batches of records for a thread, which counts the sent and the acknowledged records."""

    cluster: Cluster
    topic: str
    sent: int = 0
    acknowledged: int = 0
    _ended: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            lot = values(50, first=self.sent, headers=PADDING)
            self.sent += len(lot)
            self.cluster.produce(self.topic, lot)
            self.acknowledged += len(lot)

    def end(self) -> None:
        self._ended.set()


def test_count_lies_between_the_records_acknowledged_before_and_after_it(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    settings = {
        "lake.url": str(tmp_path),
        "log.retention.check.interval.ms": "100",
        "remote.log.manager.task.interval.ms": "200",
    }
    with KorvetProcess(settings=settings) as broker:
        cluster = Cluster(broker.bootstrap_servers, is_dense=True)
        cluster.create(topic, partitions=2, remote_storage_enable="true", local_retention_bytes="5000")
        growth = Growth(cluster, topic)
        archive = archive_of(broker.bootstrap_servers, topic, tmp_path, every_s=0.3)
        threads = [threading.Thread(target=work) for work in (growth.run, archive.run)]
        for thread in threads:
            thread.start()
        try:
            while not archive.progress or not archive.progress[topic].records:
                threads[1].join(0.02)
                assert threads[1].is_alive()
            lake = Lake(Location.parse(str(tmp_path)), broker.bootstrap_servers)
            trimmed: set[int] = set()
            queries, deadline = 0, time.monotonic() + LIMIT_S
            while queries < QUERIES or len(trimmed) < 2:
                assert time.monotonic() < deadline, "nothing was trimmed meanwhile"
                queries += 1
                least = growth.acknowledged
                row = (
                    united(spark, lake, topic)
                    .agg(
                        sf.count("*").alias("rows"), sf.count_distinct("partition", "offset").alias("offsets")
                    )
                    .collect()[0]
                )
                most = growth.sent
                assert least <= row.rows <= most
                assert row.offsets == row.rows
                trimmed.add(local_start(cluster, topic))
        finally:
            growth.end()
            archive.stop()
            for thread in threads:
                thread.join()
        assert united(spark, lake, topic).count() == growth.acknowledged


def local_start(cluster: Cluster, topic: str) -> int:
    """Return the local log start offset."""
    tp = TopicPartition(topic, 0)
    return cluster.run(lambda client: client.list_offsets({tp: NAMED["earliest-local"]}))[tp].offset
