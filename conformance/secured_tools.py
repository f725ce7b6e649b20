"""Kafka's console tools over TLS: with SCRAM, and with a client certificate that a rule maps to a principal.

The same certificates, settings and commands on Apache Kafka and on korvet. The authorizer serves only these principals.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from conformance.apache_kafka import POM, jars
from conformance.java_client import compiled
from conformance.part import Result, Target
from conformance.peers import KAFKA
from conformance.secured_kafka import USERS, SecuredKafka, broker_settings, secured_kafka
from conformance.tools import Answer, Toolbox
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

#: The listeners of each broker: those of `secured_kafka`.
PROTOCOLS = {"SASL_SSL": "SASL_SSL", "MUTUAL": "SSL"}
TOPIC = "secured"


def run(_: Sequence[Target]) -> Iterator[Result]:
    """Produce and consume through each listener of each broker. Apache Kafka's own results are the control."""
    with (
        tempfile.TemporaryDirectory(prefix="korvet-secured-tools-") as folder,
        secured_brokers() as (kafka, brokers),
    ):
        class_path = compiled(Path(folder), jars(POM))
        for name, addresses in brokers.items():
            for listener, address in addresses.items():
                config = Path(folder, f"{listener}.properties")
                config.write_text(
                    "".join(f"{key}={value}\n" for key, value in client(kafka, listener).items())
                )
                with Toolbox(class_path, "4.4") as tools:
                    yield Result(f"console over {listener}", name, fault(tools, address, config, listener))


def fault(tools: Toolbox, address: str, config: Path, listener: str) -> str:
    """Return why a record was not produced and consumed, or ""."""
    topic = f"{TOPIC}-{listener.lower()}"

    def step(tool: str, *arguments: str, given: str = "") -> Answer:
        common = ("--bootstrap-server", address, "--command-config", str(config), "--topic", topic)
        return tools.run(tool, *common, *arguments, given=given)

    step("kafka-topics", "--create", "--partitions", "1")
    step("kafka-console-producer", given="secret\n")
    answer = step(
        "kafka-console-consumer", "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000"
    )
    return "" if answer.output.strip() == "secret" else f"{answer.output}{answer.errors}"


def client(kafka: SecuredKafka, listener: str) -> Mapping[str, str]:
    """Return the properties of a client of that listener."""
    if listener == "SASL_SSL":
        return kafka.login("alice", "SCRAM-SHA-512")
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(kafka.authority),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(kafka.client),
    }


@contextmanager
def secured_brokers() -> Iterator[tuple[SecuredKafka, Mapping[str, Mapping[str, str]]]]:
    """Run both brokers. Yield Apache Kafka, and the addresses of listeners by broker and listener."""
    with secured_kafka() as kafka, secured_korvet(kafka) as korvet:
        yield (
            kafka,
            {
                KAFKA: {listener: kafka.at(listener) for listener in PROTOCOLS},
                "korvet": {listener: process.bootstrap_servers for listener, process in korvet.items()},
            },
        )


@contextmanager
def secured_korvet(kafka: SecuredKafka) -> Iterator[Mapping[str, KorvetProcess]]:
    """Run a korvet for each listener, with the certificates and settings of an Apache Kafka.

    Each has its own store. Brokers on one store are one cluster, and its clients have to reach all of them.
    """
    settings = {
        name: value
        for name, value in broker_settings(kafka.folder).items()
        if not name.startswith("listener.name.")
    }
    with ExitStack() as stack:
        yield {
            listener: stack.enter_context(
                KorvetProcess(
                    _store_with_user(stack),
                    {
                        **settings,
                        "listener.security.protocol.map": f"PLAINTEXT:{protocol}",
                        "ssl.client.auth": "required" if listener == "MUTUAL" else "none",
                    },
                )
            )
            for listener, protocol in PROTOCOLS.items()
        }


def _store_with_user(stack: ExitStack) -> str:
    """Start a server with the user alice, and return its URL."""
    server = start_server(VALKEY)
    stack.callback(server.remove)
    subprocess.run(
        [sys.executable, "-m", "korvet", "users", "add", "alice", "--storage", server.url],
        env=os.environ | {"KORVET_PASSWORD": USERS["alice"]},
        check=True,
    )
    return server.url
