"""A producer that remembers what became of every record, while brokers and servers die around it.

Records are numbered from 0 and produced in that order into partition 0. librdkafka retries on its own, and every
error that it gives up on fails the test. With idempotence five requests are in flight; without it one, since
order is only promised to such producers then, by Kafka too.
"""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import Any, Self

from attrs import define, field
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

LIMIT_S = 60.0
# Small requests and many of them, so that some are always on their way.
BATCH_RECORDS = 20
QUEUED_RECORDS = 400


@define
class Ledger:
    """Produces from entering the block until `finish`, which waits for everything to be acknowledged."""

    bootstrap_servers: str
    topic: str
    idempotent: bool
    produced: int = 0
    offsets: dict[int, int] = field(factory=dict)  # of the acknowledged records, by number
    errors: list[KafkaError] = field(factory=list)
    _requests: int = 0  # unanswered ones, as librdkafka counted them last
    _counts: int = 0  # how often it did
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
        """Return once so many more records are acknowledged than when this was called."""
        with self._changed:
            target = len(self.offsets) + count
            in_time = self._changed.wait_for(lambda: len(self.offsets) >= target or self.errors, LIMIT_S)
            assert not self.errors
            assert in_time, f"{len(self.offsets)} of {target} acknowledged, {self.produced} produced"

    def unanswered_requests(self) -> int:
        """How many requests the broker has not answered, counted after this was called."""
        with self._changed:
            # The count that comes next may have been taken before; the one after it was not.
            target = self._counts + 2
            assert self._changed.wait_for(lambda: self._counts >= target, LIMIT_S)
            return self._requests

    def acknowledged(self) -> set[int]:
        """The numbers acknowledged so far."""
        with self._changed:
            return set(self.offsets)

    def finish(self) -> None:
        """Stop producing; everything produced must get acknowledged now."""
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
                "statistics.interval.ms": 10,
                "stats_cb": self._count_requests,
                "log_level": 0,  # that brokers go away is what these tests are about
            }
        )
        while not self._stopping.is_set():
            try:
                producer.produce(self.topic, b"%d" % self.produced, partition=0, on_delivery=self._delivered)
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
                self.offsets[number] = message.offset()
            self._changed.notify_all()

    def _count_requests(self, statistics: str) -> None:
        brokers: dict[str, Any] = json.loads(statistics)["brokers"]
        with self._changed:
            self._requests = sum(broker["waitresp_cnt"] for broker in brokers.values())
            self._counts += 1
            self._changed.notify_all()


def consume_numbers(bootstrap_servers: str, topic: str) -> list[tuple[int, int]]:
    """Offset and number of every record in partition 0, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verification",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[tuple[int, int]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"no end of {topic} after {len(found)} records"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            value, offset = message.value(), message.offset()
            assert value is not None
            assert offset is not None
            found.append((offset, int(value)))
    finally:
        consumer.close()


def assert_each_once_and_in_order(ledger: Ledger, found: list[tuple[int, int]]) -> None:
    """Nothing lost, nothing doubled, order kept, and every record where its acknowledgement said."""
    assert list(range(ledger.produced)) == [number for _, number in found]
    assert ledger.offsets == {number: offset for offset, number in found}
