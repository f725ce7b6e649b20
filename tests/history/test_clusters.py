"""Brokers and their Redis are killed, stopped and cut off while clients work: the history violates no rule.

The seed of a run is printed. HISTORY_SEED=… repeats its choices; the processes' own timing is never the same.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    KillWorker,
    Nemesis,
    PauseBroker,
    PausePrimary,
    PauseReplica,
    PauseSentinel,
    PauseServer,
    PauseWorker,
    RestartBroker,
)
from tests.history.history import Logs, counts, unread, violations
from tests.history.proxy import Proxy
from tests.history.redis_cluster import cluster_faults
from tests.processes import KorvetProcess
from tests.redis_clusters import RedisCluster
from tests.sentinels import SentinelSet
from tests.servers import VALKEY, start_server

TOPICS = ("orders", "visits")
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(3)]
CAUGHT_UP_LIMIT_S = 60.0
START_LIMIT_S = 180.0  # a broker may start while its store is away
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "storage.layout": "batch"}

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.clients]


@frozen
class Cluster:
    """The address of a running cluster, and what can happen to it."""

    brokers: list[KorvetProcess]
    broker_faults: list[Fault]
    storage_faults: list[Fault]

    @property
    def servers(self) -> str:
        return ",".join(each.bootstrap_servers for each in self.brokers)


@contextmanager
def brokers_on_one_server(number: int) -> Iterator[Cluster]:
    """Run brokers on one Valkey whose acknowledged writes are on disk, each through a proxy."""
    with ExitStack() as stack:
        server = start_server(VALKEY, tcp=True, durable=True)
        stack.callback(server.remove)
        broker_faults: list[Fault] = []
        storage_faults: list[Fault] = [KillServer(server), PauseServer(server)]
        brokers = []
        for _ in range(number):
            proxy = stack.enter_context(Proxy(server.port))
            broker = KorvetProcess(
                storage=f"redis://127.0.0.1:{proxy.port}", settings=SETTINGS, start_limit_s=START_LIMIT_S
            )
            brokers.append(stack.enter_context(broker))
            broker_faults += faults_of(broker)
            storage_faults.append(Cut(proxy))
        yield Cluster(brokers, broker_faults, storage_faults)


@contextmanager
def broker_with_processes(number: int) -> Iterator[Cluster]:
    """Run a broker with several processes on one Valkey whose acknowledged writes are on disk, through a proxy."""
    with ExitStack() as stack:
        server = start_server(VALKEY, tcp=True, durable=True)
        stack.callback(server.remove)
        proxy = stack.enter_context(Proxy(server.port))
        settings = {**SETTINGS, "processes": str(number)}
        broker = KorvetProcess(
            storage=f"redis://127.0.0.1:{proxy.port}", settings=settings, start_limit_s=START_LIMIT_S
        )
        stack.enter_context(broker)
        faults_of_processes = [KillWorker(broker), PauseWorker(broker)] * number
        yield Cluster(
            [broker],
            [*faults_of(broker), *faults_of_processes],
            [KillServer(server), PauseServer(server), Cut(proxy)],
        )


def faults_of(broker: KorvetProcess) -> list[Fault]:
    return [KillBroker(broker), PauseBroker(broker), RestartBroker(broker)]


@contextmanager
def brokers_on_sentinels(number: int) -> Iterator[Cluster]:
    """Run brokers on a primary with two replicas and three Sentinels; each acknowledged record is on two servers."""
    with ExitStack() as stack:
        sentinels = stack.enter_context(SentinelSet(VALKEY, is_proxied=True))
        settings = {**SETTINGS, "min.insync.replicas": "2"}
        broker_faults: list[Fault] = []
        storage_faults: list[Fault] = [
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
            broker = KorvetProcess(storage=sentinels.url, settings=settings, start_limit_s=START_LIMIT_S)
            brokers.append(stack.enter_context(broker))
            broker_faults += faults_of(broker)
        yield Cluster(brokers, broker_faults, storage_faults)


@contextmanager
def brokers_on_redis_cluster(number: int) -> Iterator[Cluster]:
    """Run brokers on three primaries with a replica each; each acknowledged record is on two servers."""
    with ExitStack() as stack:
        redis_cluster = stack.enter_context(RedisCluster(VALKEY))
        settings = {**SETTINGS, "min.insync.replicas": "2"}
        streams = [f"korvet:{topic}:{partition}".encode() for topic, partition in PARTITIONS]
        broker_faults: list[Fault] = []
        brokers = []
        for _ in range(number):
            broker = KorvetProcess(storage=redis_cluster.url, settings=settings, start_limit_s=START_LIMIT_S)
            brokers.append(stack.enter_context(broker))
            broker_faults += faults_of(broker) * 3
        yield Cluster(brokers, broker_faults, cluster_faults(redis_cluster, streams))


def check(cluster: Cluster, for_s: float, longest_s: float, *, overlap: bool = False) -> None:
    """Run clients and faults for a time, and compare the history with the logs.

    `overlap` begins faults of brokers while faults of the storage last; else each fault has ended before the next.
    """
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(10**6))
    create_topics(cluster.servers)
    of_each = [cluster.broker_faults, cluster.storage_faults]
    faults = of_each if overlap else [cluster.broker_faults + cluster.storage_faults]
    nemeses = [Nemesis(seed + number, each, longest_s=longest_s) for number, each in enumerate(faults)]
    # The executor's threads live until the end: a server dies with the thread that started it.
    with ThreadPoolExecutor() as executor, Load(cluster.servers, PARTITIONS) as load, ExitStack() as stack:
        stack.callback(report, seed, load, nemeses, cluster.brokers)
        for running in [executor.submit(nemesis.run, for_s) for nemesis in nemeses]:
            running.result()
        load.stop_producing()
        logs = read_logs(cluster.servers, PARTITIONS)
        deadline = time.monotonic() + CAUGHT_UP_LIMIT_S
        while (behind := unread_by(load, logs)) and time.monotonic() < deadline:
            time.sleep(0.2)

    found = violations(load.events, logs)
    for line in found[:100]:
        logger.error("%s", line)

    assert [] == found[:20]
    assert [] == load.faults
    assert {} == behind, "records that a group has not read"


def report(seed: int, load: Load, nemeses: Sequence[Nemesis], brokers: Iterable[KorvetProcess]) -> None:
    """Log what happened, and what brokers logged about members that were fenced or whose sessions expired."""
    faults = [fault for nemesis in nemeses for fault in nemesis.done]
    logger.info(
        "HISTORY_SEED=%d: %s; %d faults: %s", seed, counts(load.events), len(faults), ", ".join(faults)
    )
    lines = [line for broker in brokers for line in [*broker.earlier_log, *broker.log]]
    for line in sorted(line for line in lines if re.search("fence|expired", line)):
        logger.info("%s", line)


def unread_by(load: Load, logs: Logs) -> dict[str, int]:
    """Return how many records each group has not read, without the groups that read everything."""
    missing = {group: unread(load.events, logs, members) for group, members in load.readers.items()}
    return {group: count for group, count in missing.items() if count}


def create_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(topic, 3) for topic in TOPICS]).values():
        created.result()


# Three or four faults each, of a seed that differs each time. `make soak` has more of them, in the same clusters.


def test_history_of_brokers_on_one_server_violates_no_rule() -> None:
    with brokers_on_one_server(3) as cluster:
        check(cluster, 15, 6)


def test_history_of_brokers_on_sentinels_violates_no_rule() -> None:
    with brokers_on_sentinels(3) as cluster:
        check(cluster, 20, 6)


def test_history_of_brokers_on_a_redis_cluster_violates_no_rule() -> None:
    with brokers_on_redis_cluster(3) as cluster:
        check(cluster, 20, 6)


def test_history_of_a_broker_with_three_processes_violates_no_rule() -> None:
    with broker_with_processes(3) as cluster:
        check(cluster, 15, 6)


@pytest.mark.soak
@pytest.mark.parametrize("overlap", [False, True], ids=["one-after-the-other", "overlapping"])
@pytest.mark.parametrize(
    "cluster",
    [brokers_on_one_server, broker_with_processes, brokers_on_sentinels, brokers_on_redis_cluster],
)
def test_history_of_ten_minutes_of_faults_violates_no_rule(
    cluster: Callable[[int], AbstractContextManager[Cluster]], overlap: bool
) -> None:
    with cluster(3) as running:
        check(running, 600, 20, overlap=overlap)
