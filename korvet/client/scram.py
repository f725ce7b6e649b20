"""The client's side of SCRAM (RFC 5802, RFC 7677), as Kafka implements it.

Kafka uses the UTF-8 bytes of user names and passwords without the preparation (SASLprep) that the RFC requires and that
libraries do: for Kafka, "ª" and "a" are different passwords. So this module implements SCRAM with the standard library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from attrs import define, field

from korvet.protocol.errors import SaslAuthenticationFailed

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# The header for no channel binding, in the first message and, as base64, in the last.
GS2_HEADER, GS2_HEADER_BASE64 = "n,,", "biws"
# Kafka uses 4,096 to 16,384. Each iteration takes half a microsecond, so a server must not request unlimited work.
MOST_ITERATIONS = 1_000_000


@define
class ScramClient:
    """One exchange: `first`, then `final` with the server's first message, then `verify` with its final message.

    Raises SaslAuthenticationFailed for invalid messages of the server, and if the server does not have the password.
    """

    mechanism: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    nonce: str = field(factory=lambda: secrets.token_urlsafe(24), repr=False)
    _signature: bytes = field(default=b"", init=False, repr=False)

    def first(self) -> bytes:
        return (GS2_HEADER + self._first_bare()).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the final message, which proves that the client has the password."""
        values = _values(server_first)
        nonce, iterations = values.get("r", ""), values.get("i", "")
        if not nonce.startswith(self.nonce) or nonce == self.nonce or not iterations.isdecimal():
            raise _fault("the broker's first message is not for this client")
        if not 1 <= int(iterations) <= MOST_ITERATIONS:
            raise _fault(f"the broker asks for {iterations} iterations; up to {MOST_ITERATIONS} are accepted")
        name = HASHES[self.mechanism]
        salted = hashlib.pbkdf2_hmac(
            name, self.password.encode(), _binary(values.get("s", "")), int(iterations)
        )
        client_key = hmac.digest(salted, b"Client Key", name)
        without_proof = f"c={GS2_HEADER_BASE64},r={nonce}"
        said = b",".join([self._first_bare().encode(), server_first, without_proof.encode()])
        client_signature = hmac.digest(hashlib.new(name, client_key).digest(), said, name)
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", name), said, name)
        proof = bytes(ours ^ theirs for ours, theirs in zip(client_key, client_signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's proof that it has the password."""
        values = _values(server_final)
        if "e" in values:
            raise _fault(f"the broker says {values['e']}")
        if not hmac.compare_digest(_binary(values.get("v", "")), self._signature):
            raise _fault("the broker's signature does not match the password")

    def _first_bare(self) -> str:
        username = self.username.replace("=", "=3D").replace(",", "=2C")
        return f"n={username},r={self.nonce}"


def _values(message: bytes) -> dict[str, str]:
    """Parse `r=…,s=…,i=…` into a dict by letter."""
    try:
        pairs = [pair.partition("=") for pair in message.decode().split(",")]
    except UnicodeDecodeError:
        raise _fault("the broker's message is not UTF-8") from None
    return {name: value for name, _, value in pairs}


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _fault("the broker's message is not base64") from None


def _fault(what: str) -> SaslAuthenticationFailed:
    return SaslAuthenticationFailed(f"SCRAM failed: {what}.")
