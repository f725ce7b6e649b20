"""Certificates and private keys as PEM text, and how to load them into an SSL context."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CERTIFICATES: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL
)
PKCS12_FROM_JKS: Final = (
    "keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12"
)


def kind_of_keystore(data: bytes) -> str:
    """Return "JKS" (also for JCEKS) or "PKCS12" by the first bytes of a file, or "" for other files."""
    if data[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        return "JKS"
    return "PKCS12" if data[:1] == b"\x30" and b"-----BEGIN" not in data else ""


def load_key(context: ssl.SSLContext, chain: str, key: str, password: str) -> None:
    """Load a certificate, with those that lead to its authority, and its key. Raises ValueError with the reason."""
    with _as_file(chain + key) as path:
        try:
            # Without a password argument, OpenSSL would ask at the terminal; an empty one prevents that.
            context.load_cert_chain(path, password=password)
        except ssl.SSLError as error:
            reason = words(error)
            if reason.endswith("mismatch"):
                reason = "the key does not belong to the certificate"
            elif "ENCRYPTED" in key:
                reason = "ssl.key.password does not open the key"
            raise ValueError(reason) from None


def words(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in lower case words."""
    return (error.reason or str(error)).replace("_", " ").lower()


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a file with that text, which only this process can read, and not on disk if possible.

    Python loads keys only from files.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem"), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(text)
            file.flush()
            yield file.name
