"""Brokers that the pipeline's tests read from, lakes, schema registries, and the one Spark session of a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from korvet.pipeline.session import spark_session
from tests.pipeline.decoding import Lake
from tests.pipeline.registries import FakeRegistry, registry
from tests.pipeline.support import Cluster
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

NUMBERS = count()


@pytest.fixture(scope="session")
def memory() -> Iterator[Cluster]:
    """A broker that keeps its records in memory, with dense offsets, and creates no topics by itself."""
    with KorvetProcess(settings={"auto.create.topics.enable": "false"}) as broker:
        yield Cluster(broker.bootstrap_servers, is_dense=True)


@pytest.fixture(scope="session")
def record_timestamp() -> Iterator[Cluster]:
    """A broker on Redis with the record layout and the timestamp mapping."""
    server = start_server(VALKEY)
    try:
        with KorvetProcess(storage=server.url) as broker:
            yield Cluster(broker.bootstrap_servers, is_dense=False, storage=str(server.socket))
    finally:
        server.remove()


@pytest.fixture(scope="session")
def batch_dense() -> Iterator[Cluster]:
    """A broker on Redis with the batch layout and the dense mapping."""
    server = start_server(VALKEY)
    settings = {"storage.layout": "batch", "offset.mapping": "dense"}
    try:
        with KorvetProcess(storage=server.url, settings=settings) as broker:
            yield Cluster(broker.bootstrap_servers, is_dense=True, storage=str(server.socket))
    finally:
        server.remove()


@pytest.fixture(
    params=[
        "memory",
        pytest.param("record_timestamp", marks=pytest.mark.servers),
        pytest.param("batch_dense", marks=pytest.mark.servers),
    ]
)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each kind of broker in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{next(NUMBERS)}"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An archive of the topic `orders`, which is empty, and a place for the tables decoded from it."""
    return Lake(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    """A schema registry without schemas."""
    with registry() as one:
        yield one


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this run; every test with it has the marker `spark`."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": warehouse}
    session = spark_session("korvet-tests", master="local[2]", settings=settings, quick_java=True)
    yield session
    session.stop()
