"""A load for a cluster whose brokers end: an idempotent producer, and a consumer group that commits its progress."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from attrs import define, field
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

LIMIT_S = 60.0
PAUSE_S = 0.01  # between two records
# librdkafka reports these while it connects to another broker.
PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)


@define
class Load:
    """Records with the numbers 0, 1, … and what became of them."""

    bootstrap_servers: str
    topic: str
    partitions: int
    members: int = 2
    session_ms: int = 10_000
    acknowledged_s: dict[int, float] = field(
        factory=dict
    )  # by number: seconds from produce() to the delivery report
    read: Counter[int] = field(factory=Counter)
    errors: list[str] = field(factory=list)
    rebalances: int = 0  # assignments of any member after the group has settled
    produced: int = 0
    _assigned: dict[str, int] = field(factory=dict)  # number of partitions by member
    _is_settled: bool = False
    _changed: threading.Condition = field(factory=threading.Condition, repr=False)
    _stopping: threading.Event = field(factory=threading.Event, repr=False)
    _finished: threading.Event = field(factory=threading.Event, repr=False)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce and consume for the block, and then until every record is acknowledged and read."""
        consumers = [
            threading.Thread(target=self._consume, args=(f"m{number}",)) for number in range(self.members)
        ]
        producer = threading.Thread(target=self._produce)
        threads = [*consumers, producer]
        for thread in consumers:
            thread.start()
        try:
            self.wait_until(self._has_settled)
            self._is_settled = True
            producer.start()
            yield
            self._stopping.set()
            producer.join()
            self.wait_until(lambda: len(self.read) == self.produced)
        finally:
            self._stopping.set()
            self._finished.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def wait_until(self, condition: Any, limit_s: float = LIMIT_S) -> None:
        """Return once the condition is true. Raise after `limit_s`."""
        with self._changed:
            in_time = self._changed.wait_for(condition, limit_s)
        counts = len(self.acknowledged_s), len(self.read)
        assert in_time, f"of {self.produced} records, acknowledged and read: {counts}; {self.errors}"

    def _has_settled(self) -> bool:
        return len(self._assigned) == self.members and sum(self._assigned.values()) == self.partitions

    def wait_for_more(self, count: int) -> None:
        """Return once `count` more records are acknowledged, and as many are read."""
        written, read = len(self.acknowledged_s) + count, len(self.read) + count
        self.wait_until(lambda: len(self.acknowledged_s) >= written and len(self.read) >= read)

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the time to an acknowledgement."""
        times = sorted(self.acknowledged_s.values())
        return times[len(times) * 99 // 100]

    def stored(self) -> Counter[int]:
        """Return how often the topic has each number."""
        found: Counter[int] = Counter()
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
        )
        tps = [TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in range(self.partitions)]
        ends = {tp.partition: consumer.get_watermark_offsets(tp, LIMIT_S)[1] for tp in tps}
        consumer.assign(tps)
        missing = {n for n, end in ends.items() if end}
        deadline = time.monotonic() + LIMIT_S
        while missing and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                found[int(message.value() or b"")] += 1
                if (message.offset() or 0) + 1 >= ends[message.partition() or 0]:
                    missing.discard(message.partition() or 0)
        consumer.close()
        return found

    def _failed(self, error: KafkaError) -> None:
        with self._changed:
            if error.fatal() or error.code() not in PASSING:
                self.errors.append(str(error))
                self._changed.notify_all()

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "error_cb": self._failed,
            }
        )
        while not self._stopping.is_set():
            number = self.produced
            began_s = time.monotonic()

            def delivered(
                error: KafkaError | None, _: Message, number: int = number, began_s: float = began_s
            ) -> None:
                with self._changed:
                    if error is not None:
                        self.errors.append(f"record {number}: {error}")
                    self.acknowledged_s[number] = time.monotonic() - began_s
                    self._changed.notify_all()

            producer.produce(
                self.topic, b"%d" % number, partition=number % self.partitions, on_delivery=delivered
            )
            self.produced += 1
            producer.poll(PAUSE_S)
        assert not producer.flush(LIMIT_S)

    def _consume(self, name: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": self.topic,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": 500,
                "auto.commit.interval.ms": 200,
                "error_cb": self._failed,
            }
        )

        def assigned(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
            with self._changed:
                self._assigned[name] = len(partitions)
                self.rebalances += self._is_settled
                self._changed.notify_all()

        consumer.subscribe([self.topic], on_assign=assigned)
        with ExitStack() as stack:
            stack.callback(consumer.close)
            while not self._finished.is_set():
                for message in consumer.consume(100, 0.05):
                    if (error := message.error()) is not None:
                        self._failed(error)
                        continue
                    with self._changed:
                        self.read[int(message.value() or b"")] += 1
                        self._changed.notify_all()
