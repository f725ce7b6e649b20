from __future__ import annotations

import pickle
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from korvet.client.security import (
    CLIENT_ID,
    CLIENT_SECRET,
    PLAINTEXT,
    SCOPE,
    TOKEN_URL,
    Sasl,
    Security,
    security_of,
)
from korvet.client.token_endpoint import Grant

PLAIN_LOGIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="hush";'
)
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LOGIN}
JKS = b"\xfe\xed\xfe\xed\x00\x00\x00\x02"
PKCS12 = b"\x30\x82\x0a\x10\x02\x01\x03"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's certificate, and a client's with its key."""
    made = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("client@example.org")
    key, chain = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    encrypted = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush")
    )
    (made / "ca.pem").write_bytes("Zertifikat für alle\n".encode() + authority.cert_pem.bytes())
    (made / "client.pem").write_bytes(chain + key)
    (made / "chain.pem").write_bytes(chain)
    (made / "key.pem").write_bytes(key)
    (made / "encrypted.pem").write_bytes(encrypted)
    (made / "store.jks").write_bytes(JKS)
    (made / "store.p12").write_bytes(PKCS12)
    return made


def test_default_security_is_plaintext() -> None:
    assert PLAINTEXT == security_of({}) == security_of({"security.protocol": "plaintext", "acks": "1"})
    assert PLAINTEXT == security_of({"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LOGIN})


@pytest.mark.parametrize(
    "settings",
    [
        PLAIN,
        {**PLAIN, "sasl.jaas.config": f"kafkashaded.{PLAIN_LOGIN}"},
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "hush",
        },
    ],
    ids=["as Java", "as Databricks", "as librdkafka"],
)
def test_logins_are_accepted_in_the_form_of_java_and_librdkafka(settings: dict[str, str]) -> None:
    assert Security(sasl=Sasl("PLAIN", "alice", "hush")) == security_of(settings)


def test_spaces_are_kept_in_passwords_only() -> None:
    given = {
        "security.protocol": " SASL_PLAINTEXT ",
        "sasl.mechanism": "PLAIN ",
        "sasl.username": " alice",
        "sasl.password": " hush ",
    }

    assert Security(sasl=Sasl("PLAIN", "alice", " hush ")) == security_of(given)


@pytest.mark.parametrize(
    "settings",
    [
        {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"},
        {"ssl.ca.location": "ca.pem", "ssl.endpoint.identification.algorithm": ""},
        {"ssl.ca.location": "ca.pem", "ssl.keystore.location": "client.pem", "ssl.keystore.type": "PEM"},
        {
            "ssl.certificate.location": "chain.pem",
            "ssl.key.location": "encrypted.pem",
            "ssl.key.password": "hush",
            "ssl.enabled.protocols": "TLSv1.3",
        },
    ],
    ids=["trust", "no names", "mutual", "encrypted key"],
)
def test_security_pickles_file_contents_and_hides_them_in_its_repr(
    folder: Path, settings: dict[str, str]
) -> None:
    found = security_of(
        {
            "security.protocol": "SSL",
            **{name: str(folder / text) if "location" in name else text for name, text in settings.items()},
        }
    )
    travelled = pickle.loads(pickle.dumps(found))

    assert found == travelled == security_of(found.settings())
    assert "BEGIN" not in repr(found)
    assert isinstance(travelled.tls.context(), ssl.SSLContext)
    assert ("ssl.endpoint.identification.algorithm" in settings) == (not travelled.tls.checks_host_name)


GRANT = {**OAUTH, TOKEN_URL: "https://x/token", CLIENT_ID: "alice", CLIENT_SECRET: "hush", SCOPE: "kafka"}


@pytest.mark.parametrize(
    "settings",
    [
        GRANT,
        {
            **OAUTH,
            TOKEN_URL: "https://x/token",
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="alice" clientSecret="hush" scope="kafka";',
        },
    ],
    ids=["settings", "login module"],
)
def test_client_credentials_are_sent_to_workers_and_not_shown(settings: dict[str, str]) -> None:
    found = security_of(settings)
    travelled = pickle.loads(pickle.dumps(found))

    assert Sasl("OAUTHBEARER", grant=Grant("https://x/token", "alice", "hush", "kafka")) == found.sasl
    assert found == travelled == security_of(found.settings())
    assert "hush" not in repr(found)


def test_pem_contents_are_accepted_instead_of_files(folder: Path) -> None:
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": (folder / "ca.pem").read_text(),
        "ssl.keystore.certificate.chain": (folder / "chain.pem").read_text(),
        "ssl.keystore.key": (folder / "key.pem").read_text(),
    }
    files = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.keystore.location": str(folder / "client.pem"),
    }

    assert security_of(given) == security_of(files)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS'; accepted are PLAINTEXT, SSL, SASL_"),
        ({"sasl.mechanisms": "PLAIN"}, "sasl.mechanisms is not supported; accepted are .*sasl.mechanism,"),
        ({**PLAIN, "sasl.mechanism": ""}, "sasl.mechanism is missing; accepted are PLAIN, SCRAM-SHA-256"),
        ({**PLAIN, "sasl.mechanism": "OAUTHBEARER"}, "names PlainLoginModule; OAUTHBEARER takes OAuthB"),
        (OAUTH, "sasl.oauthbearer.token.endpoint.url names no file and no server; accepted are file:///"),
        ({**OAUTH, TOKEN_URL: "ftp://x/token"}, "endpoint.url names no file and no server"),
        ({**OAUTH, TOKEN_URL: "https://me:hush@x/token"}, "endpoint.url names no file and no server"),
        ({**OAUTH, TOKEN_URL: "https://x:y/token"}, "endpoint.url is not a URL: Port could not be cast"),
        ({**OAUTH, TOKEN_URL: "https://x/token"}, "credentials.client.id is missing, which the server of"),
        (
            {**OAUTH, TOKEN_URL: "https://x/token", CLIENT_ID: "alice"},
            "credentials.client.secret is missing, which the server of",
        ),
        ({**PLAIN, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is 'GSSAPI'; accepted are PLAIN, SCRAM"),
        ({**PLAIN, "sasl.mechanism": "SCRAM-SHA-256"}, "names PlainLoginModule; SCRAM-SHA-256 takes Scram"),
        ({**PLAIN, "sasl.jaas.config": "alice hush"}, "sasl.jaas.config is not a login module; accepted:"),
        ({**PLAIN, "sasl.jaas.config": ""}, "sasl.jaas.config gives no username; accepted is a login"),
        ({**PLAIN, "sasl.username": "alice"}, "sasl.jaas.config is given, and kafka.sasl.username as well"),
        ({"ssl.ca.location": "nowhere.pem"}, "ssl.ca.location cannot be read: .*: No such file"),
        ({"ssl.ca.location": "key.pem"}, "ssl.ca.location holds no certificates as PEM"),
        ({"ssl.truststore.location": "store.jks"}, "is a JKS file, .* accepted is PEM: keytool -importkey"),
        ({"ssl.truststore.location": "store.p12"}, "is a PKCS12 file, .* accepted is PEM: openssl pkcs12"),
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type is 'JKS'; accepted is PEM"),
        ({"ssl.truststore.password": "hush"}, "ssl.truststore.password is for JKS and PKCS12"),
        ({"ssl.certificate.location": "chain.pem"}, "ssl.key.location is missing; a certificate of the"),
        ({"ssl.key.location": "key.pem"}, "ssl.certificate.location is missing; a private key needs"),
        (
            {"ssl.certificate.location": "chain.pem", "ssl.key.location": "encrypted.pem"},
            "ssl.key.password does not open the key",
        ),
        ({"ssl.certificate.location": "ca.pem", "ssl.key.location": "key.pem"}, "no usable certificate and"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "is 'ldap'; accepted are https, or nothing"),
        (
            {"ssl.cipher.suites": "NULL"},
            "ssl.cipher.suites names 'NULL'; accepted are TLS_AES_256_GCM_SHA384",
        ),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "must name all of TLS_AES.*, or none of them"),
        ({"ssl.enabled.protocols": "TLSv1"}, "names none of TLSv1.2 and TLSv1.3, which are accepted"),
    ],
)
def test_invalid_settings_are_refused_with_the_accepted_values(
    folder: Path, settings: dict[str, str], said: str
) -> None:
    located = {name: str(folder / text) if "location" in name else text for name, text in settings.items()}
    with pytest.raises(ValueError, match=said) as raised:
        security_of({"security.protocol": "SSL", **located}, prefix="kafka.")

    assert str(raised.value).startswith("kafka.")
    assert 0 == str(raised.value).count("\n")
    assert "hush" not in str(raised.value)


def test_cipher_suites_are_those_of_the_settings() -> None:
    suite = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    security = security_of({"security.protocol": "SSL", "ssl.cipher.suites": suite})

    assert security == security_of(security.settings())
    assert security.tls is not None
    context = security.tls.context()
    assert ["ECDHE-RSA-AES128-GCM-SHA256"] == [
        each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"
    ]
    assert ssl.TLSVersion.TLSv1_2 == context.maximum_version
