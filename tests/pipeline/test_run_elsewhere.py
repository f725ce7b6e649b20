"""`korvet lake run` on a lake in an object store, and with several brokers on a Redis Cluster."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from korvet.lake.iceberg.catalogs import store_properties
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.pipeline.archive_status import audit_table
from korvet.pipeline.decoding.auditing import audit_decoded
from korvet.pipeline.decoding.tables import DecodedTable
from korvet.pipeline.run.schedule import State
from tests.lake.replay import rows_of
from tests.lake.s3 import s3_store
from tests.pipeline.archiving import log_of, values, without_times
from tests.pipeline.lake_runs import run_of, run_once, running
from tests.pipeline.support import Cluster
from tests.pipeline.test_run import errors, no_other_topics, objects, states, wait_until  # noqa: F401  a fixture
from tests.processes import KorvetProcess
from tests.redis_clusters import RedisCluster
from tests.servers import VALKEY

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.usefixtures("no_other_topics")
def test_tables_in_an_object_store_are_archived_decoded_and_mirrored_but_one_without_rights(
    memory: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.run.runner.ATTEMPTS", 1)
    refused = f"{topic}-refused"
    memory.create(topic, partitions=2)
    memory.create(refused)
    memory.produce(refused, objects(5))
    with s3_store(conditional=True, refuses=f"/lake/tables/{refused}/") as options:
        storage = "\n".join(f'{name} = "{value}"' for name, value in options.items())
        file = tmp_path / "lake.toml"
        catalogue = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalogue.db"}
        file.write_text(
            f"""
            lake = "s3://lake/tables"
            [storage]
            {storage}
            [catalog]
            type = "{catalogue["type"]}"
            uri = "{catalogue["uri"]}"
            [topics."{topic}.*"]
            decode = "json"
            iceberg = true
            """
        )
        memory.produce(topic, objects(5))
        run_once(memory, file)
        memory.produce(topic, objects(5))
        run = run_of(memory.bootstrap_servers, file)
        run.round()
        lake = Location.parse("s3://lake/tables", options)
        archive = LakeTable.open(lake, topic)
        typed = DecodedTable.found(Location.parse("s3://lake/tables-typed", options).child(topic))
        mirrored = {
            namespace: load_catalog("korvet", **catalogue, **store_properties(lake))
            .load_table((namespace, topic))
            .scan()
            .to_arrow()
            for namespace in ("korvet", "typed")
        }
        audited = [*audit_table(archive, checksums=True), *audit_decoded(typed, topic, checksums=True)]

    assert {refused: errors(run)[refused]} == errors(run)
    assert "AccessDenied" in errors(run)[refused]
    assert [] == audited
    offsets = sorted(
        zip(*mirrored["korvet"].select(["partition", "offset"]).to_pydict().values(), strict=True)
    )
    assert [(row.partition, row.offset) for row in log_of(memory, topic)] == offsets
    assert sorted([*range(5)] * 2) == sorted(mirrored["typed"]["id"].to_pylist())


def test_run_continues_when_one_of_the_brokers_on_a_redis_cluster_is_killed(
    topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "lake.toml"
    file.write_text(f'lake = "{tmp_path}/lake"\n[topics.{topic}]\nlag = "100ms"\niceberg = true\n')
    table = tmp_path / "lake" / topic
    with ExitStack() as stack:
        store = stack.enter_context(RedisCluster(VALKEY, replicas_each=0))
        settings = {"broker.session.timeout.ms": "2000"}
        brokers = [stack.enter_context(KorvetProcess(storage=store.url, settings=settings)) for _ in range(2)]
        cluster = Cluster(",".join(each.bootstrap_servers for each in brokers), is_dense=False)
        cluster.create(topic, partitions=3)
        cluster.produce(topic, values(300))
        with running(run_of(cluster.bootstrap_servers, file)) as run:
            wait_until(lambda: len(rows_of(table)) == 300 if (table / "_delta_log").exists() else False)
            brokers[0].kill()
            cluster.produce(topic, values(300))
            wait_until(lambda: len(rows_of(table)) == 600 and states(run) == {topic: State.CURRENT})

        assert without_times(rows_of(table)) == log_of(cluster, topic)
