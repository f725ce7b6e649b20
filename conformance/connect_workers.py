"""Kafka Connect with exactly once sources: a worker is killed again and again, and each record comes once.

The worker runs two of Kafka's own connectors: one copies the lines of a file into a topic, the other (MirrorMaker)
copies a topic of Apache Kafka. It is killed with SIGKILL while lines and records arrive. Afterwards both topics, read
at `read_committed`, must have each line and each record once and in order.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from attrs import field, frozen
from confluent_kafka import Producer

from conformance.apache_kafka import jars, java
from conformance.killed import LIMIT_S, by_partition, committed, create_topics, first_difference
from conformance.part import Result, Target, program
from tests.servers import free_port, parent_death_prefix

POM = Path(__file__).with_name("connect") / "pom.xml"
CLASS = "org.apache.kafka.connect.cli.ConnectDistributed"
PARTITIONS = 4
RECORDS = 4_000
ROUNDS = 4  # the worker is killed between two of them
TRANSACTION_MS = "5000"
WIDTH = 60  # of a line; the connector commits what it reads at once, some 20 of them


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the worker on every broker, one broker after the other. The first one is what MirrorMaker copies."""
    program("java", "Kafka Connect's checks need Java 17 or newer")
    jars(POM)
    source = next(each for each in targets if each.is_kafka)
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(lambda target: killed_while_copying(source, target), targets):
            yield from results


def killed_while_copying(source: Target, target: Target) -> list[Result]:
    """Write lines and records in rounds, kill the worker after each of them, and compare what it copied."""
    name = f"connect-{uuid4().hex[:8]}"
    lines_topic, mirrored_topic = f"{name}-lines", f"source.{name}"
    create_topics(source, [name], PARTITIONS)
    create_topics(target, [lines_topic], 1)
    producer = Producer({"bootstrap.servers": source.bootstrap_servers, "enable.idempotence": True})
    with tempfile.TemporaryDirectory(prefix="korvet-connect-") as folder:
        worker = Worker(source, target, name, Path(folder))
        for number in range(ROUNDS):
            with worker.running() as process:
                values = range(number * RECORDS // ROUNDS, (number + 1) * RECORDS // ROUNDS)
                with worker.lines.open("a", encoding="utf-8") as file:
                    file.writelines(f"{each:0{WIDTH}}\n" for each in values)
                for each in values:
                    producer.produce(name, str(each), partition=each % PARTITIONS)
                producer.flush()
                last = number == ROUNDS - 1
                expected = (number + 1) * RECORDS // ROUNDS if last else values.start + len(values) // 3
                lines = committed(target, lines_topic, 1, expected, to_end=last)
                mirrored = committed(target, mirrored_topic, PARTITIONS, expected, to_end=last)
                if process.poll() is not None:
                    ended = f"the worker ended with {process.returncode}: {worker.log_tail()}"
                    return [Result("the worker runs", target.name, ended)]
    each_line = [[f"{each:0{WIDTH}}" for each in range(RECORDS)]]
    each_record = [[str(each) for each in range(first, RECORDS, PARTITIONS)] for first in range(PARTITIONS)]
    found = {
        "Connect copies each line of a file": first_difference(each_line, by_partition(lines, 1)),
        "MirrorMaker copies each record": first_difference(each_record, by_partition(mirrored, PARTITIONS)),
    }
    return [Result(f"{check} once through kills", target.name, fault) for check, fault in found.items()]


@frozen
class Worker:
    """A worker of Kafka Connect, which can be killed and started again."""

    source: Target
    target: Target
    name: str
    folder: Path
    port: int = field(factory=free_port)

    @property
    def lines(self) -> Path:
        """The file whose lines a connector copies."""
        return self.folder / "lines"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the worker with both connectors until the end of the block, then kill it."""
        properties = self.folder / "worker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings().items()))
        self.lines.touch()
        command = [*parent_death_prefix(), *java(CLASS, properties, classes=jars(POM))]
        with (
            (self.folder / "log").open("ab") as log,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
        ):
            try:
                for connector, settings in self.connectors().items():
                    self.configure(process, connector, settings)
                yield process
            finally:
                process.kill()

    def settings(self) -> dict[str, str]:
        """Return the worker's settings."""
        converter = "org.apache.kafka.connect.storage.StringConverter"
        return {
            "bootstrap.servers": self.target.bootstrap_servers,
            "group.id": self.name,
            "exactly.once.source.support": "enabled",
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": converter,
            "value.converter": converter,
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            # A restarted worker reads its topics up to the transactions that the killed one left open.
            "transaction.timeout.ms": TRANSACTION_MS,
            "producer.transaction.timeout.ms": TRANSACTION_MS,
            **{f"{each}.storage.topic": f"{self.name}-{each}" for each in ("config", "offset", "status")},
            **{f"{each}.storage.replication.factor": "1" for each in ("config", "offset", "status")},
            "offset.storage.partitions": "2",
            "status.storage.partitions": "1",
        }

    def connectors(self) -> dict[str, dict[str, str]]:
        """Return the connectors by name, with their settings."""
        bytes_converter = "org.apache.kafka.connect.converters.ByteArrayConverter"
        return {
            "lines": {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                "file": str(self.lines),
                "topic": f"{self.name}-lines",
            },
            "mirror": {
                "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
                "tasks.max": "2",
                "source.cluster.alias": "source",
                "target.cluster.alias": "target",
                "source.cluster.bootstrap.servers": self.source.bootstrap_servers,
                "target.cluster.bootstrap.servers": self.target.bootstrap_servers,
                "topics": self.name,
                "key.converter": bytes_converter,
                "value.converter": bytes_converter,
                "replication.factor": "1",
                "offset-syncs.topic.replication.factor": "1",
                "sync.topic.acls.enabled": "false",
                "consumer.max.poll.records": "100",
            },
        }

    def configure(
        self, process: subprocess.Popen[bytes], connector: str, settings: Mapping[str, str]
    ) -> None:
        """Give the worker a connector's settings once it answers. Returns also when the worker has ended."""
        url = f"http://127.0.0.1:{self.port}/connectors/{connector}/config"
        request = urllib.request.Request(
            url, json.dumps(settings).encode(), {"Content-Type": "application/json"}, method="PUT"
        )
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None:
            try:
                with urllib.request.urlopen(request, timeout=30):
                    return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def log_tail(self) -> str:
        """Return the end of the worker's log."""
        return (self.folder / "log").read_text(errors="replace")[-2000:]
