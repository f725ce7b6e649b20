"""Two brokers on the same Redis behave as one: a change through one takes effect immediately in the other."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest

from korvet.protocol.errors import ErrorCode, UnknownTopicOrPartition
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import decode_response, encode_request
from tests.clients.confluent import Confluent
from tests.clients.interface import Record
from tests.failures.conftest import StartBroker
from tests.processes import KorvetProcess
from tests.servers import StartServer
from tests.support.wire import Wire, create_topic, frame_of, new_producer_id, produce_request, produced

TIMES = 5
DENSE = {"offset.mapping": "dense"}
BY_ID = 13  # a version of Metadata and Produce with ids of topics
R = TypeVar("R")
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


def test_records_for_a_deleted_topic_are_not_stored_in_the_next_one_of_its_name(
    brokers: Brokers, topic: str
) -> None:
    batch = build_batch([(0, 1, None, b"value", ())])
    for _ in range(2):
        create_topic(brokers[0].port, topic, settings=DENSE)
        old_id = topic_id(brokers[1].port, topic)
        with Wire(brokers[1].port) as wire:
            assert ErrorCode.NONE == produce_by_id(wire, old_id, batch)
            Confluent(brokers[0].bootstrap_servers).delete_topic(topic)
            create_topic(brokers[0].port, topic, settings=DENSE)

            # Both are retried with new metadata. The second one is answered while the broker has the old topic cached.
            refused = {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert produce_by_id(wire, old_id, batch) in refused
            assert ErrorCode.NONE == produce_by_id(wire, topic_id(brokers[1].port, topic), batch)
        assert (0, 1) == Confluent(brokers[0].bootstrap_servers).bounds(topic)
        Confluent(brokers[0].bootstrap_servers).delete_topic(topic)


def topic_id(port: int, topic: str) -> UUID:
    """Return the id of a topic once the broker has it."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with Wire(port) as wire:
        return exchange(wire, request, MetadataResponse, BY_ID).topics[0].topic_id


def exchange(wire: Wire, request: object, response: type[R], version: int) -> R:
    wire.send(b"".join(encode_request(request, version, 1, "test")))
    return decode_response(response, version, wire.receive())[1]


def produce_by_id(wire: Wire, topic_id: UUID, batch: bytes | bytearray) -> int:
    """Produce a batch to partition 0, and return the error code."""
    partition = PartitionProduceData(index=0, records=[batch])
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[partition])],
    )
    response = exchange(wire, request, ProduceResponse, BY_ID)
    assert topic_id == response.responses[0].topic_id
    return response.responses[0].partition_responses[0].error_code
