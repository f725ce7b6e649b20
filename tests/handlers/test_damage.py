"""Produce refuses damaged records, compressed or not. `make conformance` compares the answers with Kafka's."""

from __future__ import annotations

import pytest

from conformance.scenarios.damage import RECORDS, compressed_damage, damaged, sealed, usual
from korvet.broker.broker import Broker
from korvet.protocol.compression import Codec, compress
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.produce import PartitionProduceResponse
from korvet.storage.interface import TopicPartition
from korvet.testing.records import records_from
from tests.handlers.support import T0, ask, batch, create, new_broker, produce_request

EACH_CODEC = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
#: Accepted by Apache Kafka as well, since consumers can read them.
ACCEPTED = {
    "nothing is damaged",
    "other attributes",
    "its key's length is -2",
    "its key's length is -2^31",
    "its value's length is -2",
    "a header value of length -2",
    "a header key that is not UTF-8",
    # The frame has no checksum of its content, and the flipped bit is in a value.
    "a flipped bit in its middle as zstd",
}


async def answers(broker: Broker, batches: dict[str, bytearray]) -> dict[str, PartitionProduceResponse]:
    """Produce each batch to another partition; return the responses by label."""
    await create(broker, partitions=len(batches))
    wanted = {TopicPartition("t", number): records for number, records in enumerate(batches.values())}
    response = await ask(broker, 0, 9, produce_request(dict(wanted)))
    return dict(zip(batches, response.responses[0].partition_responses, strict=True))


@EACH_CODEC
async def test_each_kind_of_damage_is_refused(codec: Codec) -> None:
    broker = await new_broker()
    found = await answers(broker, damaged(codec))

    assert len(RECORDS) + 2 + (0 if codec is Codec.NONE else len(compressed_damage(codec))) == len(found)
    for label, answer in found.items():
        expected = ErrorCode.NONE if label in ACCEPTED else ErrorCode.INVALID_RECORD
        assert expected == answer.error_code, label
        assert bool(answer.error_message) == (label not in ACCEPTED)


@EACH_CODEC
async def test_what_is_accepted_can_be_consumed(codec: Codec) -> None:
    broker = await new_broker()
    labels = ACCEPTED - {"a header key that is not UTF-8", "a flipped bit in its middle as zstd"}
    await answers(broker, {label: damaged(codec)[label] for label in labels})

    for number in range(len(labels)):
        assert 2 == len(await records_from(broker._storage, TopicPartition("t", number)))


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"message_timestamp_after_max_ms": "1"}])
async def test_topics_whose_records_are_decoded_refuse_damage_as_well(settings: dict[str, str]) -> None:
    broker = await new_broker()
    await create(broker, **settings)
    response = await ask(broker, 0, 9, produce_request({T0: damaged(Codec.GZIP)["bytes behind it"]}))

    assert ErrorCode.INVALID_RECORD == response.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("where", ["topic", "broker"])
async def test_record_validation_batch_checks_only_the_header(where: str) -> None:
    broker = await new_broker(**({"record_validation": "batch"} if where == "broker" else {}))
    await create(broker, **({"record_validation": "batch"} if where == "topic" else {}))
    damage = damaged(Codec.LZ4)["bytes behind it"]
    response = await ask(broker, 0, 9, produce_request({T0: damage}))

    assert ErrorCode.NONE == response.responses[0].partition_responses[0].error_code


async def test_batch_that_decompresses_to_more_than_20_mb_is_too_large() -> None:
    broker = await new_broker()
    await create(broker)
    response = await ask(broker, 0, 9, produce_request({T0: batch(bytes(21 << 20), codec=Codec.ZSTD)}))
    answer = response.responses[0].partition_responses[0]

    assert ErrorCode.MESSAGE_TOO_LARGE == answer.error_code
    assert "decompress to more than 20971520 bytes" in (answer.error_message or "")


async def test_more_records_than_the_first_table_of_varints_are_accepted() -> None:
    broker = await new_broker()
    await create(broker)
    records = b"".join(usual(delta) for delta in range(20_000))
    for codec in (Codec.NONE, Codec.ZSTD):
        data = sealed(compress(codec, records), count=20_000, codec=codec)
        response = await ask(broker, 0, 9, produce_request({T0: data}))
        assert ErrorCode.NONE == response.responses[0].partition_responses[0].error_code
