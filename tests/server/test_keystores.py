"""The formats of certificates and keys that listeners accept, and the errors for all others."""

from __future__ import annotations

import importlib.util
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificates

from korvet.config import ConfigError, load_config
from korvet.pem import CERTIFICATES, PRIVATE_KEY
from korvet.server.keystores import ListenerTls, listeners_tls
from tests.certificates import Authority

JKS = b"\xfe\xed\xfe\xed\0\0\0\2"


def tls_of(**settings: Any) -> ListenerTls:
    flags = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return listeners_tls(load_config(flags={"listeners": "SSL://localhost:0", **flags}))["SSL"]


def faults(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        tls_of(**settings)
    return list(caught.value.errors)


def shakes_hands(broker: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Return True if a handshake between the two completes."""
    to_broker, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_broker, server_hostname="localhost"),
        broker.wrap_bio(to_broker, to_client, server_side=True),
    )
    done = set()
    for end in ends * 3:
        try:
            end.do_handshake()
            done.add(end)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return False
    return len(done) == 2


def text_of(path: Path) -> tuple[str, str]:
    """Return the certificates and the key of a PEM file."""
    text = path.read_text()
    return "\n".join(CERTIFICATES.findall(text)), PRIVATE_KEY.findall(text)[0]


def encrypted(path: Path) -> str:
    key = load_pem_private_key(path.read_bytes(), None)
    how = BestAvailableEncryption(b"sesame")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how).decode()


def pkcs12_of(path: Path, password: bytes) -> bytes:
    key = load_pem_private_key(path.read_bytes(), None)
    first, *others = load_pem_x509_certificates(path.read_bytes())
    return pkcs12.serialize_key_and_certificates(
        b"broker", key, first, others, BestAvailableEncryption(password)
    )


@pytest.fixture
def formats(authority: Authority, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Settings for the broker's certificate in each format."""
    chain, key = text_of(authority.broker)
    (tmp_path / "encrypted.pem").write_text(chain + encrypted(authority.broker))
    (tmp_path / "broker.p12").write_bytes(pkcs12_of(authority.broker, b"sesame"))
    return {
        "PEM": {"ssl_keystore_location": authority.broker},
        "encrypted": {
            "ssl_keystore_location": tmp_path / "encrypted.pem",
            "ssl_key_password": "sesame",
        },
        "text": {"ssl_keystore_certificate_chain": chain, "ssl_keystore_key": key},
        "one line": {
            "ssl_keystore_certificate_chain": chain.replace("\n", " "),
            "ssl_keystore_key": key.replace("\n", ""),
        },
        "PKCS12": {
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_location": tmp_path / "broker.p12",
            "ssl_keystore_password": "sesame",
        },
    }


def test_certificate_and_key_are_read_in_each_format(
    formats: dict[str, dict[str, Any]], authority: Authority
) -> None:
    for name, settings in formats.items():
        assert shakes_hands(tls_of(**settings).context, authority.context()), name


def test_authorities_are_read_in_each_format(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "trust.p12"
    trusted = [
        pkcs12.PKCS12Certificate(each, b"ca")
        for each in load_pem_x509_certificates(authority.ca.read_bytes())
    ]
    path.write_bytes(pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(b"sesame")))
    for settings in (
        {"ssl_truststore_location": authority.ca},
        {"ssl_truststore_certificates": authority.ca.read_text().replace("\n", "")},
        {
            "ssl_truststore_type": "PKCS12",
            "ssl_truststore_location": path,
            "ssl_truststore_password": "sesame",
        },
    ):
        tls = tls_of(ssl_keystore_location=authority.broker, ssl_client_auth="required", **settings)
        assert shakes_hands(tls.context, authority.context(authority.client))
        assert not shakes_hands(tls.context, authority.context())


def test_certificate_in_the_truststore_is_trusted_without_its_authority(authority: Authority) -> None:
    chain, _ = text_of(authority.client)
    tls = tls_of(
        ssl_keystore_location=authority.broker, ssl_client_auth="required", ssl_truststore_certificates=chain
    )
    assert shakes_hands(tls.context, authority.context(authority.client))


def test_unusable_files_are_refused_with_the_setting_and_the_reason(
    authority: Authority, tmp_path: Path, formats: dict[str, dict[str, Any]]
) -> None:
    chain, key = text_of(authority.broker)
    _, other_key = text_of(authority.client)
    contents = {
        "empty": b"",
        "chain": chain.encode(),
        "key": key.encode(),
        "mismatch": (chain + "\n" + other_key).encode(),
        "broken": chain.replace("MII", "???").encode() + key.encode(),
        "jks": JKS,
        "p12": pkcs12_of(authority.broker, b"sesame"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    location = "$.ssl.keystore.location"
    missing = tmp_path / "missing"
    expected = {
        missing: f"{location}: {missing}: No such file or directory",
        tmp_path: f"{location}: {tmp_path}: Is a directory",
        tmp_path / "empty": f"{location}: it has no certificate as PEM (-----BEGIN …)",
        tmp_path / "chain": f"{location}: it has no private key as PEM (-----BEGIN …)",
        tmp_path / "key": f"{location}: it has no certificate as PEM (-----BEGIN …)",
        tmp_path / "mismatch": f"{location}: the key does not belong to the certificate",
        tmp_path / "jks": (
            f"{location}: it is a JKS file; convert it with keytool -importkeystore -srckeystore FILE -destkeystore"
            " FILE.p12 -deststoretype PKCS12, and set ssl.keystore.type=PKCS12"
        ),
        tmp_path / "p12": f"{location}: it is a PKCS12 file; set ssl.keystore.type=PKCS12",
    }
    for path, fault in expected.items():
        assert [fault] == faults(ssl_keystore_location=path)
    (fault,) = faults(ssl_keystore_location=tmp_path / "broken")
    assert fault.startswith(f"{location}: ")
    assert ["$.ssl.keystore.location: ssl.key.password does not open the key"] == faults(
        **formats["encrypted"] | {"ssl_key_password": "wrong"}
    )
    assert [
        "$.ssl.keystore.key: the key does not belong to the certificate (ssl.keystore.certificate.chain)"
    ] == faults(ssl_keystore_certificate_chain=chain, ssl_keystore_key=other_key)
    for name in ("p12", "jks", "empty"):
        (fault,) = faults(
            ssl_keystore_type="PKCS12",
            ssl_keystore_location=tmp_path / name,
            ssl_keystore_password="wrong",
        )
        assert fault.startswith("$.ssl.keystore.location: it is ")


def test_settings_of_one_listener_are_named_in_its_errors(authority: Authority) -> None:
    flags = {
        "listeners": "SSL://localhost:0,INSIDE://localhost:0",
        "listener.security.protocol.map": "SSL:SSL,INSIDE:SSL",
        "ssl.keystore.location": str(authority.broker),
        "listener.name.inside.ssl.keystore.location": "/missing",
        "ssl.principal.mapping.rules": "RULE:(/x/",
    }
    with pytest.raises(ConfigError) as caught:
        listeners_tls(load_config(flags=flags))
    assert (
        "$.ssl.principal.mapping.rules: invalid rule 'RULE:(/x/': missing ), unterminated subpattern at position 0",
    ) == (caught.value.errors)
    with pytest.raises(ConfigError) as caught:
        listeners_tls(load_config(flags=flags | {"ssl.principal.mapping.rules": "DEFAULT"}))
    assert ("$.listener.name.inside.ssl.keystore.location: /missing: No such file or directory",) == (
        caught.value.errors
    )


def test_missing_library_is_named(
    formats: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert ["$.ssl.keystore.type: PKCS12 requires: pip install 'korvet[pkcs12]'"] == faults(
        **formats["PKCS12"]
    )


def test_error_survives_the_way_from_a_worker_process() -> None:
    error = pickle.loads(pickle.dumps(ConfigError(["one", "two"])))
    assert ("one", "two") == error.errors
