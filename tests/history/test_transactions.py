"""Transactional clients work while brokers and their Redis are killed, stopped and cut off: nothing is torn or lost."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from random import SystemRandom

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.storage.interface import TopicPartition
from korvet.testing.threads import running_broker
from korvet.testing.transaction_history import (
    Began,
    Ended,
    Event,
    Log,
    Outcome,
    Partition,
    Polled,
    Sent,
    Took,
    anomalies,
    transactions_of,
)
from tests.history import late_load
from tests.history.faults import Nemesis
from tests.history.late_load import LateLoad
from tests.history.test_clusters import (
    Cluster,
    broker_with_processes,
    brokers_on_one_server,
    brokers_on_redis_cluster,
    brokers_on_sentinels,
    faults_of,
)
from tests.history.transactional_load import TransactionalLoad, read_all
from tests.processes import KorvetProcess
from tests.transactions.bugs import (
    accept_late_requests,
    lose_some_markers,
    raise_last_stable_offset,
    show_staged_offsets,
)

INPUTS = [("in", number) for number in range(3)]
OUTPUTS = [(topic, number) for topic in ("out", "copy") for number in range(2)]

logger = logging.getLogger(__name__)


# --- The checker ----------------------------------------------------------------------------------------------

IN, OUT, COPY = ("in", 0), ("out", 0), ("copy", 0)
#: Two transactions that were committed, and one that was aborted.
HISTORY: list[Event] = [
    Began("t1", "x"),
    Took("t1", IN, 0, "a"),
    Sent("t1", OUT, "t1:a"),
    Sent("t1", COPY, "t1:a"),
    Ended("t1", Outcome.COMMITTED),
    Began("t2", "x"),
    Took("t2", IN, 1, "b"),
    Sent("t2", OUT, "t2:b"),
    Ended("t2", Outcome.ABORTED),
    Began("t3", "x"),
    Took("t3", IN, 1, "b"),
    Sent("t3", OUT, "t3:b"),
    Sent("t3", COPY, "t3:b"),
    Ended("t3", Outcome.COMMITTED),
]
LOGS: dict[Partition, Log] = {OUT: [(0, "t1:a"), (4, "t3:b")], COPY: [(0, "t1:a"), (2, "t3:b")]}
EVERYTHING: dict[Partition, Log] = {OUT: [(0, "t1:a"), (2, "t2:b"), (4, "t3:b")], COPY: LOGS[COPY]}
IN_LOG: dict[Partition, Log] = {IN: [(0, "a"), (1, "b")]}


def kinds(
    events: Sequence[Event] = HISTORY,
    committed: dict[Partition, Log] | None = None,
    everything: dict[Partition, Log] | None = None,
    inputs: dict[Partition, Log] | None = None,
) -> set[str]:
    logs = LOGS | (committed or {})
    found = anomalies(events, logs, everything or (EVERYTHING | (committed or {})), inputs or IN_LOG)
    return {line.partition(":")[0] for line in found}


def without(*left_out: Event) -> list[Event]:
    return [event for event in HISTORY if event not in left_out]


def test_correct_history_has_no_anomaly() -> None:
    polls = [Polled("r", OUT, 0, "t1:a"), Polled("r", COPY, 0, "t1:a"), Polled("r", OUT, 4, "t3:b")]

    assert set() == kinds() == kinds([*HISTORY, *polls])


def test_unknown_transaction_is_there_or_not() -> None:
    unknown = without(Ended("t3", Outcome.COMMITTED))
    nothing: dict[Partition, Log] = {OUT: [(0, "t1:a")], COPY: [(0, "t1:a")]}

    assert set() == kinds(unknown)
    assert {"forgotten input"} == kinds(unknown, nothing, EVERYTHING)
    assert {"torn transaction"} == kinds(unknown, {COPY: [(0, "t1:a")]}, EVERYTHING)


@pytest.mark.parametrize(
    "anomaly, events, committed",
    [
        ("aborted read", HISTORY, {OUT: [(0, "t1:a"), (2, "t2:b"), (4, "t3:b")]}),
        ("aborted read", [*HISTORY, Polled("r", OUT, 2, "t2:b")], {}),
        ("lost", HISTORY, {COPY: [(0, "t1:a")]}),
        ("duplicate", HISTORY, {OUT: [(0, "t1:a"), (4, "t3:b"), (5, "t3:b")]}),
        ("reordered", HISTORY, {OUT: [(0, "t3:b"), (4, "t1:a")]}),
        ("never sent", HISTORY, {OUT: [(0, "t1:a"), (4, "t3:b"), (5, "t9:z")]}),
        ("moved backwards", [*HISTORY, Polled("r", OUT, 0, "t1:a"), Polled("r", OUT, 0, "t1:a")], {}),
        ("skipped", [*HISTORY, Polled("r", OUT, 4, "t3:b")], {}),
        ("inconsistent offset", [*HISTORY, Polled("r", OUT, 1, "t1:a")], {}),
        (
            "repeated input",
            [*HISTORY, Began("t4", "y"), Took("t4", IN, 0, "a"), Ended("t4", Outcome.COMMITTED)],
            {},
        ),
        ("forgotten input", without(Took("t3", IN, 1, "b")), {}),
    ],
)
def test_anomaly_is_found(anomaly: str, events: list[Event], committed: dict[Partition, Log]) -> None:
    assert {anomaly} == kinds(events, committed)


def test_read_of_all_records_that_misses_one_is_found() -> None:
    assert {"uncommitted misses"} == kinds(everything={OUT: [(0, "t1:a")], COPY: LOGS[COPY]})


# --- Clusters -------------------------------------------------------------------------------------------------


@contextmanager
def broker_in_memory(_: int = 1) -> Iterator[Cluster]:
    """Run a broker in memory, which can only be paused."""
    with KorvetProcess(settings={"group.initial.rebalance.delay.ms": "200"}) as broker:
        yield Cluster([broker], faults_of(broker)[1:2], [])


def check(cluster: Cluster, for_s: float, longest_s: float) -> None:
    """Run transactional clients and faults for a time, and compare the history with the logs."""
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(10**6))
    create_topics(cluster.servers)
    nemesis = Nemesis(seed, cluster.broker_faults + cluster.storage_faults, longest_s=longest_s)
    # The executor's thread lives until the end: a server dies with the thread that started it.
    with ThreadPoolExecutor() as executor, ExitStack() as stack:
        load = stack.enter_context(TransactionalLoad(cluster.servers, INPUTS, OUTPUTS, seed))
        stack.callback(report, seed, load.events, nemesis)
        executor.submit(nemesis.run, for_s).result()
        inputs: dict[Partition, Log] = {}

        def count_inputs() -> int:
            inputs.update(read_all(cluster.servers, INPUTS, "read_committed"))
            return sum(map(len, inputs.values()))

        try:
            load.finish(count_inputs)
        except AssertionError:
            for broker in cluster.brokers:
                logger.warning(
                    "%s: %s", broker.bootstrap_servers, "\n".join([*broker.earlier_log, *broker.log][-60:])
                )
            raise
        committed = read_all(cluster.servers, OUTPUTS, "read_committed")
        everything = read_all(cluster.servers, OUTPUTS, "read_uncommitted")

    found = anomalies(load.events, committed, everything, inputs)
    for line in found[:100]:
        logger.error("%s", line)

    assert [] == found[:20]
    assert [] == load.faults


def create_topics(servers: str, partitions: Sequence[Partition] = (*INPUTS, *OUTPUTS)) -> None:
    """Create topics without retention by time: the simulation's clients send records with a timestamp of 2023."""
    admin = AdminClient({"bootstrap.servers": servers})
    counts = {topic: 1 + max(n for name, n in partitions if name == topic) for topic, _ in partitions}
    topics = [NewTopic(name, count, config={"retention.ms": "-1"}) for name, count in counts.items()]
    for created in admin.create_topics(topics).values():
        created.result()


def report(seed: int, events: Sequence[Event], nemesis: Nemesis) -> None:
    outcomes = [each.outcome.value for each in transactions_of(list(events)).values()]
    counts = {outcome.value: outcomes.count(outcome.value) for outcome in Outcome}
    logger.info(
        "HISTORY_SEED=%d: transactions: %s; %d faults: %s",
        seed,
        counts,
        len(nemesis.done),
        ", ".join(nemesis.done),
    )


NewCluster = Callable[[int], AbstractContextManager[Cluster]]
#: Each of them has faults for ten minutes, and some also for seconds.
BRIEFLY: list[NewCluster] = [broker_in_memory, brokers_on_one_server, brokers_on_redis_cluster]
CLUSTERS: list[NewCluster] = [*BRIEFLY, broker_with_processes, brokers_on_sentinels]


def runs(for_s: float) -> list[object]:
    """Return the cluster, the time and the longest fault of each run: of that time, and of ten minutes."""
    brief = [pytest.param(each, for_s, 5.0, id=f"{each.__name__}-for-seconds") for each in BRIEFLY]
    soak = [
        pytest.param(each, 600.0, 20.0, id=f"{each.__name__}-for-ten-minutes", marks=pytest.mark.soak)
        for each in CLUSTERS
    ]
    return [*brief, *soak]


# --- Brokers with a bug ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize(
    "add_bug, expected",
    [
        (lose_some_markers, {"lost", "aborted read", "torn transaction"}),
        (raise_last_stable_offset, {"aborted read", "skipped"}),
        (show_staged_offsets, {"forgotten input"}),
    ],
)
def test_bug_of_a_broker_is_found(
    add_bug: Callable[[pytest.MonkeyPatch], None], expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_bug(monkeypatch)
    found: set[str] = set()
    deadline = time.monotonic() + 120
    while not found & expected:
        assert time.monotonic() < deadline, f"only found {found}"
        with running_broker(settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
            create_topics(broker.bootstrap_servers)
            with TransactionalLoad(broker.bootstrap_servers, INPUTS, OUTPUTS, seed=1) as load:
                time.sleep(8)  # the load runs for this time
            logs = [read_all(broker.bootstrap_servers, INPUTS, "read_committed")]
            logs += [
                read_all(broker.bootstrap_servers, OUTPUTS, f"read_{level}")
                for level in ("committed", "uncommitted")
            ]
        events = list(load.events)
        inputs, committed, everything = logs
        found = {
            line.partition(":")[0]
            for line in anomalies(events, committed, everything, passed(events, inputs))
        }


def passed(events: Sequence[Event], inputs: dict[Partition, Log]) -> dict[Partition, Log]:
    """Return the inputs behind which a committed transaction has read another one."""
    ends: dict[Partition, int] = {}
    for each in transactions_of(events).values():
        if each.outcome is Outcome.COMMITTED:
            for partition, offset, _ in each.took:
                ends[partition] = max(ends.get(partition, 0), offset)
    return {
        partition: [(offset, value) for offset, value in log if offset < ends.get(partition, 0)]
        for partition, log in inputs.items()
    }


# --- Correct brokers ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("cluster, for_s, longest_s", runs(10))
def test_transactions_are_whole_and_once(cluster: NewCluster, for_s: float, longest_s: float) -> None:
    with cluster(3) as running:
        check(running, for_s, longest_s)


# --- Late requests --------------------------------------------------------------------------------------------


def check_late(cluster: Cluster, for_s: float, longest_s: float) -> None:
    """Run clients whose requests arrive late and repeatedly, and faults, and compare the history with the logs."""
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(10**6))
    create_topics(cluster.servers, late_load.INPUTS + late_load.OUTPUTS)
    nemesis = Nemesis(seed, cluster.broker_faults + cluster.storage_faults, longest_s=longest_s)
    load = LateLoad(tuple(cluster.servers.split(",")), seed)
    with ThreadPoolExecutor() as executor, ExitStack() as stack:
        stack.callback(report, seed, load.history.transactions, nemesis)
        running = executor.submit(trio.run, load.run)
        stack.callback(load.finish)
        executor.submit(nemesis.run, for_s).result()
        load.finish()
        running.result()
        inputs = read_all(cluster.servers, late_load.INPUTS, "read_committed")
        committed = read_all(cluster.servers, late_load.OUTPUTS, "read_committed")
        everything = read_all(cluster.servers, late_load.OUTPUTS, "read_uncommitted")
    logger.info("late requests that were answered: %s", dict(load.delivered))
    trio.run(check_logs, load, {**inputs, **everything})

    assert [] == anomalies(load.history.transactions, committed, everything, inputs)[:20]
    assert {"Produce", "EndTxn"} <= {*load.delivered}


async def check_logs(load: LateLoad, logs: dict[Partition, Log]) -> None:
    """Compare the logs with what was acknowledged. The history notes violations with Trio's clock."""
    for partition, log in logs.items():
        load.history.check_log(TopicPartition(*partition), log)


@pytest.mark.slow
@pytest.mark.clients
def test_broker_that_accepts_late_requests_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_late_requests(monkeypatch)
    with running_broker() as broker, ThreadPoolExecutor() as executor, ExitStack() as stack:
        create_topics(broker.bootstrap_servers, late_load.INPUTS + late_load.OUTPUTS)
        load = LateLoad((broker.bootstrap_servers,), seed=1)
        running = executor.submit(trio.run, load.run)
        stack.callback(load.finish)
        running.exception(120)

    assert load.history.violation is not None
    assert re.search("was not requested|INVALID_TXN_STATE", str(load.history.violation))


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("cluster, for_s, longest_s", runs(15))
def test_late_and_repeated_requests_change_no_transaction(
    cluster: NewCluster, for_s: float, longest_s: float
) -> None:
    with cluster(3) as running:
        check_late(running, for_s, longest_s)
