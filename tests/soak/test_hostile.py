"""Clients that attack a broker in every way that tests/hostile knows, for two minutes, and one that does no harm."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from random import Random
from time import perf_counter

import pytest
import trio
from attrs import define, field

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from tests.failures.conftest import Report
from tests.hostile.measuring import client_of, highest_bytes
from tests.hostile.test_decompression import bomb, largest_accepted_batch
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

SECONDS = 120.0
SEED = 14
ATTACKERS = 8
PARTITIONS = 20
SETTINGS = {
    "queued.max.request.bytes": "50000000",
    "queued.max.response.bytes": "50000000",
    "request.timeout.ms": "3000",
    "log.retention.check.interval.ms": "1000",
    "record.max.batch.records": "25000",
}
# Both budgets, decompressed records with what is made of them, one request above the budget, and records in memory.
MOST_BYTES = 400_000_000
LONGEST_S = 10.0


def produce(topic: str, records: bytes, partitions: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=number, records=(records,)) for number in range(partitions)]
    return ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def new_topic(name: str, partitions: int, **settings: str) -> CreateTopicsRequest:
    configs = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


@define
class Attacks:
    """Attacks on one broker; `made` counts them."""

    broker: KorvetProcess
    random: Random
    batches: list[bytes] = field(
        factory=lambda: [
            bomb(),
            largest_accepted_batch(),
            bytes(build_batch([(number, 1, None, b"", ()) for number in range(140_000)])),
        ]
    )
    made: dict[str, int] = field(factory=dict)

    async def run(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.trickle,
            self.decompress,
            self.describe,
            self.name_all,
        ]
        while True:
            attack = self.random.choice(kinds)
            name = attack.__name__
            self.made[name] = self.made.get(name, 0) + 1
            try:
                await attack()
            except (OSError, EOFError, trio.BrokenResourceError):
                await trio.sleep(0.1)  # the broker closed the connection

    async def trickle(self) -> None:
        """Announce much, send some of it, and then a byte now and then."""
        async with client_of(self.broker) as client:
            announced = struct.pack(">ihhi", self.random.randrange(1000, 100_000_000), 0, 9, 1)
            await client.send(announced[: self.random.choice((3, 12, 12))])
            await client.send(bytes(self.random.randrange(1, 900)) * self.random.choice((1, 1, 2000)))
            for _ in range(self.random.randrange(20)):
                await client.send(b"\0")
                await trio.sleep(0.2)

    async def decompress(self) -> None:
        """Produce batches that become large, or have many records."""
        async with client_of(self.broker) as client:
            batch = self.random.choice(self.batches)
            await client.ask(produce("attacked", batch, self.random.randrange(1, PARTITIONS)), 9)

    async def describe(self) -> None:
        """Create partitions, ask for all of them, and read some of the answer or nothing."""
        async with client_of(self.broker) as client:
            await client.ask(new_topic(f"t{self.random.random()}", self.random.randrange(1, 5_000)), 5)
            await client.send(client.frame_of(MetadataRequest(topics=None), self.random.randrange(1, 13)) * 3)
            await trio.sleep(self.random.random() * 4)

    async def name_all(self) -> None:
        """Ask for the sizes of all partitions."""
        async with client_of(self.broker) as client:
            await client.ask(DescribeLogDirsRequest(topics=None), 4)


@define
class Harmless:
    """A client that stores one record after the other."""

    stored: int = 0
    longest_s: float = 0.0

    async def run(self, broker: KorvetProcess, seconds: float) -> None:
        record = bytes(build_batch([(0, 1, None, b"value", ())]))
        async with client_of(broker) as client:
            await client.ask(new_topic("kept", 1, offset_mapping="dense"), 5)
            with trio.move_on_after(seconds):
                while True:
                    began = perf_counter()
                    with trio.CancelScope(shield=True):
                        answer = await client.ask(produce("kept", record), 9)
                    self.longest_s = max(self.longest_s, perf_counter() - began)
                    assert ErrorCode.NONE == answer.responses[0].partition_responses[0].error_code
                    self.stored += 1
                    await trio.sleep(0.01)
            latest = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
            end = await client.ask(
                ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="kept", partitions=latest)]),
                7,
            )
            assert self.stored == end.topics[0].partitions[0].offset


async def attacked(storage: str, seconds: float, report: Report) -> None:
    harmless = Harmless()
    with KorvetProcess(storage=storage, settings=SETTINGS) as broker:
        async with client_of(broker) as client:
            await client.ask(new_topic("attacked", PARTITIONS, retention_bytes="1000000"), 5)
        before = highest_bytes(broker.pid)
        attacks = Attacks(broker, Random(SEED))
        async with trio.open_nursery() as nursery:
            for _ in range(ATTACKERS):
                nursery.start_soon(attacks.run)
            await harmless.run(broker, seconds)
            nursery.cancel_scope.cancel()
        took = highest_bytes(broker.pid) - before
    report(f"{storage[:8]}: {took >> 20} MB, {harmless}, {attacks.made}")

    assert took < MOST_BYTES
    assert harmless.longest_s < LONGEST_S


@pytest.mark.parametrize("storage", ["memory", "valkey"])
async def test_client_is_served_during_attacks(storage: str, report: Report) -> None:
    if storage == "memory":
        await attacked("memory://", SECONDS, report)
        return
    server = start_server(VALKEY)
    try:
        await attacked(server.url, SECONDS, report)
    finally:
        server.remove()
