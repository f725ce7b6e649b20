"""The broker is killed in the middle of writes: acknowledged records are not lost.

An idempotent producer's records are stored once each, because the broker keeps producer state in Redis. For any other
producer, a retry after the broker's death is a new request, and no broker (Kafka's neither) can detect that its records
were stored already. For such producers, acknowledged records are neither lost nor duplicated, the order is kept, and
only records that were unanswered at a kill may be duplicated.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.failures.conftest import EACH_LAYOUT, Kept, Report, StartBroker
from tests.failures.ledger import Ledgers, assert_each_once_and_in_order, consume_all
from tests.processes import KorvetProcess
from tests.support.wire import create_topic

KILLS = 2
RECORDS_BETWEEN = 300


@pytest.fixture
def broker(start_broker: StartBroker, storage: str, kept: Kept) -> KorvetProcess:
    return start_broker(storage, kept.settings)


def kill_repeatedly(broker: KorvetProcess, ledgers: Ledgers) -> tuple[list[int], set[tuple[str, int]]]:
    """Kill the broker repeatedly. Return the unanswered requests at each kill, and all unacknowledged records."""
    unanswered = []
    at_risk: set[tuple[str, int]] = set()
    for _ in range(KILLS):
        ledgers.wait_for_more(RECORDS_BETWEEN)
        acknowledged = ledgers.acknowledged()
        os.kill(broker.pid, signal.SIGSTOP)
        unanswered.append(ledgers.unanswered_requests())
        at_risk |= ledgers.produced() - acknowledged
        broker.kill()
        broker.start()
    ledgers.wait_for_more(RECORDS_BETWEEN)
    ledgers.finish()
    return unanswered, at_risk


@EACH_LAYOUT
def test_idempotent_records_are_stored_once_when_the_broker_is_killed(
    broker: KorvetProcess, topic: str, report: Report
) -> None:
    create_topic(broker.port, topic)
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=True) as ledgers:
        unanswered, _ = kill_repeatedly(broker, ledgers)
    found = consume_all(broker.bootstrap_servers, topic)
    report(f"killed {KILLS} times with signal 9, requests unanswered: {unanswered}; {len(found)} records")

    assert all(unanswered)
    assert_each_once_and_in_order(ledgers, found)


@EACH_LAYOUT
def test_acknowledged_records_survive_a_broker_kill(
    broker: KorvetProcess, topic: str, report: Report
) -> None:
    create_topic(broker.port, topic)
    with Ledgers.of(broker.bootstrap_servers, topic, idempotent=False) as ledgers:
        unanswered, at_risk = kill_repeatedly(broker, ledgers)
    found = consume_all(broker.bootstrap_servers, topic)
    times_found = Counter((one.name, one.number) for one in found)
    doubled = {record for record, times in times_found.items() if times > 1}
    report(
        f"killed {KILLS} times with signal 9, requests unanswered: {unanswered};"
        f" {len(found)} records for {len(ledgers.produced())} produced, twice: {len(doubled)}"
    )

    assert all(unanswered)
    assert doubled <= at_risk
    for ledger in ledgers.each:
        mine = [one for one in found if one.name == ledger.name]
        assert list(range(ledger.produced)) == list(dict.fromkeys(one.number for one in mine))
        assert ledger.offsets.items() <= {(one.number, one.offset) for one in mine}
