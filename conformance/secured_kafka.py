"""An Apache Kafka with production-like security: TLS, logins, and an authorizer that denies by default.

Listeners, each on its own port: `SASL_SSL` and `SASL_PLAINTEXT` (PLAIN, SCRAM-SHA-256 and -512) and `MUTUAL` (SSL with
a client certificate). `PLAINTEXT` allows everything. The user `alice` may do everything, too; `reader` may only read
one topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trustme
from attrs import frozen
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from conformance.apache_kafka import ApacheKafka

USERS = {"alice": "alice's secret", "reader": "the reader's"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENERS = {"SASL_SSL": "SASL_SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "MUTUAL": "SSL"}
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM": "scram.ScramLoginModule"}


@frozen
class SecuredKafka:
    """A running broker, and the folder of the certificates."""

    kafka: ApacheKafka
    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate authority of broker and client."""
        return self.folder / "authority.pem"

    @property
    def client(self) -> Path:
        """A client's certificate and key."""
        return self.folder / "client.pem"

    @property
    def stranger(self) -> Path:
        """A certificate authority that the broker does not trust."""
        return self.folder / "stranger.pem"

    def at(self, listener: str) -> str:
        """Return the bootstrap servers of a listener."""
        return f"127.0.0.1:{self.kafka.ports[listener]}"

    def login(self, user: str, mechanism: str, *, password: str = "", tls: bool = True) -> dict[str, str]:
        """Return the properties of a client, in the form of Java's client."""
        settings = {
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas(mechanism, user, password or USERS[user]),
        }
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}
        return {**settings, **trust} if tls else settings


def jaas(mechanism: str, user: str, password: str) -> str:
    module = MODULES[mechanism.partition("-")[0]]
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


@contextmanager
def secured_kafka() -> Iterator[SecuredKafka]:
    """Run the broker, with new certificates."""
    with TemporaryDirectory(prefix="korvet-secured-") as folder:
        certify(Path(folder))
        with ApacheKafka(settings=broker_settings(Path(folder)), listeners=LISTENERS, users=USERS) as kafka:
            yield SecuredKafka(kafka, Path(folder))


def certify(folder: Path) -> None:
    """Create certificates of an authority, the broker and a client; and a second authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    trustme.CA().cert_pem.write_to_path(folder / "stranger.pem")
    broker = authority.issue_cert("127.0.0.1", "localhost")
    client = authority.issue_cert("client@example.org", common_name="client")
    for name, issued in (("broker", broker), ("client", client)):
        # Java reads private keys only in PKCS #8 format.
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        chain = [certificate.bytes() for certificate in issued.cert_chain_pems]
        (folder / f"{name}.pem").write_bytes(b"".join([key, *chain]))


def broker_settings(folder: Path) -> Mapping[str, str]:
    """Return the broker settings for TLS, SASL and authorization."""
    plain = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice;User:CN=client",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.pem"),
        "ssl.principal.mapping.rules": "RULE:^(CN=client),.*$/$1/,DEFAULT",
        "listener.name.mutual.ssl.client.auth": "required",
        "group.initial.rebalance.delay.ms": "0",
    }
    for listener in ("sasl_ssl", "sasl_plaintext"):
        for mechanism in MECHANISMS:
            name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            module = f"org.apache.kafka.common.security.{MODULES[mechanism.partition('-')[0]]} required"
            settings[name] = f"{module} {plain};" if mechanism == "PLAIN" else f"{module};"
    return settings
