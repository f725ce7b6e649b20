"""confluent-kafka: librdkafka, as most Python programs use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin import NewTopic

from tests.clients.interface import LIMIT_S, AdminClient, Received, Record, Timeout


class Confluent(AdminClient):
    id = "confluent-kafka"
    sends_neither_key_nor_value = True

    def create_topic(
        self, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
        admin = self._admin()  # keep a reference: pending requests are dropped with the client
        admin.create_topics([new], operation_timeout=LIMIT_S)[topic].result(LIMIT_S)

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic], operation_timeout=LIMIT_S)[topic].result(LIMIT_S)

    def partitions(self, topic: str) -> set[int]:
        # Requesting one topic by name would create it; listing all topics does not.
        found = self._admin().list_topics(timeout=LIMIT_S).topics.get(topic)
        return set() if found is None else set(found.partitions)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
            }
        )
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
        if producer.flush(LIMIT_S):
            raise Timeout(f"{len(producer)} of {len(records)} records were not acknowledged")
        if failures:
            raise KafkaException(failures[0])

    def consume(
        self, topic: str, count: int, *, partition: int = 0, start: int | None = None
    ) -> list[Received]:
        with self._consumer() as consumer:
            offset = OFFSET_BEGINNING if start is None else start
            consumer.assign([TopicPartition(topic, partition, offset)])
            return _receive(consumer, count)

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        with self._consumer() as consumer:
            asked = [TopicPartition(topic, partition, timestamp_ms)]
            (found,) = consumer.offsets_for_times(asked, timeout=LIMIT_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset if found.offset >= 0 else None

    def consume_first(self, topic: str, produce: Callable[[], None]) -> Received:
        with self._consumer({"enable.partition.eof": True}) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            message = consumer.poll(LIMIT_S)
            error = message and message.error()
            if error is None or error.code() != KafkaError._PARTITION_EOF:
                raise Timeout(f"the partition is not empty: {message}")
            produce()
            (received,) = _receive(consumer, 1)
            return received

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        with self._consumer() as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=LIMIT_S)
            return low, high

    def commit(
        self, group_id: str, topic: str, offset: int, *, metadata: str = "", partition: int = 0
    ) -> None:
        with self._consumer({"group.id": group_id}) as consumer:
            position = TopicPartition(topic, partition, offset, metadata)
            consumer.assign([position])
            (answer,) = consumer.commit(offsets=[position], asynchronous=False)
            if answer.error is not None:
                raise KafkaException(answer.error)

    def committed(self, group_id: str, topic: str, *, partition: int = 0) -> tuple[int, str] | None:
        with self._consumer({"group.id": group_id}) as consumer:
            (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=LIMIT_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return (found.offset, found.metadata or "") if found.offset >= 0 else None

    def resume(self, group_id: str, topic: str, count: int, *, partition: int = 0) -> list[Received]:
        with self._consumer({"group.id": group_id}) as consumer:
            consumer.assign([TopicPartition(topic, partition)])  # no offset: the committed one
            return _receive(consumer, count)

    def _admin(self) -> ConfluentAdmin:
        return ConfluentAdmin({"bootstrap.servers": self.bootstrap_servers})

    @contextmanager
    def _consumer(self, settings: Mapping[str, Any] | None = None) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **(settings or {}),
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()


def _receive(consumer: Consumer, count: int) -> list[Received]:
    received: list[Received] = []
    deadline = time.monotonic() + LIMIT_S
    while len(received) < count:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        if message is None:
            raise Timeout(f"{len(received)} of {count} records came")
        if (error := message.error()) is not None:
            raise KafkaException(error)
        received.append(_received(message))
    return received


def _received(message: Message) -> Received:
    kind, timestamp_ms = message.timestamp()
    assert kind != TIMESTAMP_NOT_AVAILABLE
    return Received(
        offset=message.offset(),
        timestamp_ms=timestamp_ms,
        record=Record(
            value=message.value(),
            key=message.key(),
            headers=tuple(message.headers() or ()),
            partition=message.partition(),
        ),
    )
