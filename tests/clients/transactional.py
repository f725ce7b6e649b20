"""Transactional producers, and consumers at both isolation levels, of the libraries that have them.

A producer keeps its connection, other than the clients of `interface`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import structs as aio_structs
from aiokafka.errors import KafkaError as AioKafkaError
from kafka import KafkaConsumer, KafkaProducer
from kafka import structs as python_structs
from kafka.consumer.group import ConsumerGroupMetadata
from kafka.errors import KafkaError as PythonKafkaError

from tests.clients.interface import LIMIT_S, Timeout
from tests.reading import read_to_end

T = TypeVar("T")
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
POLL_MS = 50


class TransactionalClient(ABC):
    """A producer with a transactional id, in one transaction after the other. A context manager."""

    id: str
    #: The errors that calls raise.
    errors: tuple[type[Exception], ...]

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.transactional_id = transactional_id

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def open(self) -> None:
        """Initialize the transactional id."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction, which costs no request."""

    @abstractmethod
    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Send records, and wait until they are acknowledged."""

    @abstractmethod
    def send_offset(self, group_id: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 in the transaction, for a consumer that is no member of the group."""

    @abstractmethod
    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Close the producer."""

    @abstractmethod
    def read(self, topic: str, isolation_level: str, *, partition: int = 0) -> list[bytes]:
        """Return the values of all records up to the end that a consumer sees at that isolation level."""

    def transact(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """Send values in a transaction of their own."""
        self.begin()
        self.send(topic, *values)
        self.end(commit=commit)


class TransactionalConfluent(TransactionalClient):
    id = "confluent-kafka"
    errors = (confluent_kafka.KafkaException,)
    _producer: confluent_kafka.Producer

    def open(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "transactional.id": self.transactional_id,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(LIMIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        failures: list[confluent_kafka.KafkaError] = []

        def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
        if self._producer.flush(LIMIT_S):
            raise Timeout("records were not acknowledged")
        if failures:
            raise confluent_kafka.KafkaException(failures[0])

    def send_offset(self, group_id: str, topic: str, offset: int) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": group_id, "enable.auto.commit": False}
        )
        try:
            offsets = [confluent_kafka.TopicPartition(topic, 0, offset)]
            metadata = consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, metadata, LIMIT_S)
        finally:
            consumer.close()

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(LIMIT_S)
        else:
            self._producer.abort_transaction(LIMIT_S)

    def close(self) -> None:
        del self._producer

    def read(self, topic: str, isolation_level: str, *, partition: int = 0) -> list[bytes]:
        settings = {"bootstrap.servers": self.bootstrap_servers}
        return [each.value() or b"" for each in read_to_end(settings, [(topic, partition)], isolation_level)]


class TransactionalKafkaPython(TransactionalClient):
    id = "kafka-python"
    errors = (PythonKafkaError,)
    _producer: KafkaProducer

    def open(self) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers, transactional_id=self.transactional_id
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for future in [self._producer.send(topic, value, partition=partition) for value in values]:
            future.get(LIMIT_S)

    def send_offset(self, group_id: str, topic: str, offset: int) -> None:
        offsets = {python_structs.TopicPartition(topic, 0): python_structs.OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group_id, -1, "", None))

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(LIMIT_S)

    def read(self, topic: str, isolation_level: str, *, partition: int = 0) -> list[bytes]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            enable_auto_commit=False,
            isolation_level=isolation_level,
        )
        tp = python_structs.TopicPartition(topic, partition)
        values: list[bytes] = []
        deadline = time.monotonic() + LIMIT_S
        try:
            consumer.assign([tp])
            consumer.seek_to_beginning(tp)
            end = consumer.end_offsets([tp])[tp]
            while consumer.position(tp) < end:
                if time.monotonic() > deadline:
                    raise Timeout(f"the consumer is at {consumer.position(tp)} of {end}")
                for messages in consumer.poll(POLL_MS).values():
                    values += [message.value for message in messages]
        finally:
            consumer.close()
        return values


class TransactionalAioKafka(TransactionalClient):
    id = "aiokafka"
    errors = (AioKafkaError,)
    _producer: AIOKafkaProducer
    _loop: asyncio.Runner

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            return await asyncio.wait_for(work, LIMIT_S)

        return self._loop.run(limited())

    def open(self) -> None:
        self._loop = asyncio.Runner()

        async def work() -> None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap_servers, transactional_id=self.transactional_id
            )
            await self._producer.start()

        self._run(work())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        async def work() -> None:
            sent = [await self._producer.send(topic, value, partition=partition) for value in values]
            await asyncio.gather(*sent)

        self._run(work())

    def send_offset(self, group_id: str, topic: str, offset: int) -> None:
        offsets = {aio_structs.TopicPartition(topic, 0): aio_structs.OffsetAndMetadata(offset, "")}
        self._run(self._producer.send_offsets_to_transaction(offsets, group_id))

    def end(self, *, commit: bool) -> None:
        self._run(self._producer.commit_transaction() if commit else self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()

    def read(self, topic: str, isolation_level: str, *, partition: int = 0) -> list[bytes]:
        async def work() -> list[bytes]:
            tp = aio_structs.TopicPartition(topic, partition)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap_servers,
                enable_auto_commit=False,
                isolation_level=isolation_level,
            )
            values: list[bytes] = []
            async with consumer:
                consumer.assign([tp])
                await consumer.seek_to_beginning(tp)
                end = (await consumer.end_offsets([tp]))[tp]
                while await consumer.position(tp) < end:
                    found = await consumer.getmany(tp, timeout_ms=POLL_MS)
                    values += [message.value for message in found.get(tp, ())]
            return values

        return self._run(work())


TRANSACTIONAL_CLIENTS: tuple[type[TransactionalClient], ...] = (
    TransactionalConfluent,
    TransactionalKafkaPython,
    TransactionalAioKafka,
)
