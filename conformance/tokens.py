"""Tokens for SASL OAUTHBEARER, signed by a key that both brokers accept."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import RSAKey

ISSUER, AUDIENCE, KEY_ID = "https://issuer.example", "kafka", "judge"


@cache
def _key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": KEY_ID, "use": "sig", "alg": "RS256"})


def write_keys(path: Path) -> None:
    """Write the public key as a JSON Web Key Set (RFC 7517)."""
    path.write_text(json.dumps({"keys": [_key().as_dict(private=False)]}), encoding="utf-8")


def token(*, key_id: str = KEY_ID, **claims: str | int) -> str:
    """Return a signed token for the brokers' issuer and audience, unless the claims name others."""
    header = {"alg": "RS256", "kid": key_id}
    return jwt.encode(header, {"iss": ISSUER, "aud": AUDIENCE, "scope": "kafka", **claims}, _key())
