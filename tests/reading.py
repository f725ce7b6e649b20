"""Read topics from start to end with librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

LIMIT_S = 150.0


def read_to_end(
    settings: Mapping[str, Any], partitions: Iterable[tuple[str, int]], isolation_level: str
) -> Iterator[Message]:
    """Yield the records of all partitions, up to the ends that consumers of this isolation level see.

    `settings` has the bootstrap servers, and what else a client needs. Raises AssertionError after LIMIT_S, and
    KafkaException.
    """
    consumer = Consumer(
        {
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "log_level": 0,
            **settings,
        }
    )
    unfinished = {*partitions}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in unfinished])
    deadline = time.monotonic() + LIMIT_S
    try:
        while unfinished:
            assert time.monotonic() < deadline, f"the logs of {sorted(unfinished)} have no end"
            for message in consumer.consume(1000, 0.5):
                if (error := message.error()) is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard((message.topic() or "", message.partition() or 0))
                elif (
                    error.code() > 0 and not error.retriable()
                ):  # others are the client's own, about connections
                    raise KafkaException(error)
    finally:
        consumer.close()
