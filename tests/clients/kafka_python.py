"""kafka-python 3, the client written in Python; idempotent by default."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.interface import FETCH_WAIT_MS, LIMIT_S, AdminClient, Received, Record, Timeout


class KafkaPython(AdminClient):
    id = "kafka-python"
    sends_null_headers = False

    def create_topic(
        self, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(
            topic, num_partitions=partitions, replication_factor=1, topic_configs=dict(settings or {})
        )
        with self._admin() as admin:
            admin.create_topics([new])

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def partitions(self, topic: str) -> set[int]:
        with self._admin() as admin:
            found = {entry["name"]: entry for entry in admin.describe_topics()}.get(topic)
        return set() if found is None else {entry["partition_index"] for entry in found["partitions"]}

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    list(record.headers),
                    record.partition,
                    record.timestamp_ms,
                )
                for record in records
            ]
            for future in futures:
                future.get(LIMIT_S)
        finally:
            producer.close(LIMIT_S)

    def consume(
        self, topic: str, count: int, *, partition: int = 0, start: int | None = None
    ) -> list[Received]:
        tp = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            consumer.assign([tp])
            if start is None:
                consumer.seek_to_beginning(tp)
            else:
                consumer.seek(tp, start)
            return _receive(consumer, count)

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        tp = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({tp: timestamp_ms})[tp]
        return None if found is None else found.offset

    def consume_first(self, topic: str, produce: Callable[[], None]) -> Received:
        tp = TopicPartition(topic, 0)
        with self._consumer() as consumer:
            consumer.assign([tp])
            consumer.seek_to_beginning(tp)
            # The position is known once the broker returned the first offset; the next poll sends the Fetch.
            consumer.position(tp)
            assert not consumer.poll(200)
            produce()
            (received,) = _receive(consumer, 1)
            return received

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        tp = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            return consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]

    def commit(
        self, group_id: str, topic: str, offset: int, *, metadata: str = "", partition: int = 0
    ) -> None:
        tp = TopicPartition(topic, partition)
        with self._consumer(group_id=group_id) as consumer:
            consumer.assign([tp])
            consumer.commit({tp: OffsetAndMetadata(offset, metadata, -1)})

    def committed(self, group_id: str, topic: str, *, partition: int = 0) -> tuple[int, str] | None:
        tp = TopicPartition(topic, partition)
        with self._consumer(group_id=group_id) as consumer:
            consumer.assign([tp])
            found = consumer.committed(tp, metadata=True)
        return None if found is None else (found.offset, found.metadata)

    def resume(self, group_id: str, topic: str, count: int, *, partition: int = 0) -> list[Received]:
        with self._consumer(group_id=group_id) as consumer:
            consumer.assign([TopicPartition(topic, partition)])
            return _receive(consumer, count)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            yield admin
        finally:
            admin.close()

    @contextmanager
    def _consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=FETCH_WAIT_MS + 10_000,
            **settings,
        )
        try:
            yield consumer
        finally:
            consumer.close()


def _receive(consumer: KafkaConsumer, count: int) -> list[Received]:
    received: list[Received] = []
    deadline = time.monotonic() + LIMIT_S
    while len(received) < count:
        if time.monotonic() > deadline:
            raise Timeout(f"{len(received)} of {count} records came")
        for messages in consumer.poll(500, max_records=count - len(received)).values():
            received.extend(_received(message) for message in messages)
    return received


def _received(message: Any) -> Received:
    return Received(
        offset=message.offset,
        timestamp_ms=message.timestamp,
        record=Record(
            value=message.value,
            key=message.key,
            headers=tuple(message.headers),
            partition=message.partition,
        ),
    )
