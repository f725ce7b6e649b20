"""A topic is compacted while Kafka clients and plain Redis clients write to it and read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.clients.admins import ConfluentAdministrator
from tests.clients.interface import LIMIT_S
from tests.clients.test_admin import is_shared, shared_storage
from tests.processes import KorvetProcess

KEYS = 100
BATCHES = 1000
GROUP = "plain"
# Time for a thousand small batches on a busy machine.
PATIENCE_S = 120.0


class Writer:
    """Writes batches of the same keys, with increasing numbers as values."""

    def __init__(self, broker: KorvetProcess, topic: str) -> None:
        self.topic = topic
        self.number = 0
        self.failures: list[object] = []
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "linger.ms": 1000,
                "batch.num.messages": KEYS,
                "enable.idempotence": True,
            }
        )

    def write(self, batches: int) -> None:
        for _ in range(batches):
            for key in range(KEYS):
                self._producer.produce(
                    self.topic, b"%d" % self.number, b"key-%d" % key, on_delivery=self._delivered
                )
            self.number += 1
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def _delivered(self, error: object, _message: Message) -> None:
        if error is not None:
            self.failures.append(error)


class Reader:
    """Reads from the first offset on with auto.offset.reset "error" (Java's none), so that no offset is skipped."""

    def __init__(self, broker: KorvetProcess, topic: str) -> None:
        self.offsets: list[int] = []
        self.last: dict[bytes, bytes] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": f"{topic}-reader",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "max.partition.fetch.bytes": 20_000,
                "queued.max.messages.kbytes": 32,
            }
        )
        low, _ = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT_S)
        self._consumer.assign([TopicPartition(topic, 0, low)])

    def read(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_over():
            assert time.monotonic() < deadline, "it takes too long"
            for message in self._consumer.consume(500, 0.2):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                offset, key, value = message.offset(), message.key(), message.value()
                assert None not in (offset, key, value)
                self.offsets.append(offset)
                self.last[bytes(key)] = bytes(value)

    def close(self) -> None:
        self._consumer.close()


class PlainGroup:
    """A Redis consumer group on the stream, if there is one, that acknowledges every other entry."""

    def __init__(self, broker: KorvetProcess, topic: str) -> None:
        self.key = f"korvet:{topic}:0"
        self.client = redis_of(broker)
        self.ids: list[tuple[int, ...]] = []
        if self.client is not None:
            self.client.xgroup_create(self.key, GROUP, 0)

    def read(self, count: int) -> None:
        if self.client is None:
            return
        answer: Any = self.client.xreadgroup(GROUP, "alice", {self.key: ">"}, count=count, block=20)
        for entry_id, _ in answer[0][1] if answer else ():
            self.ids.append(tuple(map(int, entry_id.split(b"-"))))
            if len(self.ids) % 2:
                self.client.xack(self.key, GROUP, entry_id)

    def read_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(0 if self.client else 1):
            self.read(20)

    def check(self) -> None:
        """Check that all entries came once and in order, and that pending entries still exist."""
        if self.client is None:
            return
        pending: Any = self.client.xpending_range(self.key, GROUP, "-", "+", 10_000)
        there = {entry_id for entry_id, _ in self.client.xrange(self.key)}
        group, *_ = self.client.xinfo_groups(self.key)

        assert self.ids == sorted(set(self.ids))
        assert {each["message_id"] for each in pending} <= there
        assert group["last-delivered-id"] == b"%d-%d" % self.ids[-1]
        self.client.close()


def redis_of(broker: KorvetProcess) -> redis.Redis | None:
    """Return a client of the broker's private server, if it has one."""
    if not is_shared(broker):
        return None
    return redis.Redis.from_url(shared_storage(broker))


def memory_of(broker: KorvetProcess, topic: str) -> int:
    """Return the memory of the stream in Redis; 0 without Redis."""
    client = redis_of(broker)
    if client is None:
        return 0
    with client:
        used: Any = client.memory_usage(f"korvet:{topic}:0", samples=0)
    return int(used)


def write_until(writer: Writer, is_over: threading.Event) -> None:
    while not is_over.is_set():
        writer.write(1)


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread during the block, then set its event; raise its error at the end."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work(is_over)
        except BaseException as error:  # noqa: BLE001  raised again below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    for failure in failures:
        raise failure


def read_all(broker: KorvetProcess, topic: str) -> Reader:
    """Read all records that the topic has now."""
    reader = Reader(broker, topic)
    _, end = reader._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT_S)
    reader.read(lambda: bool(reader.offsets) and reader.offsets[-1] >= end - 1)
    reader.close()
    return reader


@pytest.mark.slow
def test_compaction_keeps_one_record_for_each_of_a_hundred_keys(
    broker: KorvetProcess, topic: str, report: Callable[[str], None]
) -> None:
    client = ConfluentAdministrator(broker.bootstrap_servers)
    client.create_topic(topic, settings={"min.cleanable.dirty.ratio": "0"})
    writer = Writer(broker, topic)
    writer.write(BATCHES)
    before = memory_of(broker, topic)
    slow_reader = Reader(broker, topic)
    slow_reader.read(lambda: len(slow_reader.offsets) >= 1000)
    plain = PlainGroup(broker, topic)
    plain.read(5)

    with in_background(lambda is_over: write_until(writer, is_over)), in_background(plain.read_until):
        client.change(topic, {"cleanup.policy": ("SET", "compact")})
        slow_reader.read(lambda: min(map(int, slow_reader.last.values())) > BATCHES)
    deadline = time.monotonic() + PATIENCE_S
    while len((found := read_all(broker, topic)).offsets) != KEYS:
        assert time.monotonic() < deadline, f"{len(found.offsets)} records are left"
    after = memory_of(broker, topic)
    slow_reader.read(lambda: slow_reader.offsets[-1] >= found.offsets[-1])
    slow_reader.close()
    plain.check()
    report(f"{before:,} bytes in Redis became {after:,}; {writer.number} batches were written")

    expected = {b"key-%d" % key: b"%d" % (writer.number - 1) for key in range(KEYS)}
    assert [] == writer.failures
    assert expected == found.last == slow_reader.last
    assert slow_reader.offsets == sorted(set(slow_reader.offsets))
    assert after <= before / 10
