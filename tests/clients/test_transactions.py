"""Transactions of unmodified clients: what consumers receive, committed offsets, and fencing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record
from tests.clients.transactional import (
    COMMITTED,
    TRANSACTIONAL_CLIENTS,
    UNCOMMITTED,
    TransactionalClient,
    TransactionalConfluent,
)
from tests.processes import KorvetProcess


@pytest.fixture(params=TRANSACTIONAL_CLIENTS, ids=lambda client: client.id)
def made(request: pytest.FixtureRequest) -> type[TransactionalClient]:
    """Return each library's class in turn."""
    made: type[TransactionalClient] = request.param
    return made


@pytest.fixture
def producer(
    made: type[TransactionalClient], broker: KorvetProcess, topic: str
) -> Iterator[TransactionalClient]:
    """An initialized producer whose transactional id is the name of the topic, which exists."""
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=2)
    with made(broker.bootstrap_servers, topic) as producer:
        yield producer


def test_records_are_received_once_their_transaction_is_committed(
    producer: TransactionalClient, topic: str
) -> None:
    producer.begin()
    producer.send(topic, b"a", b"b")
    before = producer.read(topic, COMMITTED), producer.read(topic, UNCOMMITTED)
    producer.end(commit=True)

    assert ([], [b"a", b"b"]) == before
    # The markers follow the response.
    assert [b"a", b"b"] == eventually(producer, topic, 2)


def eventually(producer: TransactionalClient, topic: str, count: int, *, partition: int = 0) -> list[bytes]:
    """Return the committed values, once there are so many."""
    for _ in range(100):
        if len(values := producer.read(topic, COMMITTED, partition=partition)) >= count:
            return values
    return values


def test_aborted_records_are_received_only_uncommitted(producer: TransactionalClient, topic: str) -> None:
    producer.transact(topic, b"a", commit=False)
    producer.transact(topic, b"b")
    producer.transact(topic, b"c", b"d", commit=False)
    producer.transact(topic, b"e")

    assert [b"b", b"e"] == eventually(producer, topic, 2)
    assert [b"a", b"b", b"c", b"d", b"e"] == producer.read(topic, UNCOMMITTED)


def test_transaction_of_several_partitions_and_batches(producer: TransactionalClient, topic: str) -> None:
    producer.begin()
    for number in range(5):
        producer.send(topic, b"%d" % number)
        producer.send(topic, b"%d" % number, partition=1)
    producer.end(commit=True)

    expected = [b"%d" % number for number in range(5)]
    assert expected == eventually(producer, topic, 5)
    assert expected == eventually(producer, topic, 5, partition=1)


def test_open_transaction_holds_back_later_records(
    producer: TransactionalClient, broker: KorvetProcess, topic: str
) -> None:
    plain = Confluent(broker.bootstrap_servers)
    plain.produce(topic, [Record(value=b"before")])
    producer.begin()
    producer.send(topic, b"a")
    plain.produce(topic, [Record(value=b"after")])

    assert [b"before"] == producer.read(topic, COMMITTED)
    producer.end(commit=False)
    assert [b"before", b"after"] == eventually(producer, topic, 2)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_offsets_are_committed_with_the_transaction(
    producer: TransactionalClient, broker: KorvetProcess, topic: str, commit: bool
) -> None:
    plain = Confluent(broker.bootstrap_servers)
    plain.produce(topic, [Record(value=b"%d" % number) for number in range(5)])
    group_id = f"group-{topic}"
    plain.commit(group_id, topic, 1)

    producer.begin()
    producer.send(topic, b"out", partition=1)
    producer.send_offset(group_id, topic, 3)
    producer.end(commit=commit)

    # The client asks for stable offsets, so it waits for the end of the transaction.
    assert (3 if commit else 1, "") == plain.committed(group_id, topic)
    assert ([b"out"] if commit else []) == eventually(producer, topic, int(commit), partition=1)


def test_second_producer_of_an_id_fences_the_first(
    producer: TransactionalClient, made: type[TransactionalClient], broker: KorvetProcess, topic: str
) -> None:
    producer.begin()
    producer.send(topic, b"fenced")

    with made(broker.bootstrap_servers, topic) as second:
        second.transact(topic, b"kept")
        with pytest.raises(producer.errors):
            producer.end(commit=True)
        assert [b"kept"] == eventually(second, topic, 1)
        second.transact(topic, b"again")
        assert [b"kept", b"again"] == eventually(second, topic, 2)


def test_many_short_transactions(producer: TransactionalClient, topic: str) -> None:
    for number in range(12):
        producer.transact(topic, b"%d" % number, commit=number % 3 > 0)

    expected = [b"%d" % number for number in range(12) if number % 3]
    assert expected == eventually(producer, topic, len(expected))


def test_consumed_records_are_transformed_exactly_once(broker: KorvetProcess, topic: str) -> None:
    """A member of a group commits its offsets in transactions, of which every second one is aborted and repeated."""
    servers = broker.bootstrap_servers
    plain = Confluent(servers)
    plain.create_topic(topic, partitions=2)
    plain.produce(topic, [Record(value=b"%d" % number) for number in range(20)])
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": COMMITTED,
        }
    )
    consumer.subscribe([topic])
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(LIMIT_S)
    transformed = 0
    for attempt in count():
        messages: list[Message] = []
        while len(messages) < 4 and (message := consumer.poll(LIMIT_S)) is not None:
            if message.partition() == 0:
                messages.append(message)
        producer.begin_transaction()
        for message in messages:
            producer.produce(topic, b"out-" + (message.value() or b""), partition=1)
        end = TopicPartition(topic, 0, (messages[-1].offset() or 0) + 1)
        producer.send_offsets_to_transaction([end], consumer.consumer_group_metadata(), LIMIT_S)
        if attempt % 2:
            producer.commit_transaction(LIMIT_S)
            transformed += len(messages)
            if transformed == 20:
                break
        else:
            producer.abort_transaction(LIMIT_S)
            consumer.seek(TopicPartition(topic, 0, messages[0].offset() or 0))
    consumer.close()

    with TransactionalConfluent(servers, f"{topic}-reader") as reader:
        assert [b"out-%d" % number for number in range(20)] == eventually(reader, topic, 20, partition=1)
    assert (plain.bounds(topic)[1], "") == plain.committed(topic, topic)
