"""TLS and SASL against fake brokers; the conformance suite tests them against Apache Kafka."""

from __future__ import annotations

import ssl

import pytest
import trio
import trustme

from korvet.client import open_client
from korvet.client.security import Sasl, Security
from korvet.client.tls import Tls, TlsRefused, explain
from korvet.protocol.errors import (
    IllegalSaslState,
    KafkaError,
    NetworkException,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from tests.client.fake_cluster import fake_cluster, web_server
from tests.client.secured_cluster import SecuredCluster, secured_cluster

ALICE = Security(sasl=Sasl("PLAIN", "alice", "hush"))
USERS = {"alice": "hush"}
AUTHORITY = trustme.CA()
TRUSTED = AUTHORITY.cert_pem.bytes().decode()


def context(*names: str, wants_certificate: bool = False) -> ssl.SSLContext:
    """Return a broker's context with a certificate for these names."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(*names).configure_cert(made)
    if wants_certificate:
        AUTHORITY.configure_trust(made)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def own(authority: trustme.CA) -> dict[str, str]:
    """A client's certificate and key."""
    issued = authority.issue_cert("client@example.org")
    return {
        "chain": issued.cert_chain_pems[0].bytes().decode(),
        "key": issued.private_key_pem.bytes().decode(),
    }


async def connect(cluster: SecuredCluster, security: Security) -> str | None:
    async with open_client(cluster.bootstrap, security=security) as client:
        return client.cluster_id


async def test_login_precedes_other_requests() -> None:
    async with secured_cluster(users=USERS) as cluster:
        assert "fake" == await connect(cluster, ALICE)
        assert [18, 17, 36, 3] == [key for _, key, _ in cluster.requests]


async def test_logins_and_requests_go_through_tls() -> None:
    async with secured_cluster(users=USERS, context=context("127.0.0.1")) as cluster:
        assert "fake" == await connect(cluster, Security(Tls(TRUSTED), ALICE.sasl))


@pytest.mark.parametrize(
    "listener, security",
    [
        ("SASL_PLAINTEXT", Security()),
        ("SASL_PLAINTEXT", Security(Tls(TRUSTED), ALICE.sasl)),
        ("SASL_SSL", Security(Tls(TRUSTED))),
        ("SSL", Security()),
    ],
)
async def test_wrong_security_protocol_is_reported(listener: str, security: Security) -> None:
    users = USERS if "SASL" in listener else {}
    tls = context("127.0.0.1") if "SSL" in listener else None
    async with secured_cluster(users=users, context=tls) as cluster:
        with pytest.raises(NetworkException, match="requires another security.protocol"):
            await connect(cluster, security)


@pytest.mark.parametrize(
    "sasl, error, said",
    [
        (
            Sasl("PLAIN", "alice", "hush!"),
            SaslAuthenticationFailed,
            "does not accept the login .PLAIN.: Invalid",
        ),
        (
            Sasl("SCRAM-SHA-256", "alice", "hush"),
            UnsupportedSaslMechanism,
            "not offer .*-256; it offers PLAIN.",
        ),
    ],
)
async def test_refused_login_is_reported_with_the_error_of_the_broker(
    sasl: Sasl, error: type[KafkaError], said: str
) -> None:
    async with secured_cluster(users=USERS) as cluster:
        with pytest.raises(error, match=said) as raised:
            await connect(cluster, Security(sasl=sasl))

        assert "hush" not in str(raised.value)
        assert 0 == cluster.logins


async def test_listener_without_sasl_is_reported() -> None:
    async with secured_cluster() as cluster:
        with pytest.raises(
            IllegalSaslState, match="does not accept SASL on this listener; security.protocol=PLAINTEXT"
        ):
            await connect(cluster, ALICE)
    async with fake_cluster() as (old, _):
        with pytest.raises(IllegalSaslState, match="does not accept SASL on this listener"):
            async with open_client(old.bootstrap, security=ALICE):
                pass


@pytest.mark.parametrize(
    "tls, said",
    [
        (Tls(), "its certificate is not trusted: .* .ssl.truststore.location or ssl.ca.location names a PEM"),
        (Tls(trustme.CA().cert_pem.bytes().decode()), "its certificate is not trusted"),
    ],
    ids=["the system's trust", "another authority"],
)
async def test_untrusted_certificate_is_refused(tls: Tls, said: str) -> None:
    async with secured_cluster(context=context("127.0.0.1")) as cluster:
        with pytest.raises(TlsRefused, match=said):
            await connect(cluster, Security(tls))


async def test_host_name_of_the_certificate_is_checked_unless_disabled() -> None:
    async with secured_cluster(context=context("elsewhere.example.org")) as cluster:
        with pytest.raises(
            TlsRefused, match="its certificate is for other hosts: .* ssl.endpoint.identification"
        ):
            await connect(cluster, Security(Tls(TRUSTED)))

        assert "fake" == await connect(cluster, Security(Tls(TRUSTED, checks_host_name=False)))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_broker_may_require_a_client_certificate(version: str) -> None:
    async with secured_cluster(context=context("127.0.0.1", wants_certificate=True)) as cluster:
        with pytest.raises(KafkaError):
            await connect(cluster, Security(Tls(TRUSTED, versions=(version,))))

        assert "fake" == await connect(cluster, Security(Tls(TRUSTED, versions=(version,), **own(AUTHORITY))))


@pytest.mark.parametrize(
    "reason, said",
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it requires a client certificate"),
        (
            "TLSV1_ALERT_UNKNOWN_CA",
            "it does not accept the client's certificate, or requires one: tlsv1 alert",
        ),
        ("WRONG_VERSION_NUMBER", "the listener does not use TLS"),
        ("NO_SHARED_CIPHER", "no TLS: no shared cipher"),
    ],
)
def test_openssl_errors_are_explained(reason: str, said: str) -> None:
    error = trio.BrokenResourceError()
    error.__cause__ = ssl.SSLError(1, reason)
    error.__cause__.reason = reason

    assert explain(error).startswith(said)


def test_broken_connection_is_not_explained_as_a_tls_error() -> None:
    for error in trio.BrokenResourceError(), ssl.SSLEOFError(8, "EOF"), ssl.SSLZeroReturnError(6, "EOF"):
        assert "" == explain(error)


async def test_server_without_tls_is_reported() -> None:
    async with web_server() as address:
        with pytest.raises(TlsRefused, match="the listener does not use TLS"):
            async with open_client(address, security=Security(Tls())):
                pass


async def test_client_reconnects_before_its_session_expires(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        secured_cluster(users=USERS, lifetime_ms=10_000) as cluster,
        open_client(cluster.bootstrap, security=ALICE) as client,
    ):
        await trio.sleep(7)
        await client.topics()
        assert 1 == cluster.logins

        await trio.sleep(2)
        await client.topics()
        assert 2 == cluster.logins
