"""Confluent's clients under load, each in a thread, which write what they do into one history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from attrs import define, field
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.history.history import (
    Acknowledged,
    Asked,
    Committed,
    Event,
    Logs,
    Partition,
    Positioned,
    Read,
    Rejected,
    Sent,
    Value,
    decode,
)
from tests.reading import read_to_end

GROUP = "readers"
STATIC_GROUP = "static-readers"
BETWEEN_SENDS_S = 0.004
MESSAGE_TIMEOUT_MS = 120_000
SESSION_MS = 6000
ASK_LIMIT_S = 10.0
FINAL_LIMIT_S = 120.0
# Errors after which a record is certainly not stored: the broker looked at it and refused it.
REFUSED = {KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED}


@define(eq=False)
class Load:
    """Producers, members of two groups, and a reader without a group. A context manager, which ends the threads.

    The plain producers are not idempotent and send nothing twice. The static members have a group of their own.
    """

    servers: str
    partitions: Sequence[Partition]
    producers: int = 2
    plain_producers: int = 1
    members: int = 2
    static_members: int = 2
    events: list[Event] = field(factory=list)
    faults: list[str] = field(factory=list)  # errors that no client may get
    settings: dict[str, Any] = field(factory=dict)  # of all clients
    _stops_producing: threading.Event = field(factory=threading.Event)
    _stops: threading.Event = field(factory=threading.Event)
    _producing: list[threading.Thread] = field(factory=list)
    _reading: list[threading.Thread] = field(factory=list)

    @property
    def readers(self) -> dict[str, list[str]]:
        """The names of the members of each group."""
        return {
            GROUP: [f"member-{number}" for number in range(self.members)],
            STATIC_GROUP: [f"static-{number}" for number in range(self.static_members)],
        }

    def __enter__(self) -> Self:
        for number in range(self.producers):
            self._producing.append(self._start(self._produce_idempotently, f"producer-{number}"))
        for number in range(self.plain_producers):
            self._producing.append(self._start(self._produce_once, f"plain-{number}"))
        for group, names in self.readers.items():
            for name in names:
                self._reading.append(self._start(partial(self._be_member, group), name))
        self._reading.append(self._start(self._read_all, "reader"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stops_producing.set()
        self._stops.set()
        for thread in [*self._producing, *self._reading]:
            thread.join(FINAL_LIMIT_S)

    def stop_producing(self, limit_s: float = FINAL_LIMIT_S) -> None:
        """Stop the producers after everything that they sent was answered. Raises AssertionError after the limit."""
        self._stops_producing.set()
        for thread in self._producing:
            thread.join(limit_s)
            assert not thread.is_alive(), f"{thread.name} still waits for answers"

    # --- Threads ----------------------------------------------------------------------------------------

    def _start(self, run: Callable[[str], None], name: str) -> threading.Thread:
        return started(run, name, self.faults)

    def _produce_idempotently(self, name: str) -> None:
        self._produce(name, {"enable.idempotence": True, "acks": "all", "retry.backoff.ms": 50})

    def _produce_once(self, name: str) -> None:
        """Produce without a retry, one value of a partition at a time: it is stored at most once, in order.

        librdkafka sends again what NOT_LEADER_OR_FOLLOWER rejects, also with retries=0, and behind a request that it
        has built meanwhile, also with max.in.flight=1. So a value waits for the answer about the one before.
        """
        settings = {"retries": 0, "acks": "all", "socket.timeout.ms": 60_000}
        self._produce(name, settings, at_a_time=len(self.partitions))

    def _produce(self, name: str, settings: dict[str, Any], at_a_time: int | None = None) -> None:
        """Send values to the partitions in turn, at most `at_a_time` without an answer."""
        common = {**self._common(name), "linger.ms": 2, "message.timeout.ms": MESSAGE_TIMEOUT_MS}
        producer = Producer({**common, **settings})
        number = 0
        while not self._stops_producing.is_set():
            tp, value = self.partitions[number % len(self.partitions)], Value(name, number)
            self.events.append(Sent(tp, value))
            producer.produce(tp[0], value.encode(), partition=tp[1], on_delivery=self._answered(tp, value))
            producer.poll(BETWEEN_SENDS_S)
            number += 1
            if at_a_time is not None and number % at_a_time == 0:
                assert not producer.flush(FINAL_LIMIT_S)
        assert not producer.flush(FINAL_LIMIT_S)

    def _answered(self, tp: Partition, value: Value) -> Callable[[KafkaError | None, Message], None]:
        def answered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                # librdkafka does not know the offset of a batch that was a duplicate.
                self.events.append(Acknowledged(tp, value, message.offset()))
            elif error.code() in REFUSED:
                self.events.append(Rejected(tp, value))

        return answered

    def _be_member(self, group: str, name: str) -> None:
        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            consumer.assign(self._positions(consumer, group, name, partitions))

        settings: dict[str, Any] = {"session.timeout.ms": SESSION_MS}
        if group == STATIC_GROUP:
            settings["group.instance.id"] = name
        consumer = self._consumer(name, group, settings)
        consumer.subscribe(sorted({topic for topic, _ in self.partitions}), on_assign=assigned)
        try:
            while not self._stops.is_set():
                messages = self._consume(consumer, name)
                if messages:
                    self._commit(consumer, group, messages)
        finally:
            consumer.close()

    def _positions(
        self, consumer: Consumer, group: str, name: str, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions with the offsets that the group has committed, or 0."""
        while not self._stops.is_set():
            self.events.extend(Asked(name, (each.topic, each.partition)) for each in partitions)
            try:
                answers = consumer.committed(partitions, timeout=ASK_LIMIT_S)
            except KafkaException:
                continue
            if any(each.error for each in answers):
                continue
            for each in answers:
                each.offset = max(each.offset, 0)
                self.events.append(Positioned(name, (each.topic, each.partition), each.offset, group))
            return answers
        return []

    def _commit(self, consumer: Consumer, group: str, messages: Sequence[Message]) -> None:
        last = {(each.topic(), each.partition()): (each.offset() or 0) + 1 for each in messages}
        wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in last.items()]
        try:
            committed = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # the group has another generation, or the coordinator is away: it will be read again
        for each in committed or ():
            if each.error is None:
                self.events.append(Committed(group, (each.topic, each.partition), each.offset))

    def _read_all(self, name: str) -> None:
        consumer = self._consumer(name, "unused")
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in self.partitions])
        try:
            while not self._stops.is_set():
                self._consume(consumer, name)
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer, name: str) -> list[Message]:
        messages = [message for message in consumer.consume(200, timeout=0.2) if message.error() is None]
        for message in messages:
            tp = (message.topic(), message.partition())
            self.events.append(Read(name, tp, message.offset(), decode(message.value())))
        return messages

    def _consumer(self, name: str, group: str, settings: dict[str, Any] | None = None) -> Consumer:
        return Consumer(
            {
                **self._common(name),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.error.backoff.ms": 50,
                **(settings or {}),
            }
        )

    def _common(self, name: str) -> dict[str, Any]:
        def report(error: KafkaError) -> None:
            if error.fatal():
                self.faults.append(f"{name}: {error.str()}")

        return {
            "bootstrap.servers": self.servers,
            "client.id": name,
            "error_cb": report,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
            **self.settings,
        }


def started(run: Callable[[str], None], name: str, faults: list[str]) -> threading.Thread:
    """Start a thread that calls `run` with its name, and adds an error that ends it to `faults`."""

    def guarded() -> None:
        try:
            run(name)
        except Exception as error:  # noqa: BLE001  reported by the test
            faults.append(f"{name}: {error!r}")

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def read_logs(servers: str, partitions: Sequence[Partition]) -> Logs:
    """Read every partition from start to end. Raises AssertionError if that takes too long."""
    logs: dict[Partition, list[tuple[int, Value]]] = {tp: [] for tp in partitions}
    for message in read_to_end({"bootstrap.servers": servers}, partitions, "read_uncommitted"):
        logs[message.topic(), message.partition()].append((message.offset(), decode(message.value())))
    return logs
