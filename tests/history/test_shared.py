"""Members of a share group, and plain Redis consumers in the record layout, work on a queue through faults.

No record goes wrong while brokers and Redis are killed, slots move, and workers die.

The seed of a run is printed. HISTORY_SEED=… repeats its choices; the processes' own timing is never the same.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import SystemRandom
from typing import Any

import pytest
from attrs import evolve

from korvet.share.partition import SharePartition
from korvet.storage.redis import shares
from korvet.storage.redis.client.connection import Script
from korvet.storage.shares import AckType
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
from tests.history.faults import Fault, Nemesis
from tests.history.queues import (
    BATCH,
    LIMIT,
    LOCK_S,
    RECORD,
    Place,
    Queue,
    connect_to,
    durable_server,
    queue_in_memory,
    queue_of,
    queue_on_one_server,
    queue_on_redis_cluster,
    queue_on_sentinels,
    settings_of,
)
from tests.history.redis_cluster import slot_moves
from tests.history.shared_load import STREAM, SharedLoad
from tests.redis_clusters import RedisCluster
from tests.servers import VALKEY

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


# --- Faults ---------------------------------------------------------------------------------------------------


def check(place: Place, for_s: float, longest_s: float, every_s: float = 5.0) -> None:
    """Run workers and faults for a time, and look for anomalies once the queue is empty."""
    seed = int(os.environ.get("HISTORY_SEED") or SystemRandom().randrange(1_000_000))
    # The executor's thread lives until the end: a server dies with the thread that started it.
    with place as (queue, faults), ThreadPoolExecutor() as executor:
        nemesis = Nemesis(seed, faults, every_s=every_s, longest_s=longest_s)
        with queue.load(seed) as load:
            executor.submit(nemesis.run, for_s).result()
            load.finish(queue.unfinished)
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
    assert queue.workers == {each.worker.partition("-")[0] for each in events if isinstance(each, Finished)}


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_workers_share_a_queue_through_faults() -> None:
    check(queue_on_one_server(RECORD), 20, 3)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_workers_share_a_queue_through_failovers() -> None:
    check(queue_on_sentinels(RECORD, promotes=True), 15, 2)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_workers_share_a_queue_whose_slot_moves() -> None:
    check(queue_on_redis_cluster(RECORD, moves=True), 15, 3)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
def test_workers_share_a_queue_of_the_batch_layout_through_faults() -> None:
    check(queue_on_one_server(BATCH), 15, 3)


@pytest.mark.slow
@pytest.mark.clients
def test_workers_share_a_queue_in_memory_through_faults() -> None:
    check(queue_in_memory(), 15, 2, every_s=2.5)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(lambda: queue_on_one_server(RECORD), id="record"),
        pytest.param(lambda: queue_on_sentinels(RECORD), id="record-sentinels"),
        pytest.param(lambda: queue_on_redis_cluster(RECORD), id="record-cluster"),
        pytest.param(lambda: queue_on_one_server(BATCH), id="batch"),
        pytest.param(lambda: queue_on_one_server(BATCH, brokers=2), id="batch-two-brokers"),
        pytest.param(lambda: queue_on_sentinels(BATCH), id="batch-sentinels"),
        pytest.param(lambda: queue_on_redis_cluster(BATCH), id="batch-cluster"),
        pytest.param(queue_in_memory, id="memory"),
    ],
)
def test_workers_share_a_queue_through_ten_minutes_of_faults(place: Callable[[], Place]) -> None:
    check(place(), 600, 5)


# --- Bugs put in on purpose -----------------------------------------------------------------------------------

#: Of scripts: the text of one, and the text that replaces it.
SCRIPT_BUGS = {
    "delivered after its end": (
        "SHARE_ACKNOWLEDGE",
        "finish(finished)\ngive_back",
        "if now % 5 > 0 then finish(finished) end\ngive_back",
    ),
    "delivered under a lock": ("SHARE_ACQUIRE", "'IDLE', lock, from", "'IDLE', math.floor(lock / 5), from"),
    "repeated count": ("SHARE_RELEASE", "'TIME', 0, 'JUSTID'", "'TIME', 0, 'RETRYCOUNT', 0, 'JUSTID'"),
    "never delivered": ("SHARE_ACQUIRE", "if not is_visible then", "if now % 10 == 0 then"),
}

Method = Callable[..., Any]


def finishing_most(right: Method) -> Method:
    """Accept no record in one of five milliseconds."""

    def after(partition: SharePartition, run: Any, kind: AckType, now_ms: float) -> Any:
        return run if kind is AckType.ACCEPT and not now_ms % 5 else right(partition, run, kind, now_ms)

    return after


def ending_locks_early(right: Method) -> Method:
    """End each lock after a fifth of its time."""
    return lambda partition, now_ms: right(partition, now_ms + partition.limits.lock_ms * 4 / 5)


def counting_no_release(right: Method) -> Method:
    """Forget the last delivery of a record that is released."""
    return lambda partition, run: right(partition, run._replace(deliveries=run.deliveries - 1))


def passing_over_some(right: Method) -> Method:
    """Treat records as gone in one of ten milliseconds."""

    def acquire(partition: SharePartition, member: str, read: Any, most: int, now_ms: float) -> Any:
        seen = read if now_ms % 10 else evolve(read, spans=read.spans[1:])
        return right(partition, member, seen, most, now_ms)

    return acquire


#: Of methods of SharePartition.
MACHINE_BUGS: Mapping[str, tuple[str, Callable[[Method], Method]]] = {
    "delivered after its end": ("_after", finishing_most),
    "delivered under a lock": ("tick", ending_locks_early),
    "repeated count": ("_released", counting_no_release),
    "never delivered": ("acquire", passing_over_some),
}


def put_into_script(anomaly: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, right, wrong = SCRIPT_BUGS[anomaly]
    source = getattr(shares, name).source
    assert 1 == source.count(right.encode())
    monkeypatch.setattr(shares, name, Script(source.replace(right.encode(), wrong.encode())))


def put_into_machine(anomaly: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = MACHINE_BUGS[anomaly]
    monkeypatch.setattr(SharePartition, name, wrong(getattr(SharePartition, name)))


@contextmanager
def on_one_server(layout: str) -> Iterator[tuple[Queue, list[Fault]]]:
    with durable_server() as server, running_broker(server.url, settings_of(layout)) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        yield queue_of([port], server.client if layout == RECORD else None), []


@contextmanager
def in_memory() -> Iterator[tuple[Queue, list[Fault]]]:
    with running_broker(settings=settings_of(BATCH)) as broker:
        yield queue_of([int(broker.bootstrap_servers.rpartition(":")[2])]), []


@contextmanager
def on_moving_slots() -> Iterator[tuple[Queue, list[Fault]]]:
    settings = settings_of(RECORD, **{"min.insync.replicas": "2"})
    with RedisCluster(VALKEY) as cluster, running_broker(cluster.url, settings) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        yield queue_of([port], connect_to(cluster), 1), slot_moves(cluster, [STREAM.encode()])


def await_anomaly(anomaly: str, place: Place) -> None:
    """Return once workers have met an anomaly. Faults go on meanwhile."""
    deadline = time.monotonic() + 120
    found: set[str] = set()
    with place as (queue, faults), queue.load(1) as load:
        nemesis = Nemesis(1, faults, every_s=1.0, longest_s=0.5)
        while anomaly not in found:
            assert time.monotonic() < deadline, f"only found {found}"
            if faults:
                nemesis.run(1.0)
            else:
                time.sleep(1)  # the load runs for this time
            found = {line.partition(":")[0] for line in anomalies(without_recent(load), LOCK_S, LIMIT)}


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("anomaly", SCRIPT_BUGS)
def test_bug_of_a_script_is_found(anomaly: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_script(anomaly, monkeypatch)
    await_anomaly(anomaly, on_one_server(RECORD))


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("anomaly", list(SCRIPT_BUGS)[:3])
def test_bug_of_a_script_is_found_while_slots_move(anomaly: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_script(anomaly, monkeypatch)
    await_anomaly(anomaly, on_moving_slots())


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.clients
@pytest.mark.parametrize("anomaly", MACHINE_BUGS)
@pytest.mark.parametrize(
    "place", [pytest.param(lambda: on_one_server(BATCH), id="batch"), pytest.param(in_memory, id="memory")]
)
def test_bug_of_the_machine_is_found(
    place: Callable[[], Place], anomaly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into_machine(anomaly, monkeypatch)
    await_anomaly(anomaly, place())


def without_recent(load: SharedLoad) -> list[Event]:
    """Return the history, in which the last records need not be delivered yet."""
    events = list(load.events)
    delivered = {each.value for each in events if isinstance(each, Delivered)}
    last = max(map(int, delivered), default=0)
    return [each for each in events if not isinstance(each, Produced) or int(each.value) < last - 200]
