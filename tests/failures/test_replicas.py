"""min.insync.replicas=2: an acknowledgement with acks=all means that a replica has the record, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from korvet.protocol.errors import KafkaError, NotEnoughReplicas, NotEnoughReplicasAfterAppend
from korvet.protocol.record_batch import build_batch
from tests.failures.conftest import EACH_LAYOUT, Kept, StartBroker
from tests.servers import RedisServer, ServerPair
from tests.support.wire import Wire, create_topic, frame_of, new_producer_id, produce_request, produced

TIMEOUT_MS = 1_000
# The timeout of the request, plus time for a slow machine.
IN_TIME_S = 5.0


@pytest.fixture
def paused_replica(replica_pair: ServerPair) -> Iterator[RedisServer]:
    """Yield a primary whose replica is stopped (SIGSTOP): it stays connected and confirms nothing."""
    primary, replica = replica_pair
    replica.pause()
    yield primary
    replica.resume()


def numbered_batch(producer: tuple[int, int], sequence: int) -> bytearray:
    producer_id, epoch = producer
    record = (0, 1, None, b"%d" % sequence, ())
    return build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def outcome(wire: Wire, topic: str, batch: bytearray) -> int | type[KafkaError]:
    """Return the base offset, or the class of the error, which must come within the request's timeout."""
    started = time.monotonic()
    wire.send(frame_of(produce_request(topic, batch, timeout_ms=TIMEOUT_MS)))
    answer = wire.receive()
    assert time.monotonic() - started < IN_TIME_S
    try:
        return produced(answer)
    except KafkaError as error:
        return type(error)


@EACH_LAYOUT
def test_acks_all_and_its_retry_fail_in_time_while_the_replica_is_stopped(
    replica_pair: ServerPair, start_broker: StartBroker, topic: str, kept: Kept
) -> None:
    primary, replica = replica_pair
    broker = start_broker(primary.url, kept.settings)
    create_topic(broker.port, topic, settings={"min.insync.replicas": "2"})
    producer = new_producer_id(broker.port)
    refused = (NotEnoughReplicas, NotEnoughReplicasAfterAppend)
    with Wire(broker.port) as wire:
        confirmed = outcome(wire, topic, numbered_batch(producer, 0))
        assert isinstance(confirmed, int)

        replica.pause()
        assert outcome(wire, topic, numbered_batch(producer, 1)) in refused
        assert outcome(wire, topic, numbered_batch(producer, 1)) in refused
        assert outcome(wire, topic, numbered_batch(producer, 0)) in refused

        replica.resume()
        after = outcome(wire, topic, numbered_batch(producer, 1))
        assert isinstance(after, int)
        assert after > confirmed
        # The batch that was stored without confirmation is stored once.
        assert after == outcome(wire, topic, numbered_batch(producer, 1))
        assert confirmed == outcome(wire, topic, numbered_batch(producer, 0))

    with primary.client() as client:
        assert client.xlen(f"korvet:{topic}:0") == 2


@EACH_LAYOUT
def test_acks_1_waits_for_no_replica(
    paused_replica: RedisServer, start_broker: StartBroker, topic: str, kept: Kept
) -> None:
    broker = start_broker(paused_replica.url, kept.settings)
    create_topic(broker.port, topic, settings={"min.insync.replicas": "2"})
    with Wire(broker.port) as wire:
        batch = build_batch([(0, 1, None, b"value", ())])
        wire.send(frame_of(produce_request(topic, batch, acks=1)))

        assert produced(wire.receive()) >= 0


def test_waiting_for_a_replica_does_not_delay_other_requests(
    replica_pair: ServerPair, start_broker: StartBroker, topic: str
) -> None:
    primary, replica = replica_pair
    broker = start_broker(primary.url)
    create_topic(broker.port, topic, settings={"min.insync.replicas": "2"})
    create_topic(broker.port, f"{topic}-easy")
    batch = build_batch([(0, 1, None, b"value", ())])
    replica.pause()
    with Wire(broker.port) as waiting, Wire(broker.port) as other:
        waiting.send(frame_of(produce_request(topic, batch, timeout_ms=60_000)))
        started = time.monotonic()
        for _ in range(20):
            other.send(frame_of(produce_request(f"{topic}-easy", batch)))
            produced(other.receive())

        assert time.monotonic() - started < 30
        replica.resume()
        assert produced(waiting.receive()) >= 0


def test_wait_covers_a_read_that_has_blocked_after_another_write(
    paused_replica: RedisServer, topic: str
) -> None:
    """Check the rule of docs/queues.md for plain consumers: Valkey 9.1 needs the write before WAIT."""
    stream = f"korvet:{topic}:0"
    with paused_replica.client() as producer, paused_replica.client() as consumer:
        producer.xgroup_create(stream, "workers", mkstream=True)
        with consumer.pipeline(transaction=False) as pipe, ThreadPoolExecutor() as executor:
            pipe.xreadgroup("workers", "alice", {stream: ">"}, block=int(IN_TIME_S * 1000))
            pipe.set(f"{{{stream}}}:confirming", b"")
            pipe.wait(1, TIMEOUT_MS)
            running = executor.submit(pipe.execute)
            while not producer.info("clients")["blocked_clients"]:
                time.sleep(0.01)
            producer.xadd(stream, {"value": "1"})
            found, _, confirmed = running.result()

    assert (1, 0) == (len(found), confirmed)
