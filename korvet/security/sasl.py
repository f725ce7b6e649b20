"""The interface of SASL mechanisms on the server's side."""

from __future__ import annotations

from typing import Protocol


class Rejected(Exception):  # noqa: N818  the outcome of an exchange, not a fault
    """The client's message is invalid or proves nothing.

    The message is for the log. The client receives a general one, because the reason could reveal whether a user
    exists. If a mechanism raises SaslAuthenticationFailed instead, the client receives its message, as in Kafka.
    """


class SaslServer(Protocol):
    """One exchange of a mechanism. After an exception the exchange cannot go on."""

    #: The name that the client authenticates as: empty until its first message, and proven if `is_complete`.
    username: str
    is_complete: bool
    #: When the credential expires, in milliseconds since 1970; None if it does not.
    expires_ms: int | None

    async def evaluate(self, response: bytes) -> bytes:
        """Return the answer to the client's next message. Raises Rejected and SaslAuthenticationFailed."""


def from_sasl_name(text: str) -> str:
    """Return the name that `=2C` and `=3D` in a message stand for (RFC 5802, saslname)."""
    return text.replace("=2C", ",").replace("=3D", "=")
