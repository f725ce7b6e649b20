"""Verification of JSON Web Tokens (RFC 7519) with joserfc: signature, issuer, audience, times and subject.

Only signatures with public keys are accepted. With `none`, or an HMAC whose key is public, a client could make its own
tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from attrs import define, frozen
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key

from korvet.security.jwks import Jwks
from korvet.security.oauthbearer import InvalidToken, Token

KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"),
)
# joserfc raises these, too, for tokens that are not built like one.
MALFORMED = (JoseError, ValueError, TypeError, KeyError, RecursionError)
MOST_KEYS_TRIED = 10
# The end of the year 9999, in seconds since 1970. A later expiry means the same.
LATEST_S = 253_402_300_799


@frozen
class TokenRules:
    """The required claims of a token. Without `issuer` and `audiences`, any are accepted."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    clock_skew_s: int = 30


@define
class TokenVerifier:
    """Verifies tokens by the keys of a key set. `clock` returns seconds since 1970."""

    rules: TokenRules
    jwks: Jwks
    clock: Callable[[], float] = time.time

    async def verify(self, text: str) -> Token:
        """Return the token. Raises InvalidToken."""
        header = _header(text)
        keys = await self.jwks.keys(header.get("kid"), KINDS[header["alg"][:2]])
        claims = _claims(text, keys[:MOST_KEYS_TRIED])
        try:
            self._registry().validate(claims)
            return self._token(claims)
        except MALFORMED as error:
            raise InvalidToken(f"the token is not acceptable: {error}") from None

    def _registry(self) -> jwt.JWTClaimsRegistry:
        required: dict[str, Any] = {"exp": {"essential": True}, "iat": {"essential": True}}
        if self.rules.issuer is not None:
            required["iss"] = {"essential": True, "value": self.rules.issuer}
        if self.rules.audiences:
            required["aud"] = {"essential": True, "values": list(self.rules.audiences)}
        return jwt.JWTClaimsRegistry(int(self.clock()), self.rules.clock_skew_s, **required)

    def _token(self, claims: dict[str, Any]) -> Token:
        subject, scopes = claims.get(self.rules.subject_claim), claims.get(self.rules.scope_claim, ())
        if not isinstance(subject, str) or not subject.strip():
            raise ValueError(f"its claim {self.rules.subject_claim} is no name")
        scopes = (scopes,) if isinstance(scopes, str) else scopes
        if not all(isinstance(scope, str) and scope.strip() for scope in scopes):
            raise ValueError(f"its claim {self.rules.scope_claim} is no list of scopes")
        # JSON has numbers without bound. joserfc has verified that it is one.
        expires_ms = int(min(claims["exp"], LATEST_S) * 1000)
        return Token(subject.strip(), expires_ms, frozenset(scope.strip() for scope in scopes))


def _header(text: str) -> dict[str, Any]:
    """Return the header of a token that is signed with an accepted algorithm."""
    try:
        header: dict[str, Any] = jws.extract_compact(text.encode()).headers()
    except MALFORMED as error:
        raise InvalidToken(f"it is no signed token: {error}") from None
    if header.get("alg") not in ALGORITHMS:
        raise InvalidToken(f"it is signed with {header.get('alg')!r:.50}, which is not accepted")
    return header


def _claims(text: str, keys: list[Key]) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed."""
    reason = "no key is known that it could be signed with"
    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(text, key, list(ALGORITHMS)).claims
        except MALFORMED as error:
            reason = str(error)
        else:
            return claims
    raise InvalidToken(f"its signature is not valid: {reason}")
