"""Real clients over their quota."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, ThrottleEvent
from kafka import KafkaProducer

from tests.processes import KorvetProcess

LIMIT_S = 30.0
SIZE = 20_000

pytestmark = pytest.mark.xdist_group("test_quotas")


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetProcess]:
    with KorvetProcess(settings={"quota.window.num": "2"}) as process:
        quota = ["quotas", "set", "--default-client-id", "producer_byte_rate=10000"]
        servers = ["--bootstrap-servers", process.bootstrap_servers]
        subprocess.run([sys.executable, "-m", "korvet", *quota, *servers], check=True, timeout=LIMIT_S)
        yield process


def test_librdkafka_reports_the_throttle_time(broker: KorvetProcess) -> None:
    throttled: list[ThrottleEvent] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "client.id": "c", "throttle_cb": throttled.append}
    )
    deadline = time.monotonic() + LIMIT_S
    producer.produce("orders", b"x" * SIZE)
    while not throttled and time.monotonic() < deadline:
        producer.poll(0.1)

    assert 0 == producer.flush(LIMIT_S)
    assert 0.5 < throttled[0].throttle_time <= 1.1


def test_kafka_python_waits_for_the_throttle_time(broker: KorvetProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="k", linger_ms=0)
    try:
        began = time.monotonic()
        for _ in range(3):
            producer.send("orders", b"x" * SIZE).get(LIMIT_S)
    finally:
        producer.close()

    assert time.monotonic() - began > 2
