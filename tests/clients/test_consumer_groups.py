"""Consumers of librdkafka in groups whose broker assigns partitions (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record, eventually
from tests.processes import KorvetProcess

PARTITIONS = 4

Start = Callable[..., Consumer]


@pytest.fixture
def start(request: pytest.FixtureRequest, broker: KorvetProcess, topic: str) -> Start:
    """Start a consumer of the topic, of `topics` or of an expression. It is closed at the end."""
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=PARTITIONS)

    def start(topics: str = topic, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": f"{topic}-group",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        request.addfinalizer(consumer.close)
        consumer.subscribe([topics])
        return consumer

    return start


def assigned(*consumers: Consumer) -> list[list[int]]:
    """Let the consumers do their work, and return the partitions of each."""
    for consumer in consumers:
        consumer.poll(0.1)
    return [sorted(each.partition for each in consumer.assignment()) for consumer in consumers]


def counts(*consumers: Consumer) -> list[int]:
    """Return the numbers of partitions of the consumers, if none has two of them."""
    found = assigned(*consumers)
    together = [number for numbers in found for number in numbers]
    return sorted(map(len, found)) if len(set(together)) == len(together) else []


def test_members_share_partitions_and_take_over_those_of_one_that_leaves(
    broker: KorvetProcess, topic: str, start: Start
) -> None:
    records = [Record(b"%d" % number, partition=number % PARTITIONS) for number in range(20)]
    Confluent(broker.bootstrap_servers).produce(topic, records)
    first = start()
    read: list[bytes] = []
    while len(read) < len(records):
        message = first.poll(LIMIT_S)
        assert message is not None
        assert message.error() is None
        read.append(message.value() or b"")
    first.commit(asynchronous=False)
    second = start()
    eventually(lambda: counts(first, second), [2, 2])
    first.close()
    eventually(lambda: assigned(second), [[0, 1, 2, 3]])
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    committed = [each.offset for each in second.committed(partitions, timeout=LIMIT_S)]
    ends = [second.get_watermark_offsets(each, timeout=LIMIT_S)[1] for each in partitions]

    assert sorted(read) == sorted(each.value or b"" for each in records)
    assert ends == committed
    assert second.poll(0.5) is None


def test_tools_see_type_state_and_members(broker: KorvetProcess, topic: str, start: Start) -> None:
    consumer = start(client_id="me")
    eventually(lambda: assigned(consumer), [[0, 1, 2, 3]])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    group_id = f"{topic}-group"
    group = admin.describe_consumer_groups([group_id])[group_id].result(LIMIT_S)
    listed = {each.group_id: each for each in admin.list_consumer_groups().result(LIMIT_S).valid}

    assert (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER) == (group.state, group.type)
    assert [("me", [0, 1, 2, 3])] == [
        (each.client_id, sorted(tp.partition for tp in each.assignment.topic_partitions))
        for each in group.members
    ]
    assert ConsumerGroupType.CONSUMER == listed[group_id].type


def test_expression_subscribes_to_all_topics_that_match(
    broker: KorvetProcess, topic: str, start: Start
) -> None:
    Confluent(broker.bootstrap_servers).create_topic(f"{topic}-more", partitions=1)
    consumer = start(f"^{topic}.*")

    def topics() -> list[str]:
        consumer.poll(0.1)
        return sorted(each.topic for each in consumer.assignment())

    eventually(topics, [topic] * PARTITIONS + [f"{topic}-more"])


def test_static_member_that_restarts_keeps_its_partitions(topic: str, start: Start) -> None:
    one, two = start(group_instance_id="one"), start(group_instance_id="two")
    eventually(lambda: counts(one, two), [2, 2])
    before = assigned(one)
    one.close()
    again = start(group_instance_id="one")
    eventually(lambda: counts(again, two), [2, 2])

    assert before == assigned(again)
