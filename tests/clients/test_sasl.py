"""Clients that authenticate with SASL, each with every mechanism that it has."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from tests.clients.secured import LIMIT_S, PASSWORD, PASSWORDS, add_alice, token, write_keys
from tests.processes import KorvetProcess

# One broker serves all tests of this module.
pytestmark = pytest.mark.xdist_group("test_sasl")


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetProcess]:
    """A broker with SASL on its listener and the user alice, whom a command has added to its storage."""
    folder = Path(tempfile.mkdtemp(prefix="ks-"))
    storage = f"embedded:{folder / 'data'}"
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join((*PASSWORDS, "OAUTHBEARER")),
        "sasl.oauthbearer.jwks.endpoint.url": write_keys(folder / "keys"),
        "connections.max.reauth.ms": "600000",
        "group.initial.rebalance.delay.ms": "0",
    }
    try:
        add_alice(storage)
        with KorvetProcess(storage, settings) as process:
            yield process
    finally:
        shutil.rmtree(folder)


def librdkafka(broker: KorvetProcess, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


def round_trip(settings: Mapping[str, object], topic: str) -> bytes | None:
    """Produce a record and consume it, with confluent-kafka."""
    producer = Producer(dict(settings))
    producer.produce(topic, b"value")
    assert 0 == producer.flush(LIMIT_S)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        record = consumer.poll(LIMIT_S)
        return None if record is None else record.value()
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_confluent_kafka_is_served(broker: KorvetProcess, mechanism: str) -> None:
    assert b"value" == round_trip(librdkafka(broker, mechanism), f"confluent-{mechanism}")


def test_confluent_kafka_adds_and_removes_a_user(broker: KorvetProcess) -> None:
    """librdkafka sends a byte too many in AlterUserScramCredentials."""
    admin = AdminClient(librdkafka(broker, "SCRAM-SHA-256"))
    mechanism = ScramMechanism.SCRAM_SHA_256
    added = UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, 4096), b"secret", b"salt")
    removed = UserScramCredentialDeletion("bob", mechanism)

    admin.alter_user_scram_credentials([added])["bob"].result(LIMIT_S)
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(LIMIT_S)
    assert [4096] == [info.iterations for info in described.scram_credential_infos]
    settings = librdkafka(broker, "SCRAM-SHA-256", "secret") | {"sasl.username": "bob"}
    assert b"value" == round_trip(settings, "confluent-bob")
    admin.alter_user_scram_credentials([removed])["bob"].result(LIMIT_S)
    broker.wait_for_log(r"ignored \d bytes behind a request AlterUserScramCredentials v0 of confluent-kafka")


def test_confluent_kafka_with_a_token_is_served(broker: KorvetProcess) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    assert b"value" == round_trip(settings, "confluent-token")


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_confluent_kafka_with_a_wrong_password_is_refused(broker: KorvetProcess, mechanism: str) -> None:
    errors: list[str] = []
    settings = librdkafka(broker, mechanism, "wrong")
    producer = Producer({**settings, "error_cb": lambda error: errors.append(error.name())})
    deadline = time.monotonic() + LIMIT_S
    while "_AUTHENTICATION" not in errors:
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_kcat_is_served(broker: KorvetProcess, mechanism: str) -> None:
    settings = librdkafka(broker, mechanism)
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    topic = f"kcat-{mechanism}"
    kcat = shutil.which("kcat") or shutil.which("kafkacat") or "kcat"
    subprocess.run([kcat, *options, "-P", "-t", topic], input=b"value", check=True, timeout=LIMIT_S)
    done = subprocess.run(
        [kcat, *options, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-q"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT_S,
    )

    assert b"value\n" == done.stdout


def python_client(broker: KorvetProcess, mechanism: str, password: str = PASSWORD) -> dict[str, object]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_kafka_python_is_served(broker: KorvetProcess, mechanism: str) -> None:
    settings, topic = python_client(broker, mechanism), f"python-{mechanism}"
    producer = KafkaProducer(**settings)
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    try:
        producer.send(topic, b"value").get(LIMIT_S)
        assert b"value" == next(iter(consumer)).value
    finally:
        producer.close()
        consumer.close()


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_aiokafka_is_served(broker: KorvetProcess, mechanism: str) -> None:
    settings, topic = python_client(broker, mechanism), f"aiokafka-{mechanism}"

    async def main() -> bytes | None:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"value")
        async with aiokafka.AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            record = await asyncio.wait_for(consumer.getone(), LIMIT_S)
            value: bytes | None = record.value
            return value

    assert b"value" == asyncio.run(main())


def test_commands_authenticate_by_a_java_clients_properties(broker: KorvetProcess, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="alice" password="alice\'s, secret=";\n'
    )
    config = ["--command-config", str(tmp_path / "client.properties")]
    command = [sys.executable, "-m", "korvet", "users", "list", "-b", broker.bootstrap_servers]
    done = subprocess.run([*command, *config], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    assert "alice" in done.stdout
    refused = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert 1 == refused.returncode
    assert "security.protocol" in refused.stderr
