"""Real clients cope with each fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer

from korvet.testing import (
    Delay,
    Drop,
    Error,
    Fault,
    Freeze,
    MoveCoordinator,
    RaiseLeaderEpoch,
    RunningBroker,
    Throttle,
    Truncate,
    running_broker,
)

pytestmark = pytest.mark.clients

FAST = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 20,
}
LIMIT_S = 20


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningBroker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: RunningBroker) -> Iterator[RunningBroker]:
    yield shared
    shared.faults.clear()


def named(fault: Fault) -> str:
    what = getattr(fault, "error", getattr(fault, "when", ""))
    return "-".join(filter(None, (fault.api, type(fault).__name__, what)))


def producer_of(broker: RunningBroker, settings: Mapping[str, Any] | None = None) -> Producer:
    return broker.confluent.producer(FAST | dict(settings or {}))


def consumer_of(broker: RunningBroker, topic: str, settings: Mapping[str, Any] | None = None) -> Consumer:
    quick = {
        "heartbeat.interval.ms": 50,
        "topic.metadata.refresh.fast.interval.ms": 20,
        "fetch.error.backoff.ms": 20,
    }
    settings = FAST | quick | {"enable.auto.commit": False} | dict(settings or {})
    return broker.confluent.consumer(topic, settings=settings)


def next_of(broker: RunningBroker, consumer: Consumer) -> bytes | None:
    def poll() -> Message | None:
        message = consumer.poll(0.1)
        return None if message is None or message.error() else message

    found = broker.wait_until(poll, timeout_s=LIMIT_S)
    assert found is not None
    return found.value()


def values(broker: RunningBroker, topic: str) -> list[bytes | None]:
    return [each.value for each in broker.records(topic)]


@pytest.mark.parametrize(
    "fault",
    [
        Error("NOT_LEADER_OR_FOLLOWER", api="Produce", count=2),
        Error("NOT_ENOUGH_REPLICAS", api="Produce", partition=0, count=2),
        Drop(api="Produce", count=2),
        Drop("after", api="Produce", count=2),
        Truncate(api="Produce", count=2),
        Delay(50, api="Produce", count=2),
        Error("LEADER_NOT_AVAILABLE", api="Metadata", count=2),
    ],
    ids=named,
)
def test_idempotent_producer_writes_each_record_once(broker: RunningBroker, fault: Fault) -> None:
    topic = broker.create_topic()
    injected = broker.faults.add(fault)

    producer = producer_of(broker, {"enable.idempotence": True})
    for number in range(2):
        producer.produce(topic, b"%d" % number)
        assert 0 == producer.flush(LIMIT_S)

    assert [b"0", b"1"] == values(broker, topic)
    assert fault.count == injected.hits


def test_producer_without_idempotence_repeats_a_record_whose_answer_was_lost(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    broker.faults.add(Drop("after", api="Produce", topic=topic, count=1))

    producer = producer_of(broker, {"enable.idempotence": False})
    producer.produce(topic, b"a")

    assert 0 == producer.flush(LIMIT_S)
    assert [b"a", b"a"] == values(broker, topic)


@pytest.mark.parametrize(
    "fault",
    [
        Error("NOT_LEADER_OR_FOLLOWER", api="Fetch", count=2),
        Drop(api="Fetch", count=2),
        Truncate(api="Fetch", count=2),
        Error("COORDINATOR_LOAD_IN_PROGRESS", api="FindCoordinator", count=1),
        Error("REBALANCE_IN_PROGRESS", api="SyncGroup", count=1),
        Drop("after", api="JoinGroup", count=1),
    ],
    ids=named,
)
def test_consumer_receives_each_record(broker: RunningBroker, fault: Fault) -> None:
    topic = broker.create_topic()
    broker.produce(topic, "a", "b")
    injected = broker.faults.add(fault)

    consumer = consumer_of(broker, topic)

    assert [b"a", b"b"] == [next_of(broker, consumer) for _ in range(2)]
    assert fault.count == injected.hits


def test_frozen_partition_holds_its_produces_only(broker: RunningBroker) -> None:
    topic = broker.create_topic(partitions=2)
    producer = producer_of(broker)
    with broker.faults.add(Freeze(api="Produce", topic=topic, partition=0)) as frozen:
        producer.produce(topic, b"held", partition=0)
        broker.wait_until(lambda: frozen.hits, timeout_s=LIMIT_S)
        other = producer_of(broker)
        other.produce(topic, b"through", partition=1)
        assert 0 == other.flush(LIMIT_S)
        assert [b"through"] == values(broker, topic)

    assert 0 == producer.flush(LIMIT_S)
    assert [b"held", b"through"] == values(broker, topic)


def test_throttled_client_is_informed(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    events: list[float] = []
    broker.faults.add(Throttle(300, api="Produce", topic=topic, count=1))

    producer = producer_of(broker, {"throttle_cb": lambda event: events.append(event.throttle_time)})
    producer.produce(topic, b"a")
    assert 0 == producer.flush(LIMIT_S)
    broker.wait_until(lambda: producer.poll(0.1) or events, timeout_s=LIMIT_S)

    assert [0.3] == events


def test_fault_of_a_client_leaves_other_clients_alone(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    injected = broker.faults.add(Error("INVALID_RECORD", api="Produce", topic=topic, client_id="one"))
    errors: list[object] = []

    for name in ("one", "other"):
        producer = producer_of(broker, {"client.id": name})
        producer.produce(topic, name, on_delivery=lambda error, _: errors.append(error and error.name()))
        assert 0 == producer.flush(LIMIT_S)

    assert ["INVALID_RECORD", None] == errors
    assert [b"other"] == values(broker, topic)
    assert 1 == injected.hits


def test_consumer_follows_a_raised_leader_epoch(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    broker.produce(topic, "a")
    consumer = consumer_of(broker, topic)
    assert b"a" == next_of(broker, consumer)

    raised = broker.faults.add(RaiseLeaderEpoch(topic=topic))
    broker.wait_until(lambda: consumer.poll(0.05) or raised.hits, timeout_s=LIMIT_S)
    broker.produce(topic, "b")

    assert b"b" == next_of(broker, consumer)
    assert raised.hits


def test_expired_member_joins_again(broker: RunningBroker) -> None:
    topic, group = broker.create_topic(), broker.new_name("group")
    broker.produce(topic, "a")
    consumer = consumer_of(broker, topic, {"group.id": group})
    assert b"a" == next_of(broker, consumer)
    joined = broker.faults.add(Delay(0, api="JoinGroup", group=group))

    broker.expire_member(group)

    broker.wait_until(lambda: consumer.poll(0.05) is None and joined.hits, timeout_s=LIMIT_S)
    broker.produce(topic, "b")
    assert b"a" == next_of(broker, consumer)  # it had not committed
    assert b"b" == next_of(broker, consumer)


def test_consumer_commits_to_the_coordinator_that_it_looked_up_again(broker: RunningBroker) -> None:
    topic, group = broker.create_topic(), broker.new_name("group")
    broker.produce(topic, "a")
    consumer = consumer_of(broker, topic, {"group.id": group})
    assert b"a" == next_of(broker, consumer)

    moved = broker.faults.add(MoveCoordinator(group=group))
    broker.wait_until(lambda: consumer.poll(0.05) or moved.hits > 2, timeout_s=LIMIT_S)
    consumer.commit(asynchronous=False)

    assert {0: 1} == broker.committed(group, topic)
