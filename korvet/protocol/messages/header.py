"""The headers of requests and responses.

A request's header is flexible (v2) if its body is. Its `client_id` is never a compact string, so that a broker can read
it without knowing the API. A response's header is flexible (v1) if its body is, except that of ApiVersions, which is
always v0 because the client does not know yet which versions the broker supports.
"""

from __future__ import annotations

from korvet.protocol.schema import int16, int32, message, string


@message(key=None, versions="1-2", flexible="2+")
class RequestHeader:
    request_api_key: int = int16()
    request_api_version: int = int16()
    correlation_id: int = int32()
    client_id: str | None = string(nullable="1+", compact=False)


@message(key=None, versions="0-1", flexible="1+")
class ResponseHeader:
    correlation_id: int = int32()
