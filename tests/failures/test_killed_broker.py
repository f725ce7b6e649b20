"""The broker is killed in the middle of writes: what was acknowledged is there.

An idempotent producer's records are there once each: what the broker knew of it lies in Redis. For any other
producer a retry after the death of the broker is a new request, and nobody, Kafka neither, can tell that its
records had been stored already. What holds for it: nothing acknowledged is lost or doubled, the order of what
was produced is kept, and what comes twice is what was unanswered at a kill.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from bench.wire import create_topic
from tests.failures.conftest import EACH_LAYOUT, Kept, Say, StartBroker
from tests.failures.ledger import Ledger, assert_each_once_and_in_order, consume_numbers
from tests.processes import KorvetProcess

KILLS = 3
RECORDS_BETWEEN = 600


@pytest.fixture
def broker(start_broker: StartBroker, storage: str, kept: Kept) -> KorvetProcess:
    return start_broker(storage, kept.settings)


def kill_repeatedly(broker: KorvetProcess, ledger: Ledger) -> tuple[list[int], set[int]]:
    """Unanswered requests at each kill, and the numbers that were acknowledged before none of them."""
    unanswered = []
    at_risk: set[int] = set()
    for _ in range(KILLS):
        ledger.wait_for_more(RECORDS_BETWEEN)
        acknowledged = ledger.acknowledged()
        os.kill(broker.pid, signal.SIGSTOP)
        unanswered.append(ledger.unanswered_requests())
        at_risk |= set(range(ledger.produced)) - acknowledged
        broker.kill()
        broker.start()
    ledger.wait_for_more(RECORDS_BETWEEN)
    ledger.finish()
    return unanswered, at_risk


@EACH_LAYOUT
def test_an_idempotent_producers_records_are_there_once_when_the_broker_is_killed(
    broker: KorvetProcess, topic: str, say: Say
) -> None:
    create_topic(broker.port, topic)
    with Ledger(broker.bootstrap_servers, topic, idempotent=True) as ledger:
        unanswered, _ = kill_repeatedly(broker, ledger)
    found = consume_numbers(broker.bootstrap_servers, topic)
    say(f"killed {KILLS} times with signal 9, requests unanswered: {unanswered}; {len(found)} records")

    assert all(unanswered)
    assert_each_once_and_in_order(ledger, found)


@EACH_LAYOUT
def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(
    broker: KorvetProcess, topic: str, say: Say
) -> None:
    create_topic(broker.port, topic)
    with Ledger(broker.bootstrap_servers, topic, idempotent=False) as ledger:
        unanswered, at_risk = kill_repeatedly(broker, ledger)
    found = consume_numbers(broker.bootstrap_servers, topic)
    numbers = [number for _, number in found]
    doubled = {number for number, times in Counter(numbers).items() if times > 1}
    say(
        f"killed {KILLS} times with signal 9, requests unanswered: {unanswered};"
        f" {len(numbers)} records for {ledger.produced} produced, twice: {len(doubled)}"
    )

    assert all(unanswered)
    assert list(range(ledger.produced)) == list(dict.fromkeys(numbers))
    assert doubled <= at_risk
    assert ledger.offsets.items() <= {(number, offset) for offset, number in found}
