"""Brokers and their Redis are killed, stopped and cut off while clients work: the history violates no rule.

The seed of a run is printed. HISTORY_SEED=… repeats its choices; the processes' own timing is never the same.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from random import SystemRandom

import pytest
from attrs import frozen
from confluent_kafka.admin import AdminClient, NewTopic

from tests.history.clients import Load, read_logs
from tests.history.faults import (
    Cut,
    CutPrimary,
    CutReplica,
    CutSentinel,
    FailOver,
    Fault,
    KillBroker,
    KillPrimary,
    KillServer,
    Nemesis,
    PauseBroker,
    PausePrimary,
    PauseReplica,
    PauseSentinel,
    PauseServer,
    RestartBroker,
)
from tests.history.history import counts, unread, violations
from tests.history.proxy import Proxy
from tests.history.redis_cluster import cluster_faults
from tests.processes import KorvetProcess
from tests.redis_clusters import RedisCluster
from tests.sentinels import SentinelSet
from tests.servers import VALKEY, start_server

TOPICS = ("orders", "visits")
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(3)]
CAUGHT_UP_LIMIT_S = 60.0
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "storage.layout": "batch"}

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.clients]


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


@contextmanager
def brokers_on_sentinels(number: int) -> Iterator[Cluster]:
    """Run brokers on a primary with two replicas and three Sentinels; each acknowledged record is on two servers."""
    with ExitStack() as stack:
        sentinels = stack.enter_context(SentinelSet(VALKEY, is_proxied=True))
        settings = {**SETTINGS, "min.insync.replicas": "2"}
        faults: list[Fault] = [
            FailOver(sentinels),
            KillPrimary(sentinels),
            PausePrimary(sentinels),
            PauseReplica(sentinels),
            PauseSentinel(sentinels),
            CutPrimary(sentinels),
            CutReplica(sentinels),
            CutSentinel(sentinels),
        ]
        brokers = []
        for _ in range(number):
            broker = KorvetProcess(storage=sentinels.url, settings=settings)
            brokers.append(stack.enter_context(broker))
            faults += [KillBroker(broker), PauseBroker(broker), RestartBroker(broker)]
        yield Cluster(",".join(each.bootstrap_servers for each in brokers), faults)


@contextmanager
def brokers_on_redis_cluster(number: int) -> Iterator[Cluster]:
    """Run brokers on three primaries with a replica each; each acknowledged record is on two servers."""
    with ExitStack() as stack:
        redis_cluster = stack.enter_context(RedisCluster(VALKEY))
        settings = {**SETTINGS, "min.insync.replicas": "2"}
        streams = [f"korvet:{topic}:{partition}".encode() for topic, partition in PARTITIONS]
        faults = cluster_faults(redis_cluster, streams)
        brokers = []
        for _ in range(number):
            broker = KorvetProcess(storage=redis_cluster.url, settings=settings)
            brokers.append(stack.enter_context(broker))
            faults += [KillBroker(broker), PauseBroker(broker), RestartBroker(broker)] * 3
        yield Cluster(",".join(each.bootstrap_servers for each in brokers), faults)


def check(cluster: Cluster, for_s: float, longest_s: float) -> None:
    """Run clients and faults for a time, and compare the history with the logs."""
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(10**6))
    create_topics(cluster.servers)
    nemesis = Nemesis(seed, cluster.faults, longest_s=longest_s)
    with Load(cluster.servers, PARTITIONS) as load:
        nemesis.run(for_s)
        load.stop_producing()
        logs = read_logs(cluster.servers, PARTITIONS)
        deadline = time.monotonic() + CAUGHT_UP_LIMIT_S
        while (behind := unread(load.events, logs, load.readers)) and time.monotonic() < deadline:
            time.sleep(0.2)
    done = (
        f"HISTORY_SEED={seed}: {counts(load.events)}; {len(nemesis.done)} faults: {', '.join(nemesis.done)}"
    )
    logger.info(done)

    found = violations(load.events, logs)
    for line in found[:100]:
        logger.error("%s", line)

    assert [] == found[:20], done
    assert [] == load.faults, done
    assert 0 == behind, f"the group has not read everything; {done}"


def create_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(topic, 3) for topic in TOPICS]).values():
        created.result()


def test_history_of_brokers_on_one_server_violates_no_rule() -> None:
    with brokers_on_one_server(3) as cluster:
        check(cluster, 30, 6)


def test_history_of_brokers_on_sentinels_violates_no_rule() -> None:
    with brokers_on_sentinels(3) as cluster:
        check(cluster, 40, 6)


def test_history_of_brokers_on_a_redis_cluster_violates_no_rule() -> None:
    with brokers_on_redis_cluster(3) as cluster:
        check(cluster, 40, 6)


@pytest.mark.soak
@pytest.mark.parametrize("cluster", [brokers_on_one_server, brokers_on_sentinels, brokers_on_redis_cluster])
def test_history_of_ten_minutes_of_faults_violates_no_rule(
    cluster: Callable[[int], AbstractContextManager[Cluster]],
) -> None:
    with cluster(3) as running:
        check(running, 600, 20)
