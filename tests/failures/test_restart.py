"""A restarted broker has its state: topics and their ids, records, committed offsets, producers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.protocol.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.record_batch import build_batch
from tests.clients.confluent import Confluent
from tests.clients.interface import Record
from tests.failures.conftest import EACH_LAYOUT, Kept, StartBroker
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server
from tests.support.wire import Wire, create_topic, frame_of, new_producer_id, produce_request, produced

pytestmark = EACH_LAYOUT


@pytest.fixture(params=["redis", "embedded"])
def broker(
    request: pytest.FixtureRequest, start_broker: StartBroker, embedded_folder: Path, kept: Kept
) -> Iterator[KorvetProcess]:
    # One kind of server: the kill tests cover the durability of all kinds.
    if request.param == "embedded":
        yield start_broker(f"embedded:{embedded_folder}", kept.settings)
        return
    server = start_server(VALKEY)
    yield start_broker(server.url, kept.settings)
    server.remove()


def ended_by(broker: KorvetProcess, how: str) -> None:
    if how == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_state_survives_a_restart(broker: KorvetProcess, topic: str, how: str) -> None:
    checks = [topics_records_and_offsets(broker, topic), idempotent_producer(broker, f"{topic}-sequences")]
    for before_the_restart in checks:
        next(before_the_restart)

    ended_by(broker, how)

    for after_the_restart in checks:
        assert next(after_the_restart, "checked") == "checked"


def topics_records_and_offsets(broker: KorvetProcess, topic: str) -> Iterator[None]:
    """Write, yield for a restart, and check that topics, records and committed offsets are still there."""
    client = Confluent(broker.bootstrap_servers)
    client.create_topic(topic, partitions=3)
    client.produce(topic, [Record(value=b"%d" % number, key=b"k") for number in range(100)], codec="lz4")
    before = client.consume(topic, 100)
    client.commit("readers", topic, before[60].offset, metadata="here")
    identity = topic_id(broker, topic)

    _, latest = client.bounds(topic)

    yield

    assert {0, 1, 2} == client.partitions(topic)
    assert identity == topic_id(broker, topic)
    assert latest == client.bounds(topic)[1]
    assert before == client.consume(topic, 100)
    assert (before[60].offset, "here") == client.committed("readers", topic)
    assert before[60:] == client.resume("readers", topic, 40)

    client.produce(topic, [Record(value=b"after")])
    after = client.consume(topic, 101)[100]
    assert after.record.value == b"after"
    assert after.offset >= latest


def idempotent_producer(broker: KorvetProcess, topic: str) -> Iterator[None]:
    """Produce with sequence numbers, yield for a restart, and check that the broker still knows them."""
    create_topic(broker.port, topic)
    producer_id, epoch = new_producer_id(broker.port)

    def produce(sequence: int, epoch: int) -> int:
        batch = build_batch(
            [(index, 1, None, b"value", ()) for index in range(3)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        with Wire(broker.port) as wire:
            wire.send(frame_of(produce_request(topic, batch)))
            return produced(wire.receive())

    offsets = [produce(sequence, epoch) for sequence in (0, 3, 6)]

    yield

    assert offsets == [produce(sequence, epoch) for sequence in (0, 3, 6)]
    with pytest.raises(OutOfOrderSequenceNumber):
        produce(12, epoch)
    assert produce(9, epoch) > offsets[-1]
    assert produce(0, epoch + 1) > offsets[-1]
    with pytest.raises(InvalidProducerEpoch):
        produce(12, epoch)
    assert new_producer_id(broker.port)[0] != producer_id


def topic_id(broker: KorvetProcess, topic: str) -> object:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with Wire(broker.port) as wire:
        return wire.call(request).topics[0].topic_id
