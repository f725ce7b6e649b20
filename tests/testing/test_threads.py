"""Brokers in a thread: the shortcuts, their start and their end."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from korvet.config import ConfigError
from korvet.protocol.errors import TopicAlreadyExists, UnknownTopicOrPartition
from korvet.server.listeners import PortInUse
from korvet.testing import BrokerEnded, ClientMissing, Drop, Error, RunningBroker, running_broker
from korvet.testing.threads import Portal


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with running_broker() as running:
        yield running


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "korvet"]


def test_produced_records_are_returned_by_partition_and_offset(broker: RunningBroker) -> None:
    topic = broker.create_topic(partitions=2)

    assert [0, 1] == broker.produce(topic, "a", b"b", key="k", headers={"h": b"1"}, timestamp_ms=7)
    assert [0] == broker.produce(topic, None, partition=1)

    assert [
        (0, 0, 7, b"k", b"a", (("h", b"1"),)),
        (0, 1, 7, b"k", b"b", (("h", b"1"),)),
    ] == [
        (each.partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers)
        for each in broker.records(topic, 0)
    ]
    assert [b"a", b"b", None] == [each.value for each in broker.records(topic)]


def test_produce_creates_a_topic_and_stamps_records_with_the_present_time(broker: RunningBroker) -> None:
    before = time.time_ns() // 1_000_000
    broker.produce("created", "a")

    assert before <= broker.records("created")[0].timestamp_ms <= time.time_ns() // 1_000_000


def test_topics_have_the_given_settings_and_new_names(broker: RunningBroker) -> None:
    topic = broker.create_topic(settings={"cleanup.policy": "compact"})

    assert topic != broker.create_topic()
    assert broker.new_name("group") != broker.new_name("group")
    with pytest.raises(TopicAlreadyExists):
        broker.create_topic(topic)
    with pytest.raises(UnknownTopicOrPartition):
        broker.records("missing")


def test_wait_until_returns_the_result_or_names_the_condition(broker: RunningBroker) -> None:
    results = iter([[], [], ["found"]])

    def never() -> bool:
        return False

    assert ["found"] == broker.wait_until(lambda: next(results))
    with pytest.raises(TimeoutError, match=r"never did not become true within 0\.01 s"):
        broker.wait_until(never, timeout_s=0.01)


def test_brokers_start_in_less_than_50_ms_after_the_first(broker: RunningBroker) -> None:
    times: list[float] = []
    for _ in range(9):
        began = time.process_time()  # of all threads, and independent of other programs
        with running_broker():
            times.append(time.process_time() - began)

    assert min(times) < 0.05


def test_nothing_is_left_of_a_broker_that_ended() -> None:
    before = threads()
    with running_broker() as broker:
        assert len(before) + 1 == len(threads())
        host, port = broker.bootstrap_servers.split(":")

    assert before == threads()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    with pytest.raises(BrokerEnded):
        broker.records("orders")


def test_error_of_a_broker_that_does_not_start_is_raised(broker: RunningBroker) -> None:
    before = threads()
    with pytest.raises(ConfigError, match="num.partitions"), running_broker(settings={"num.partitions": "x"}):
        pass
    taken = {"listeners": broker.bootstrap_servers}
    with pytest.raises(PortInUse, match="is in use"), running_broker(settings=taken):
        pass

    assert before == threads()


def test_error_of_a_broker_that_fails_is_raised_at_the_end() -> None:
    def fail(portal: Portal) -> None:
        async def task() -> None:
            portal._nursery.start_soon(divide)

        portal.call(task)

    async def divide() -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError), running_broker() as broker:
        fail(broker._portal)


def test_error_of_the_test_ends_the_broker_and_stays_as_it_is() -> None:
    before = threads()
    with pytest.raises(KeyError), running_broker():
        raise KeyError

    assert before == threads()


async def test_methods_may_be_called_inside_trio(broker: RunningBroker) -> None:
    topic = broker.create_topic()
    broker.produce(topic, "a")

    assert 1 == len(broker.records(topic))


def test_methods_may_be_called_inside_asyncio(broker: RunningBroker) -> None:
    async def count() -> int:
        topic = broker.create_topic()
        broker.produce(topic, "a")
        return len(broker.records(topic))

    assert 1 == asyncio.run(count())


@pytest.mark.parametrize(
    "client, module, package",
    [
        ("confluent", "confluent_kafka", "confluent-kafka"),
        ("kafka_python", "kafka", "kafka-python"),
        ("aiokafka", "aiokafka", "aiokafka"),
    ],
)
def test_missing_client_is_named(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, client: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ClientMissing, match=f"^{package} is not installed: pip install {package}$"):
        getattr(broker, client).producer()


@pytest.mark.servers
def test_embedded_broker_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with running_broker("embedded") as broker:
        broker.produce("orders", "a")
        assert [b"a"] == [each.value for each in broker.records("orders")]
        assert [*tmp_path.iterdir()]

    assert [] == [*tmp_path.iterdir()]


def test_values_of_other_types_are_refused_with_the_accepted_ones(broker: RunningBroker) -> None:
    said = "^5 is int; accepted for keys and values: str, bytes, None$"
    with pytest.raises(TypeError, match=said):
        broker.produce("t", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=said):
        broker.produce("t", "x", key=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Drop("during"), "when is 'during'; accepted: 'before' or 'after'"),
        (lambda: Drop("after", count=0), "count is 0; accepted: a whole number of at least 1"),
        (lambda: Drop("after", partition="x"), "partition is 'x'; accepted: a whole number of at least 0"),
        (lambda: Drop("after", probability=2), "probability is 2; accepted: a number above 0, up to 1"),
        (lambda: Drop("after", topic=7), "topic is 7; accepted: a text"),
        (lambda: Error(5), "error is 5; accepted: a text"),
    ],
)
def test_arguments_of_faults_are_refused_in_one_line(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        make()


def test_time_limit_of_wait_until_may_be_positional(broker: RunningBroker) -> None:
    assert broker.wait_until(lambda: 7, 0.2) == 7
    with pytest.raises(TimeoutError):
        broker.wait_until(lambda: False, 0.0)
