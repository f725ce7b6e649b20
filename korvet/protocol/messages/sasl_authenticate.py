"""SaslAuthenticate: a step of a SASL exchange, of the mechanism that SaslHandshake chose (KIP-152, KIP-368)."""

from __future__ import annotations

from korvet.protocol.schema import bytes_, int16, int64, message, string


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = bytes_()


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = bytes_()
    session_lifetime_ms: int = int64(versions="1+", default=0, ignorable=True)
