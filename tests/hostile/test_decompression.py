"""Small batches that become large: what one request costs in memory, and what its neighbours notice."""

from __future__ import annotations

import pytest
import trio

from korvet.protocol.compression import Codec, compress
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import HEADER_BYTES, MAX_UNPACKED_BYTES, build_batch, write_header
from tests.hostile.measuring import highest_bytes, reset_highest
from tests.processes import KorvetProcess
from tests.talk import Client

PARTITIONS = 60
MOST_BYTES = 64 * 1024 * 1024
ZEROS = 40 * 1024 * 1024


def sealed(records: bytes) -> bytes:
    """Return a batch of one zstd-compressed record whose max timestamp the broker has to find."""
    batch = bytearray(HEADER_BYTES) + records
    write_header(
        batch,
        base_offset=0,
        partition_leader_epoch=-1,
        attributes=Codec.ZSTD,
        last_offset_delta=0,
        base_timestamp=1000,
        max_timestamp=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    return bytes(batch)


def bomb() -> bytes:
    """Return a batch of 33 kB that decompresses to 1 GB."""
    frame = compress(Codec.ZSTD, bytes(ZEROS))
    return sealed(frame * (33_000 // len(frame)))


def just_fits() -> bytes:
    """Return a batch of a kilobyte or two that decompresses to nearly as much as the broker accepts."""
    plain = build_batch([(0, 1000, b"k", bytes(MAX_UNPACKED_BYTES - 100), ())])
    return sealed(compress(Codec.ZSTD, memoryview(plain)[HEADER_BYTES:]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bomb", "fits"])
async def test_a_request_that_decompresses_takes_at_most_64_mb(kind: str) -> None:
    records = bomb() if kind == "bomb" else just_fits()
    expected = ErrorCode.MESSAGE_TOO_LARGE if kind == "bomb" else ErrorCode.NONE
    with KorvetProcess() as broker, trio.fail_after(120):
        stream = await trio.open_tcp_stream(broker.host, broker.port)
        async with stream:
            client = Client(stream)
            topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
            await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
            await client.ask(MetadataRequest(topics=None), 9)
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)
            partitions = [
                PartitionProduceData(index=number, records=(records,)) for number in range(PARTITIONS)
            ]
            request = ProduceRequest(
                acks=1,
                timeout_ms=10_000,
                topic_data=[TopicProduceData(name="t", partition_data=partitions)],
            )
            answer = await client.ask(request, 9)
            took = highest_bytes(broker.pid) - before

    codes = {each.error_code for each in answer.responses[0].partition_responses}
    assert codes == {expected}
    assert took <= MOST_BYTES + PARTITIONS * len(records)
