"""The commands of `korvet lake` on tables in an object store: a test for `make conformance PARTS=stores`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from korvet.lake.iceberg.catalogs import store_properties
from tests.lake.stores import KINDS, Store, store_of_kind
from tests.pipeline.support import Cluster
from tests.pipeline.test_run import objects
from tests.processes import KorvetProcess

TOPIC = "orders"
LIMIT_S = 300


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with store_of_kind(request.param) as running:
        yield running


@pytest.fixture
def memory() -> Iterator[Cluster]:
    with KorvetProcess(settings={"auto.create.topics.enable": "false"}) as broker:
        yield Cluster(broker.bootstrap_servers, is_dense=True)


def test_topic_is_run_queried_audited_and_vacuumed(store: Store, memory: Cluster, tmp_path: Path) -> None:
    lake, typed = (store.location(f"{name}-{os.getpid()}") for name in ("lake", "typed"))
    catalogue = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalogue.db"}
    file = tmp_path / "lake.toml"
    file.write_text(
        f"""
        lake = "{lake}"
        typed = "{typed}"
        [catalog]
        type = "{catalogue["type"]}"
        uri = "{catalogue["uri"]}"
        [topics."{TOPIC}"]
        decode = "json"
        iceberg = true
        """
    )
    memory.create(TOPIC, partitions=2)
    memory.produce(TOPIC, objects(5))

    def korvet(*words: str) -> str:
        """Run a command that finds the store's options in its environment."""
        done = subprocess.run(
            [sys.executable, "-m", "korvet", "lake", *words],
            env={**os.environ, "KORVET_BOOTSTRAP_SERVERS": memory.bootstrap_servers, **store.options},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    korvet("run", "--config", str(file), "--once")
    memory.produce(TOPIC, objects(5))
    columns = f"select count(*) as n from `{TOPIC}` union all select sum(id) from `typed_{TOPIC}`"
    counted = korvet("query", columns, "--lake", str(lake), "--typed", str(typed), "--json")
    audited = [korvet("audit", "--lake", str(place), "--checksums") for place in (lake, typed)]
    korvet("vacuum", "--lake", str(lake))

    # The second five records are only at the broker.
    assert [json.loads(line) for line in counted.splitlines()] == [{"n": 10}, {"n": 10}]
    assert all(TOPIC in each for each in audited)
    table = load_catalog("korvet", **catalogue, **store_properties(lake)).load_table(("korvet", TOPIC))
    assert table.scan().to_arrow().num_rows == 5
