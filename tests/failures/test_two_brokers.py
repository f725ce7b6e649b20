"""Two brokers on the same Redis behave as one: a change through one takes effect immediately in the other."""

from __future__ import annotations

import pytest

from bench.wire import Wire, create_topic, frame_of, new_producer_id, produce_request, produced
from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.protocol.record_batch import build_batch
from tests.clients.confluent import Confluent
from tests.clients.interface import Record
from tests.failures.conftest import StartBroker
from tests.processes import KorvetProcess
from tests.servers import StartServer

TIMES = 5
Brokers = tuple[KorvetProcess, KorvetProcess]


@pytest.fixture
def brokers(new_server: StartServer, start_broker: StartBroker) -> Brokers:
    server = new_server()
    settings = {"auto.create.topics.enable": "false"}
    return start_broker(server.url, settings), start_broker(server.url, settings)


def test_topics_created_and_deleted_by_one_broker_are_seen_by_the_other(brokers: Brokers, topic: str) -> None:
    one, other = (Confluent(broker.bootstrap_servers) for broker in brokers)
    for number in range(TIMES):
        one.create_topic(topic, partitions=2)
        assert {0, 1} == other.partitions(topic)

        record = Record(value=b"%d" % number, partition=1)
        other.produce(topic, [record])
        assert [record] == [received.record for received in one.consume(topic, 1, partition=1)]

        other.delete_topic(topic)
        assert set() == one.partitions(topic)


def test_other_broker_refuses_records_for_a_deleted_topic(brokers: Brokers, topic: str) -> None:
    batch = build_batch([(0, 1, None, b"value", ())])
    with Wire(brokers[1].port) as wire:
        for _ in range(TIMES):
            create_topic(brokers[0].port, topic)
            wire.send(frame_of(produce_request(topic, batch)))
            produced(wire.receive())
            Confluent(brokers[0].bootstrap_servers).delete_topic(topic)

            wire.send(frame_of(produce_request(topic, batch)))
            with pytest.raises(UnknownTopicOrPartition):
                produced(wire.receive())


def test_offsets_committed_by_one_broker_are_seen_by_the_other(brokers: Brokers, topic: str) -> None:
    one, other = (Confluent(broker.bootstrap_servers) for broker in brokers)
    one.create_topic(topic)
    one.produce(topic, [Record(value=b"%d" % number) for number in range(TIMES)])
    for received in one.consume(topic, TIMES):
        one.commit("readers", topic, received.offset)
        assert (received.offset, "") == other.committed("readers", topic)


def test_idempotent_producer_may_switch_brokers(brokers: Brokers, topic: str) -> None:
    create_topic(brokers[0].port, topic)
    producer_id, epoch = new_producer_id(brokers[0].port)
    assert new_producer_id(brokers[1].port)[0] != producer_id

    offsets = []
    for sequence in range(TIMES):
        batch = build_batch(
            [(0, 1, None, b"value", ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        for broker in brokers:  # a duplicate for the second one
            with Wire(broker.port) as wire:
                wire.send(frame_of(produce_request(topic, batch)))
                offsets.append(produced(wire.receive()))

    assert offsets[::2] == offsets[1::2]
    assert sorted(set(offsets)) == offsets[::2]
