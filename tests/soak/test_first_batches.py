"""Producers that begin to write while Redis is unavailable, or whose first batch is refused, lose and repeat nothing.

Three client libraries write concurrently, each to a partition that it wrote to before and to one that it did not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest
import trio
from attrs import define, field

from korvet.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import NO_TRANSACTIONS, AppendResults, TopicPartition, Transactions
from korvet.storage.memory import MemoryStorage
from tests.failures.conftest import EACH_LAYOUT, Kept, Report, StartBroker
from tests.failures.ledger import consume_all
from tests.servers import VALKEY, RedisServer, start_server
from tests.soak.producers import Commands, SteadyProducer
from tests.support.wire import create_topic
from tests.talk import port_of, serving

SOAK_LIMIT_S = 600.0
CLIENTS = ("librdkafka", "Java", "franz-go")
OUTAGES_S = (1, 2, 5, 6, 9, 15)
RECORDS = 100
PAUSE_MS = 40
ERRORS = (
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = start_server(VALKEY, durable=True)
    yield server
    server.remove()


def topics_of(client: str, run: object) -> tuple[str, str]:
    """Return the topic that the producer writes to at its start, and the one that it does not."""
    name = client.lower()
    return f"{name}-warm-{run}", f"{name}-fresh-{run}"


@define
class Producers:
    """A producer of each client library. Their topics exist, and each producer has written one record."""

    bootstrap_servers: str
    run: object
    _running: dict[str, SteadyProducer] = field(factory=dict)

    def start(self, commands: Commands, port: int, pause_ms: int) -> None:
        for client in CLIENTS:
            topics = topics_of(client, self.run)
            for topic in topics:
                create_topic(port, topic)
            self._running[client] = SteadyProducer(
                commands[client], self.bootstrap_servers, RECORDS, pause_ms, topics
            )
        for producer in self._running.values():
            producer.wait_until_ready()

    def go(self) -> None:
        for producer in self._running.values():
            producer.go()

    def assert_each_record_is_stored_once_in_order(self) -> int:
        """Wait for the producers, read their topics, and return the number of records."""
        count = 0
        for client, producer in self._running.items():
            report = producer.report()
            assert [] == report.failed
            for topic in topics_of(client, self.run):
                assert list(range(RECORDS)) == sorted(report.acknowledged[topic])
                start = -1 if "-warm-" in topic else 0
                stored = [each.number for each in consume_all(self.bootstrap_servers, topic)]
                assert list(range(start, RECORDS)) == stored, topic
                count += len(stored)
        return count

    def kill(self) -> None:
        for producer in self._running.values():
            producer.kill()


@EACH_LAYOUT
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_producers_started_while_redis_is_down_lose_no_record(
    server: RedisServer, start_broker: StartBroker, commands: Commands, kept: Kept, how: str, report: Report
) -> None:
    broker = start_broker(server.url, kept.settings)
    count = 0
    for seconds in OUTAGES_S:
        producers = Producers(broker.bootstrap_servers, seconds)
        with ExitStack() as stack:
            stack.callback(producers.kill)
            producers.start(commands, broker.port, PAUSE_MS)
            getattr(server, how)()
            producers.go()
            time.sleep(seconds)  # the length of the outage
            server.start() if how == "kill" else server.resume()
            count += producers.assert_each_record_is_stored_once_in_order()
    report(f"{kept}, {how}: {count} records, each stored once and in order")


@define(eq=False)
class FirstBatchesFail(MemoryStorage):
    """A storage that fails the first batch of each partition of certain topics."""

    errors: Mapping[str, type[KafkaError]] = field(factory=dict)  # by suffix of the topic's name
    failed: set[TopicPartition] = field(factory=set)

    async def append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults:
        refused: AppendResults = {}
        for tp, batch in batches.items():
            error = self.errors.get(tp.topic.rpartition("-")[2])
            # A producer's very first batch has the record -1, before it prints "ready".
            if error is None or tp in self.failed or ("-warm-" in tp.topic and batch.base_sequence == 0):
                continue
            self.failed.add(tp)
            refused[tp] = error()
            self.failed_sequences.note(tp, ProducerBatch.of(batch), error())
            if error is NotEnoughReplicasAfterAppend:
                await super().append({tp: batch}, acks=1)
        passed = {tp: batch for tp, batch in batches.items() if tp not in refused}
        return refused | await super().append(
            passed, acks=acks, timeout_s=timeout_s, transactions=transactions
        )


async def test_producers_lose_no_record_when_only_their_first_batch_fails(
    commands: Commands, report: Report
) -> None:
    storage = FirstBatchesFail(errors={error.__name__.lower(): error for error in ERRORS})
    count = 0
    async with serving(storage=storage, limit_s=SOAK_LIMIT_S) as server:
        for run in storage.errors:
            port = port_of(server)
            producers = Producers(f"127.0.0.1:{port}", run)
            try:
                await trio.to_thread.run_sync(producers.start, commands, port, 0)
                producers.go()
                count += await trio.to_thread.run_sync(producers.assert_each_record_is_stored_once_in_order)
            finally:
                producers.kill()
    assert 2 * len(CLIENTS) * len(ERRORS) == len(storage.failed)
    report(f"{count} records, each stored once and in order")
