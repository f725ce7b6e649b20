"""Redis is unavailable, at the start or later: the broker logs it, and continues when Redis is back."""

from __future__ import annotations

import threading

import pytest

from korvet.protocol.errors import KafkaError
from korvet.protocol.record_batch import build_batch
from tests.clients.confluent import Confluent
from tests.clients.interface import Record
from tests.failures.conftest import EACH_LAYOUT, Kept, StartBroker, end
from tests.processes import KorvetProcess
from tests.servers import RedisServer
from tests.support.wire import Wire, create_topic, frame_of, produce_request, produced

LIMIT_S = 30.0
BATCH = build_batch([(0, 1, None, b"value", ())])


def test_broker_waits_for_a_server_that_is_not_running(durable_server: RedisServer, topic: str) -> None:
    durable_server.kill()
    broker = KorvetProcess(storage=durable_server.url)
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        wait_for_process(broker)
        broker.wait_for_log(r"unix:.*" + durable_server.socket.name)
        durable_server.start()
        starting.join(LIMIT_S)
        create_topic(broker.port, topic)

        assert broker.process is not None
        assert broker.process.poll() is None
    finally:
        starting.join(LIMIT_S)
        end(broker)


def wait_for_process(broker: KorvetProcess) -> None:
    """Return once the other thread has started the process."""
    deadline = threading.Event()
    while broker.process is None:
        deadline.wait(0.01)


@EACH_LAYOUT
def test_clients_get_retriable_errors_while_the_server_is_down(
    durable_server: RedisServer, start_broker: StartBroker, topic: str, kept: Kept
) -> None:
    broker = start_broker(durable_server.url, kept.settings)
    create_topic(broker.port, topic)
    with Wire(broker.port) as wire:
        wire.send(frame_of(produce_request(topic, BATCH)))
        produced(wire.receive())
        durable_server.kill()

        wire.send(frame_of(produce_request(topic, BATCH, timeout_ms=500)))
        with pytest.raises(KafkaError) as refused:
            produced(wire.receive())
        assert refused.value.retriable

        durable_server.start()
        client = Confluent(broker.bootstrap_servers)
        client.produce(topic, [Record(value=b"after")])
        values = [
            received.record.value for received in client.consume(topic, client_count(durable_server, topic))
        ]

    assert values[0] == b"value"
    assert values[-1] == b"after"


def client_count(server: RedisServer, topic: str) -> int:
    """Return the number of entries in the stream; each is one record here, in both layouts."""
    with server.client() as client:
        count: int = client.xlen(f"korvet:{topic}:0")
    return count
