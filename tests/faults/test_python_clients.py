"""kafka-python and aiokafka cope with the faults to which clients respond in different ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from attrs import frozen

from korvet.testing import Delay, Drop, Error, Fault, RunningBroker, Truncate, running_broker

pytestmark = pytest.mark.clients

LIMIT_S = 20
# A group waits so long for a member whose client has not received its id.
SESSION_MS = 1000


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningBroker]:
    with running_broker(settings={"group.min.session.timeout.ms": "500"}) as broker:
        yield broker


@pytest.fixture
def broker(shared: RunningBroker) -> Iterator[RunningBroker]:
    yield shared
    shared.faults.clear()


# --- The clients ---------------------------------------------------------------------------------------------


def produce_by_kafka_python(
    broker: RunningBroker, topic: str, values: list[bytes], *, idempotent: bool
) -> None:
    producer = broker.kafka_python.producer(
        acks="all",
        retries=10,
        enable_idempotence=idempotent,
        retry_backoff_ms=20,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=20,
    )
    for value in values:
        producer.send(topic, value, partition=0).get(LIMIT_S)
    producer.close()


def consume_by_kafka_python(broker: RunningBroker, topic: str, count: int) -> list[bytes]:
    consumer = broker.kafka_python.consumer(
        heartbeat_interval_ms=50,
        session_timeout_ms=SESSION_MS,
        retry_backoff_ms=20,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=20,
        fetch_max_wait_ms=50,
    )
    # A leader that does not know a topic's partitions yet assigns none, and does not notice when it does.
    consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = monotonic() + LIMIT_S
    while len(values) < count and monotonic() < deadline:
        for records in consumer.poll(timeout_ms=50).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def produce_by_aiokafka(broker: RunningBroker, topic: str, values: list[bytes], *, idempotent: bool) -> None:
    async def produce() -> None:
        made = broker.aiokafka.producer(acks="all", enable_idempotence=idempotent, retry_backoff_ms=20)
        async with asyncio.timeout(LIMIT_S), made as producer:
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)

    asyncio.run(produce())


def consume_by_aiokafka(broker: RunningBroker, topic: str, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        made = broker.aiokafka.consumer(
            topic,
            heartbeat_interval_ms=50,
            session_timeout_ms=SESSION_MS,
            retry_backoff_ms=20,
            fetch_max_wait_ms=50,
        )
        async with asyncio.timeout(LIMIT_S), made as consumer:
            return [(await consumer.getone()).value for _ in range(count)]

    return asyncio.run(consume())


@frozen
class Library:
    """A client library, as the tests use it."""

    name: str
    produce: Callable[..., None]
    consume: Callable[[RunningBroker, str, int], list[bytes]]


LIBRARIES = [
    Library("kafka-python", produce_by_kafka_python, consume_by_kafka_python),
    Library("aiokafka", produce_by_aiokafka, consume_by_aiokafka),
]

# --- The tests -----------------------------------------------------------------------------------------------


def named(what: Library | Fault) -> str:
    if isinstance(what, Library):
        return what.name
    detail = getattr(what, "error", getattr(what, "when", ""))
    return "-".join(filter(None, (what.api, type(what).__name__, detail)))


def values_of(broker: RunningBroker, topic: str) -> list[bytes | None]:
    return [each.value for each in broker.records(topic)]


@pytest.mark.parametrize("library", LIBRARIES, ids=named)
@pytest.mark.parametrize(
    "fault",
    [
        Error("NOT_LEADER_OR_FOLLOWER", api="Produce", count=2),
        Error("NOT_ENOUGH_REPLICAS", api="Produce", count=2),
        Error("COORDINATOR_LOAD_IN_PROGRESS", api="InitProducerId", count=2),
        Error("LEADER_NOT_AVAILABLE", api="Metadata", count=1),
        Drop(api="Produce", count=2),
        Drop("after", api="Produce", count=2),
        Truncate(api="Produce", count=2),
        Delay(50, api="Produce", count=2),
    ],
    ids=named,
)
def test_idempotent_producer_writes_each_record_once(
    broker: RunningBroker, fault: Fault, library: Library
) -> None:
    topic = broker.create_topic()
    injected = broker.faults.add(fault)

    library.produce(broker, topic, [b"0", b"1"], idempotent=True)

    assert [b"0", b"1"] == values_of(broker, topic)
    assert fault.count == injected.hits


@pytest.mark.parametrize("library", LIBRARIES, ids=named)
@pytest.mark.parametrize(
    "fault, expected",
    [
        (Error("NOT_LEADER_OR_FOLLOWER", api="Produce", count=1), [b"0", b"1"]),
        (Drop(api="Produce", count=1), [b"0", b"1"]),
        (Drop("after", api="Produce", count=1), [b"0", b"0", b"1"]),
        (Truncate(api="Produce", count=1), [b"0", b"0", b"1"]),
    ],
    ids=lambda each: named(each) if isinstance(each, Fault) else str(len(each)),
)
def test_producer_without_idempotence_repeats_a_record_whose_response_was_lost(
    broker: RunningBroker, fault: Fault, expected: list[bytes], library: Library
) -> None:
    topic = broker.create_topic()
    injected = broker.faults.add(fault)

    library.produce(broker, topic, [b"0", b"1"], idempotent=False)

    assert expected == values_of(broker, topic)
    assert fault.count == injected.hits


@pytest.mark.parametrize("library", LIBRARIES, ids=named)
@pytest.mark.parametrize(
    "fault",
    [
        Error("NOT_LEADER_OR_FOLLOWER", api="Fetch", count=2),
        Drop(api="Fetch", count=2),
        Drop("after", api="Fetch", count=2),
        Truncate(api="Fetch", count=2),
        Delay(50, api="Fetch", count=1),
        Error("NOT_LEADER_OR_FOLLOWER", api="ListOffsets", count=1),
        Error("COORDINATOR_NOT_AVAILABLE", api="FindCoordinator", count=1),
        Error("NOT_COORDINATOR", api="OffsetFetch", count=1),
        Error("REBALANCE_IN_PROGRESS", api="SyncGroup", count=1),
        Drop(api="JoinGroup", count=1),
        Drop("after", api="JoinGroup", count=1),
        Truncate(api="SyncGroup", count=1),
    ],
    ids=named,
)
def test_consumer_receives_each_record_once(broker: RunningBroker, fault: Fault, library: Library) -> None:
    topic = broker.create_topic()
    broker.produce(topic, "a", "b", "c")
    injected = broker.faults.add(fault)

    assert [b"a", b"b", b"c"] == library.consume(broker, topic, 3)
    assert fault.count == injected.hits
