"""The server's side of PLAIN (RFC 4616): the client sends its password. The messages are Kafka's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from attrs import define, field

from korvet.protocol.errors import SaslAuthenticationFailed

OTHER_IDENTITY = "Authentication failed: Client requested an authorization id that is different from username"


@define
class PlainServer:
    """An exchange of one message. `has_password` verifies a user name and a password."""

    has_password: Callable[[str, str], Awaitable[bool]]
    username: str = field(default="", init=False)
    is_complete: bool = field(default=False, init=False)
    expires_ms: int | None = field(default=None, init=False)

    async def evaluate(self, response: bytes) -> bytes:
        """See `SaslServer.evaluate`."""
        identity, self.username, password = _tokens(response)
        if not self.username:
            raise SaslAuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationFailed("Authentication failed: password not specified")
        if not await self.has_password(self.username, password):
            raise SaslAuthenticationFailed("Authentication failed: Invalid username or password")
        if identity not in ("", self.username):
            raise SaslAuthenticationFailed(OTHER_IDENTITY)
        self.is_complete = True
        return b""


def _tokens(response: bytes) -> list[str]:
    """Return authorization identity, user name and password."""
    tokens = response.decode(errors="replace").split("\0", maxsplit=3)
    if len(tokens) != 3:
        raise SaslAuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}")
    return tokens
