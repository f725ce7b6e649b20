"""Redis is unavailable when a producer first writes to a partition: no batch overtakes an earlier one that failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer

from korvet.protocol.errors import KafkaStorageError
from korvet.protocol.record_batch import build_batch
from tests.clients.confluent import Confluent
from tests.failures.conftest import StartBroker
from tests.processes import KorvetProcess
from tests.servers import VALKEY, RedisServer, start_server
from tests.support.wire import Wire, create_topic, frame_of, new_producer_id, produce_request, produced

RECORDS = 40
LIMIT_S = 60.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Run a server of one kind, because only the broker is tested."""
    server = start_server(VALKEY, durable=True)
    yield server
    server.remove()


def numbered_batch(producer: tuple[int, int], sequence: int) -> bytearray:
    producer_id, epoch = producer
    record = (0, 1, None, b"%d" % sequence, ())
    return build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def kill_and_wait_until_detected(server: RedisServer, broker: KorvetProcess) -> None:
    """Kill the server, and return when the broker has noticed; it then fails batches after five seconds."""
    server.kill()
    broker.wait_for_log("lost the connection")
    first = next(at for at, line in enumerate(broker.log) if "lost the connection" in line)
    # The connection for commands, and the one that watches streams: a batch that is sent before may have happened.
    broker.wait_for_log("lost the connection", after=first + 1)


def test_batches_after_a_failed_one_fail_until_it_is_repeated(
    server: RedisServer, start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(server.url)
    create_topic(broker.port, topic)
    producer = new_producer_id(broker.port)
    with Wire(broker.port) as wire, Wire(broker.port) as other:
        kill_and_wait_until_detected(server, broker)
        for sequence in range(5):
            wire.send(frame_of(produce_request(topic, numbered_batch(producer, sequence))))
        with pytest.raises(KafkaStorageError):
            produced(wire.receive())
        server.start()
        for _ in range(4):
            with pytest.raises(KafkaStorageError):
                produced(wire.receive())

        for sequence in range(5):
            other.send(frame_of(produce_request(topic, numbered_batch(producer, sequence))))
        offsets = [produced(other.receive()) for _ in range(5)]

    assert offsets == sorted(set(offsets))
    with server.client() as redis:
        assert redis.xlen(f"korvet:{topic}:0") == 5


def test_librdkafka_loses_no_record_first_written_while_redis_is_down(
    server: RedisServer, start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(server.url)
    for name in (topic, f"{topic}-other"):
        create_topic(broker.port, name)
    acknowledged: list[int] = []
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is None:
            acknowledged.append(int(value))
        else:
            errors.append(error)

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.produce(f"{topic}-other", "0", partition=0)
    assert producer.flush(LIMIT_S) == 0
    with Wire(broker.port) as wire:
        kill_and_wait_until_detected(server, broker)
        for number in range(RECORDS):
            producer.produce(topic, str(number), partition=0, on_delivery=note)
        # When this batch fails, the producer's first one fails too. Redis is available again for the second one.
        wire.send(frame_of(produce_request(topic, build_batch([(0, 1, None, b"other", ())]))))
        with pytest.raises(KafkaStorageError):
            produced(wire.receive())
    server.start()
    assert producer.flush(LIMIT_S) == 0

    assert not errors
    assert acknowledged == list(range(RECORDS))
    received = Confluent(broker.bootstrap_servers).consume(topic, RECORDS)
    assert [int(each.record.value or b"") for each in received] == acknowledged
    with server.client() as redis:
        assert redis.xlen(f"korvet:{topic}:0") == RECORDS
