"""Certificates and keys of PKCS12 files, by the library cryptography."""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12


def certificates_and_key(content: bytes, password: str | None) -> tuple[str, str]:
    """Return the certificates, the key's own first, and the key, both as PEM. Raises ValueError."""
    store = load_pkcs12(content, None if password is None else password.encode())
    entries = [*([store.cert] if store.cert else []), *store.additional_certs]
    certificates = b"".join(entry.certificate.public_bytes(Encoding.PEM) for entry in entries)
    key = b""
    if store.key is not None:
        key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificates.decode(), key.decode()
