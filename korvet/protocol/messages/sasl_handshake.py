"""SaslHandshake: which SASL mechanism is to be used; asked before SaslAuthenticate (KIP-43, KIP-152)."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, message, string


@message(key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest:
    mechanism: str = string()


@message(key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse:
    error_code: int = int16(default=0)
    mechanisms: list[str] = array(string)
