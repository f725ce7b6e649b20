"""Failover by Sentinel under load: producers and consumers continue, and nothing that replicas confirmed is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Message, Producer

from tests.failures.conftest import StartBroker
from tests.sentinels import SentinelSet, eventually
from tests.servers import VALKEY
from tests.support.wire import create_topic

pytestmark = [pytest.mark.servers, pytest.mark.clients]


@pytest.fixture(scope="module")
def sentinel_set() -> Iterator[SentinelSet]:
    """Yield servers and Sentinels with passwords; each test leaves them settled."""
    with SentinelSet(VALKEY, password="s3cret") as servers:
        yield servers


class Load:
    """An idempotent producer with acks=all that counts upwards, and the numbers that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.fatal: list[str] = []
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "delivery.timeout.ms": 60_000,
                "error_cb": self._note_error,
            }
        )

    def _note_error(self, error: object) -> None:
        if error.fatal():  # type: ignore[attr-defined]
            self.fatal.append(str(error))

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
        else:
            self.failed.append(str(error))

    def send_until(self, acknowledged: int) -> None:
        """Send records until so many are acknowledged."""

        def is_reached() -> bool:
            if len(self.acknowledged) >= acknowledged:
                return True
            self._send_some(0)
            return False

        eventually(is_reached, f"{acknowledged} acknowledged records, errors: {self.failed[:3] + self.fatal}")

    def send_during(self, work: Callable[[], None]) -> None:
        """Send records while another thread does that work."""
        with ThreadPoolExecutor(1) as executor:
            working = executor.submit(work)
            while not working.done():
                self._send_some(0.01)
            working.result()

    def _send_some(self, wait_s: float) -> None:
        for _ in range(20):
            self._producer.produce(self.topic, b"%d" % self._sent, on_delivery=self._delivered)
            self._sent += 1
        self._producer.poll(wait_s)

    def flush(self) -> None:
        assert 0 == self._producer.flush(60)


def group_member(bootstrap: str, group: str) -> Consumer:
    """Return a consumer of the topic that has the group's name."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([group.removesuffix("-all")])
    return consumer


def polled(consumer: Consumer, last: int) -> list[tuple[int, int]]:
    """Return the offsets and numbers of the next records, up to the number `last`."""
    found: list[tuple[int, int]] = []

    def is_read() -> bool:
        messages = [each for each in consumer.consume(1000, 0.5) if each.error() is None]
        found.extend((each.offset() or 0, int(each.value() or b"")) for each in messages)
        return bool(found) and max(found)[1] >= last

    eventually(is_read, f"record {last}")
    return found


def consumed(bootstrap: str, topic: str, last: int) -> list[tuple[int, int]]:
    """Return the offsets and numbers of all records of the topic, up to the number `last`."""
    with closing(group_member(bootstrap, f"{topic}-all")) as consumer:
        return polled(consumer, last)


@pytest.mark.parametrize("how", ["by command", "by pause", "by death"])
def test_acknowledged_records_survive_a_failover(
    sentinel_set: SentinelSet, start_broker: StartBroker, topic: str, how: str
) -> None:
    broker = start_broker(sentinel_set.url)
    create_topic(broker.port, topic, settings={"min.insync.replicas": "2"})
    load = Load(broker.bootstrap_servers, topic)
    load.send_until(200)
    before = sentinel_set.primary

    def fail_over() -> None:
        match how:
            case "by command":
                sentinel_set.fail_over()
            case "by pause":
                before.pause()
                sentinel_set.await_other_than(before)
            case "by death":
                before.kill()
                sentinel_set.await_other_than(before)

    load.send_during(fail_over)
    load.send_until(len(load.acknowledged) + 400)
    load.flush()
    records = consumed(broker.bootstrap_servers, topic, max(load.acknowledged))

    assert ([], []) == (load.failed, load.fatal)
    numbers = [number for _, number in records]
    assert list(range(len(numbers))) == numbers
    assert set(load.acknowledged) <= set(numbers)
    assert not any("s3cret" in line for line in broker.log)
    if how != "by command":
        sentinel_set.revive(before)
    sentinel_set.settle()


def test_clients_continue_after_a_failover_that_lost_records(
    sentinel_set: SentinelSet, start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(sentinel_set.url)
    create_topic(broker.port, topic, settings={"offset.mapping": "dense"})
    load = Load(broker.bootstrap_servers, topic)
    load.send_until(100)
    load.flush()
    primary, replicas = sentinel_set.primary, sentinel_set.replicas
    with primary.client() as client:
        client.set("in-step", 1)
        assert 2 == client.wait(2, 30_000)
        for replica in replicas:
            replica.pause()
        # Bytes in the sockets would reach the replicas even after the primary's death.
        client.client_kill_filter(_type="replica")
    kept = len(load.acknowledged)
    load.send_until(kept + 100)
    load.flush()
    with closing(group_member(broker.bootstrap_servers, topic)) as consumer:
        seen = len(load.acknowledged)
        read = polled(consumer, seen - 1)
        consumer.commit(asynchronous=False)
        primary.kill()
        for replica in replicas:
            replica.resume()
        sentinel_set.await_other_than(primary)
        load.send_until(seen + 100)
        load.flush()
        continued = polled(consumer, max(load.acknowledged))
    stored = consumed(broker.bootstrap_servers, topic, max(load.acknowledged))

    assert ([], []) == (load.failed, load.fatal)
    assert [(number, number) for number in range(seen)] == read
    # The records from `kept` to `seen` are lost, and no offset that was read has another record now.
    after = [(number, number) for number in range(seen, len(load.acknowledged))]
    assert [*read[:kept], *after] == stored
    assert after == continued
    sentinel_set.revive(primary)
    sentinel_set.settle()
