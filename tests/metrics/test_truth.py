"""Counters of requests, bytes, records and connections equal what passed between a real client and the broker."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from korvet.handlers import APIS
from tests.metrics.counting_relay import CountingRelay, counting_relay
from tests.processes import KorvetProcess

pytestmark = [pytest.mark.clients, pytest.mark.slow]

LIMIT_S = 60.0
PARTITIONS = 3
RECORDS = 3_000
ORDERS = ("orders",)
NAMES = {key: api.name for key, api in APIS.items()}
Labels = tuple[str, ...]


def counters(port: int) -> dict[str, Counter[Labels]]:
    """Return the broker's counters by name and labels' values."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        text: str = answer.read().decode()
    found: dict[str, Counter[Labels]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                found.setdefault(sample.name, Counter())[tuple(sample.labels.values())] += int(sample.value)
    return found


def summary_of(relay: CountingRelay) -> dict[str, Counter[Labels]]:
    """Return what has passed, as the counters of `summary_at`."""
    return {
        "korvet_requests_total": Counter(
            {(NAMES[key], str(version)): count for (key, version), count in relay.requests.items()}
        ),
        "korvet_request_bytes_total": Counter(
            {(NAMES[key],): count for key, count in relay.request_bytes.items()}
        ),
        "korvet_response_bytes_total": Counter(
            {(NAMES[key],): count for key, count in relay.response_bytes.items()}
        ),
        "korvet_connections_opened_total": Counter({("PLAINTEXT",): relay.connections}),
    }


def summary_at(port: int, names: list[str]) -> dict[str, Counter[Labels]]:
    found = counters(port)
    return {name: +found[name] for name in names}


def produce(servers: str) -> int:
    """Produce the records; return the bytes of their values."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    sent = 0
    for number in range(RECORDS):
        value = b"v" * (number % 700)
        sent += len(value)
        producer.produce("orders", value, partition=number % PARTITIONS)
    assert 0 == producer.flush(LIMIT_S)
    return sent


def consume(consumer: Consumer) -> None:
    """Consume all records, and commit. The consumer fetches no longer."""
    consumer.assign([TopicPartition("orders", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    count = 0
    deadline = time.monotonic() + LIMIT_S
    while count < RECORDS:
        assert time.monotonic() < deadline
        count += len(consumer.consume(1_000, 1.0))
    consumer.commit(asynchronous=False)
    consumer.unassign()


def await_equal_counts(port: int, relay: CountingRelay) -> None:
    """Wait until requests in flight, such as a last fetch, are answered and counted on both sides."""
    deadline = time.monotonic() + LIMIT_S
    while (passed := summary_of(relay)) != (counted := summary_at(port, [*passed])):
        assert time.monotonic() < deadline, (passed, counted)
        time.sleep(0.1)


@pytest.mark.parametrize(
    "options, is_embedded",
    [
        pytest.param([], False, id="memory"),
        pytest.param(["--processes", "2"], True, id="2-processes", marks=pytest.mark.servers),
    ],
)
def test_counters_equal_what_has_passed(tmp_path: Path, options: list[str], is_embedded: bool) -> None:
    storage = f"embedded:{tmp_path / 'data'}" if is_embedded else "memory://"
    with counting_relay() as relay:
        settings = {"advertised.listeners": f"PLAINTEXT://[::1]:{relay.port}"}
        options = ["--metrics", "127.0.0.1:0", *options]
        with KorvetProcess(storage, settings, options, port=relay.port) as broker:
            servers = f"[::1]:{relay.port}"
            port = int(broker.wait_for_log(r"metrics: http://127\.0\.0\.1:(\d+)")[1])
            admin = AdminClient({"bootstrap.servers": servers})
            new = NewTopic("orders", num_partitions=PARTITIONS, replication_factor=1)
            admin.create_topics([new])["orders"].result(LIMIT_S)
            sent = produce(servers)
            consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
            try:
                consume(consumer)
                # Before the clients close, which leaves a request in flight without an answer.
                await_equal_counts(port, relay)
                found = counters(port)
            finally:
                consumer.close()
                del admin

    assert RECORDS == found["korvet_topic_received_records_total"][ORDERS]
    assert RECORDS == found["korvet_topic_sent_records_total"][ORDERS]
    received = found["korvet_topic_received_bytes_total"][ORDERS]
    assert sent < received < found["korvet_request_bytes_total"]["Produce",]
    assert 0 < found["korvet_topic_received_batches_total"][ORDERS] <= RECORDS
    assert "korvet_response_errors_total" not in found  # no error code in any response
    assert "korvet_connections_aborted_total" not in found
    if not is_embedded:
        # Memory stores and returns batches as they came.
        for what in ("bytes", "batches"):
            received = found[f"korvet_topic_received_{what}_total"][ORDERS]
            assert received == found[f"korvet_topic_sent_{what}_total"][ORDERS]
