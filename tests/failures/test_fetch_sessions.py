"""A fetch session lives in one process of one broker. Elsewhere it is unknown, and the client begins another one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from korvet.protocol.requests import decode_response, encode_request
from tests.failures.conftest import BATCH_DENSE, StartBroker
from tests.servers import VALKEY, RedisServer, start_server
from tests.support.wire import Wire, create_topic

VERSION = 12
PARTITIONS = 6
# Enough for each of three processes to get one of them, except once in ten million times.
CONNECTIONS = 40
RECORDS = 30
LIMIT_S = 60.0


@contextmanager
def consuming(servers: list[str], topic: str) -> Iterator[KafkaConsumer]:
    """Run a client that uses fetch sessions, with all partitions."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=200,
    )
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        yield consumer
    finally:
        consumer.close()


@contextmanager
def producing(servers: list[str]) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    try:
        yield producer
    finally:
        producer.close()


def read_all(consumer: KafkaConsumer, expected: int) -> list[bytes]:
    """Return the values of the next records, in the order of their arrival."""
    values: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    while len(values) < expected and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            values += [record.value for record in records]
    return values


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """Start one server: sessions do not depend on its version."""
    found = start_server(VALKEY)
    yield found
    found.remove()


def fetch(wire: Wire, topic: str, session: tuple[int, int], *, is_full: bool = False) -> FetchResponse:
    """Fetch all partitions from their beginning, or only what has changed in the session."""
    asked = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000)
        for number in range(PARTITIONS)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, partitions=asked)] if is_full else [],
    )
    wire.send(b"".join(encode_request(request, VERSION, 1, "test")))
    return decode_response(FetchResponse, VERSION, wire.receive())[1]


def begin(wire: Wire, topic: str) -> int:
    """Begin a session, and return its id."""
    response = fetch(wire, topic, (0, 0), is_full=True)
    assert (ErrorCode.NONE, PARTITIONS) == (response.error_code, len(response.responses[0].partitions))
    assert response.session_id
    return response.session_id


def assert_is_elsewhere(wire: Wire, topic: str, session_id: int) -> None:
    """Assert that the process does not have the session, and that the client begins another one there."""
    response = fetch(wire, topic, (session_id, 1))
    assert (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0) == (response.error_code, response.session_id)
    assert ErrorCode.NONE == fetch(wire, topic, (begin(wire, topic), 1)).error_code


def test_session_is_unknown_to_other_processes(
    server: RedisServer, start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(server.url, {"processes": "3", **BATCH_DENSE.settings})
    create_topic(broker.port, topic, partitions=PARTITIONS)
    with Wire(broker.port) as wire:
        session_id = begin(wire, topic)
        for _ in range(CONNECTIONS):
            with Wire(broker.port) as other:
                found = fetch(other, topic, (session_id, 7)).error_code
                if found == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                    assert_is_elsewhere(other, topic, session_id)
                    break
                assert ErrorCode.INVALID_FETCH_SESSION_EPOCH == found  # it is the same process
        else:
            pytest.fail("all connections reached one process")
        assert ErrorCode.NONE == fetch(wire, topic, (session_id, 1)).error_code


def test_session_is_unknown_to_other_brokers_and_after_a_restart(
    server: RedisServer, start_broker: StartBroker, topic: str
) -> None:
    url = server.url
    brokers = [start_broker(url, {"node.id": str(number), **BATCH_DENSE.settings}) for number in (1, 2, 3)]
    create_topic(brokers[0].port, topic, partitions=PARTITIONS)
    with Wire(brokers[0].port) as wire:
        session_id = begin(wire, topic)
        for broker in brokers[1:]:
            with Wire(broker.port) as other:
                assert_is_elsewhere(other, topic, session_id)
        assert ErrorCode.NONE == fetch(wire, topic, (session_id, 1)).error_code
    brokers[0].kill()
    brokers[0].start()
    with Wire(brokers[0].port) as wire:
        assert_is_elsewhere(wire, topic, session_id)


def test_consumer_with_sessions_reads_on_when_a_broker_ends(
    server: RedisServer, start_broker: StartBroker, topic: str
) -> None:
    url = server.url
    brokers = [
        start_broker(
            url,
            {
                "node.id": str(number),
                "processes": "2",
                "broker.session.timeout.ms": "2000",
                **BATCH_DENSE.settings,
            },
        )
        for number in (1, 2, 3)
    ]
    create_topic(brokers[0].port, topic, partitions=PARTITIONS)
    servers = [broker.bootstrap_servers for broker in brokers]
    values = (b"%d" % number for number in count())
    with consuming(servers, topic) as consumer, producing(servers) as producer:
        for killed in (None, *brokers[:1]):
            if killed is not None:
                killed.kill()
            sent = [next(values) for _ in range(RECORDS)]
            for number, value in enumerate(sent):
                producer.send(topic, value, partition=number % PARTITIONS)
            producer.flush()
            assert sorted(sent) == sorted(read_all(consumer, len(sent)))
