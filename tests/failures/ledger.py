"""Producers that record the result of every record, while brokers and servers are killed.

Each numbers its records from 0 and produces them in this order to partition 0. librdkafka retries, and an error that it
returns fails the test. Idempotent producers have up to five requests in flight; others have one, because Kafka promises
order to them only then.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from attrs import define, field, frozen
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

LIMIT_S = 60.0
# Small batches, so that some requests are always in flight.
BATCH_RECORDS = 20
QUEUED_RECORDS = 400


@define
class Ledger:
    """One producer, from entering the block until `finish`, which waits until everything is acknowledged."""

    bootstrap_servers: str
    topic: str
    idempotent: bool
    name: str = "0"
    produced: int = 0
    offsets: dict[int, int] = field(factory=dict)  # of the acknowledged records, by number
    errors: list[KafkaError] = field(factory=list)
    _requests: int = 0  # unanswered requests in librdkafka's last statistics
    _counts: int = 0  # number of statistics so far
    _changed: threading.Condition = field(factory=threading.Condition, repr=False)
    _stopping: threading.Event = field(factory=threading.Event, repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def wait_for_more(self, count: int) -> None:
        """Return once `count` more records are acknowledged than at the call."""
        with self._changed:
            target = len(self.offsets) + count
            in_time = self._changed.wait_for(lambda: len(self.offsets) >= target or self.errors, LIMIT_S)
            assert not self.errors
            assert in_time, f"{len(self.offsets)} of {target} acknowledged, {self.produced} produced"

    def unanswered_requests(self) -> int:
        """Return the number of unanswered requests, counted after the call."""
        with self._changed:
            # The next statistics may have been collected before the call; those after it were not.
            target = self._counts + 2
            assert self._changed.wait_for(lambda: self._counts >= target, LIMIT_S)
            return self._requests

    def acknowledged(self) -> set[int]:
        """Return the numbers acknowledged so far."""
        with self._changed:
            return set(self.offsets)

    def finish(self) -> None:
        """Stop producing; everything produced must be acknowledged."""
        self._stopping.set()
        assert self._thread is not None
        self._thread.join()
        assert not self.errors
        assert set(range(self.produced)) == set(self.offsets)

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": self.idempotent,
                "max.in.flight": 5 if self.idempotent else 1,
                "linger.ms": 1,
                "batch.num.messages": BATCH_RECORDS,
                "queue.buffering.max.messages": QUEUED_RECORDS,
                "message.timeout.ms": 2 * LIMIT_S * 1000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "statistics.interval.ms": 50,  # each of them costs several milliseconds
                "stats_cb": self._count_requests,
                "log_level": 0,  # the tests make brokers unavailable, which would be logged
            }
        )
        while not self._stopping.is_set():
            try:
                producer.produce(
                    self.topic, str(self.produced), self.name, partition=0, on_delivery=self._delivered
                )
            except BufferError:
                producer.poll(0.01)
            else:
                self.produced += 1
                producer.poll(0)
        producer.flush(LIMIT_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._changed:
            if error is not None:
                self.errors.append(error)
            else:
                value = message.value()
                assert value is not None
                number = int(value)
                assert number not in self.offsets
                offset = message.offset()
                assert offset is not None
                self.offsets[number] = offset
            self._changed.notify_all()

    def _count_requests(self, statistics: str) -> None:
        brokers: dict[str, Any] = json.loads(statistics)["brokers"]
        with self._changed:
            self._requests = sum(broker["waitresp_cnt"] for broker in brokers.values())
            self._counts += 1
            self._changed.notify_all()


@define
class Ledgers:
    """Several producers to the same partition."""

    each: list[Ledger]

    @classmethod
    def of(cls, bootstrap_servers: str, topic: str, *, idempotent: bool, count: int = 3) -> Self:
        return cls([Ledger(bootstrap_servers, topic, idempotent, str(index)) for index in range(count)])

    def __enter__(self) -> Self:
        for ledger in self.each:
            ledger.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for ledger in self.each:
            ledger.__exit__(kind, error, traceback)

    def wait_for_more(self, count: int) -> None:
        """Return once each has `count` more records acknowledged."""
        for ledger in self.each:
            ledger.wait_for_more(count)

    def unanswered_requests(self) -> int:
        return sum(ledger.unanswered_requests() for ledger in self.each)

    def acknowledged(self) -> set[tuple[str, int]]:
        """Return name and number of all records acknowledged so far."""
        return {(ledger.name, number) for ledger in self.each for number in ledger.acknowledged()}

    def produced(self) -> set[tuple[str, int]]:
        """Return name and number of all records produced so far."""
        return {(ledger.name, number) for ledger in self.each for number in range(ledger.produced)}

    def finish(self) -> None:
        for ledger in self.each:
            ledger.finish()


@frozen
class Found:
    """A consumed record."""

    name: str
    number: int
    offset: int


def consume_all(bootstrap_servers: str, topic: str) -> list[Found]:
    """Return every record in partition 0, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verification",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[Found] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"no end of {topic} after {len(found)} records"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            name, value, offset = message.key(), message.value(), message.offset()
            assert name is not None
            assert value is not None
            assert offset is not None
            found.append(Found(name.decode(), int(value), offset))
    finally:
        consumer.close()


def assert_each_once_and_in_order(ledgers: Ledgers, found: list[Found]) -> None:
    """Check that no record is lost, duplicated or reordered, and that each has the acknowledged offset."""
    for ledger in ledgers.each:
        mine = [one for one in found if one.name == ledger.name]
        times_found = Counter(one.number for one in mine)
        wrong = {number: times_found[number] for number in range(ledger.produced) if times_found[number] != 1}
        assert not wrong, f"times found: {wrong}; {[one for one in mine if one.number in wrong]}"
        out_of_order = [pair for pair in pairwise(mine) if pair[0].number + 1 != pair[1].number]
        assert not out_of_order, f"out of order: {out_of_order}"
        assert ledger.offsets == {one.number: one.offset for one in mine}
    assert len(found) == len(ledgers.produced())
