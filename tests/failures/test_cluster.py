"""Three broker processes on one Valkey are one cluster, whose brokers are restarted, killed and paused under load."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from korvet.cluster.placement import hash_of, owner, seeds_of
from tests.clients.confluent import Confluent
from tests.failures.conftest import Report, StartBroker
from tests.failures.load import Load
from tests.processes import KorvetProcess
from tests.servers import VALKEY, StartServer, on

PARTITIONS = 6
SETTINGS = {"group.initial.rebalance.delay.ms": "500", "broker.session.timeout.ms": "3000"}
Brokers = dict[int, KorvetProcess]  # by node id

pytestmark = on(VALKEY)


@pytest.fixture
def brokers(new_server: StartServer, start_broker: StartBroker) -> Brokers:
    server = new_server()
    return {node_id: start_broker(server.url, SETTINGS) for node_id in (1, 2, 3)}


@pytest.fixture
def load(brokers: Brokers, topic: str) -> Load:
    Confluent(brokers[1].bootstrap_servers).create_topic(topic, partitions=PARTITIONS)
    return Load(",".join(each.bootstrap_servers for each in brokers.values()), topic, PARTITIONS)


def coordinator_of(brokers: Brokers, group_id: str) -> tuple[KorvetProcess, list[KorvetProcess]]:
    """Return the coordinator of a group, and the other brokers."""
    found = owner(hash_of(group_id), seeds_of(brokers))
    return brokers[found], [broker for node_id, broker in brokers.items() if node_id != found]


def check(load: Load, report: Report) -> None:
    """Assert that each record is there once and was read once, without an error that a client cannot retry."""
    times = load.acknowledged_s.values()
    report(
        f"{load.produced} records, produce p99 {load.p99_s * 1000:.0f} ms, longest {max(times) * 1000:.0f} ms"
    )
    assert [] == load.errors
    assert Counter(range(load.produced)) == load.stored() == load.read
    assert 0 == load.rebalances


def test_start_line_names_the_other_brokers(new_server: StartServer, start_broker: StartBroker) -> None:
    url = new_server().url
    first, second = (start_broker(url, SETTINGS) for _ in range(2))

    second.wait_for_log(
        rf"korvet .*; broker 2 of a cluster with 1 \(PLAINTEXT://{first.bootstrap_servers}\)$"
    )


def test_rolling_restart_needs_no_rebalance(brokers: Brokers, load: Load, report: Report) -> None:
    with load.running():
        for broker in brokers.values():
            load.wait_for_more(50)
            assert 0 == broker.stop()
            load.wait_for_more(50)
            broker.start()
        load.wait_for_more(50)
    check(load, report)
    assert load.p99_s < 10


def test_groups_of_a_killed_coordinator_continue_at_another(
    brokers: Brokers, load: Load, report: Report
) -> None:
    coordinator, others = coordinator_of(brokers, load.topic)
    with load.running():
        load.wait_for_more(50)
        coordinator.kill()
        for other in others:
            other.wait_for_log("has left the cluster")
        load.wait_for_more(200)
    check(load, report)


def test_coordinator_that_was_paused_gives_its_groups_up(
    brokers: Brokers, load: Load, report: Report
) -> None:
    coordinator, others = coordinator_of(brokers, load.topic)
    with load.running():
        load.wait_for_more(50)
        os.kill(coordinator.pid, signal.SIGSTOP)
        for other in others:
            other.wait_for_log("has left the cluster")
        lengths = [len(other.log) for other in others]
        os.kill(coordinator.pid, signal.SIGCONT)
        coordinator.wait_for_log("the registration of this broker is gone")
        for other, length in zip(others, lengths, strict=True):
            other.wait_for_log("has joined the cluster", after=length)
        load.wait_for_more(200)
    check(load, report)


def test_second_broker_with_the_same_id_is_refused(
    new_server: StartServer, start_broker: StartBroker
) -> None:
    url = new_server().url
    first = start_broker(url, {**SETTINGS, "node.id": "7"})
    with pytest.raises(RuntimeError) as refused:
        start_broker(url, {**SETTINGS, "node.id": "7"})

    assert f"korvet: node.id 7 is that of the broker at PLAINTEXT://{first.bootstrap_servers}" in str(
        refused.value
    )
    assert "Traceback" not in str(refused.value)
