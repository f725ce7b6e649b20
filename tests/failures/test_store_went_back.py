"""Redis comes back with an older or the same state under a restarted broker: consumers continue by leader epochs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record
from tests.failures.conftest import BATCH_DENSE, RECORD_DENSE, RECORD_TIMESTAMP, Kept, StartBroker
from tests.processes import KorvetProcess
from tests.servers import VALKEY, RedisServer, start_server

EACH = pytest.mark.parametrize("kept", [RECORD_TIMESTAMP, RECORD_DENSE, BATCH_DENSE], ids=str)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Run a server of one kind; tests/storage has the cases of all kinds."""
    server = start_server(VALKEY, durable=True)
    yield server
    server.remove()


@pytest.fixture
def consumer(broker: KorvetProcess, topic: str) -> Iterator[Consumer]:
    """Yield a consumer that is assigned the topic's partition."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        yield consumer


@pytest.fixture
def broker(start_broker: StartBroker, server: RedisServer, kept: Kept, topic: str) -> KorvetProcess:
    broker = start_broker(server.url, kept.settings)
    Confluent(broker.bootstrap_servers).create_topic(topic)
    return broker


def produce(broker: KorvetProcess, topic: str, values: range) -> None:
    Confluent(broker.bootstrap_servers).produce(topic, [Record(value=b"%d" % value) for value in values])


def values_of(consumer: Consumer, count: int) -> list[int]:
    """Return the values of the next records. Errors that librdkafka handles by itself are passed over."""
    values: list[int] = []
    while len(values) < count:
        message = consumer.poll(LIMIT_S)
        assert message is not None, values
        error = message.error()
        if error is None:
            values.append(int(message.value() or b""))
        elif not error.retriable() and error.fatal():
            raise KafkaException(error)
    return values


@EACH
def test_consumer_continues_after_a_restart_without_a_loss(
    server: RedisServer, broker: KorvetProcess, consumer: Consumer, topic: str
) -> None:
    produce(broker, topic, range(10))
    before = values_of(consumer, 10)
    for _ in range(2):
        assert broker.stop() == 0
        server.kill()
        server.start()
        broker.start()
    produce(broker, topic, range(10, 15))

    assert [*before, *values_of(consumer, 5)] == list(range(15))


@EACH
def test_consumer_reads_records_appended_at_lost_offsets(
    server: RedisServer, broker: KorvetProcess, consumer: Consumer, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, range(5))
    shutil.copytree(server.folder, tmp_path / "older", ignore=shutil.ignore_patterns("s"))
    produce(broker, topic, range(5, 10))
    before = values_of(consumer, 10)
    assert broker.stop() == 0
    server.kill()
    shutil.copytree(tmp_path / "older", server.folder, dirs_exist_ok=True)
    server.start()
    broker.start()
    produce(broker, topic, range(100, 110))
    after = values_of(consumer, 10)

    assert before == list(range(10))
    assert after == list(range(100, 110))
