"""A running group moves from the classic protocol to that of KIP-848 and back, one consumer of librdkafka at a time.

At no time a partition has two owners. Each record is read, and again only if its offset could not be committed.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from attrs import define, field
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record, eventually
from tests.processes import KorvetProcess

PARTITIONS = 6
CONSUMERS = 3
RECORDS = 60
BEAT_MS = "300"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": BEAT_MS,
    "group.consumer.heartbeat.interval.ms": BEAT_MS,
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture
def migrating() -> Iterator[KorvetProcess]:
    folder = tempfile.mkdtemp(prefix="kg-")
    try:
        with KorvetProcess(storage=f"embedded:{folder}/data", settings=SETTINGS) as process:
            yield process
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@define
class Ledger:
    """The owners of partitions, the records that were read, and those whose offsets were not committed."""

    lock: threading.Lock = field(factory=threading.Lock)
    owners: dict[int, object] = field(factory=dict)
    read: list[bytes] = field(factory=list)
    uncommitted: set[bytes] = field(factory=set)
    faults: list[str] = field(factory=list)

    def assign(self, owner: object, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for each in partitions:
                if self.owners.setdefault(each.partition, owner) is not owner:
                    self.faults.append(f"partition {each.partition} has two owners")

    def revoke(self, owner: object, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for each in partitions:
                if self.owners.get(each.partition) is owner:
                    del self.owners[each.partition]


class Reader:
    """A consumer in a thread, which commits each record after it was read."""

    def __init__(self, ledger: Ledger, topic: str, **settings: Any) -> None:
        self.ledger = ledger
        self.consumer = Consumer({name.replace("_", "."): value for name, value in settings.items()})
        self.consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.ledger.assign(self, partitions)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.ledger.revoke(self, partitions)

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self.consumer.poll(0.1)
            if message is None or message.error():
                continue
            value = message.value() or b""
            with self.ledger.lock:
                self.ledger.read.append(value)
            try:
                self.consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                with self.ledger.lock:
                    self.ledger.uncommitted.add(value)
        self.consumer.close()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def end_all(readers: list[Reader]) -> None:
    for reader in readers:
        reader.end()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_running_group_moves_to_the_consumer_protocol_and_back(
    migrating: KorvetProcess, topic: str, strategy: str
) -> None:
    servers, ledger = migrating.bootstrap_servers, Ledger()
    client, admin = Confluent(servers), AdminClient({"bootstrap.servers": servers})
    client.create_topic(topic, partitions=PARTITIONS)
    common = {
        "bootstrap_servers": servers,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    classic = {
        "group_protocol": "classic",
        "partition_assignment_strategy": strategy,
        "heartbeat_interval_ms": int(BEAT_MS),
        "session_timeout_ms": 10_000,
    }
    produced: list[bytes] = []
    readers: list[Reader] = []

    def produce() -> None:
        values = [b"%d" % (len(produced) + number) for number in range(RECORDS)]
        client.produce(topic, [Record(each, partition=n % PARTITIONS) for n, each in enumerate(values)])
        produced.extend(values)
        eventually(lambda: set(produced) <= set(ledger.read), True)

    def found() -> tuple[Any, ...]:
        group = admin.describe_consumer_groups(["g"])["g"].result(LIMIT_S)
        return group.type, group.state, len(group.members)

    def replace(settings: dict[str, Any], group_type: ConsumerGroupType) -> None:
        readers.pop(0).end()
        produce()
        readers.append(Reader(ledger, topic, **common, **settings))
        eventually(found, (group_type, ConsumerGroupState.STABLE, CONSUMERS))
        eventually(lambda: len(ledger.owners), PARTITIONS)
        produce()

    with ExitStack() as stack:
        stack.callback(end_all, readers)
        readers += [Reader(ledger, topic, **common, **classic) for _ in range(CONSUMERS)]
        eventually(found, (ConsumerGroupType.CLASSIC, ConsumerGroupState.STABLE, CONSUMERS))
        produce()
        for _ in range(CONSUMERS):
            replace({"group_protocol": "consumer"}, ConsumerGroupType.CONSUMER)
        for number in range(CONSUMERS):
            is_last = number == CONSUMERS - 1
            replace(classic, ConsumerGroupType.CLASSIC if is_last else ConsumerGroupType.CONSUMER)

    again = {value for value in ledger.read if ledger.read.count(value) > 1}
    assert ledger.faults == []
    assert sorted(set(ledger.read)) == sorted(produced)
    assert again <= ledger.uncommitted
