"""Brokers with TLS for the tests of clients: one with SASL, and one that requires certificates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from tests.certificates import Authority
from tests.processes import KorvetProcess

PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "alice's, secret="
KEY = ECKey.generate_key("P-256", {"kid": "key"})
LIMIT_S = 30.0


@contextmanager
def secured_brokers(authority: Authority) -> Iterator[dict[str, KorvetProcess]]:
    """A broker with SASL_SSL and the user alice, and one that requires client certificates and serves only alice's."""
    folder = Path(tempfile.mkdtemp(prefix="kt-"))
    storage = f"embedded:{folder / 'data'}"
    authorized = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
        "group.initial.rebalance.delay.ms": "0",
    }
    sasl = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
        "ssl.keystore.location": str(authority.broker),
        "sasl.enabled.mechanisms": ",".join((*PASSWORDS, "OAUTHBEARER")),
        "sasl.oauthbearer.jwks.endpoint.url": write_keys(folder / "keys"),
    }
    mutual = {
        "listener.security.protocol.map": "PLAINTEXT:SSL",
        "ssl.keystore.location": str(authority.broker),
        "ssl.truststore.location": str(authority.ca),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),.*$/$1/",
    }
    try:
        add_alice(storage)
        with (
            KorvetProcess(storage, sasl | authorized, ["--processes", "2"]) as first,
            KorvetProcess("memory://", mutual | authorized) as second,
        ):
            yield {"SASL_SSL": first, "SSL": second}
    finally:
        shutil.rmtree(folder)


def add_alice(storage: str) -> None:
    """Add the user to a store by a command."""
    subprocess.run(
        [sys.executable, "-m", "korvet", "users", "add", "alice", "--storage", storage],
        env=os.environ | {"KORVET_PASSWORD": PASSWORD},
        check=True,
        timeout=LIMIT_S,
    )


def write_keys(path: Path) -> str:
    """Write the public keys of tokens to a file, and return its URL."""
    path.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    return path.as_uri()


def token(_: str = "") -> tuple[str, float]:
    """Return a token of alice and the time of its expiry, as confluent-kafka requires of a callback."""
    expires = time.time() + 300
    claims = {"sub": "alice", "iat": int(time.time()), "exp": int(expires)}
    return jwt.encode({"alg": "ES256", "kid": "key"}, claims, KEY, ["ES256"]), expires
