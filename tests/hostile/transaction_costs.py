"""Measure what a client with very many transactions costs: `python -m tests.hostile.transaction_costs [memory]`.

It begins 100,000 transactional ids, and leaves 10,000 transactions open in one partition. The store is a Valkey, or
with `memory` the broker's memory. Each step prints a row, with the time of broker and store for one request.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import trio
from attrs import define

from korvet.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.list_transactions import ListTransactionsRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from tests.hostile.costs import Store, cpu_s
from tests.hostile.measuring import API_VERSIONS, client_of, neighbour, resident_bytes
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server
from tests.talk import Client

IDS, OPEN = 100_000, 10_000
TIMEOUT_MS = 900_000
COLUMNS = (
    *("step", "requests", "processor ms each", "Redis ms each", "broker's memory, bytes each"),
    *("stored, bytes each", "another client's wait, ms"),
)


@define
class Bench:
    """A broker, its store, and two clients."""

    broker: KorvetProcess
    store: Store
    client: Client
    other: Client

    @asynccontextmanager
    async def step(self, name: str, count: int) -> AsyncIterator[None]:
        """Measure the block, which sends `count` requests, and print a row."""
        began, redis_began = cpu_s(self.broker.pid), self.store.cpu_s()
        memory, stored = resident_bytes(self.broker.pid), self.store.size()
        async with neighbour(self.other) as waits:
            yield
        cpu, redis = cpu_s(self.broker.pid) - began, self.store.cpu_s() - redis_began
        memory, stored = resident_bytes(self.broker.pid) - memory, self.store.size() - stored
        cells = [name, f"{count:,}", f"{cpu * 1000 / count:.2f}", f"{redis * 1000 / count:.2f}"]
        cells += [f"{memory / count:,.0f}", f"{stored / count:,.0f}", f"{waits.longest_s * 1000:.0f}"]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()

    async def all(self, messages: Sequence[object], version: int) -> list[Any]:
        """Send requests without waiting for their answers, and return those in their order."""
        frames = [self.client.frame_of(message, version) for message in messages]
        answers: list[Any] = []

        async def send() -> None:
            for frame in frames:
                await self.client.send(frame)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            answers += [(await self.client.answer(type(each), version))[1] for each in messages]
        return answers


def initializing(number: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=f"id-{number}", transaction_timeout_ms=TIMEOUT_MS)


def adding(number: int, producer: InitProducerIdResponse) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=f"id-{number}",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )


def writing(number: int, producer: InitProducerIdResponse) -> ProduceRequest:
    batch = build_batch(
        [(0, 0, None, b"value", ())],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=[batch])])
    return ProduceRequest(transactional_id=f"id-{number}", acks=-1, timeout_ms=30_000, topic_data=[topic])


def fetching(isolation_level: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000_000,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic="t", partitions=[partition])],
        forgotten_topics_data=[],
    )


async def measure(url: str, store: Store) -> None:
    """Run the steps, and print a row for each."""
    with KorvetProcess(storage=url) as broker:
        async with client_of(broker) as client, client_of(broker) as other:
            bench = Bench(broker, store, client, other)
            await client.ask(API_VERSIONS, 3)
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            producers: list[InitProducerIdResponse] = []
            async with bench.step("InitProducerId, another transactional id each", IDS):
                producers = await bench.all([initializing(number) for number in range(IDS)], 3)
            del producers[OPEN:]
            async with bench.step(f"ListTransactions of {IDS:,}", 1):
                await client.ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)
            async with bench.step("AddPartitionsToTxn", OPEN):
                await bench.all([adding(*each) for each in enumerate(producers)], 3)
            async with bench.step(f"Produce, {OPEN:,} open transactions in a partition", OPEN):
                await bench.all([writing(*each) for each in enumerate(producers)], 11)
            async with bench.step("Fetch at read_committed beside them", 1000):
                await bench.all([fetching(1)] * 1000, 12)
            async with bench.step("Fetch at read_uncommitted beside them", 100):
                await bench.all([fetching(0)] * 100, 12)
            asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
            async with bench.step(f"DescribeProducers of {OPEN:,}", 1):
                await client.ask(asked, 0)


def main() -> None:
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    with ExitStack() as stack:
        url, store = "memory://", Store(None)
        if sys.argv[1:] != ["memory"]:
            server = start_server(VALKEY)
            stack.callback(server.remove)
            url, store = server.url, Store(stack.enter_context(server.client()))
        trio.run(measure, url, store)


if __name__ == "__main__":
    main()
