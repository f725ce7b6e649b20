"""`korvet dev-cluster`: real servers and brokers, which real clients use while some of them are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from tests.clients.confluent import Confluent
from tests.devcluster.command import DevCluster, eventually

PARTITIONS = 6
LIMIT_S = 60.0
# So that a killed broker is missed within seconds.
SESSION = ("--set", "broker.session.timeout.ms=2000")

pytestmark = [pytest.mark.servers, pytest.mark.clients, pytest.mark.xdist_group("dev-cluster")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster that these tests share, in their order."""
    with DevCluster(tmp_path_factory.mktemp("dev"), SESSION) as cluster:
        yield cluster


def produce(servers: str, topic: str, values: Sequence[str]) -> None:
    """Produce the values, to the partitions in turn, and assert that all are acknowledged.

    The producer is idempotent: when a node dies between an append and its answer, a plain producer sends the
    batch again, and the topic has it twice.
    """
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    settings = {"linger.ms": 0, "retry.backoff.ms": 50, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": servers, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
    assert not producer.flush(LIMIT_S)
    assert [] == errors


def consumed(servers: str, topic: str, count: int) -> list[str]:
    """Return that many values of the topic, sorted."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False})
    found: list[str] = []
    with ExitStack() as stack:
        stack.callback(consumer.close)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

        def all_found() -> bool:
            found.extend(m.value().decode() for m in consumer.consume(count, 0.2) if not m.error())
            return len(found) >= count

        eventually(all_found, f"{count} records")
    return sorted(found)


def values(first: int, count: int = 2 * PARTITIONS) -> list[str]:
    return [f"{number:04}" for number in range(first, first + count)]


# --- Use ----------------------------------------------------------------------------------------------------


def test_records_go_through_each_broker_to_all_brokers(
    cluster: DevCluster, report: Callable[[str], None]
) -> None:
    report(f"six nodes and three brokers served after {cluster.started_s:.1f} s")
    each = cluster.bootstrap_servers.split(",")
    Confluent(each[0]).create_topic("through-all", partitions=PARTITIONS)
    for number, server in enumerate(each):
        produce(server, "through-all", values(100 * number))
    expected = sorted(value for number in range(3) for value in values(100 * number))

    assert 3 == len(each)
    assert [expected] * 3 == [consumed(server, "through-all", len(expected)) for server in each]


def test_printed_table_has_all_processes(cluster: DevCluster) -> None:
    primaries = [name for name, role in cluster.roles.items() if role == "primary"]
    replicas = [role for role in cluster.roles.values() if role.startswith("replica of ")]

    assert [f"broker {n}" for n in (1, 2, 3)] + [f"node {n}" for n in range(1, 7)] == list(cluster.pids)
    assert sorted(f"replica of {name}" for name in primaries) == sorted(replicas)
    for pid in cluster.pids.values():
        os.kill(pid, 0)


def test_brokers_list_shows_all_brokers(cluster: DevCluster) -> None:
    command = [sys.executable, "-m", "korvet", "brokers", "list", "--json", "-b", cluster.bootstrap_servers]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    found = {f"{each['host']}:{each['port']}" for each in listed}

    assert set(cluster.bootstrap_servers.split(",")) == found


def test_clients_continue_after_a_broker_was_killed(cluster: DevCluster) -> None:
    Confluent(cluster.bootstrap_servers).create_topic("broker-killed", partitions=PARTITIONS)
    produce(cluster.bootstrap_servers, "broker-killed", values(0))
    cluster.kill("broker 2")
    produce(cluster.bootstrap_servers, "broker-killed", values(100))

    assert values(0) + values(100) == consumed(cluster.bootstrap_servers, "broker-killed", 4 * PARTITIONS)
    pid = cluster.pids["broker 2"]
    assert f"process {pid}) was ended by SIGKILL\n" in cluster.errors


def test_clients_continue_after_a_primary_was_killed(cluster: DevCluster) -> None:
    Confluent(cluster.bootstrap_servers).create_topic("primary-killed", partitions=PARTITIONS)
    produce(cluster.bootstrap_servers, "primary-killed", values(0))
    cluster.kill("node 1")
    produce(cluster.bootstrap_servers, "primary-killed", values(100))

    assert values(0) + values(100) == consumed(cluster.bootstrap_servers, "primary-killed", 4 * PARTITIONS)
    assert f"process {cluster.pids['node 1']}) was ended by SIGKILL\n" in cluster.errors


def test_sigterm_leaves_neither_processes_nor_files(cluster: DevCluster) -> None:
    assert cluster.processes()
    os.kill(cluster.pids["broker 3"], signal.SIGSTOP)
    reported = cluster.errors

    assert 0 == cluster.end(signal.SIGTERM)
    assert [] == cluster.processes()
    assert reported == cluster.errors
    assert {"out", "errors"} == {path.name for path in cluster.folder.iterdir()}


# --- Ends and folders ---------------------------------------------------------------------------------------


def test_data_in_a_folder_survive_the_death_of_the_command(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path, ["--nodes", "3", "--brokers", "1", "--folder", str(tmp_path / "data")])
    with cluster:
        Confluent(cluster.bootstrap_servers).create_topic("kept", partitions=PARTITIONS)
        produce(cluster.bootstrap_servers, "kept", values(0))
        before = cluster.bootstrap_servers
        assert 5 == len(cluster.processes())  # three nodes, a broker and the guard
        cluster.end(signal.SIGKILL)
        cluster.await_no_process()
    with cluster:
        assert before == cluster.bootstrap_servers
        assert values(0) == consumed(cluster.bootstrap_servers, "kept", 2 * PARTITIONS)


def test_killed_command_leaves_neither_processes_nor_files_before_it_serves(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path)
    cluster.begin()
    eventually(lambda: len(cluster.processes()) > 3, "some nodes")
    cluster.end(signal.SIGKILL)
    cluster.await_no_process()

    assert not list(tmp_path.glob("korvet-dev-cluster-*"))


def test_ctrl_c_ends_a_start(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path)
    cluster.begin()
    eventually(lambda: len(cluster.processes()) > 3, "some nodes")

    assert 128 + signal.SIGINT == cluster.end(signal.SIGINT)
    assert [] == cluster.processes()
    assert {"out", "errors"} == {path.name for path in tmp_path.iterdir()}
    assert ("", "") == (cluster.out, cluster.errors)
