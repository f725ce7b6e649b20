"""Share consumers of librdkafka (KIP-932) on one queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from attrs import evolve
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from conformance.peers import Peer
from conformance.scenarios.records import batch
from conformance.talk import Connection, Talk
from korvet.protocol.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S
from tests.processes import KorvetProcess

Start = Callable[..., ShareConsumer]


@pytest.fixture
def start(request: pytest.FixtureRequest, broker: KorvetProcess, topic: str) -> Start:
    """Start a worker on the topic, which begins with the earliest record. It is closed at the end."""
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=1)
    configure(broker, topic, "share.auto.offset.reset", "earliest")

    def start(*, is_explicit: bool = True) -> ShareConsumer:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": topic,
                "share.acknowledgement.mode": "explicit" if is_explicit else "implicit",
            }
        )
        request.addfinalizer(consumer.close)
        consumer.subscribe([topic])
        return consumer

    return start


def configure(broker: KorvetProcess, group_id: str, name: str, value: str) -> None:
    """Set a setting of a group."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in client.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)


def produce(broker: KorvetProcess, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(LIMIT_S) == 0


def received(consumer: ShareConsumer) -> list[Message]:
    """Return what the next polls return, at least one record."""
    ends = monotonic() + LIMIT_S
    while monotonic() < ends:
        if found := [each for each in consumer.poll(1.0) if each.error() is None]:
            return found
    raise AssertionError("no record has arrived")


def value_of(message: Message) -> str:
    return (message.value() or b"").decode()


def test_records_are_accepted_released_and_rejected(broker: KorvetProcess, topic: str, start: Start) -> None:
    produce(broker, topic, "good", "again", "bad")
    worker = start()
    deliveries: Counter[str] = Counter()
    while deliveries["again"] < 3:
        for message in received(worker):
            value = value_of(message)
            deliveries[value] += 1
            is_released = value == "again" and deliveries[value] < 3
            kind = AcknowledgeType.REJECT if value == "bad" else AcknowledgeType.ACCEPT
            worker.acknowledge(message, AcknowledgeType.RELEASE if is_released else kind)
        assert not any((worker.commit_sync(LIMIT_S) or {}).values())
    produce(broker, topic, "last")

    assert ["last"] == [value_of(message) for message in received(worker)]
    assert {"good": 1, "again": 3, "bad": 1} == deliveries


def test_poison_records_are_archived(broker: KorvetProcess, topic: str, start: Start) -> None:
    configure(broker, topic, "share.delivery.count.limit", "2")
    produce(broker, topic, "poison")
    worker = start()
    for _ in range(2):
        for message in received(worker):
            assert value_of(message) == "poison"
            worker.acknowledge(message, AcknowledgeType.RELEASE)
        worker.commit_sync(LIMIT_S)
    produce(broker, topic, "next")

    assert ["next"] == [value_of(message) for message in received(worker)]


def test_more_workers_than_partitions_share_the_records(
    broker: KorvetProcess, topic: str, start: Start
) -> None:
    workers = [start(is_explicit=False) for _ in range(3)]
    numbers = [str(number) for number in range(300)]
    found: Counter[str] = Counter()
    per_worker = [0] * len(workers)
    ends = monotonic() + LIMIT_S
    sent = 0
    while len(found) < len(numbers) and monotonic() < ends:
        if sent < len(numbers):
            produce(broker, topic, *numbers[sent : sent + 10])
            sent += 10
        for index, worker in enumerate(workers):
            values = [value_of(each) for each in worker.poll(0.1) if each.error() is None]
            found.update(values)
            per_worker[index] += len(values)

    assert found == Counter(numbers)
    assert min(per_worker) > 0


def test_what_a_worker_leaves_behind_goes_to_another(broker: KorvetProcess, topic: str, start: Start) -> None:
    produce(broker, topic, "0", "1")
    leaving: Any = start()
    taken = received(leaving)
    leaving.acknowledge(taken[0], AcknowledgeType.ACCEPT)
    for message in taken[1:]:
        leaving.acknowledge(message, AcknowledgeType.RELEASE)
    leaving.close()
    staying = start()
    values: list[str] = []
    while "1" not in values:
        for message in received(staying):
            values.append(value_of(message))
            staying.acknowledge(message)

    assert ["1"] == values


def test_the_end_of_a_connection_releases_records(broker: KorvetProcess, topic: str) -> None:
    configure(broker, topic, "share.auto.offset.reset", "earliest")
    with Talk(Peer(topic, int(broker.bootstrap_servers.rpartition(":")[2])), topic) as talk:
        talk.topic("jobs")
        talk.fill("jobs", batch(b"0"))
        fetch = fetch_of(talk.topic_id("jobs"), topic)
        first = talk.ask(fetch, 2)
        # Another broker may lead the partition: the response has its address.
        port = next((each.port for each in first.node_endpoints), talk.peer.port)
        lost, staying = Connection(port), Connection(port)
        taken = first if port == talk.peer.port else talk.ask(fetch, 2, on=lost)
        (talk._connections[0] if taken is first else lost).close()
        again = talk.ask(evolve(fetch, member_id="next", max_wait_ms=10_000), 2, on=staying)
        lost.close()
        staying.close()

    assert [[1], [2]] == [deliveries(taken), deliveries(again)]


def fetch_of(topic_id: UUID, group_id: str) -> ShareFetchRequest:
    """Return the first request of a member for one record of the partition 0."""
    partition = FetchPartition(partition_index=0, acknowledgement_batches=[])
    return ShareFetchRequest(
        group_id=group_id,
        member_id="lost",
        share_session_epoch=0,
        max_wait_ms=0,
        min_bytes=1,
        max_records=1,
        batch_size=1,
        topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
        forgotten_topics_data=[],
    )


def deliveries(response: ShareFetchResponse) -> list[int]:
    """Return the delivery counts of what was acquired."""
    return [each.delivery_count for each in response.responses[0].partitions[0].acquired_records]
