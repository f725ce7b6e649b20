"""A server is killed while a sync of its file is under way: rows of the table "At a glance" in docs/operations.md.

A preloaded library makes each sync take longer, as on a busy disk. Under `everysec` Redis then postpones writing the
file for up to two seconds, and acknowledges all the same.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.wire import create_topic
from tests.failures.conftest import Report, StartBroker, embedded_client
from tests.servers import VALKEY, start_server
from tests.soak.attempt import Attempt, Outcome
from tests.syncs import Syncs, build_syncs

KILLS = 3
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


@pytest.mark.parametrize(
    "appendfsync,processes", [("everysec", "1"), ("everysec", "2"), ("no", "1"), ("always", "1")]
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

    # With `no` nobody syncs.
    syncs = None if appendfsync == "no" else slow_disk
    outcome = killed_during_syncs(broker.bootstrap_servers, topic, syncs, kill)
    report(str(outcome))

    assert 0 == outcome.lost


@pytest.mark.parametrize("appendfsync", ["everysec", "no", "always"])
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
