"""Redis, or Valkey, is killed in the middle of writes: acknowledged records are stored, once, in order.

The servers write through (`appendfsync always`), so that acknowledged writes are durable. They are stopped (SIGSTOP) at
a random moment, the unanswered requests are counted, and only then are the servers killed, so that the count is exact.

Producers that are not idempotent get the same guarantee here: a broker that outlives its server repeats the writes
whose results it did not receive, with a token that the server remembers.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.failures.conftest import EACH_LAYOUT, Kept, Report, StartBroker, embedded_client
from tests.failures.ledger import Ledgers, assert_each_once_and_in_order, consume_all
from tests.servers import RedisServer
from tests.support.wire import create_topic

KILLS = 2
RECORDS_BETWEEN = 300


@EACH_LAYOUT
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_acknowledged_records_are_stored_once_when_the_server_is_killed(
    durable_server: RedisServer,
    start_broker: StartBroker,
    topic: str,
    kept: Kept,
    idempotent: bool,
    report: Report,
) -> None:
    broker = start_broker(durable_server.url, kept.settings)
    create_topic(broker.port, topic)
    unanswered = []
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=idempotent) as ledgers:
        for _ in range(KILLS):
            ledgers.wait_for_more(RECORDS_BETWEEN)
            durable_server.pause()
            unanswered.append(ledgers.unanswered_requests())
            durable_server.kill()
            durable_server.start()
        ledgers.wait_for_more(RECORDS_BETWEEN)
        ledgers.finish()
    found = consume_all(broker.bootstrap_servers, topic)
    report(f"killed {KILLS} times with signal 9, requests unanswered: {unanswered}; {len(found)} records")

    assert all(unanswered)
    assert_each_once_and_in_order(ledgers, found)


@EACH_LAYOUT
def test_killed_embedded_server_is_restarted_with_acknowledged_records(
    embedded_folder: Path, start_broker: StartBroker, topic: str, kept: Kept, report: Report
) -> None:
    settings = {**kept.settings, "embedded.appendfsync": "always"}
    broker = start_broker(f"embedded:{embedded_folder}", settings)
    create_topic(broker.port, topic)
    unanswered = []
    servers = set()
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=True) as ledgers:
        for _ in range(KILLS):
            ledgers.wait_for_more(RECORDS_BETWEEN)
            with embedded_client(embedded_folder) as client:
                server = client.info("server")["process_id"]
            os.kill(server, signal.SIGSTOP)
            unanswered.append(ledgers.unanswered_requests())
            os.kill(server, signal.SIGKILL)
            servers.add(server)
        ledgers.wait_for_more(RECORDS_BETWEEN)
        ledgers.finish()
    found = consume_all(broker.bootstrap_servers, topic)
    report(f"killed {KILLS} times with signal 9, requests unanswered: {unanswered}; {len(found)} records")

    assert all(unanswered)
    assert len(servers) == KILLS
    assert_each_once_and_in_order(ledgers, found)
