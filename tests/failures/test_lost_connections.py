"""Connections to Redis are closed, and its scripts flushed, repeatedly in the middle of writes."""

from __future__ import annotations

import pytest

from tests.failures.conftest import EACH_LAYOUT, Kept, Report, StartBroker
from tests.failures.ledger import Ledgers, assert_each_once_and_in_order, consume_all
from tests.servers import StartServer
from tests.support.wire import create_topic

CUTS = 5
RECORDS_BETWEEN = 40


@EACH_LAYOUT
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_lost_connections_and_flushed_scripts_lose_and_duplicate_no_record(
    new_server: StartServer,
    start_broker: StartBroker,
    topic: str,
    kept: Kept,
    idempotent: bool,
    report: Report,
) -> None:
    server = new_server()
    broker = start_broker(server.url, kept.settings)
    create_topic(broker.port, topic)
    cut = 0
    with (
        Ledgers.of(broker.bootstrap_servers, topic, idempotent=idempotent) as ledgers,
        server.client() as client,
    ):
        for round_ in range(CUTS):
            ledgers.wait_for_more(RECORDS_BETWEEN)
            if round_ % 2:
                client.script_flush()
            cut += int(client.execute_command("CLIENT KILL TYPE normal"))  # all but this one
        ledgers.wait_for_more(RECORDS_BETWEEN)
        ledgers.finish()
    found = consume_all(broker.bootstrap_servers, topic)
    report(f"{cut} connections cut; {len(found)} records")

    assert cut >= CUTS
    assert_each_once_and_in_order(ledgers, found)
