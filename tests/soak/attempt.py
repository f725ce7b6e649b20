"""A producer and a consumer at work while a broker or Redis fails, and the result for their records.

The producer numbers its records and notes the time of each acknowledgement. Acknowledged records that are missing later
are lost. The longest time without an acknowledgement is the duration of the outage.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from attrs import define, field, frozen
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.failures.ledger import LIMIT_S, consume_all

RECORDS_PER_S = 400
PARTITION = 0


@frozen
class Outcome:
    """Result for the records, and errors that clients saw."""

    acknowledged: int
    lost: int
    lost_s: float  # between the first and the last acknowledgement of what was lost
    repeated: int
    still_s: float
    errors: tuple[str, ...]  # errors that the producer returned, with their counts
    seen_and_gone: int  # records that the consumer had read and that no longer exist
    consumer_goes_on: bool

    def __str__(self) -> str:
        lost = f"{self.lost} lost" + (f" (of {self.lost_s:.2f} s)" if self.lost else "")
        seen = f"; {self.seen_and_gone} that were read are gone" if self.seen_and_gone else ""
        goes_on = "goes on" if self.consumer_goes_on else "HANGS"
        errors = f"; given up: {', '.join(self.errors)}" if self.errors else ""
        return (
            f"{self.acknowledged} acknowledged, {lost}, {self.repeated} twice; {self.still_s:.2f} s without"
            f" an acknowledgement; the consumer {goes_on}{seen}{errors}"
        )


@define
class Attempt:
    """Runs producer and consumer from entering the block until its end; then `outcome` is available."""

    bootstrap_servers: str
    topic: str
    acks: str = "all"
    idempotent: bool = True  # with acks=all
    message_timeout_s: float = 60.0
    acknowledged: dict[int, float] = field(factory=dict)  # number -> time
    errors: Counter[str] = field(factory=Counter)
    consumed: list[int] = field(factory=list)
    produced: int = 0
    _consumed_last: float = 0.0
    _changed: threading.Condition = field(factory=threading.Condition)
    _producing: threading.Event = field(factory=threading.Event)
    _consuming: threading.Event = field(factory=threading.Event)
    _threads: list[threading.Thread] = field(factory=list)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._producing.set()
        self._threads[0].join()
        if kind is None:
            self._wait_for_the_consumer()
        self._consuming.set()
        self._threads[1].join()

    def wait_for_more(self, count: int) -> None:
        """Return once `count` more records are acknowledged; with acks=0, sent."""
        with self._changed:
            target = len(self.acknowledged) + count
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= target, LIMIT_S)

    def wait_for_the_first_read(self) -> None:
        """Return once the consumer has read something."""
        # A consumer whose topic is lost before it has joined gets no partitions, and looks for new ones only every five
        # minutes.
        with self._changed:
            assert self._changed.wait_for(lambda: self.consumed, LIMIT_S)

    def outcome(self) -> Outcome:
        """Return the outcome; call it after the block, while the broker serves."""
        found = Counter(one.number for one in consume_all(self.bootstrap_servers, self.topic))
        lost = sorted(number for number in self.acknowledged if number not in found)
        times = sorted(self.acknowledged.values())
        gone = {number for number in self.consumed if number not in found}
        lost_at = [self.acknowledged[number] for number in lost]
        return Outcome(
            acknowledged=len(self.acknowledged),
            lost=len(lost),
            lost_s=max(lost_at) - min(lost_at) if lost else 0.0,
            repeated=sum(count > 1 for count in found.values()),
            still_s=max((later - sooner for sooner, later in pairwise(times)), default=0.0),
            errors=tuple(f"{count} {name}" for name, count in self.errors.items()),
            seen_and_gone=len(gone),
            consumer_goes_on=bool(self.consumed) and max(self.acknowledged) in self.consumed,
        )

    def _wait_for_the_consumer(self) -> None:
        last = max(self.acknowledged)
        with suppress(AssertionError), self._changed:
            assert self._changed.wait_for(lambda: last in self.consumed[-1000:], LIMIT_S)

    def _produce(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "acks": self.acks,
            "enable.idempotence": self.idempotent and self.acks == "all",
            "message.timeout.ms": int(self.message_timeout_s * 1000),
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "linger.ms": 1,
            "log_level": 0,
        }
        producer = Producer(settings)
        while not self._producing.wait(1 / RECORDS_PER_S):
            producer.produce(
                self.topic, str(self.produced), "0", partition=PARTITION, on_delivery=self._delivered
            )
            self.produced += 1
            producer.poll(0)
        producer.flush(LIMIT_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        with self._changed:
            if error is not None:
                self.errors[error.name()] += 1
            else:
                self.acknowledged[int(value)] = time.monotonic()
            self._changed.notify_all()

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": f"readers-of-{self.topic}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "session.timeout.ms": 6000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        while not self._consuming.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None and (value := message.value()) is not None:
                with self._changed:
                    self.consumed.append(int(value))
                    self._changed.notify_all()
        consumer.close()
