"""Producers and a consumer at work for minutes while the broker and Redis are killed repeatedly.

Another test runs without kills and checks that the broker's memory after minutes of load is the same as before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from attrs import define, field
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from bench.processes import resident_mb
from tests.clients.confluent import Confluent
from tests.failures.conftest import BATCH_DENSE, RECORD_TIMESTAMP, Kept, Report, StartBroker
from tests.failures.ledger import LIMIT_S, Ledgers, assert_each_once_and_in_order, consume_all
from tests.servers import REDIS_PATH, VALKEY, RedisServer, ServerKind, start_server

KILLS = 10
BETWEEN_S = 4.0
STEADY_S = 60.0
# Variation of memory between two moments.
BREATH_MB = 15.0


@define
class Follower:
    """A consumer that reads all the time, also during failures."""

    bootstrap_servers: str
    topic: str
    seen: list[tuple[str, int]] = field(factory=list)  # producer and number
    _ended: threading.Event = field(factory=threading.Event)
    _changed: threading.Condition = field(factory=threading.Condition)

    @contextmanager
    def following(self) -> Iterator[None]:
        thread = threading.Thread(target=self._follow)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, LIMIT_S), (
                f"{len(self.seen)} of {count}"
            )

    def _follow(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "follower",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
        while not self._ended.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if not error.retriable():
                    raise KafkaException(error)
                continue
            name, value = message.key(), message.value()
            assert name is not None
            assert value is not None
            with self._changed:
                self.seen.append((name.decode(), int(value)))
                self._changed.notify_all()
        consumer.close()


@pytest.fixture(params=[VALKEY, REDIS_PATH], ids=lambda kind: kind.id)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    kind: ServerKind = request.param
    server = start_server(kind, durable=True)
    yield server
    server.remove()


@pytest.mark.parametrize("kept", [RECORD_TIMESTAMP, BATCH_DENSE], ids=str)
def test_records_are_read_once_in_order_while_broker_and_redis_are_killed(
    server: RedisServer, start_broker: StartBroker, topic: str, kept: Kept, report: Report
) -> None:
    broker = start_broker(server.url, kept.settings)
    Confluent(broker.bootstrap_servers).create_topic(topic)
    follower = Follower(broker.bootstrap_servers, topic)
    began_s = time.monotonic()
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=True) as ledgers, follower.following():
        for number in range(KILLS):
            ledgers.wait_for_more(200)
            if number % 2:
                broker.kill()
                broker.start()
            else:
                server.kill()
                server.start()
            threading.Event().wait(BETWEEN_S)
        ledgers.finish()
        follower.wait_for(len(ledgers.produced()))
    report(f"{time.monotonic() - began_s:.0f} s, {len(ledgers.produced())} records, {KILLS} kills")

    found = consume_all(broker.bootstrap_servers, topic)
    assert_each_once_and_in_order(ledgers, found)
    assert [(one.name, one.number) for one in found] == follower.seen


@pytest.mark.parametrize("storage", ["memory", "redis"])
def test_memory_does_not_grow_with_the_load(
    storage: str, request: pytest.FixtureRequest, start_broker: StartBroker, topic: str, report: Report
) -> None:
    url = "memory://"
    if storage == "redis":
        new_server = start_server(VALKEY)
        request.addfinalizer(new_server.remove)
        url = new_server.url
    broker = start_broker(url)
    client = Confluent(broker.bootstrap_servers)
    client.create_topic(topic, settings={"retention.bytes": "1000000"})
    follower = Follower(broker.bootstrap_servers, topic)
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=True) as ledgers, follower.following():
        threading.Event().wait(STEADY_S / 3)
        before_mb = resident_mb(broker.pid)
        threading.Event().wait(2 * STEADY_S / 3)
        after_mb = resident_mb(broker.pid)
        ledgers.finish()
    report(
        f"{len(ledgers.produced())} records, {before_mb:.0f} MB after a third of it, {after_mb:.0f} MB at the end"
    )

    assert after_mb < before_mb + BREATH_MB
