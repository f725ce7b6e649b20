"""Copiers of clients in Python: each copies a topic in transactions, with the offsets of its group in them.

Arguments: the client, the bootstrap server, the name of the group and the transactional id, the two topics, the records
of a transaction. It prints "ready" when it has initialized the transactional id, and copies until it is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

GROUP: Mapping[str, Any] = {
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 300,
}


def confluent(bootstrap_servers: str, name: str, read: str, written: str, most: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    settings = {key.replace("_", "."): value for key, value in GROUP.items()}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": name, **settings}
    )
    consumer.subscribe([read])
    print("ready", flush=True)
    while True:
        messages = consumer.consume(most, 0.1)
        if not messages:
            continue
        producer.begin_transaction()
        for each in messages:
            if error := each.error():
                raise confluent_kafka.KafkaException(error)
            producer.produce(written, each.value(), partition=each.partition() or 0)
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()


def kafka_python(bootstrap_servers: str, name: str, read: str, written: str, most: int) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    consumer = KafkaConsumer(read, bootstrap_servers=bootstrap_servers, group_id=name, **GROUP)
    print("ready", flush=True)
    while True:
        found = consumer.poll(100, max_records=most)
        if not found:
            continue
        producer.begin_transaction()
        sent = [
            producer.send(written, each.value, partition=tp.partition)
            for tp, messages in found.items()
            for each in messages
        ]
        for future in sent:
            future.get()
        offsets = {tp: OffsetAndMetadata(messages[-1].offset + 1, "", -1) for tp, messages in found.items()}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()


def aio(bootstrap_servers: str, name: str, read: str, written: str, most: int) -> None:
    async def copy() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=name) as producer:
            consumer = AIOKafkaConsumer(read, bootstrap_servers=bootstrap_servers, group_id=name, **GROUP)
            async with consumer:
                print("ready", flush=True)
                while True:
                    found = await consumer.getmany(timeout_ms=100, max_records=most)
                    if not found:
                        continue
                    async with producer.transaction():
                        for tp, messages in found.items():
                            for each in messages:
                                await producer.send(written, each.value, partition=tp.partition)
                        offsets = {tp: messages[-1].offset + 1 for tp, messages in found.items()}
                        await producer.send_offsets_to_transaction(offsets, name)

    asyncio.run(copy())


CLIENTS: Mapping[str, Callable[[str, str, str, str, int], None]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio,
}

if __name__ == "__main__":
    logging.disable()  # what ends a copier shows in its output
    client, bootstrap_servers, name, read, written, most = sys.argv[1:]
    CLIENTS[client](bootstrap_servers, name, read, written, int(most))
