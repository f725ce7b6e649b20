"""A cluster whose three brokers are restarted in turn, three times, under load."""

from __future__ import annotations

import time
from collections import Counter

from tests.clients.confluent import Confluent
from tests.failures.conftest import Report, StartBroker
from tests.failures.load import Load
from tests.servers import VALKEY, StartServer, on
from tests.storage.conftest import server_kind  # noqa: F401  a fixture

PARTITIONS = 12
ROUNDS = 3
REST_S = 10.0  # between two restarts: an operator restarts a broker when the one before serves

pytestmark = on(VALKEY)


def test_rolling_restarts_keep_produces_below_a_second(
    new_server: StartServer, start_broker: StartBroker, topic: str, report: Report
) -> None:
    url = new_server().url
    brokers = [start_broker(url) for _ in range(3)]
    Confluent(brokers[0].bootstrap_servers).create_topic(topic, partitions=PARTITIONS)
    load = Load(",".join(each.bootstrap_servers for each in brokers), topic, PARTITIONS, members=3)
    with load.running():
        for broker in brokers * ROUNDS:
            load.wait_for_more(100)
            assert 0 == broker.stop()
            load.wait_for_more(100)
            broker.start()
            time.sleep(REST_S)
    slowest_s = max(load.acknowledged_s.values())
    report(
        f"{load.produced} records, produce p99 {load.p99_s * 1000:.0f} ms, longest {slowest_s * 1000:.0f} ms"
    )

    assert [] == load.errors
    assert 0 == load.rebalances
    assert Counter(range(load.produced)) == load.stored() == load.read
    assert load.p99_s < 1
