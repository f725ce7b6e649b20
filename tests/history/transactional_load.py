"""Transactional clients under load, each in a process, which write what they do into one history.

Movers read `inputs` and write each value to two partitions of `outputs` with the offset behind it. Writers write to
several partitions of `outputs`. Both abort some transactions, and leave others open, as a client that dies does: the
next one with its transactional id fences it.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from random import Random
from typing import Self

from attrs import define, field
from confluent_kafka import Producer, TopicPartition

from korvet.testing.transaction_history import Ended, Event, Log, Outcome, Partition, Polled, Took
from tests.history.clients import started
from tests.history.transactional_clients import (
    INPUTS_ENDED,
    MOVER,
    STOP,
    WRITER,
    TransactionalClient,
    common,
    consumer_of,
    producer_of,
)
from tests.reading import read_to_end

FLUSH_LIMIT_S = 120.0
JOIN_LIMIT_S = 150.0
BETWEEN_INPUTS_S = 0.02
LOOK_S = 0.1
#: A client has stopped, died, was ended by librdkafka, or by the alarm about a call of it.
EXPECTED_ENDS = (0, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGALRM)

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([TransactionalClient.__module__])


@define(eq=False)
class TransactionalLoad:
    """The clients. A context manager, which ends them."""

    servers: str
    inputs: Sequence[Partition]
    outputs: Sequence[Partition]
    seed: int
    movers: int = 2
    writers: int = 1
    events: list[Event] = field(factory=list)
    faults: list[str] = field(factory=list)  # errors that no client may get
    _stops_producing: threading.Event = field(factory=threading.Event)
    _stops_writing: threading.Event = field(factory=threading.Event)
    _stops: threading.Event = field(factory=threading.Event)
    _threads: dict[str, threading.Thread] = field(factory=dict)

    def __enter__(self) -> Self:
        self._start("source", self._produce)
        for number in range(self.movers):
            self._start(f"{MOVER}-{number}", self._lives)
        for number in range(self.writers):
            self._start(f"{WRITER}-{number}", self._lives)
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
        names = [name for name in self._threads if name.startswith((MOVER, WRITER))]
        for name in names:
            self._join(name)
        for name in names:
            # It ends what a client that died has left open, and waits for the markers.
            producer_of(self.servers, name)

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

    def _lives(self, name: str) -> None:
        """Run a client, and again whenever it has died."""
        random, life = Random(f"{self.seed}-{name}"), 0
        while not self._stops_writing.is_set():
            life += 1
            connection, of_client = PROCESSES.Pipe()
            client = TransactionalClient(
                name.partition("-")[0],
                name,
                life,
                self.servers,
                self.inputs,
                self.outputs,
                Random(random.random()),
                of_client,
            )
            process = PROCESSES.Process(target=client.run, daemon=True)
            process.start()
            of_client.close()
            self._follow(connection)
            process.join()
            if process.exitcode not in EXPECTED_ENDS:
                self.faults.append(f"{name} ended with {process.exitcode}")

    def _follow(self, connection: Connection) -> None:
        """Record what a client sends until it ends, and send it the words that are due."""
        untold = {INPUTS_ENDED: self._stops_producing, STOP: self._stops_writing}
        while True:
            for word in [word for word, event in untold.items() if event.is_set()]:
                del untold[word]
                with suppress(BrokenPipeError):
                    connection.send(word)
            if connection.poll(LOOK_S):
                try:
                    sent = connection.recv()
                except (EOFError, OSError):  # perhaps amid a message
                    return
                if isinstance(sent, str):
                    self.faults.append(sent)
                else:
                    self.events.append(sent)

    def _produce(self, name: str) -> None:
        producer = Producer({**common(self.servers, name), "enable.idempotence": True, "linger.ms": 2})
        number = 0
        while not self._stops_producing.is_set():
            topic, partition = self.inputs[number % len(self.inputs)]
            producer.produce(topic, f"in-{number}".encode(), partition=partition)
            producer.poll(BETWEEN_INPUTS_S)
            number += 1
        assert not producer.flush(FLUSH_LIMIT_S)

    def _read(self, name: str) -> None:
        consumer = consumer_of(self.servers, name, "unused")
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in self.outputs])
        try:
            while not self._stops.is_set():
                for message in consumer.consume(200, 0.2):
                    if message.error() is None:
                        tp, value = (message.topic(), message.partition()), (message.value() or b"").decode()
                        self.events.append(Polled(name, tp, message.offset() or 0, value))
        finally:
            consumer.close()


def read_all(servers: str, partitions: Sequence[Partition], isolation_level: str) -> dict[Partition, Log]:
    """Read every partition from start to end. Raises AssertionError if that takes too long."""
    logs: dict[Partition, list[tuple[int, str]]] = {tp: [] for tp in partitions}
    for message in read_to_end({"bootstrap.servers": servers}, partitions, isolation_level):
        value = (message.value() or b"").decode()
        logs[message.topic(), message.partition()].append((message.offset() or 0, value))
    return dict(logs)
