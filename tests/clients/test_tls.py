"""Clients over TLS: with SASL, and with a certificate of their own."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.certificates import Authority
from tests.clients.secured import LIMIT_S, PASSWORD, PASSWORDS, secured_brokers, token
from tests.clients.test_sasl import librdkafka, python_client, round_trip
from tests.processes import KorvetProcess

# Two brokers serve all tests of this module.
pytestmark = pytest.mark.xdist_group("test_tls")
PROTOCOLS = ("SASL_SSL", "SSL")


@pytest.fixture(scope="module")
def brokers(authority: Authority) -> Iterator[dict[str, KorvetProcess]]:
    with secured_brokers(authority) as running:
        yield running


def of_librdkafka(
    broker: KorvetProcess, authority: Authority, protocol: str, mechanism: str = "SCRAM-SHA-512"
) -> dict[str, str]:
    settings = librdkafka(broker, mechanism) if protocol == "SASL_SSL" else {}
    if protocol == "SSL":
        settings |= {
            "bootstrap.servers": broker.bootstrap_servers,
            "ssl.certificate.location": str(authority.client),
            "ssl.key.location": str(authority.client),
        }
    return settings | {"security.protocol": protocol, "ssl.ca.location": str(authority.ca)}


def of_python(broker: KorvetProcess, authority: Authority, protocol: str) -> dict[str, object]:
    certificate = authority.client if protocol == "SSL" else None
    settings = python_client(broker, "SCRAM-SHA-512") if protocol == "SASL_SSL" else {}
    return settings | {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": protocol,
        "ssl_context": authority.context(certificate),
    }


def of_java(authority: Authority, protocol: str) -> str:
    """Return the properties of a Java client."""
    lines = [
        f"security.protocol={protocol}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={authority.ca}",
    ]
    if protocol == "SSL":
        lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={authority.client}"]
    else:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines += [
            "sasl.mechanism=SCRAM-SHA-512",
            f'sasl.jaas.config={login} required username="alice" password="{PASSWORD}";',
        ]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("protocol, mechanism", [*(("SASL_SSL", each) for each in PASSWORDS), ("SSL", "")])
def test_confluent_kafka_is_served(
    brokers: dict[str, KorvetProcess], authority: Authority, protocol: str, mechanism: str
) -> None:
    settings = of_librdkafka(brokers[protocol], authority, protocol, mechanism)
    assert b"value" == round_trip(settings, f"confluent-{protocol}{mechanism}")


def test_confluent_kafka_with_a_token_is_served(
    brokers: dict[str, KorvetProcess], authority: Authority
) -> None:
    settings = {
        "bootstrap.servers": brokers["SASL_SSL"].bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca),
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    assert b"value" == round_trip(settings, "confluent-token")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kcat_is_served(brokers: dict[str, KorvetProcess], authority: Authority, protocol: str) -> None:
    settings = of_librdkafka(brokers[protocol], authority, protocol)
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    kcat = shutil.which("kcat") or shutil.which("kafkacat") or "kcat"
    subprocess.run([kcat, *options, "-P", "-t", "kcat"], input=b"value", check=True, timeout=LIMIT_S)
    done = subprocess.run(
        [kcat, *options, "-C", "-t", "kcat", "-o", "beginning", "-c", "1", "-q"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT_S,
    )

    assert b"value\n" == done.stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kafka_python_is_served(
    brokers: dict[str, KorvetProcess], authority: Authority, protocol: str
) -> None:
    settings = of_python(brokers[protocol], authority, protocol)
    producer = KafkaProducer(**settings)
    consumer = KafkaConsumer("python", **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    try:
        producer.send("python", b"value").get(LIMIT_S)
        assert b"value" == next(iter(consumer)).value
    finally:
        producer.close()
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_aiokafka_is_served(brokers: dict[str, KorvetProcess], authority: Authority, protocol: str) -> None:
    settings = of_python(brokers[protocol], authority, protocol)

    async def main() -> bytes | None:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait("aiokafka", b"value")
        async with aiokafka.AIOKafkaConsumer(
            "aiokafka", **settings, auto_offset_reset="earliest"
        ) as consumer:
            record = await asyncio.wait_for(consumer.getone(), LIMIT_S)
            value: bytes | None = record.value
            return value

    assert b"value" == asyncio.run(main())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_commands_connect_by_a_java_clients_properties(
    brokers: dict[str, KorvetProcess], authority: Authority, protocol: str, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(of_java(authority, protocol))
    address = brokers[protocol].bootstrap_servers
    common = ["-b", address, "--command-config", str(file)]
    for command in (["topics", "create", "commands"], ["topics", "list"]):
        done = subprocess.run(
            [sys.executable, "-m", "korvet", *command, *common],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (0, "") == (done.returncode, done.stderr)
    assert "commands" in done.stdout
