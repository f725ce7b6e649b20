"""The client's side of the protocol: encode requests into frames, and decode responses from frames."""

from __future__ import annotations

from typing import TypeVar

from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import decode, encode
from korvet.protocol.errors import ProtocolError
from korvet.protocol.frames import Frame, framed
from korvet.protocol.messages.header import RequestHeader, ResponseHeader
from korvet.protocol.schema import is_flexible, schema_of

M = TypeVar("M")

#: The only API whose response header is never flexible: the client does not have the broker's versions before it.
API_VERSIONS = 18


def request_header_version(request: type[object], version: int) -> int:
    """Return the version of the header for a version of a request."""
    return 2 if is_flexible(request, version) else 1


def response_header_version(response: type[object], version: int) -> int:
    """Return the version of the header for a version of a response."""
    return 1 if is_flexible(response, version) and schema_of(response).key != API_VERSIONS else 0


def encode_request(request: object, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Return the frame of a request. Raises UnsupportedVersion as `codec.encode` does."""
    key = schema_of(type(request)).key
    if key is None:
        raise TypeError(f"{type(request).__name__} is not a request")
    header = RequestHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    pieces: list[Buffer] = []
    encode(header, request_header_version(type(request), version), pieces.append)
    encode(request, version, pieces.append)
    return framed(pieces)


def decode_response(response: type[M], version: int, frame: Frame) -> tuple[int, M]:
    """Return the correlation id and the message in a frame of `FrameReader`. Raises ProtocolError."""
    data = memoryview(frame)
    header, end = decode(ResponseHeader, response_header_version(response, version), data)
    message, end = decode(response, version, data, end)
    if end != len(data):
        raise ProtocolError(f"{len(data) - end} bytes are left over behind a {response.__name__}")
    return header.correlation_id, message
