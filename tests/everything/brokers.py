"""Brokers with all options that touch the path of records, as `korvet serve` starts them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from attrs import define, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.certificates import Authority
from tests.clients.secured import LIMIT_S, PASSWORD, add_alice
from tests.processes import KorvetProcess
from tests.tracing.test_export import Receiver, collector

ADDRESS = r"http://127\.0\.0\.1:(\d+)"
QUOTAS = ("producer_byte_rate=1000000000", "consumer_byte_rate=1000000000", "request_percentage=1000")


@frozen
class Case:
    """A storage, its layout, and the options that only some storages or numbers of processes have."""

    id: str
    storage: str
    layout: str = "record"
    processes: int = 1

    def options(self) -> list[str]:
        # Faults belong to one process, and several processes need a store that they share.
        return ["--fault-port", "0"] if self.processes == 1 else ["--processes", str(self.processes)]


CASES = (
    Case("memory", "memory://"),
    Case("records-1-process", "embedded:"),
    Case("records-2-processes", "embedded:", processes=2),
    Case("batches-2-processes", "embedded:", "batch", processes=2),
)


@define
class BrokerWithEverything(KorvetProcess):
    """A broker with a second listener, with TLS, for clients. `port` is that of the first one, without TLS."""

    clients_port: int = 0
    metrics_port: int = 0
    page_port: int = 0
    ca: Path = field(factory=Path)
    lake: Path = field(factory=Path)
    receiver: Receiver = field(factory=lambda: Receiver(0))

    def start(self) -> None:
        # The class is decorated, so that `super()` without arguments would name the class before.
        KorvetProcess.start(self)
        self.clients_port = int(self.wait_for_log(r"CLIENTS://127\.0\.0\.1:(\d+)")[1])
        self.metrics_port = int(self.wait_for_log(f"metrics: {ADDRESS}")[1])
        self.page_port = int(self.wait_for_log(f"page is at {ADDRESS}")[1])

    def _command(self) -> list[str]:
        command = KorvetProcess._command(self)
        at = command.index("--listeners") + 1
        command[at] = "INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0"
        return command

    @property
    def librdkafka(self) -> dict[str, str]:
        """The settings of a confluent-kafka client on the listener with TLS and SASL."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.clients_port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }

    def page(self, path: str) -> str:
        """Return a page."""
        return text_at(self.page_port, path)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric with these labels."""
        families = text_string_to_metric_families(text_at(self.metrics_port, "/metrics"))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def text_at(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        text: str = answer.read().decode()
    return text


@contextmanager
def everything(case: Case, authority: Authority) -> Iterator[BrokerWithEverything]:
    """Run a broker with metrics, traces, page, authorizer, quotas, TLS, SASL, two listeners and a lake."""
    with tempfile.TemporaryDirectory(prefix="ke-") as folder, collector() as receiver:
        storage = case.storage + (f"{folder}/data" if case.storage == "embedded:" else "")
        settings = {
            "storage.layout": case.layout,
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,INSIDE:PLAINTEXT",
            "ssl.keystore.location": str(authority.broker),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:alice;User:ANONYMOUS",
            "tracing.exporter": "otlp",
            "lake.url": f"{folder}/lake",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.backoff.ms": "200",
            "log.retention.check.interval.ms": "500",
            "remote.log.manager.task.interval.ms": "500",
        }
        options = ["--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0", *case.options()]
        traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
        if case.storage == "embedded:":
            add_alice(storage)
        broker = BrokerWithEverything(
            storage,
            settings,
            options,
            traces,
            ca=authority.ca,
            lake=Path(folder) / "lake",
            receiver=receiver,
        )
        with broker:
            if case.storage != "embedded:":
                add_user(broker)
            run("quotas", "set", "--default-user", *QUOTAS, "-b", broker.bootstrap_servers)
            yield broker


def add_user(broker: KorvetProcess) -> None:
    """Add the user to a running broker."""
    run("users", "add", "alice", "-b", broker.bootstrap_servers, password=PASSWORD)


def run(*command: str, password: str = "") -> None:
    """Run a command of korvet."""
    subprocess.run(
        [sys.executable, "-m", "korvet", *command],
        env={"KORVET_PASSWORD": password},
        check=True,
        timeout=4 * LIMIT_S,
        capture_output=True,
    )
