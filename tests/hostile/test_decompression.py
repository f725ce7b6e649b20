"""Small batches that become large: what one request costs in memory, and what its neighbours notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import trio
from attrs import frozen

from korvet.protocol.compression import Codec, compress
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import HEADER_BYTES, MAX_UNPACKED_BYTES, build_batch, write_header
from tests.hostile.measuring import client_of, highest_bytes, neighbour, reset_highest
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

PARTITIONS = 60
MOST_BYTES = 64 * 1024 * 1024
LONGEST_S = 3.0
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


def largest_accepted_batch() -> bytes:
    """Return a batch of a kilobyte or two that decompresses to nearly as much as the broker accepts."""
    plain = build_batch([(0, 1000, b"k", bytes(MAX_UNPACKED_BYTES - 100), ())])
    return sealed(compress(Codec.ZSTD, memoryview(plain)[HEADER_BYTES:]))


def produce(records: bytes, partitions: range) -> ProduceRequest:
    data = [PartitionProduceData(index=number, records=(records,)) for number in partitions]
    return ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


@frozen
class Outcome:
    """The cost of an attack to the broker and to another client."""

    took: int  # bytes of memory
    sent: int  # bytes of the requests
    longest_s: float  # that the other client waited
    codes: Counter[int]


async def attack(storage: str, records: bytes, *, partitions: int = 1, connections: int = 1) -> Outcome:
    """Send one request on each connection, all of them concurrently."""
    request = produce(records, range(partitions))
    codes: Counter[int] = Counter()
    with KorvetProcess(storage=storage) as broker:
        async with client_of(broker) as client, client_of(broker) as other:
            topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
            await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
            await client.ask(produce(bytes(build_batch([(0, 1000, None, b"small", ())])), range(1)), 9)
            reset_highest(broker.pid)
            before = highest_bytes(broker.pid)

            async def send() -> None:
                async with client_of(broker) as attacker:
                    answer = await attacker.ask(request, 9)
                    codes.update(each.error_code for each in answer.responses[0].partition_responses)

            async with neighbour(other) as waits, trio.open_nursery() as nursery:
                for _ in range(connections):
                    nursery.start_soon(send)
            took = highest_bytes(broker.pid) - before
    return Outcome(took, connections * partitions * len(records), waits.longest_s, codes)


@pytest.fixture(params=["memory", "server"])
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URLs of a storage in memory and of a server: of which kind, makes no difference to the broker's memory."""
    if request.param == "memory":
        yield "memory://"
        return
    server = start_server(VALKEY)
    yield server.url
    server.remove()


@pytest.mark.slow
async def test_refused_batches_take_at_most_64_mb() -> None:
    with trio.fail_after(120):
        outcome = await attack("memory://", bomb(), partitions=PARTITIONS)

    assert {ErrorCode.MESSAGE_TOO_LARGE: PARTITIONS} == outcome.codes
    assert outcome.took <= MOST_BYTES + outcome.sent
    assert outcome.longest_s < LONGEST_S


@pytest.mark.slow
@pytest.mark.servers
async def test_refused_batches_of_20_connections_take_at_most_64_mb(storage: str) -> None:
    with trio.fail_after(120):
        outcome = await attack(storage, bomb(), connections=20)

    assert {ErrorCode.MESSAGE_TOO_LARGE: 20} == outcome.codes
    assert outcome.took <= MOST_BYTES + outcome.sent
    assert outcome.longest_s < LONGEST_S


@pytest.mark.slow
@pytest.mark.servers
async def test_accepted_batches_take_at_most_64_mb(storage: str) -> None:
    """In the record layout batches are refused behind the first 16 MB by which a request grows."""
    with trio.fail_after(120):
        outcome = await attack(storage, largest_accepted_batch(), partitions=PARTITIONS)

    accepted = PARTITIONS if storage == "memory://" else 1
    assert accepted == outcome.codes[ErrorCode.NONE]
    assert PARTITIONS - accepted == outcome.codes[ErrorCode.MESSAGE_TOO_LARGE]
    assert outcome.took <= MOST_BYTES + outcome.sent
    assert outcome.longest_s < LONGEST_S
