"""Consumers of one group in separate processes, which tests can kill.

Each prints what it has processed and then commits it. On SIGTERM it leaves the group.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from functools import partial

from attrs import define, field

from tests.clients.interface import LIMIT_S, Timeout

CONFLUENT = """
import signal, sys
from confluent_kafka import Consumer, KafkaException
leaving = []
signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
servers, topic, session_ms, strategy, client_id = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "session.timeout.ms": int(session_ms), "heartbeat.interval.ms": 300,
    "partition.assignment.strategy": strategy, "reconnect.backoff.max.ms": 500, "log_level": 0,
    "client.id": client_id,
})
consumer.subscribe([topic])
while not leaving:
    message = consumer.poll(0.2)
    if message is None or message.error():
        continue
    print(message.value().decode(), flush=True)
    try:
        consumer.commit(message, asynchronous=False)
    except KafkaException:
        pass  # not a member any longer, or no broker: whoever has the partition next reads it again
consumer.close()
"""

KAFKA_PYTHON = """
import logging, signal, sys
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
logging.disable()
leaving = []
signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
servers, topic, session_ms, strategy, client_id = sys.argv[1:]
consumer = KafkaConsumer(
    topic, bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False,
    session_timeout_ms=int(session_ms), heartbeat_interval_ms=300, max_poll_interval_ms=30000, max_poll_records=1,
    partition_assignment_strategy=[RangePartitionAssignor], reconnect_backoff_max_ms=500, client_id=client_id,
)
while not leaving:
    for tp, records in consumer.poll(timeout_ms=200).items():
        for record in records:
            print(record.value.decode(), flush=True)
            try:
                consumer.commit({tp: OffsetAndMetadata(record.offset + 1, "", -1)})
            except KafkaError:
                pass  # as above
consumer.close()
"""


@define
class Workers:
    """The running consumers, and the output of all consumers so far."""

    bootstrap_servers: str
    topic: str
    strategy: str
    session_ms: int
    alive: list[subprocess.Popen[str]] = field(factory=list)
    client_ids: list[str] = field(factory=list)  # of the running consumers
    processed: set[str] = field(factory=set)
    repeated: int = 0  # lines that repeat an earlier line
    _started: int = 0
    _changed: threading.Condition = field(factory=threading.Condition)

    def start(self, program: str = CONFLUENT) -> None:
        self._started += 1
        client_id = f"worker-{self._started}"
        command = [sys.executable, "-c", program, self.bootstrap_servers, self.topic]
        process = subprocess.Popen(
            [*command, str(self.session_ms), self.strategy, client_id], stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._collect, args=(process,), daemon=True).start()
        self.alive.append(process)
        self.client_ids.append(client_id)

    def kill(self, number: int) -> None:
        process = self._take(number)
        process.kill()
        assert -signal.SIGKILL == process.wait(LIMIT_S)

    def leave_group(self, number: int) -> None:
        """Let a consumer leave the group and exit."""
        process = self._take(number)
        process.terminate()
        assert 0 == process.wait(3 * LIMIT_S)

    def _take(self, number: int) -> subprocess.Popen[str]:
        del self.client_ids[number]
        return self.alive.pop(number)

    def kill_all(self) -> None:
        while self.alive:
            self.kill(0)

    def wait_for(self, values: set[str]) -> None:
        """Return once all of these are processed; raise if there is no progress for long."""
        with self._changed:
            while missing := len(values - self.processed):
                before = len(self.processed)
                if not self._changed.wait_for(partial(self._has_more_than, before), 2 * LIMIT_S):
                    raise Timeout(f"{missing} of {len(values)} records were not processed")

    def _has_more_than(self, count: int) -> bool:
        return len(self.processed) > count

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    self.repeated += line.strip() in self.processed
                    self.processed.add(line.strip())
                    self._changed.notify_all()
