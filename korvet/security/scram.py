"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and the server's side of an exchange.

As in Kafka, names and passwords are their UTF-8 bytes without SASLprep, there is no channel binding, and extensions are
ignored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from enum import IntEnum

from attrs import define, field, frozen

from korvet.protocol.errors import SaslAuthenticationFailed
from korvet.security.plain import OTHER_IDENTITY
from korvet.security.sasl import Rejected, from_sasl_name

#: Kafka's bounds. The lower one is that of RFC 7677, and the default of Kafka's tools.
FEWEST_ITERATIONS, MOST_ITERATIONS = 4096, 16384
SALT_BITS = 130
BASE_36 = "0123456789abcdefghijklmnopqrstuvwxyz"

NAME = rb"(?:[^\x00=,]|=2C|=3D)+"
PRINTABLE = rb"[\x21-\x2b\x2d-\x7e]+"
BASE64 = rb"[A-Za-z0-9+/]*={0,2}"
EXTENSIONS = rb"(?:,[A-Za-z]+=[^\x00,]+)*"
CLIENT_FIRST = re.compile(
    rb"(?P<header>n,(?:a=(?P<identity>%b))?,)" % NAME
    + rb"(?P<bare>n=(?P<name>%b),r=(?P<nonce>%b)(?P<extensions>%b))" % (NAME, PRINTABLE, EXTENSIONS)
)
CLIENT_FINAL = re.compile(
    rb"(?P<without_proof>c=(?P<binding>%b),r=(?P<nonce>%b)%b)" % (BASE64, PRINTABLE, EXTENSIONS)
    + rb",p=(?P<proof>%b)" % BASE64
)


class ScramMechanism(IntEnum):
    """The mechanisms, with their numbers in Kafka's messages."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of the hash in `hashlib`."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()


#: The mechanisms by their names in SASL.
MECHANISMS = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


@frozen
class ScramCredential:
    """The values that a server stores instead of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def new_salt() -> bytes:
    return salt_of(secrets.randbits(SALT_BITS))


def salt_of(number: int) -> bytes:
    """Return a number as a salt in the form of Kafka's clients: digits of base 36."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = BASE_36[digit] + digits
    return digits.encode()


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. It takes milliseconds, during which other threads run."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.digest), iterations)


def is_password_of(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Return True if the credential was made from the password. It takes as long as `salted_password`."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    given = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(given.stored_key, credential.stored_key)


@define
class ScramServer:
    """An exchange of two messages.

    `credential` returns the credential of a user name. For an unknown name it returns a made-up one that no password
    matches, so that the exchange fails at the same message as for a wrong password.
    """

    mechanism: ScramMechanism
    credential: Callable[[str], Awaitable[ScramCredential]]
    nonce: str = field(factory=lambda: secrets.token_urlsafe(24), repr=False)
    username: str = field(default="", init=False)
    is_complete: bool = field(default=False, init=False)
    expires_ms: int | None = field(default=None, init=False)
    _header: bytes = field(default=b"", init=False, repr=False)
    # The first messages of client and server, of which both sides sign all.
    _exchanged: bytes = field(default=b"", init=False, repr=False)
    _nonce: bytes = field(default=b"", init=False, repr=False)  # the client's and the server's
    _credential: ScramCredential | None = field(default=None, init=False, repr=False)

    async def evaluate(self, response: bytes) -> bytes:
        """See `SaslServer.evaluate`."""
        if self._credential is None:
            return await self._answer_first(response)
        credential, self._credential = self._credential, None
        return self._answer_final(response, credential)

    async def _answer_first(self, message: bytes) -> bytes:
        match = CLIENT_FIRST.fullmatch(message)
        if match is None or self.is_complete or self._exchanged:
            raise Rejected("the first message is not one of SCRAM without channel binding")
        self.username = _decoded(match["name"])
        if b",tokenauth=true" in match["extensions"].lower():
            raise Rejected("it has a delegation token, which is not supported")
        if match["identity"] not in (None, match["name"]):
            raise SaslAuthenticationFailed(OTHER_IDENTITY)
        credential = self._credential = await self.credential(self.username)
        self._header = match["header"]
        self._nonce = match["nonce"] + self.nonce.encode()
        salt = base64.b64encode(credential.salt)
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, salt, credential.iterations)
        self._exchanged = b"%b,%b" % (match["bare"], answer)
        return answer

    def _answer_final(self, message: bytes, credential: ScramCredential) -> bytes:
        match = CLIENT_FINAL.fullmatch(message)
        # Not equal: older versions of librdkafka write their own nonce twice. Kafka accepts that, too.
        if match is None or not match["nonce"].endswith(self._nonce):
            raise Rejected("the final message does not belong to the first")
        if _binary(match["binding"]) != self._header:
            raise Rejected("the channel binding is not that of the first message")
        signed = b"%b,%b" % (self._exchanged, match["without_proof"])
        digest = self.mechanism.digest
        signature = hmac.digest(credential.stored_key, signed, digest)
        proof = _binary(match["proof"])
        client_key = bytes(ours ^ theirs for ours, theirs in zip(signature, proof, strict=False))
        stored_key = hashlib.new(digest, client_key).digest()
        if len(proof) != len(signature) or not hmac.compare_digest(stored_key, credential.stored_key):
            raise Rejected("the user is unknown or the password is wrong")
        self.is_complete = True
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest))


def _decoded(name: bytes) -> str:
    try:
        return from_sasl_name(name.decode())
    except UnicodeDecodeError:
        raise Rejected("the user name is not UTF-8") from None


def _binary(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Rejected("the final message is not base64") from None
