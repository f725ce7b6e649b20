"""The values of TLS settings, in Kafka's notation: versions, cipher suites, types of key stores, PEM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from korvet.config.kinds import Kind, list_of, one_of, optional, secret, text

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
#: The cipher suites of TLS 1.3 have no other names. Python's ssl module enables all of them.
TLS13_SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
#: OpenSSL's names of the cipher suites of TLS 1.2 with forward secrecy and authenticated encryption.
TLS12_SUITES: Final[Mapping[str, str]] = {
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
}


def _store_type() -> Kind[str]:
    kind = one_of("PEM", "PKCS12")

    def parse(value: Any) -> str:
        if value == "JKS":
            raise ValueError(
                "only Java reads JKS; convert the file with keytool -importkeystore -srckeystore FILE"
                " -destkeystore FILE.p12 -deststoretype PKCS12"
            )
        return kind.parse(value)

    return Kind(kind.type, kind.accepted, parse)


STORE_TYPE = _store_type()
PATH = optional(text("a path"))
PASSWORD = optional(secret(text("any text")))
CERTIFICATES = optional(secret(text("certificates as PEM (-----BEGIN CERTIFICATE-----)", r"[\s\S]+")))
KEY = optional(secret(text("a private key as PEM (-----BEGIN … PRIVATE KEY-----)", r"[\s\S]+")))
CLIENT_AUTH = one_of("none", "requested", "required")
VERSIONS = list_of(one_of(*PROTOCOLS))
CIPHER_SUITES = list_of(one_of(*TLS13_SUITES, *TLS12_SUITES))


def versions(enabled: Sequence[str], suites: Sequence[str]) -> list[str]:
    """Return the enabled versions, oldest first, that have one of the cipher suites. No suites stand for all."""
    of_version = dict(zip(PROTOCOLS, (TLS12_SUITES, TLS13_SUITES), strict=True))
    return [
        version
        for version, known in of_version.items()
        if version in enabled and (not suites or any(suite in known for suite in suites))
    ]
