"""The ready clients of a test's broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from korvet.testing import Freeze, RunningBroker, running_broker

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with running_broker() as running:
        yield running


def test_confluent_kafka_produces_and_consumes(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    producer = broker.confluent.producer({"acks": "all"})
    producer.produce(topic, "a")
    assert 0 == producer.flush(20)
    consumer = broker.confluent.consumer(topic, settings={"group.id": "readers"})
    message = broker.wait_until(lambda: consumer.poll(0.1), timeout_s=20)
    assert message is not None
    consumer.commit(message=message, asynchronous=False)

    assert b"a" == message.value()
    assert {0: 1} == broker.committed("readers", topic)
    assert topic in broker.confluent.admin().list_topics(timeout=20).topics


def test_kafka_python_produces_and_consumes(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    broker.kafka_python.producer(acks="all").send(topic, b"a").get(20)

    assert b"a" == next(broker.kafka_python.consumer(topic)).value
    assert topic in broker.kafka_python.admin().list_topics()


def test_aiokafka_produces_and_consumes(broker: RunningBroker) -> None:
    async def run() -> bytes:
        topic = broker.create_topic()
        async with broker.aiokafka.producer() as producer:
            await producer.send_and_wait(topic, b"a")
        async with broker.aiokafka.consumer(topic) as consumer:
            value: bytes = (await consumer.getone()).value
            return value

    assert b"a" == asyncio.run(run())


def test_producer_ends_with_its_broker_and_discards_undelivered_records() -> None:
    errors: list[object] = []
    with running_broker() as broker:
        broker.faults.add(Freeze(api="Produce"))
        producer = broker.confluent.producer()
        producer.produce("orders", "a", on_delivery=lambda error, _: errors.append(error.name()))
        closed = broker.confluent.producer()
        closed.close()

    assert errors in (["_PURGE_QUEUE"], ["_PURGE_INFLIGHT"])
    with pytest.raises(RuntimeError):
        producer.produce("orders", "b")


def test_clients_are_closed_with_their_broker() -> None:
    with running_broker() as broker:
        consumer = broker.confluent.consumer(broker.create_topic())
        closed = broker.confluent.consumer(broker.create_topic())
        closed.close()

    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)
