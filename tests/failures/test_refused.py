"""A batch that cannot be stored completely leaves nothing behind, and does not affect the next one."""

from __future__ import annotations

import pytest
import redis

from korvet.protocol.errors import InvalidRecord, KafkaError, KafkaStorageError
from korvet.protocol.record_batch import build_batch, parse_batches
from tests.failures.conftest import EACH_LAYOUT, RECORD_TIMESTAMP, Kept, StartBroker
from tests.processes import KorvetProcess
from tests.servers import RedisServer, StartServer
from tests.support.wire import Wire, create_topic, fetch_request, fetched, frame_of, produce_request, produced

SMALL = build_batch([(0, 1, None, b"small", ())])
LARGE = build_batch([(index, 1, None, b"x" * 1_000, ()) for index in range(900)])


def produce(broker: KorvetProcess, topic: str, batch: bytearray) -> int:
    with Wire(broker.port) as wire:
        wire.send(frame_of(produce_request(topic, batch)))
        return produced(wire.receive())


def stored(client: redis.Redis, topic: str) -> tuple[int, int]:
    """Return the number of entries by XLEN, and by XRANGE."""
    return client.xlen(f"korvet:{topic}:0"), len(client.xrange(f"korvet:{topic}:0"))


def test_batch_with_too_many_headers_is_refused_completely(
    new_server: StartServer, start_broker: StartBroker, topic: str
) -> None:
    server = new_server()
    broker = start_broker(server.url, RECORD_TIMESTAMP.settings)
    create_topic(broker.port, topic)
    headers = tuple((f"header{index}", b"") for index in range(1_001))
    batch = build_batch([(0, 1, None, b"fine", ()), (1, 1, None, b"too many", headers)])

    with pytest.raises(InvalidRecord):
        produce(broker, topic, batch)

    with server.client() as client:
        assert not client.exists(f"korvet:{topic}:0")
    produce(broker, topic, SMALL)
    with server.client() as client:
        assert client.xlen(f"korvet:{topic}:0") == 1


@EACH_LAYOUT
def test_full_server_refuses_a_batch_completely_and_accepts_it_later(
    new_server: StartServer, start_broker: StartBroker, topic: str, kept: Kept
) -> None:
    server = new_server(options={"maxmemory-policy": "noeviction"})
    broker = start_broker(server.url, kept.settings)
    create_topic(broker.port, topic)
    produce(broker, topic, SMALL)
    fill(server)

    with pytest.raises(KafkaStorageError) as refused:
        produce(broker, topic, LARGE)
    assert refused.value.retriable
    with server.client() as client:
        assert client.xlen(f"korvet:{topic}:0") == 1
        client.config_set("maxmemory", "0")

    base_offset = produce(broker, topic, LARGE)
    with Wire(broker.port) as wire:
        wire.send(frame_of(fetch_request(topic, 0, max_wait_ms=0, max_bytes=2_000_000)))
        batches = parse_batches(fetched(wire.receive()))
    assert sum(batch.record_count for batch in batches) == 901
    assert any(batch.base_offset <= base_offset <= batch.last_offset for batch in batches)


def test_full_server_serves_reads(new_server: StartServer, start_broker: StartBroker, topic: str) -> None:
    server = new_server(options={"maxmemory-policy": "noeviction"})
    broker = start_broker(server.url)
    create_topic(broker.port, topic)
    produce(broker, topic, SMALL)
    fill(server)
    with Wire(broker.port) as wire:
        wire.send(frame_of(fetch_request(topic, 0, max_wait_ms=0)))

        assert [1] == [batch.record_count for batch in parse_batches(fetched(wire.receive()))]


def test_full_memory_storage_refuses_a_batch_completely_and_serves_reads(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker("memory://", {"memory.max.bytes": "1000000"})
    create_topic(broker.port, topic)
    produce(broker, topic, LARGE)

    with pytest.raises(KafkaError) as refused:
        produce(broker, topic, LARGE)
    assert refused.value.retriable
    with Wire(broker.port) as wire:
        wire.send(frame_of(fetch_request(topic, 0, max_wait_ms=0, max_bytes=2_000_000)))
        assert [900] == [batch.record_count for batch in parse_batches(fetched(wire.receive()))]


def fill(server: RedisServer) -> None:
    """Set the server's memory limit so low that it accepts no writes."""
    with server.client() as client:
        client.config_set("maxmemory", "1")
