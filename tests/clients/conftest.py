"""The brokers and clients of this folder: one cluster per storage for the whole run, a new topic per test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen

from tests.clients.aio import AioKafka
from tests.clients.confluent import Confluent
from tests.clients.interface import AdminClient, Client
from tests.clients.kafka_python import KafkaPython
from tests.clients.kcat import Kcat
from tests.processes import KorvetProcess

FOLDER = f"{Path(__file__).parent}/"
ADMIN_CLIENTS: tuple[type[AdminClient], ...] = (Confluent, KafkaPython, AioKafka)
CLIENTS: tuple[type[Client], ...] = (*ADMIN_CLIENTS, Kcat)


@frozen
class StorageCase:
    """A storage and its settings for `korvet serve`, and the number of brokers on it."""

    id: str
    embedded: bool
    layout: str = "record"
    mapping: str = "dense"
    brokers: int = 1


STORAGES = (
    StorageCase("memory", embedded=False),
    StorageCase("record-timestamp", embedded=True, layout="record", mapping="timestamp"),
    StorageCase("batch-dense-3-brokers", embedded=True, layout="batch", mapping="dense", brokers=3),
)


# kafka-python 3 leaves the socket open if it is closed while it connects. korvet runs in other processes here.
LEFT_OPEN = pytest.mark.filterwarnings(
    r"ignore:unclosed <socket\.socket fd=\d+, family=(2|10), type=1, proto=6:ResourceWarning"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and keep the tests of a storage in one process, where they share its broker."""
    for item in items:
        if not str(item.path).startswith(FOLDER):
            continue
        item.add_marker(pytest.mark.clients)
        item.add_marker(LEFT_OPEN)
        callspec = getattr(item, "callspec", None)
        if callspec is not None and (storage := callspec.params.get("broker")) is not None:
            item.add_marker(pytest.mark.xdist_group(f"clients-{storage.id}"))


@pytest.fixture(scope="session", params=STORAGES, ids=lambda storage: storage.id)
def broker(request: pytest.FixtureRequest) -> Iterator[KorvetProcess]:
    """A broker that runs until the last test, with the others of its cluster."""
    storage: StorageCase = request.param
    # Not pytest's tmp_path: a Unix socket's path may have 107 bytes at most.
    folder = tempfile.mkdtemp(prefix="kc-")
    settings = {
        "storage.layout": storage.layout,
        "offset.mapping": storage.mapping,
        "group.initial.rebalance.delay.ms": "500",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "300",
        "group.consumer.heartbeat.interval.ms": "300",
        "log.cleaner.backoff.ms": "200",
    }
    try:
        with ExitStack() as stack:
            url = f"embedded:{folder}/data" if storage.embedded else "memory://"
            first = stack.enter_context(KorvetProcess(url, settings))
            for _ in range(1, storage.brokers):
                stack.enter_context(KorvetProcess(f"unix://{folder}/data/redis.sock", settings))
            yield first
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=CLIENTS, ids=lambda client: client.id)
def client(request: pytest.FixtureRequest, broker: KorvetProcess) -> Client:
    """Return each client in turn."""
    made: Client = request.param(broker.bootstrap_servers)
    return made


@pytest.fixture(params=ADMIN_CLIENTS, ids=lambda client: client.id)
def admin_client(request: pytest.FixtureRequest, broker: KorvetProcess) -> AdminClient:
    """Return each client that can delete topics and commit offsets."""
    made: AdminClient = request.param(broker.bootstrap_servers)
    return made


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def topic(numbers: Iterator[int]) -> str:
    """Return a new topic name."""
    return f"topic-{os.getpid()}-{next(numbers)}"
