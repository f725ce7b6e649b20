"""Consumers of one group in processes of their own, since only those can be killed.

Each prints what it has processed, and commits it then; SIGTERM lets it leave the group.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from attrs import define, field

from tests.clients.interface import LIMIT_S, Timeout

CONFLUENT = """
import signal, sys
from confluent_kafka import Consumer, KafkaException
leaving = []
signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
servers, topic, session_ms, strategy, instance = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "session.timeout.ms": int(session_ms), "heartbeat.interval.ms": 300,
    "partition.assignment.strategy": strategy, "reconnect.backoff.max.ms": 500, "log_level": 0,
    **({"group.instance.id": instance} if instance else {}),
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
servers, topic, session_ms, strategy, instance = sys.argv[1:]
consumer = KafkaConsumer(
    topic, bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False,
    session_timeout_ms=int(session_ms), heartbeat_interval_ms=300, max_poll_interval_ms=30000, max_poll_records=1,
    partition_assignment_strategy=[RangePartitionAssignor], reconnect_backoff_max_ms=500,
    **({"group_instance_id": instance} if instance else {}),
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
    """Those that are alive, and what all that ever lived have printed."""

    bootstrap_servers: str
    topic: str
    strategy: str
    session_ms: int
    alive: list[subprocess.Popen[str]] = field(factory=list)
    processed: set[str] = field(factory=set)
    repeated: int = 0  # how many lines said what another had said
    _changed: threading.Condition = field(factory=threading.Condition)

    def start(self, program: str = CONFLUENT, *, instance: str = "") -> None:
        command = [sys.executable, "-c", program, self.bootstrap_servers, self.topic]
        process = subprocess.Popen(
            [*command, str(self.session_ms), self.strategy, instance], stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._collect, args=(process,), daemon=True).start()
        self.alive.append(process)

    def kill(self, number: int) -> None:
        process = self.alive.pop(number)
        process.kill()
        assert -signal.SIGKILL == process.wait(LIMIT_S)

    def let_leave(self, number: int) -> None:
        """Have a consumer leave the group and end by itself."""
        process = self.alive.pop(number)
        process.terminate()
        assert 0 == process.wait(3 * LIMIT_S)

    def kill_all(self) -> None:
        while self.alive:
            self.kill(0)

    def wait_for(self, values: set[str]) -> None:
        """Return once all of these were processed."""
        with self._changed:
            if not self._changed.wait_for(lambda: values <= self.processed, 3 * LIMIT_S):
                raise Timeout(f"{len(values - self.processed)} of {len(values)} records were not processed")

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    self.repeated += line.strip() in self.processed
                    self.processed.add(line.strip())
                    self._changed.notify_all()
