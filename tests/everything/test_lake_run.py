"""`korvet lake run` with Spark, as a user with few rights, at brokers of two processes whose options are all on."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer
from deltalake import DeltaTable

from korvet.client import LATEST, TopicPartition, open_client
from tests.certificates import Authority
from tests.clients.interface import CODECS
from tests.clients.secured import PASSWORD
from tests.everything.brokers import CASES, BrokerWithEverything, Case, everything, run
from tests.everything.test_everything import COMMITTED, LIMIT_S, committed_values, create, transact, until
from tests.lake.replay import rows_of
from tests.pipeline.lake_runs import RunProcess, fetched, states
from tests.pipeline.support import Cluster
from tests.reading import read_to_end

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.servers]

EARLIEST_LOCAL = -4
TIERED = {
    "remote_storage_enable": "true",
    "local_retention_ms": "1000",
    "korvet_lake_decode": "json",
    "korvet_lake_lag_ms": "200",
}
#: The operations that a run requires.
RIGHTS = (
    ("--topic", "orders", "--topic", "moved", "--operation", "read", "--operation", "describeconfigs"),
    ("--group", "korvet-lake", "--operation", "read"),
)
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"


def produce(broker: BrokerWithEverything, topic: str, first: int, count: int) -> None:
    """Produce objects with ascending numbers, with every codec, and a bad row."""
    for place, codec in enumerate(CODECS):
        producer = Producer({**broker.librdkafka, "compression.type": codec, "linger.ms": 20})
        for number in range(first + place, first + count, len(CODECS)):
            producer.produce(topic, b'{"id": %d}' % number, b"%d" % number, partition=number % 3)
        assert 0 == producer.flush(LIMIT_S)


@pytest.mark.parametrize("case", [case for case in CASES if case.processes > 1], ids=lambda case: case.id)
def test_tables_are_kept_with_all_options_on(case: Case, authority: Authority, tmp_path: Path) -> None:
    with everything(case, authority) as broker:
        run("users", "add", "archiver", "-b", broker.bootstrap_servers, password=PASSWORD)
        for rights in RIGHTS:
            run("acls", "add", "--allow-principal", "User:archiver", *rights, "-b", broker.bootstrap_servers)
        create(broker, "orders", 3, **TIERED)
        create(broker, "secret", 1, korvet_lake_enable="true")
        produce(broker, "orders", 0, 3_000)
        produce(broker, "secret", 0, 1)
        transact(broker, korvet_lake_enable="true")
        properties = tmp_path / "client.properties"
        properties.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.location={authority.ca}\n"
            f'ssl.truststore.type=PEM\nsasl.jaas.config={LOGIN} required username="archiver" password="{PASSWORD}";\n'
        )
        file = tmp_path / "lake.toml"
        typed = tmp_path / "typed"
        file.write_text(f'lake = "{broker.lake}"\ntyped = "{typed}"\ndefaults.lag = "200ms"\n')
        cluster = Cluster(f"127.0.0.1:{broker.clients_port}", is_dense=False)

        options = ("--command-config", str(properties), "--metrics", "127.0.0.1:0")
        with RunProcess(cluster, file, options) as process:
            url = process.wait_for(r"metrics: (http://\S+)/metrics")[1]
            until(lambda: states(url) == {"moved": "current", "orders": "current"}, 3 * LIMIT_S)
            produce(broker, "orders", 3_000, 2_000)
            until(lambda: 'result="typed",topic="orders"} 5000.0' in fetched(f"{url}/metrics")[1])
            until(lambda: [("0", "0 s")] * 3 == lags(broker))
            page = broker.page("/lake")
            assert 0 == process.end(signal.SIGTERM), process.lines
            assert [] == [line for line in process.lines if "Traceback" in line or PASSWORD in line]

        assert {"archive", "typed"} == {*re.findall(r"<td>(archive|typed)<br>", page)}
        assert str(broker.lake / "orders") in page
        assert "secret" not in page
        assert "ended" in broker.page("/lake")
        expected = Counter(b"%d" % number for number in range(5_000))
        assert expected == Counter(row.key for row in rows_of(broker.lake / "orders"))
        assert COMMITTED == Counter(row.value for row in rows_of(broker.lake / "moved"))
        ids = DeltaTable(str(typed / "orders")).to_pyarrow_table().column("id").to_pylist()
        assert [*range(5_000)] == sorted(ids)
        assert not (broker.lake / "secret").exists()
        # Consumers read from the lake what the broker has trimmed.
        until(lambda: offsets_at(broker, EARLIEST_LOCAL) == offsets_at(broker, LATEST))
        orders = [("orders", number) for number in range(3)]
        read = read_to_end(broker.librdkafka, orders, "read_committed")
        assert expected == Counter(message.key() for message in read)
        assert COMMITTED == committed_values(broker, "moved")
        assert [] == [line for line in broker.log if "Traceback" in line or " ERROR " in line]
        assert 0 == broker.stop()


def offsets_at(broker: BrokerWithEverything, timestamp: int) -> dict[int, int]:
    """Return an offset of each partition of orders by a time, such as EARLIEST_LOCAL."""

    async def ask() -> dict[int, int]:
        async with open_client(broker.bootstrap_servers) as client:
            tps = [TopicPartition("orders", number) for number in range(3)]
            found = await client.list_offsets(dict.fromkeys(tps, timestamp))
            return {tp.partition: each.offset for tp, each in found.items()}

    return trio.run(ask)


def lags(broker: BrokerWithEverything) -> list[tuple[str, str]]:
    """Return records and time behind of each table on the page."""
    cells = re.findall(r'<td class="number">([^<]*)</td>', broker.page("/lake"))
    return [(cells[place + 1], cells[place + 2]) for place in range(0, len(cells), 6)]
