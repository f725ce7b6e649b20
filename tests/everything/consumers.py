"""Consumers of all records of a topic, through the listener with TLS and SASL: aiokafka and kcat."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import Counter

from aiokafka import AIOKafkaConsumer

from tests.certificates import Authority
from tests.clients.secured import PASSWORD
from tests.everything.brokers import BrokerWithEverything

LIMIT_S = 90.0
# The key of a record.
Keys = Counter[bytes | None]


def keys_by_aiokafka(broker: BrokerWithEverything, authority: Authority, topic: str, count: int) -> Keys:
    """Consume with aiokafka, until there are as many records."""

    async def consume() -> Keys:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=f"127.0.0.1:{broker.clients_port}",
            security_protocol="SASL_SSL",
            ssl_context=authority.context(None),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORD,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        found: Keys = Counter()
        async with consumer:
            while found.total() < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found.update(record.key for record in records)
        return found

    async def limited() -> Keys:
        return await asyncio.wait_for(consume(), LIMIT_S)

    return asyncio.run(limited())


def keys_by_kcat(broker: BrokerWithEverything, topic: str, partitions: int) -> Keys:
    """Consume with kcat, to the end of each partition. Values are not printed."""
    kcat = shutil.which("kcat")
    assert kcat is not None, "the tests need kcat (Debian: apt install kcat)"
    settings = {**broker.librdkafka, "enable.partition.eof": "true"}
    options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
    found: Keys = Counter()
    for partition in range(partitions):
        command = [kcat, "-C", "-q", "-e", "-t", topic, "-p", str(partition), "-o", "beginning", *options]
        done = subprocess.run([*command, "-f", "%k\n"], capture_output=True, timeout=LIMIT_S, check=False)
        assert 0 == done.returncode, done.stderr.decode()
        found.update(done.stdout.splitlines())
    return found
