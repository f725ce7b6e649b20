"""Consumers of one group that are killed and replaced while a broker is, too: nothing is lost, nobody is stuck.

A minute of what `make soak` may do for longer. Consumers are processes of their own, since only those can be killed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

import pytest
from attrs import define, field
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record, Timeout
from tests.processes import KorvetProcess

PARTITIONS = 4
CONSUMERS = 4
STEPS = 6
BROKER_DIES_IN = (1, 4)
SESSION_MS = 2000

PROGRAM = """
import sys
from confluent_kafka import Consumer, KafkaException
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "session.timeout.ms": int(sys.argv[3]), "heartbeat.interval.ms": 300,
    "partition.assignment.strategy": sys.argv[4], "reconnect.backoff.max.ms": 500, "log_level": 0,
})
consumer.subscribe([sys.argv[2]])
while True:
    message = consumer.poll(0.2)
    if message is None or message.error():
        continue
    print(message.value().decode(), flush=True)
    try:
        consumer.commit(message, asynchronous=False)
    except KafkaException:
        pass  # not a member any longer, or no broker: whoever has the partition next reads it again
"""


@define
class Workers:
    """Consumers in processes, and what all of them have printed."""

    bootstrap_servers: str
    topic: str
    strategy: str
    alive: list[subprocess.Popen[str]] = field(factory=list)
    processed: set[str] = field(factory=set)
    _changed: threading.Condition = field(factory=threading.Condition)

    def start(self) -> None:
        command = [sys.executable, "-c", PROGRAM, self.bootstrap_servers, self.topic]
        process = subprocess.Popen(
            [*command, str(SESSION_MS), self.strategy], stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._collect, args=(process,), daemon=True).start()
        self.alive.append(process)

    def kill(self, number: int) -> None:
        process = self.alive.pop(number)
        process.kill()
        assert -signal.SIGKILL == process.wait(LIMIT_S)

    def kill_all(self) -> None:
        while self.alive:
            self.kill(0)

    def wait_for(self, values: set[str]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: values <= self.processed, 3 * LIMIT_S):
                raise Timeout(f"{len(values - self.processed)} of {len(values)} records were not processed")

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    self.processed.add(line.strip())
                    self._changed.notify_all()


@pytest.fixture
def broker_of_its_own() -> Iterator[KorvetProcess]:
    folder = tempfile.mkdtemp(prefix="kw-")
    settings = {"group.initial.rebalance.delay.ms": "500", "group.min.session.timeout.ms": "1000"}
    try:
        with KorvetProcess(storage=f"embedded:{folder}/data", settings=settings) as process:
            yield process
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_every_record_is_processed_while_consumers_and_the_broker_are_killed(
    broker_of_its_own: KorvetProcess, topic: str, strategy: str
) -> None:
    broker, random = broker_of_its_own, Random(strategy)
    client = Confluent(broker.bootstrap_servers)
    client.create_topic(topic, partitions=PARTITIONS)
    workers = Workers(broker.bootstrap_servers, topic, strategy)
    produced: set[str] = set()
    positions = [positions_of(client, topic)]
    with ExitStack() as stack:
        stack.callback(workers.kill_all)
        for _ in range(CONSUMERS):
            workers.start()
        for step in range(STEPS):
            values = [f"{step}-{number}" for number in range(40)]
            client.produce(
                topic,
                [Record(value.encode(), partition=n % PARTITIONS) for n, value in enumerate(values)],
            )
            produced |= {*values}
            workers.kill(random.randrange(CONSUMERS))
            if step in BROKER_DIES_IN:
                broker.kill()
                broker.start()
            workers.start()
            workers.wait_for(produced)
            positions.append(positions_of(client, topic))
        stable = wait_until_stable(broker.bootstrap_servers, CONSUMERS)

    assert stable
    assert positions == sorted_each(positions)


def positions_of(client: Confluent, topic: str) -> list[int]:
    committed = (client.committed("g", topic, partition=partition) for partition in range(PARTITIONS))
    return [-1 if position is None else position[0] for position in committed]


def sorted_each(rows: list[list[int]]) -> list[list[int]]:
    """The same rows with every column in order: equal where none of them goes back."""
    return [list(row) for row in zip(*(sorted(column) for column in zip(*rows, strict=True)), strict=True)]


def wait_until_stable(bootstrap_servers: str, members: int) -> bool:
    """Whether the group is Stable with that many members, within a session and a rebalance."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def is_stable() -> bool:
        group = admin.describe_consumer_groups(["g"])["g"].result(LIMIT_S)
        return group.state == ConsumerGroupState.STABLE and len(group.members) == members

    return within(is_stable, 5 * SESSION_MS / 1000)


def within(condition: Callable[[], bool], limit_s: float) -> bool:
    """Ask again and again, as an administrator would; there is nothing that would tell."""
    pause, asked = threading.Event(), 0.0
    while not condition():
        if asked > limit_s:
            return False
        pause.wait(0.2)
        asked += 0.2
    return True
