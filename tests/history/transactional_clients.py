"""Transactional clients: movers and writers. Each runs in a process until it dies, as programs do.

A client that dies leaves its transaction open. It dies as it chooses, or when an error leaves no other way. The library
ends it, too: when connections are cut amid transactions, librdkafka 2.16.0 now and then fails its own assertion
`txn_req_cnt > 0` at the answer to AddPartitionsToTxn.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from random import Random
from typing import Any

from attrs import define, field
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from korvet.testing.transaction_history import Began, Ended, Event, Outcome, Partition, Sent, Took

GROUP = "movers"
# Longer than transaction.timeout.ms. librdkafka 2.16 has been seen to send nothing any more after AddOffsetsToTxn, when
# the connection to the coordinator was replaced amid it; such a client is replaced, as its user would do.
CALL_LIMIT_S = 30.0
# It has been seen to go on with send_offsets_to_transaction after its limit, too. An alarm ends the process.
ALARM_S = 45
#: The load sends these words to a client: it shall commit everything, since no more inputs come; it shall stop.
INPUTS_ENDED, STOP = "inputs ended", "stop"
MOVER, WRITER = "mover", "writer"


class ClientDied(Exception):  # noqa: N818  an outcome that callers plan for
    """The client ends without a word, amid its transaction."""


@define(eq=False)
class TransactionalClient:
    """A client, whose name is its transactional id. It sends events, or an error's text, to the load."""

    kind: str
    name: str
    life: int
    servers: str
    inputs: Sequence[Partition]
    outputs: Sequence[Partition]
    random: Random
    load: Connection
    _number: int = 0
    _told: set[str] = field(factory=set)

    def run(self) -> None:
        """Work until the load sends STOP. Kill the process when the client dies."""
        try:
            (self._move if self.kind == MOVER else self._write)()
        except ClientDied:
            os.kill(os.getpid(), signal.SIGKILL)
        except Exception as error:  # noqa: BLE001  reported by the test
            self.load.send(f"{self.name}: {error!r}")

    def _is_told(self, word: str) -> bool:
        while self.load.poll():
            self._told.add(self.load.recv())
        return word in self._told

    def _note(self, event: Event) -> None:
        self.load.send(event)

    def _move(self) -> None:
        producer = producer_of(self.servers, self.name)
        consumer = consumer_of(self.servers, self.name, GROUP)
        consumer.subscribe(sorted({topic for topic, _ in self.inputs}))
        try:
            while not self._is_told(STOP):
                messages = [each for each in consumer.consume(50, 0.2) if each.error() is None]
                if messages and not self._one_move(producer, consumer, messages):
                    return  # a new consumer begins at the committed offsets
        finally:
            consumer.close()

    def _one_move(self, producer: Producer, consumer: Consumer, messages: list[Message]) -> bool:
        """Move values in a transaction. Return True if it was committed."""
        transaction = self._begin(producer)
        ends: dict[Partition, int] = {}
        for message in messages:
            tp, offset = (message.topic(), message.partition()), message.offset() or 0
            value = (message.value() or b"").decode()
            self._note(Took(transaction, tp, offset, value))
            ends[tp] = offset + 1
            for output in self.random.sample(self.outputs, 2):
                self._send(producer, transaction, output, f"{transaction}:{value}")

        def stage() -> None:
            offsets = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_LIMIT_S)

        return self._end(transaction, producer, stage)

    def _write(self) -> None:
        producer = producer_of(self.servers, self.name)
        while not self._is_told(STOP):
            transaction = self._begin(producer)
            for number in range(self.random.randint(1, 30)):
                self._send(producer, transaction, self.random.choice(self.outputs), f"{transaction}:{number}")
            self._end(transaction, producer, lambda: None)
            self.load.poll(self.random.random() / 10)

    # --- Transactions -----------------------------------------------------------------------------------

    def _begin(self, producer: Producer) -> str:
        self._number += 1
        transaction = f"{self.name}-{self.life}-{self._number}"
        self._note(Began(transaction, self.name))
        producer.begin_transaction()
        return transaction

    def _send(self, producer: Producer, transaction: str, tp: Partition, value: str) -> None:
        self._note(Sent(transaction, tp, value))
        try:
            producer.produce(tp[0], value.encode(), partition=tp[1])
        except KafkaException:
            return  # the end of the transaction says why
        producer.poll(0)

    def _end(self, transaction: str, producer: Producer, stage: Callable[[], None]) -> bool:
        """End a transaction as chosen: some die or abort, while inputs come. Return True if it was committed."""
        choice = 1.0 if self._is_told(INPUTS_ENDED) else self.random.random()
        if choice < 0.2 and self.random.random() < 0.5:
            self._call(transaction, producer, stage)  # the offsets must not become visible
        if choice < 0.05:
            raise ClientDied
        if choice < 0.2:
            self._call(transaction, producer, lambda: producer.abort_transaction(CALL_LIMIT_S))
            self._note(Ended(transaction, Outcome.ABORTED))
            return False
        if self._call(transaction, producer, stage) and self._call(
            transaction, producer, lambda: producer.commit_transaction(CALL_LIMIT_S)
        ):
            self._note(Ended(transaction, Outcome.COMMITTED))
            return True
        self._call(transaction, producer, lambda: producer.abort_transaction(CALL_LIMIT_S))
        self._note(Ended(transaction, Outcome.ABORTED))
        return False

    def _call(self, transaction: str, producer: Producer, call: Callable[[], None]) -> bool:
        """Call until it succeeds. Return False if the transaction has to be aborted. Raises ClientDied."""
        for _ in range(10):
            signal.alarm(ALARM_S)
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
            finally:
                signal.alarm(0)
        raise ClientDied


def producer_of(servers: str, name: str) -> Producer:
    """Return a producer that has fenced earlier ones of this transactional id. Raises ClientDied."""
    producer = Producer({**common(servers, name), "transactional.id": name, "transaction.timeout.ms": 20_000})
    while True:
        try:
            producer.init_transactions(CALL_LIMIT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise ClientDied from None
        else:
            return producer


def consumer_of(servers: str, name: str, group: str) -> Consumer:
    """Return a consumer of committed records."""
    return Consumer(
        {
            **common(servers, name),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            "fetch.error.backoff.ms": 50,
        }
    )


def common(servers: str, name: str) -> dict[str, Any]:
    """Return the settings of all clients."""
    return {
        "bootstrap.servers": servers,
        "client.id": name,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 2000,
        "log_level": 0,
    }
