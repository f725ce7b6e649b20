r"""The server's side of OAUTHBEARER (RFC 7628): the client sends a token, and the server verifies it.

The server answers an invalid token with a JSON object. The client acknowledges it with the byte 0x01, and the exchange
fails with the same JSON as its message, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from attrs import define, field, frozen

from korvet.protocol.errors import SaslAuthenticationFailed
from korvet.security.sasl import Rejected, from_sasl_name

NAME = r"(?:[^\x00-\x01=,]|=2C|=3D)+"
PAIR = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
CLIENT_FIRST = re.compile(rf"n,(?:a=(?P<identity>{NAME}))?,\x01(?P<pairs>(?:{PAIR})*)\x01")
AUTHORIZATION = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
ACKNOWLEDGED = b"\x01"
INVALID_TOKEN = '{"status":"invalid_token"}'  # noqa: S105  the name of an error


class InvalidToken(Exception):  # noqa: N818  the outcome of a verification, not a fault
    """The token is not accepted. The message is for the log."""


@frozen
class Token:
    """A verified token."""

    subject: str
    expires_ms: int  # in milliseconds since 1970
    scopes: frozenset[str] = frozenset()


@define
class OAuthBearerServer:
    """An exchange of one message, or two if the token is invalid. `verify` raises InvalidToken."""

    verify: Callable[[str], Awaitable[Token]]
    username: str = field(default="", init=False)
    is_complete: bool = field(default=False, init=False)
    expires_ms: int | None = field(default=None, init=False)
    _fault: InvalidToken | None = field(default=None, init=False)

    async def evaluate(self, response: bytes) -> bytes:
        """See `SaslServer.evaluate`."""
        if self._fault is not None:
            raise self._failure(response) from self._fault
        identity, text = _parse(response)
        try:
            token = await self.verify(text)
        except InvalidToken as fault:
            self._fault = fault
            return INVALID_TOKEN.encode()
        self.username = token.subject
        if identity not in ("", token.subject):
            raise SaslAuthenticationFailed(
                f"Authentication failed: Client requested an authorization id ({identity}) that is different from the"
                f" token's principal name ({token.subject})"
            )
        self.expires_ms = token.expires_ms
        self.is_complete = True
        return b""

    def _failure(self, response: bytes) -> Exception:
        if response == ACKNOWLEDGED:
            return SaslAuthenticationFailed(INVALID_TOKEN)
        return Rejected(f"after an invalid token ({self._fault}) it sent another message")


def _parse(response: bytes) -> tuple[str, str]:
    """Return the authorization identity, which may be empty, and the token."""
    match = CLIENT_FIRST.fullmatch(response.decode(errors="replace"))
    if match is None:
        raise Rejected("the first message is not one of OAUTHBEARER")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
    authorization = AUTHORIZATION.fullmatch(pairs.get("auth", ""))
    if authorization is None or authorization["scheme"].lower() != "bearer":
        raise Rejected("the first message has no bearer token")
    return from_sasl_name(match["identity"] or ""), authorization["token"]
