"""Brokers and their Redis are killed, stopped and cut off while clients work: the history violates no rule.

The seed of a run is printed. HISTORY_SEED=… repeats its choices; the processes' own timing is never the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import SystemRandom

import pytest
from attrs import frozen
from confluent_kafka.admin import AdminClient, NewTopic

from tests.history.clients import Load, read_logs
from tests.history.faults import (
    Cut,
    Fault,
    KillBroker,
    KillServer,
    Nemesis,
    PauseBroker,
    PauseServer,
    RestartBroker,
)
from tests.history.history import counts, unread, violations
from tests.history.proxy import Proxy
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

TOPICS = ("orders", "visits")
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(3)]
CAUGHT_UP_LIMIT_S = 60.0
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "storage.layout": "batch"}


@frozen
class Cluster:
    """The address of a running cluster, and what can happen to it."""

    servers: str
    faults: list[Fault]


@contextmanager
def brokers_on_one_server(number: int) -> Iterator[Cluster]:
    """Run brokers on one Valkey whose acknowledged writes are on disk, each through a proxy."""
    with ExitStack() as stack:
        server = start_server(VALKEY, tcp=True, durable=True)
        stack.callback(server.remove)
        faults: list[Fault] = [KillServer(server), PauseServer(server)]
        brokers = []
        for _ in range(number):
            proxy = stack.enter_context(Proxy(server.port))
            broker = KorvetProcess(storage=f"redis://127.0.0.1:{proxy.port}", settings=SETTINGS)
            brokers.append(stack.enter_context(broker))
            faults += [KillBroker(broker), PauseBroker(broker), RestartBroker(broker), Cut(proxy)]
        yield Cluster(",".join(each.bootstrap_servers for each in brokers), faults)


def check(cluster: Cluster, for_s: float) -> None:
    """Run clients and faults for a time, and compare the history with the logs."""
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(10**6))
    print(f"HISTORY_SEED={seed}")
    create_topics(cluster.servers)
    nemesis = Nemesis(seed, cluster.faults)
    with Load(cluster.servers, PARTITIONS) as load:
        nemesis.run(for_s)
        load.stop_producing()
        logs = read_logs(cluster.servers, PARTITIONS)
        deadline = time.monotonic() + CAUGHT_UP_LIMIT_S
        while (behind := unread(load.events, logs, load.readers)) and time.monotonic() < deadline:
            time.sleep(0.2)
    print(f"{counts(load.events)}; {len(nemesis.done)} faults: {', '.join(nemesis.done)}")

    assert [] == violations(load.events, logs)[:20]
    assert [] == load.faults
    assert 0 == behind, "the group has not read everything"


def create_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(topic, 3) for topic in TOPICS]).values():
        created.result()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_history_of_a_minute_of_faults_violates_no_rule() -> None:
    with brokers_on_one_server(int(os.environ.get("HB", "1"))) as cluster:
        check(cluster, float(os.environ.get("HT", "60")))
