"""A stream with a transactional id writes each row once: tasks that run again, in any process, and killed queries."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from korvet.client import LATEST, Client, Record, TopicPartition
from korvet.client.isolation import READ_COMMITTED, READ_UNCOMMITTED
from korvet.pipeline import topic_writing
from korvet.pipeline.offsets import WrongOption
from korvet.pipeline.options import write_options
from korvet.pipeline.source import KorvetSource
from korvet.pipeline.topic_writing import RowRefused, write_rows
from korvet.pipeline.transactional_writing import BatchChanged, Task
from korvet.protocol.errors import InvalidTransactionTimeout
from tests.pipeline.standalone import Running
from tests.pipeline.support import Cluster
from tests.pipeline.transactional_copy import copy

VALUES = StructType([StructField("value", BinaryType())])


def rows(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def committed(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Return the committed values once the transactions have ended, null last."""
    deadline = time.monotonic() + 30
    while end(cluster, topic, READ_COMMITTED) != end(cluster, topic, READ_UNCOMMITTED):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = cluster.read(subscribe=topic, kafka__isolation__level="read_committed")
    return sorted((row["value"] for row in found), key=lambda value: b"~" if value is None else value)


def end(cluster: Cluster, topic: str, isolation_level: int) -> list[int]:
    """Return the end of each partition, as readers at an isolation level see it."""

    async def ask(client: Client) -> list[int]:
        partitions = (await client.topic(topic)).partitions
        latest = {TopicPartition(topic, each.partition): LATEST for each in partitions}
        found = await client.list_offsets(latest, isolation_level=isolation_level)
        return [each.offset for each in found.values()]

    return cluster.run(ask)


class Query:
    """The tasks of a streaming query, which run in this process."""

    def __init__(self, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic = topic
        options = cluster.options(topic=topic, kafka__transactional__id=f"copy-{topic}")
        self._options = write_options(options, streaming=True)
        self._monkeypatch = monkeypatch

    def run(self, batch: int, task: int, *tables: pa.RecordBatch, query: str = "query") -> None:
        """Run one attempt of a task."""
        self.attempt(Task(query, batch, task), iter(tables))

    def attempt(self, task: Task, tables: Iterator[pa.RecordBatch]) -> None:
        self._monkeypatch.setattr(topic_writing, "current_task", lambda: task)
        write_rows(self._options, tables)


@pytest.fixture
def query(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> Query:
    cluster.create(topic, partitions=3)
    return Query(cluster, topic, monkeypatch)


def test_task_that_runs_again_writes_nothing_again(cluster: Cluster, query: Query) -> None:
    query.run(0, 0, rows(b"a", b"b"), rows(b"c"))
    query.run(0, 1, rows(b"d"))
    query.run(0, 0, rows(b"a"), rows(b"b", b"c"))  # Spark may divide the same rows otherwise
    query.run(1, 0, rows(b"e", None))
    query.run(1, 0, rows(b"e", None))

    assert [b"a", b"b", b"c", b"d", b"e", None] == committed(cluster, query.topic)
    assert 6 == len(cluster.read(subscribe=query.topic))


def test_failed_attempt_is_aborted(cluster: Cluster, query: Query) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(*[b"x" * 1000] * 10_000)  # more than is collected before the first is sent
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        query.attempt(Task("query", 0, 0), failing())
    with pytest.raises(RowRefused):
        query.run(0, 0, pa.record_batch({"value": [b"b"], "partition": pa.array([7], pa.int32())}))
    query.run(0, 0, rows(b"a"))

    assert [b"a"] == committed(cluster, query.topic)
    assert len(cluster.read(subscribe=query.topic)) > 1


def test_other_rows_of_a_committed_batch_are_refused(cluster: Cluster, query: Query) -> None:
    query.run(0, 0, rows(b"a", b"b"))
    with pytest.raises(
        BatchChanged, match=r"Task 0 has committed batch 0 with 2 rows \(2 bytes\).* gave it 1 \(1 bytes\)"
    ):
        query.run(0, 0, rows(b"a"))

    assert [b"a", b"b"] == committed(cluster, query.topic)


def test_another_query_with_the_id_begins_anew(cluster: Cluster, query: Query) -> None:
    query.run(5, 0, rows(b"a"))
    query.run(0, 0, rows(b"b"), query="another")
    query.run(1, 0, rows(b"c"), query="another")

    assert [b"a", b"b", b"c"] == committed(cluster, query.topic)


def test_timeout_above_the_brokers_maximum_is_an_error(
    memory: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create(topic)
    monkeypatch.setattr(topic_writing, "current_task", lambda: Task("query", 0, 0))
    options = memory.options(topic=topic, kafka__transactional__id="x", kafka__transaction__timeout__ms=10**8)
    with pytest.raises(InvalidTransactionTimeout):
        write_rows(write_options(options, streaming=True), iter([rows(b"a")]))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"kafka__transactional__id": ""}, "kafka.transactional.id is empty"),
        ({"kafka__transactional__id": "x", "kafka__acks": "1"}, "kafka.acks='1' is not accepted"),
        (
            {"kafka__transactional__id": "x", "kafka__enable__idempotence": "false"},
            "kafka.enable.idempotence='false' is not accepted",
        ),
        ({"kafka__transaction__timeout__ms": 1000}, "it needs kafka.transactional.id"),
    ],
)
def test_options_that_exclude_a_transaction(memory: Cluster, options: dict[str, object], reason: str) -> None:
    with pytest.raises(WrongOption, match=reason):
        write_options(memory.options(topic="t", **options), streaming=True)


def test_batch_write_refuses_a_transactional_id(memory: Cluster) -> None:
    source = KorvetSource(memory.options(topic="t", kafka__transactional__id="x"))
    with pytest.raises(WrongOption, match="it is for streaming queries; a batch write is at least once"):
        source.writer(VALUES, overwrite=False)


def test_id_outside_of_a_streaming_query_is_refused(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    options = write_options(memory.options(topic=topic, kafka__transactional__id="x"), streaming=True)
    with pytest.raises(WrongOption, match="this process runs none"):
        write_rows(options, iter([rows(b"a")]))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.servers
def test_each_record_is_copied_once_by_a_stream_that_is_killed(
    spark: SparkSession, batch_dense: Cluster, topic: str, tmp_path: Path
) -> None:
    source, target = topic, f"{topic}-copy"
    for name in (source, target):
        batch_dense.create(name, partitions=3)
    count = 12_000
    batch_dense.produce(source, [Record(b"%d" % number, partition=number % 3) for number in range(count)])
    arguments = [batch_dense.bootstrap_servers, source, target, str(tmp_path / "checkpoint")]
    command = [sys.executable, "-m", "tests.pipeline.transactional_copy", *arguments]
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for _ in range(2):
        goal = copied(batch_dense, target) + chance.randint(1, count // 6)
        query = Running.start(command, Path.cwd())
        while copied(batch_dense, target) < goal and query.process.poll() is None:
            time.sleep(0.05)
        query.end(signal.SIGKILL)
        query.close()
    copy(spark, *arguments)

    found = sorted(int(value) for value in committed(batch_dense, target) if value is not None)
    assert (seed, list(range(count))) == (seed, found)


def copied(cluster: Cluster, topic: str) -> int:
    """Return the number of offsets before the last stable ones. A transaction has records and a marker."""
    return sum(end(cluster, topic, READ_COMMITTED))
