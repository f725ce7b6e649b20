"""The Python program of docs/transactions.md, run as a reader pastes it, and killed in between."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.processes import KorvetProcess

pytestmark = [pytest.mark.slow, pytest.mark.clients]

PAGE = (Path(__file__).parents[2] / "docs/transactions.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n(from confluent_kafka.*?)^```", re.MULTILINE | re.DOTALL)
ORDERS = 2_000
LIMIT_S = 60.0


def test_program_moves_each_order_once(tmp_path: Path) -> None:
    (source,) = EXAMPLE.findall(PAGE)
    with KorvetProcess(settings={"group.min.session.timeout.ms": "1000"}) as broker:
        program = tmp_path / "payments.py"
        # Small rounds, so that the program is killed amid transactions.
        program.write_text(
            source.replace("localhost:9092", broker.bootstrap_servers)
            .replace("consume(500,", "consume(50,")
            .replace('"group.id": "payments",', '"group.id": "payments", "session.timeout.ms": 2000,')
        )
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(ORDERS):
            producer.produce("orders", str(number).encode())
        producer.flush()

        for part in (ORDERS // 4, ORDERS // 2):
            with subprocess.Popen([sys.executable, program]) as process:
                paid(broker, part)
                process.kill()
        subprocess.run([sys.executable, program], check=True, timeout=LIMIT_S)

        assert list(map(str, range(ORDERS))) == paid(broker, ORDERS)


def paid(broker: KorvetProcess, at_least: int) -> list[str]:
    """Return the committed records of `paid` once there are that many."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"reader-{at_least}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["paid"])
    found: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < at_least and time.monotonic() < deadline:
        found += [each.value().decode() for each in consumer.consume(500, 0.2) if each.error() is None]
    consumer.close()
    return found
