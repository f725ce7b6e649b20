"""A short load of real clients at a broker of each row of the covering array."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path

import pytest
from attrs import asdict, define, field
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.certificates import Authority
from tests.clients.secured import PASSWORD, add_alice
from tests.everything.brokers import ADDRESS, add_user, run, text_at
from tests.everything.rows import QUOTAS, VALUES, Row, is_possible, rows
from tests.processes import KorvetProcess
from tests.tracing.test_export import Receiver, collector

LIMIT_S = 60.0
#: Number of records by size.
LOAD = {1: 500, 1_000: 200, 300_000: 2}
PARTITIONS = 2


@define
class RowBroker(KorvetProcess):
    """The broker of a row. `port` is that of the first listener, `clients_port` that of the clients."""

    row: Row = field(factory=Row)
    clients_port: int = 0

    def start(self) -> None:
        KorvetProcess.start(self)
        self.clients_port = self.port
        if self.row.has_two_listeners:
            self.clients_port = int(self.wait_for_log(r"CLIENTS://127\.0\.0\.1:(\d+)")[1])

    def _command(self) -> list[str]:
        command = KorvetProcess._command(self)
        at = command.index("--listeners") + 1
        inside = "INSIDE://127.0.0.1:0," if self.row.has_two_listeners else ""
        command[at] = f"{inside}CLIENTS://127.0.0.1:0"
        return command

    def client(self, authority: Authority) -> dict[str, str]:
        """Return the settings of a confluent-kafka client."""
        sasl = {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }
        return {
            "bootstrap.servers": f"127.0.0.1:{self.clients_port}",
            "security.protocol": self.row.protocol,
            **({"ssl.ca.location": str(authority.ca)} if self.row.protocol.endswith("SSL") else {}),
            **(sasl if self.row.has_sasl else {}),
        }

    def page_of(self, line: str, path: str) -> str:
        """Return what is served at a path of the address that the log names in a line."""
        return text_at(int(self.wait_for_log(f"{line} {ADDRESS}")[1]), path)


@contextmanager
def broker_of(row: Row, folder: Path, authority: Authority) -> Iterator[tuple[RowBroker, Receiver]]:
    storage = row.storage + (str(folder / "data") if row.storage == "embedded:" else "")
    with collector() as receiver:
        traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
        if row.has_sasl and row.storage == "embedded:":
            add_alice(storage)
        broker = RowBroker(storage, row.settings(folder, authority), row.options(), traces, row=row)
        with broker:
            if row.has_sasl and row.storage == "memory://":
                add_user(broker)
            if row.has_quotas:
                run("quotas", "set", "--default-user", *QUOTAS, "-b", broker.bootstrap_servers)
            yield broker, receiver


def produce(settings: dict[str, str], codec: str) -> Counter[bytes]:
    """Produce records of several sizes; return their keys."""
    failures: list[object] = []

    def note(error: object, _: object) -> None:
        if error:
            failures.append(error)

    producer = Producer({**settings, "compression.type": codec, "linger.ms": 5, "enable.idempotence": True})
    keys = Counter(b"%d/%d" % (size, number) for size, count in LOAD.items() for number in range(count))
    for key in keys:
        size = int(key.partition(b"/")[0])
        producer.produce("orders", key[:1] * size, key, on_delivery=note)
    assert 0 == producer.flush(LIMIT_S)
    assert [] == failures
    return keys


def consume(settings: dict[str, str], count: int) -> Counter[bytes]:
    """Consume in a group until there are as many records; return their keys."""
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    found: Counter[bytes] = Counter()
    deadline = time.monotonic() + LIMIT_S
    try:
        consumer.subscribe(["orders"])
        while found.total() < count and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 0.5):
                assert message.error() is None
                key = message.key() or b""
                assert key[:1] * int(key.partition(b"/")[0]) == message.value()
                found[key] += 1
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def test_every_possible_pair_of_values_occurs_in_a_row() -> None:
    found = [asdict(row) for row in rows()]

    assert all(map(is_possible, found))
    missing = [
        {first: a, second: b}
        for first, second in combinations(VALUES, 2)
        for a, b in product(VALUES[first], VALUES[second])
        if not any((a, b) == (row[first], row[second]) for row in found)
    ]
    assert [
        {"storage": "memory://", "mapping": "timestamp"},
        {"storage": "memory://", "processes": 2},
        {"processes": 2, "has_fault_port": True},
    ] == missing


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_records_pass_through_every_row(row: Row, authority: Authority, tmp_path: Path) -> None:
    with broker_of(row, tmp_path, authority) as (broker, receiver):
        settings = broker.client(authority)
        config = {"remote.storage.enable": "true"} if row.is_tiered else {}
        topic = NewTopic("orders", num_partitions=PARTITIONS, replication_factor=1, config=config)
        admin = AdminClient(settings)  # which ends its requests when it is collected
        admin.create_topics([topic], operation_timeout=LIMIT_S)["orders"].result(LIMIT_S)
        produced = produce(settings, row.codec)

        assert produced == consume(settings, produced.total())

        if row.has_metrics:
            line = f'korvet_topic_received_records_total{{topic="orders"}} {produced.total()}'
            assert line in broker.page_of("metrics:", "/metrics")
        if row.has_page:
            assert "1000/" in broker.page_of("page is at", "/topics/orders/records")
        assert [] == [line for line in broker.log if "Traceback" in line or " ERROR " in line]
        assert 0 == broker.stop()
        assert not row.has_traces or {"Produce", "Fetch"} <= {*receiver.names}
