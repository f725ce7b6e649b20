"""Topics are created, described, auto-created and deleted."""

from __future__ import annotations

import pytest

from tests.clients.confluent import Confluent
from tests.clients.conftest import ADMIN_CLIENTS
from tests.clients.interface import AdminClient, Client, Record
from tests.clients.kafka_python import KafkaPython
from tests.clients.test_produce import records_of
from tests.processes import KorvetProcess


def test_created_topic_has_the_requested_partitions(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic, partitions=7, settings={"retention.ms": "3600000"})

    assert set(range(7)) == admin_client.partitions(topic)


def test_producing_creates_a_missing_topic(client: Client, topic: str) -> None:
    assert set() == client.partitions(topic)

    client.produce(topic, [Record(value=b"first")])

    assert {0} == client.partitions(topic)
    assert [Record(value=b"first")] == records_of(client.consume(topic, 1))


def test_listing_topics_creates_none(client: Client, topic: str) -> None:
    assert set() == client.partitions(topic)
    assert set() == client.partitions(topic)


def test_recreated_topic_is_empty(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic, partitions=2)
    admin_client.produce(topic, [Record(value=b"old")])
    offset = admin_client.consume(topic, 1)[0].offset + 1
    admin_client.commit("readers", topic, offset)
    admin_client.delete_topic(topic)
    assert set() == admin_client.partitions(topic)

    admin_client.create_topic(topic)

    assert {0} == admin_client.partitions(topic)
    start, end = admin_client.bounds(topic)
    assert start == end  # 0, or the time of the creation where offsets follow the clock
    assert admin_client.committed("readers", topic) is None

    admin_client.produce(topic, [Record(value=b"new")])
    assert [Record(value=b"new")] == records_of(admin_client.consume(topic, 1))


@pytest.mark.parametrize("kind", ADMIN_CLIENTS, ids=lambda kind: kind.id)
def test_existing_topic_cannot_be_created(broker: KorvetProcess, kind: type[AdminClient], topic: str) -> None:
    client = kind(broker.bootstrap_servers)
    client.create_topic(topic)

    with pytest.raises(Exception, match=r"TOPIC_ALREADY_EXISTS|TopicAlreadyExists|already exists|error 36"):
        client.create_topic(topic)


@pytest.mark.parametrize("kind", [Confluent, KafkaPython], ids=lambda kind: kind.id)
def test_unknown_setting_is_refused_by_name(
    broker: KorvetProcess, kind: type[AdminClient], topic: str
) -> None:
    client = kind(broker.bootstrap_servers)

    with pytest.raises(Exception, match=r"retention\.mss"):
        client.create_topic(topic, settings={"retention.mss": "1"})
    assert set() == client.partitions(topic)
