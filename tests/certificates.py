"""Certificates for tests: an authority, and brokers and clients whose certificates it signs."""

from __future__ import annotations

import datetime as dt
import ssl
from functools import cached_property
from pathlib import Path
from typing import Any

import trustme
from attrs import define, field

from korvet.client.security import Security
from korvet.client.tls import Tls


@define(slots=False)
class Authority:
    """An authority whose certificate is the file `ca`. It writes the certificates that it signs to `folder`."""

    folder: Path
    authority: trustme.CA = field(factory=trustme.CA)

    @cached_property
    def ca(self) -> Path:
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    @cached_property
    def broker(self) -> Path:
        """A file with a certificate for this machine, and its key."""
        return self.issue("broker", "localhost", "127.0.0.1", "::1")

    @cached_property
    def client(self) -> Path:
        """A file with a certificate with the common name alice, and its key."""
        return self.issue("alice", "alice.example", common_name="alice")

    def issue(self, name: str, *identities: str, days: tuple[int, int] = (-1, 30), **how: Any) -> Path:
        """Write a certificate and its key to a file. `days` is its validity, relative to now."""
        path = self.folder / f"{name}.pem"
        begin, end = (dt.datetime.now(dt.UTC) + dt.timedelta(days=each) for each in days)
        issued = self.authority.issue_cert(*identities, not_before=begin, not_after=end, **how)
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the authority."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def security(self, certificate: Path | None = None) -> Security:
        """Return the security of korvet's client with TLS."""
        pem = certificate.read_text() if certificate is not None else ""
        return Security(Tls(trusted=self.ca.read_text(), chain=pem, key=pem))
