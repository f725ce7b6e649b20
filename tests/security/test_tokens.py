from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, Key, KeySet, OctKey, OKPKey, RSAKey

from korvet.security.jwks import Jwks
from korvet.security.oauthbearer import InvalidToken, Token
from korvet.security.tokens import TokenRules, TokenVerifier

NOW = 1_700_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
CLAIMS = {"sub": " alice ", "iat": NOW - 10, "exp": NOW + 60, "iss": "https://issuer", "aud": "korvet"}
RULES = TokenRules(issuer="https://issuer", audiences=("korvet", "kafka"))


@pytest.fixture
def jwks(tmp_path: Path) -> Jwks:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(KeySet([RSA, EC, ED]).as_dict(private=False)))
    return Jwks(file.as_uri())


def verifier(jwks: Jwks, rules: TokenRules = RULES) -> TokenVerifier:
    return TokenVerifier(rules, jwks, lambda: NOW)


def token(key: Key = RSA, algorithm: str = "RS256", header: Mapping[str, Any] = {}, **claims: Any) -> str:
    made = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid, **header}, made, key, [algorithm])


def encoded(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("key, algorithm", [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "Ed25519")])
async def test_token_signed_by_a_known_key_is_accepted(jwks: Jwks, key: Key, algorithm: str) -> None:
    made = token(key, algorithm, scope=["a", "b"])

    assert Token("alice", (NOW + 60) * 1000, frozenset("ab")) == await verifier(jwks).verify(made)


async def test_token_without_a_key_id_is_accepted(jwks: Jwks) -> None:
    made = jwt.encode({"alg": "RS256"}, CLAIMS, RSA, ["RS256"])

    assert "alice" == (await verifier(jwks).verify(made)).subject


async def test_claim_names_are_configurable(jwks: Jwks) -> None:
    rules = TokenRules(scope_claim="permissions", subject_claim="client")
    made = await verifier(jwks, rules).verify(token(client="bob", permissions="one", iss="any", aud=None))

    assert ("bob", frozenset({"one"})) == (made.subject, made.scopes)


@pytest.mark.parametrize("skew", [-29, 29])
async def test_clock_skew_is_tolerated(jwks: Jwks, skew: int) -> None:
    made = token(iat=NOW + skew, exp=NOW + skew)

    assert "alice" == (await verifier(jwks).verify(made)).subject


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"iat": None},
        {"iat": NOW + 31},
        {"nbf": NOW + 31},
        {"iss": "https://other"},
        {"iss": None},
        {"iss": ["https://issuer"]},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": None},
        {"aud": {}},
        {"sub": None},
        {"sub": ""},
        {"sub": "  "},
        {"sub": 1},
        {"scope": [1]},
        {"scope": 1},
        {"scope": [""]},
    ],
    ids=str,
)
async def test_token_with_invalid_claims_is_refused(jwks: Jwks, claims: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        await verifier(jwks).verify(token(**claims))


@pytest.mark.parametrize("expires", [1e300, 10**30])
async def test_token_that_expires_after_all_times_is_accepted(jwks: Jwks, expires: float) -> None:
    found = await verifier(jwks).verify(token(exp=expires))

    assert 253_402_300_799_000 == found.expires_ms


async def test_token_signed_by_an_unknown_key_is_refused(jwks: Jwks) -> None:
    for made in (token(STRANGER), token(header={"kid": "unknown"})):
        with pytest.raises(InvalidToken):
            await verifier(jwks).verify(made)


async def test_token_without_a_valid_signature_is_refused(jwks: Jwks) -> None:
    header, claims, signature = token().split(".")
    none = f"{encoded({'alg': 'none'})}.{claims}."
    for made in (none, f"{header}.{claims}.", f"{header}.{claims}", f"{header}.{claims}.{signature[::-1]}"):
        with pytest.raises(InvalidToken):
            await verifier(jwks).verify(made)


async def test_hmac_with_a_public_key_is_refused(jwks: Jwks) -> None:
    public = OctKey.import_key({"kty": "oct", "k": encoded(RSA.as_dict(private=False))})
    made = jwt.encode({"alg": "HS256", "kid": "rsa"}, CLAIMS, public, ["HS256"])
    with pytest.raises(InvalidToken, match="signed with 'HS256', which is not accepted"):
        await verifier(jwks).verify(made)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.b.c", "é", "e30.e30.", "bnVsbA.e30.x", "W10.e30.x", "e" * 100_000]
)
async def test_malformed_token_is_refused(jwks: Jwks, text: str) -> None:
    with pytest.raises(InvalidToken):
        await verifier(jwks).verify(text)


async def test_claims_that_are_not_an_object_are_refused(jwks: Jwks) -> None:
    for claims in (b"[]", b"null", b"1", b"{", b"\xff", b"[" * 100_000):
        made = jws.serialize_compact({"alg": "RS256", "kid": "rsa"}, claims, RSA, ["RS256"])
        with pytest.raises(InvalidToken):
            await verifier(jwks).verify(made)
