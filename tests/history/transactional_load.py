"""Transactional clients under load, each in a thread, which write what they do into one history.

Movers read `inputs` and write each value to two partitions of `outputs` with the offset behind it. Writers write to
several partitions of `outputs`. Both abort some transactions, and leave others open, as a client that dies does: the
next one with its transactional id fences it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Self

from attrs import define, field
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.history.clients import started
from tests.history.transactions import Began, Ended, Event, Log, Outcome, Partition, Polled, Sent, Took
from tests.reading import read_to_end

GROUP = "movers"
# Longer than transaction.timeout.ms. librdkafka 2.16 has been seen to send nothing any more after AddOffsetsToTxn, when
# the connection to the coordinator was replaced amid it; such a client is replaced, as its user would do.
CALL_LIMIT_S = 30.0
FLUSH_LIMIT_S = 120.0
JOIN_LIMIT_S = 150.0
BETWEEN_INPUTS_S = 0.02


class ClientDied(Exception):  # noqa: N818  an outcome that callers plan for
    """The client ends without a word, amid its transaction."""


@define(eq=False)
class TransactionalLoad:
    """The clients. A context manager, which ends the threads."""

    servers: str
    inputs: Sequence[Partition]
    outputs: Sequence[Partition]
    seed: int
    movers: int = 2
    writers: int = 1
    events: list[Event] = field(factory=list)
    faults: list[str] = field(factory=list)  # errors that no client may get
    _number: int = 0
    _stops_producing: threading.Event = field(factory=threading.Event)
    _stops_writing: threading.Event = field(factory=threading.Event)
    _stops: threading.Event = field(factory=threading.Event)
    _threads: dict[str, threading.Thread] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    def __enter__(self) -> Self:
        self._start("source", self._produce)
        for number in range(self.movers):
            self._start(f"mover-{number}", self._again(self._move))
        for number in range(self.writers):
            self._start(f"writer-{number}", self._again(self._write))
        self._start("reader", self._read)
        return self

    def __exit__(self, *_: object) -> None:
        for event in (self._stops_producing, self._stops_writing, self._stops):
            event.set()
        for thread in self._threads.values():
            thread.join(JOIN_LIMIT_S)

    def finish(self, inputs: Callable[[], int]) -> None:
        """Stop producing, wait until movers have committed as many inputs as there are, and stop them.

        `inputs` returns the number of inputs once none are added.
        """
        self._stops_producing.set()
        self._join("source")
        count, deadline = inputs(), time.monotonic() + JOIN_LIMIT_S
        while (moved := len(self._moved())) < count:
            assert time.monotonic() < deadline, f"{moved} of {count} inputs were moved"
            time.sleep(0.2)
        self._stops_writing.set()
        names = [name for name in self._threads if name.startswith(("mover", "writer"))]
        for name in names:
            self._join(name)
        for name in names:
            self._producer(name)  # ends what a client that died has left open, and waits for the markers

    def _moved(self) -> set[tuple[Partition, int]]:
        done = {
            each.transaction
            for each in list(self.events)
            if isinstance(each, Ended) and each.outcome is Outcome.COMMITTED
        }
        return {
            (each.partition, each.offset)
            for each in list(self.events)
            if isinstance(each, Took) and each.transaction in done
        }

    def _join(self, name: str) -> None:
        self._threads[name].join(JOIN_LIMIT_S)
        assert not self._threads[name].is_alive(), f"{name} still waits for answers"

    # --- Threads ----------------------------------------------------------------------------------------

    def _start(self, name: str, run: Callable[[str], None]) -> None:
        self._threads[name] = started(run, name, self.faults)

    def _again(self, run: Callable[[str, Random], None]) -> Callable[[str], None]:
        """Run a client again whenever it has died."""

        def repeated(name: str) -> None:
            random = Random(f"{self.seed}-{name}")
            while not self._stops_writing.is_set():
                try:
                    run(name, random)
                except ClientDied:
                    continue

        return repeated

    def _produce(self, name: str) -> None:
        producer = Producer({**self._common(name), "enable.idempotence": True, "linger.ms": 2})
        number = 0
        while not self._stops_producing.is_set():
            topic, partition = self.inputs[number % len(self.inputs)]
            producer.produce(topic, f"in-{number}".encode(), partition=partition)
            producer.poll(BETWEEN_INPUTS_S)
            number += 1
        assert not producer.flush(FLUSH_LIMIT_S)

    def _move(self, name: str, random: Random) -> None:
        producer = self._producer(name)
        consumer = self._consumer(name, GROUP)
        consumer.subscribe(sorted({topic for topic, _ in self.inputs}))
        try:
            while not self._stops_writing.is_set():
                messages = [each for each in consumer.consume(50, 0.2) if each.error() is None]
                if messages and not self._one_move(name, random, producer, consumer, messages):
                    return  # a new consumer begins at the committed offsets
        finally:
            consumer.close()

    def _one_move(
        self, name: str, random: Random, producer: Producer, consumer: Consumer, messages: list[Message]
    ) -> bool:
        """Move values in a transaction. Return True if it was committed."""
        transaction = self._begin(name, producer)
        ends: dict[Partition, int] = {}
        for message in messages:
            tp, offset = (message.topic(), message.partition()), message.offset() or 0
            value = (message.value() or b"").decode()
            self.events.append(Took(transaction, tp, offset, value))
            ends[tp] = offset + 1
            for output in random.sample(self.outputs, 2):
                self._send(producer, transaction, output, f"{transaction}:{value}")

        def stage() -> None:
            offsets = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_LIMIT_S)

        return self._end(transaction, random, producer, stage)

    def _write(self, name: str, random: Random) -> None:
        producer = self._producer(name)
        while not self._stops_writing.is_set():
            transaction = self._begin(name, producer)
            for number in range(random.randint(1, 30)):
                self._send(producer, transaction, random.choice(self.outputs), f"{transaction}:{number}")
            self._end(transaction, random, producer, lambda: None)
            self._stops_writing.wait(random.random() / 10)

    def _read(self, name: str) -> None:
        consumer = self._consumer(name, "unused")
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in self.outputs])
        try:
            while not self._stops.is_set():
                for message in consumer.consume(200, 0.2):
                    if message.error() is None:
                        tp, value = (message.topic(), message.partition()), (message.value() or b"").decode()
                        self.events.append(Polled(name, tp, message.offset() or 0, value))
        finally:
            consumer.close()

    # --- Transactions -----------------------------------------------------------------------------------

    def _producer(self, name: str) -> Producer:
        producer = Producer(
            {**self._common(name), "transactional.id": name, "transaction.timeout.ms": 20_000}
        )
        while True:
            try:
                producer.init_transactions(CALL_LIMIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise ClientDied from None
            else:
                return producer

    def _begin(self, name: str, producer: Producer) -> str:
        with self._lock:
            self._number += 1
            transaction = f"{name}-{self._number}"
        self.events.append(Began(transaction, name))
        producer.begin_transaction()
        return transaction

    def _send(self, producer: Producer, transaction: str, tp: Partition, value: str) -> None:
        self.events.append(Sent(transaction, tp, value))
        try:
            producer.produce(tp[0], value.encode(), partition=tp[1])
        except KafkaException:
            return  # the end of the transaction says why
        producer.poll(0)

    def _end(self, transaction: str, random: Random, producer: Producer, stage: Callable[[], None]) -> bool:
        """End a transaction as chosen: some die or abort, while inputs come. Return True if it was committed."""
        choice = 1.0 if self._stops_producing.is_set() else random.random()
        if choice < 0.2 and random.random() < 0.5:
            self._call(transaction, producer, stage)  # the offsets must not become visible
        if choice < 0.05:
            raise ClientDied
        if choice < 0.2:
            self._call(transaction, producer, lambda: producer.abort_transaction(CALL_LIMIT_S))
            self.events.append(Ended(transaction, Outcome.ABORTED))
            return False
        if self._call(transaction, producer, stage) and self._call(
            transaction, producer, lambda: producer.commit_transaction(CALL_LIMIT_S)
        ):
            self.events.append(Ended(transaction, Outcome.COMMITTED))
            return True
        self._call(transaction, producer, lambda: producer.abort_transaction(CALL_LIMIT_S))
        self.events.append(Ended(transaction, Outcome.ABORTED))
        return False

    def _call(self, transaction: str, producer: Producer, call: Callable[[], None]) -> bool:
        """Call until it succeeds. Return False if the transaction has to be aborted. Raises ClientDied."""
        for _ in range(10):
            try:
                call()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.txn_requires_abort():
                    return False
                if not reason.retriable() or reason.code() == KafkaError._TIMED_OUT:
                    raise ClientDied from None  # fenced, fatal or stuck: the outcome is unknown
            else:
                return True
        raise ClientDied

    def _consumer(self, name: str, group: str) -> Consumer:
        return Consumer(
            {
                **self._common(name),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "fetch.error.backoff.ms": 50,
            }
        )

    def _common(self, name: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "client.id": name,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
        }


def read_all(servers: str, partitions: Sequence[Partition], isolation_level: str) -> dict[Partition, Log]:
    """Read every partition from start to end. Raises AssertionError if that takes too long."""
    logs: dict[Partition, list[tuple[int, str]]] = {tp: [] for tp in partitions}
    for message in read_to_end({"bootstrap.servers": servers}, partitions, isolation_level):
        value = (message.value() or b"").decode()
        logs[message.topic(), message.partition()].append((message.offset() or 0, value))
    return dict(logs)
