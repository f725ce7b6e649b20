"""A server is killed while a sync of its file is under way: rows of the table "At a glance" in docs/operations.md.

A preloaded library makes each sync take longer, as on a busy disk. Under `everysec` Redis then postpones writing the
file for up to two seconds, and acknowledges all the same.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.failures.conftest import Report, StartBroker, embedded_client
from tests.failures.ledger import LIMIT_S, consume_all
from tests.servers import VALKEY, start_server
from tests.soak.attempt import Attempt, Outcome
from tests.support.wire import create_topic
from tests.syncs import Syncs, build_syncs, cut_power

KILLS = 2
RECORDS = 300
# `always` syncs before each answer, so that long syncs would leave nothing to kill the server in.
DELAY_MS = {"everysec": 1_800, "no": 1_800, "always": 50}


@pytest.fixture
def slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appendfsync: str) -> Syncs:
    """Let every program that the test starts have slow syncs."""
    syncs = build_syncs(tmp_path)
    for name, value in syncs.environment(delay_ms=DELAY_MS[appendfsync]).items():
        monkeypatch.setenv(name, value)
    return syncs


def killed_during_syncs(bootstrap: str, topic: str, syncs: Syncs | None, kill: Callable[[], None]) -> Outcome:
    """Produce, kill the server several times while a sync is under way, and return what has become of the records."""
    with Attempt(bootstrap, topic, idempotent=False) as at_work:
        for _ in range(KILLS):
            at_work.wait_for_more(RECORDS)
            if syncs is not None:
                syncs.wait_for_another()
            at_work.wait_for_more(RECORDS)
            kill()
        at_work.wait_for_more(RECORDS)
    return at_work.outcome()


# The default of `make run`, and for a quarter of a minute each in `make soak` the others.
EACH_APPENDFSYNC = pytest.mark.parametrize(
    "appendfsync",
    [
        "everysec",
        pytest.param("no", marks=pytest.mark.soak),
        pytest.param("always", marks=pytest.mark.soak),
    ],
)


@pytest.mark.parametrize(
    "appendfsync,processes",
    [
        ("everysec", "1"),
        ("everysec", "2"),
        pytest.param("no", "1", marks=pytest.mark.soak),
        pytest.param("always", "1", marks=pytest.mark.soak),
    ],
)
def test_killed_embedded_server_loses_nothing_while_a_sync_is_under_way(
    slow_disk: Syncs,
    embedded_folder: Path,
    start_broker: StartBroker,
    topic: str,
    appendfsync: str,
    processes: str,
    report: Report,
) -> None:
    settings = {"embedded.appendfsync": appendfsync, "processes": processes}
    broker = start_broker(f"embedded:{embedded_folder}", settings)
    create_topic(broker.port, topic)

    def kill() -> None:
        with embedded_client(embedded_folder) as client:
            os.kill(client.info("server")["process_id"], signal.SIGKILL)

    # With `no` there are no syncs.
    syncs = None if appendfsync == "no" else slow_disk
    outcome = killed_during_syncs(broker.bootstrap_servers, topic, syncs, kill)
    report(str(outcome))

    assert 0 == outcome.lost


@EACH_APPENDFSYNC
def test_killed_server_loses_what_everysec_postpones(
    slow_disk: Syncs, start_broker: StartBroker, topic: str, appendfsync: str, report: Report
) -> None:
    server = start_server(VALKEY, options={"appendonly": "yes", "appendfsync": appendfsync})
    try:
        broker = start_broker(server.url)
        create_topic(broker.port, topic)

        def kill() -> None:
            server.kill()
            server.start()

        syncs = None if appendfsync == "no" else slow_disk
        outcome = killed_during_syncs(broker.bootstrap_servers, topic, syncs, kill)
    finally:
        server.remove()
    report(str(outcome))

    if appendfsync == "everysec":
        assert 0 < outcome.lost
    else:
        assert 0 == outcome.lost


@pytest.mark.parametrize("victim", ["child", "server"])
def test_kill_during_a_rewrite_of_the_file_loses_nothing(
    embedded_folder: Path, start_broker: StartBroker, topic: str, victim: str, report: Report
) -> None:
    """Of a server without memory the kernel kills the server, or the child that writes the new file."""
    broker = start_broker(f"embedded:{embedded_folder}")
    create_topic(broker.port, topic)
    with Attempt(broker.bootstrap_servers, topic, idempotent=False) as at_work:
        for _ in range(KILLS):
            at_work.wait_for_more(RECORDS)
            with embedded_client(embedded_folder) as client:
                server = client.info("server")["process_id"]
                client.config_set("rdb-key-save-delay", 5_000_000)  # microseconds for each key
                client.bgrewriteaof()
                child = wait_for_child(client, server)
            at_work.wait_for_more(RECORDS)
            if victim == "server":
                os.kill(server, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
        at_work.wait_for_more(RECORDS)
        if victim == "child":  # what was written to the files of unfinished rewrites is read again
            os.kill(server, signal.SIGKILL)
            at_work.wait_for_more(RECORDS)
    outcome = at_work.outcome()
    report(str(outcome))

    assert 0 == outcome.lost


def wait_for_child(client: redis.Redis, server: int) -> int:
    """Return the pid of the child that rewrites the file of the server."""
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        if children and client.info("persistence")["aof_rewrite_in_progress"]:
            return int(children[0])
        time.sleep(0.01)  # the server reports no event
    raise AssertionError("no rewrite has begun")


@EACH_APPENDFSYNC
def test_power_loss_costs_an_embedded_server_what_was_not_synced(
    embedded_folder: Path,
    start_broker: StartBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    appendfsync: str,
    report: Report,
) -> None:
    syncs = build_syncs(tmp_path)
    for name, value in syncs.environment().items():
        monkeypatch.setenv(name, value)
    broker = start_broker(f"embedded:{embedded_folder}", {"embedded.appendfsync": appendfsync})
    create_topic(broker.port, topic)
    with Attempt(broker.bootstrap_servers, topic, idempotent=False) as at_work:
        at_work.wait_for_more(RECORDS)
        synced = set(at_work.acknowledged)
        if appendfsync != "no":
            syncs.wait_for_a_whole_one()
        at_work.wait_for_more(RECORDS)
        if appendfsync == "always":
            synced = set(at_work.acknowledged)
        with embedded_client(embedded_folder) as client:
            server = client.info("server")["process_id"]
        broker.kill()
        os.kill(server, signal.SIGKILL)
        cut_power(embedded_folder, syncs)
        broker.start()
        at_work.wait_for_more(RECORDS)
    report(f"power loss, appendfsync {appendfsync}: {at_work.outcome()}")

    found = {record.number for record in consume_all(broker.bootstrap_servers, topic)}
    assert appendfsync == "no" or synced <= found
