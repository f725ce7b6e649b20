"""Kafka members and plain Redis consumers work on one queue while broker and Redis are killed: no record goes wrong.

The seed of a run is printed. HISTORY_SEED=… repeats its choices; the processes' own timing is never the same.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from random import SystemRandom
from typing import Any
from uuid import UUID

import pytest
import redis
from attrs import frozen
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from redis.sentinel import Sentinel

from korvet.storage.redis import shares
from korvet.storage.redis.client.connection import Script
from korvet.testing.queue_history import (
    Delivered,
    Event,
    Finished,
    Left,
    Lost,
    Produced,
    Released,
    Sent,
    anomalies,
)
from korvet.testing.threads import running_broker
from tests.history.faults import (
    CutPrimary,
    CutReplica,
    FailOver,
    Fault,
    KillBroker,
    KillPrimary,
    KillServer,
    Nemesis,
    PausePrimary,
    PauseReplica,
    PauseSentinel,
    PauseServer,
    RestartBroker,
)
from tests.history.shared_load import GROUP, STREAM, TOPIC, SharedLoad
from tests.processes import KorvetProcess
from tests.sentinels import NAME, SentinelSet
from tests.servers import VALKEY, RedisServer, start_server

LOCK_S = 2.0
LIMIT = 10
START_LIMIT_S = 180.0  # a broker may start while its store is away
SETTINGS = {
    "storage.layout": "record",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(int(LOCK_S * 1000)),
    "group.share.delivery.count.limit": str(LIMIT),
}

logger = logging.getLogger(__name__)


# --- The checker ----------------------------------------------------------------------------------------------

#: A record that a member releases, a plain consumer does not finish in time, and a member accepts.
HISTORY: list[Event] = [
    Sent("a"),
    Produced("a"),
    Delivered("m", "a", 10.0, 10.1, 1),
    Released("m", "a", 10.2),
    Delivered("p", "a", 10.3, 10.4, None),
    Delivered("m", "a", 12.5, 12.6, 3),
    Finished("m", "a", 12.8),
]


def kinds(*more: Event, without: Sequence[Event] = (), limit: int = LIMIT) -> set[str]:
    events = [each for each in HISTORY if each not in without]
    return {line.partition(":")[0] for line in anomalies([*events, *more], LOCK_S, limit)}


def test_correct_history_has_no_anomaly() -> None:
    assert set() == kinds()
    assert set() == kinds(Delivered("x", "a", 12.7, 15.0, 4))  # the request was sent before the end


def test_end_of_a_session_releases_records() -> None:
    early = Delivered("x", "a", 12.61, 12.7, 4)
    assert {"delivered under a lock"} == kinds(early)
    assert set() == kinds(early, Left("m", 12.65))


def test_requests_that_overlap_may_have_come_in_either_order() -> None:
    answered_late = Delivered("x", "a", 13.0, 16.03, 4)  # the server was paused after the delivery
    after_its_lock = Delivered("p", "a", 16.0, 16.01, None)
    unfinished = HISTORY[-1]
    assert set() == kinds(answered_late, after_its_lock, without=[unfinished])
    within_its_lock = Delivered("p", "a", 14.0, 14.01, None)
    early = Delivered("x", "a", 13.0, 14.03, 4)
    assert {"delivered under a lock"} == kinds(early, within_its_lock, without=[unfinished])
    later = Delivered("x", "a", 16.02, 16.03, 4)
    assert {"delivered under a lock"} == kinds(later, after_its_lock, without=[unfinished])


@pytest.mark.parametrize(
    "anomaly, more, without",
    [
        ("delivered after its end", [Delivered("x", "a", 15.0, 15.1, 4)], []),
        ("delivered under a lock", [], [HISTORY[3]]),
        ("never delivered", [Sent("b"), Produced("b")], []),
        ("repeated count", [Delivered("x", "a", 5.0, 5.1, 1)], []),
        ("missing count", [], [HISTORY[4]]),
        ("never sent", [Delivered("x", "b", 1.0, 1.1, 1)], []),
    ],
)
def test_anomaly_is_found(anomaly: str, more: list[Event], without: list[Event]) -> None:
    assert {anomaly} == kinds(*more, without=without)


def test_deliveries_above_the_limit_are_found() -> None:
    assert {"above the limit"} == kinds(limit=2)
    assert set() == kinds(Lost("x"), without=[HISTORY[4]])


# --- A queue --------------------------------------------------------------------------------------------------


@frozen
class Queue:
    """The empty queue of a broker on a server, or on the primary of Sentinels with so many replicas."""

    connect: Callable[..., redis.Redis]
    port: int
    topic_id: UUID
    replicas: int

    def load(self, seed: int) -> SharedLoad:
        return SharedLoad(self.port, self.topic_id, self.connect, LOCK_S, seed, self.replicas)

    def is_empty(self) -> bool:
        with self.connect() as client:
            (group,) = client.xinfo_groups(STREAM)
            return (group["pending"], group["lag"]) == (0, 0)


def queue_of(connect: Callable[..., redis.Redis], bootstrap_servers: str, replicas: int = 0) -> Queue:
    """Create the topic and the Redis group, which the members adopt."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result()
    described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result()
    with connect() as client:
        client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    topic_id = described.topic_id
    number = (topic_id.get_most_significant_bits() & (2**64 - 1)) << 64
    number |= topic_id.get_least_significant_bits() & (2**64 - 1)
    return Queue(connect, int(bootstrap_servers.rpartition(":")[2]), UUID(int=number), replicas)


@contextmanager
def durable_server() -> Iterator[RedisServer]:
    server = start_server(VALKEY, durable=True)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def queue_on_one_server() -> Iterator[tuple[Queue, list[Fault]]]:
    """Run a broker on a server whose acknowledged writes are on disk; yield its queue, and what can happen."""
    with durable_server() as server, KorvetProcess(server.url, SETTINGS) as broker:
        queue = queue_of(server.client, broker.bootstrap_servers)
        yield queue, [KillBroker(broker), RestartBroker(broker), KillServer(server), PauseServer(server)]


@contextmanager
def queue_on_sentinels(*, promotes: bool = False) -> Iterator[tuple[Queue, list[Fault]]]:
    """Run a broker on a primary with two replicas, which confirm all that workers do; yield the same.

    With `promotes`, each fault promotes a replica.
    """
    settings = {**SETTINGS, "min.insync.replicas": "2"}
    with (
        SentinelSet(VALKEY, is_proxied=True) as sentinels,
        KorvetProcess(sentinels.url, settings, start_limit_s=START_LIMIT_S) as broker,
    ):
        addresses = [("127.0.0.1", sentinels.port_of(each)) for each in sentinels.sentinels]

        def connect(**options: Any) -> redis.Redis:
            host, port = Sentinel(addresses, socket_timeout=1).discover_master(NAME)
            return redis.Redis(host, port, **options)

        faults: list[Fault] = [FailOver(sentinels), KillPrimary(sentinels)]
        if not promotes:
            faults += [KillBroker(broker), RestartBroker(broker), PausePrimary(sentinels)]
            faults += [CutPrimary(sentinels), CutReplica(sentinels)]
            faults += [PauseReplica(sentinels), PauseSentinel(sentinels)]
        yield queue_of(connect, broker.bootstrap_servers, len(sentinels.replicas)), faults


def check(place: AbstractContextManager[tuple[Queue, list[Fault]]], for_s: float, longest_s: float) -> None:
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(1_000_000))
    # The executor's thread lives until the end: a server dies with the thread that started it.
    with place as (queue, faults), ThreadPoolExecutor() as executor:
        nemesis = Nemesis(seed, faults, longest_s=longest_s)
        with queue.load(seed) as load:
            executor.submit(nemesis.run, for_s).result()
            load.finish(queue.is_empty)
    events = list(load.events)
    counts = {
        kind.__name__: sum(isinstance(each, kind) for each in events)
        for kind in (Sent, Delivered, Finished, Lost)
    }
    logger.info(
        "HISTORY_SEED=%d: %s; %d faults: %s", seed, counts, len(nemesis.done), ", ".join(nemesis.done)
    )
    found = anomalies(events, LOCK_S, LIMIT)
    for line in found[:100]:
        logger.error("%s", line)

    assert [] == found[:20]
    assert [] == load.faults
    assert {"member", "plain"} == {
        each.worker.partition("-")[0] for each in events if isinstance(each, Finished)
    }


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_workers_share_a_queue_through_a_minute_of_faults() -> None:
    check(queue_on_one_server(), 60, 3)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_workers_share_a_queue_through_failovers() -> None:
    check(queue_on_sentinels(promotes=True), 30, 2)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("place", [queue_on_one_server, queue_on_sentinels])
def test_workers_share_a_queue_through_ten_minutes_of_faults(
    place: Callable[[], AbstractContextManager[tuple[Queue, list[Fault]]]],
) -> None:
    check(place(), 600, 5)


# --- Scripts with a bug ---------------------------------------------------------------------------------------

BUGS = {
    "delivered after its end": (
        "SHARE_ACKNOWLEDGE",
        "finish(finished)\ngive_back",
        "if now % 5 > 0 then finish(finished) end\ngive_back",
    ),
    "delivered under a lock": ("SHARE_ACQUIRE", "'IDLE', lock, from", "'IDLE', math.floor(lock / 5), from"),
    "repeated count": ("SHARE_RELEASE", "'TIME', 0, 'JUSTID'", "'TIME', 0, 'RETRYCOUNT', 0, 'JUSTID'"),
    "never delivered": ("SHARE_ACQUIRE", "if not is_visible then", "if now % 10 == 0 then"),
}


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("anomaly", BUGS)
def test_bug_of_a_script_is_found(anomaly: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, right, wrong = BUGS[anomaly]
    source = getattr(shares, name).source
    assert 1 == source.count(right.encode())
    monkeypatch.setattr(shares, name, Script(source.replace(right.encode(), wrong.encode())))
    deadline = time.monotonic() + 120
    found: set[str] = set()
    with durable_server() as server, running_broker(server.url, settings=SETTINGS) as broker:
        queue = queue_of(server.client, broker.bootstrap_servers)
        with queue.load(1) as load:
            while anomaly not in found:
                assert time.monotonic() < deadline, f"only found {found}"
                time.sleep(1)  # the load runs for this time
                found = {line.partition(":")[0] for line in anomalies(without_recent(load), LOCK_S, LIMIT)}


def without_recent(load: SharedLoad) -> list[Event]:
    """Return the history, in which the last records need not be delivered yet."""
    events = list(load.events)
    delivered = {each.value for each in events if isinstance(each, Delivered)}
    last = max(map(int, delivered), default=0)
    return [each for each in events if not isinstance(each, Produced) or int(each.value) < last - 200]
