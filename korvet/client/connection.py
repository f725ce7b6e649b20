"""A client's connection to one broker: it negotiates versions once, then handles one request at a time.

After an error or a cancelled request, the connection cannot be used any more: the next request would read the previous
one's response. Its owner closes it and opens another one.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple, Self, TypeVar

import trio
from attrs import define, field

import korvet
from korvet.client.authentication import authenticate
from korvet.client.security import PLAINTEXT, Security
from korvet.client.tls import explain, secured
from korvet.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersion
from korvet.protocol.frames import Frame, FrameReader
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.requests import API_VERSIONS, decode_response, encode_request
from korvet.protocol.schema import MAX_VERSION, schema_of, versions_of

R = TypeVar("R")

DEFAULT_PORT = 9092
CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 256 * 1024
CLOSED = "the broker closed the connection"
# A listener closes connections without the TLS or the login that it requires, and gives no reason.
CLOSED_AT_ONCE = f"{CLOSED} without an answer; if this repeats, it requires another security.protocol"
# The part of a session's lifetime in which the connection is used for new requests.
SESSION_SHARE = 0.8
# Larger than the limit of any Fetch, since the first batch of a response may exceed that limit.
MAX_FRAME_BYTES = 512 * 1024 * 1024


class Address(NamedTuple):
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


PROTOCOL = re.compile(r"^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://", re.IGNORECASE)


def parse_address(text: str) -> Address:
    """Parse `host:port`, `[::1]:port`, or a host alone. Raises ValueError with the accepted forms.

    As in Java's client, the name of a protocol before it (PLAINTEXT://) is accepted and has no effect.
    """
    address = PROTOCOL.sub("", text.strip())
    host, colon, port = address.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in bare and bare == host):
        raise ValueError(f"{text!r} is not a broker address; accepted: host:port, [::1]:port")
    return Address(bare, int(port))


@define
class BrokerConnection:
    """See the module. Created by `connect`, ended by `close`. Requests raise OSError and Trio's stream errors."""

    address: Address
    _stream: trio.abc.Stream
    _client_id: str
    _versions: Mapping[int, range] = field(factory=dict, init=False)
    _correlation_id: int = field(default=0, init=False)
    _ends_at: float = field(default=math.inf, init=False)
    _is_proven: bool = field(default=False, init=False)  # a request has been answered
    _frames: FrameReader = field(factory=lambda: FrameReader(MAX_FRAME_BYTES), init=False)

    @classmethod
    async def connect(
        cls,
        address: Address,
        client_id: str,
        security: Security = PLAINTEXT,
        context: ssl.SSLContext | None = None,
    ) -> Self:
        """Connect, request the versions that the broker supports, and log in. `context` is for the security's TLS.

        The connection is closed if this fails or is cancelled.
        """
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream: trio.abc.Stream = await trio.open_tcp_stream(address.host, address.port)
        except trio.TooSlowError:
            raise TimeoutError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        try:
            if context is not None:
                stream = await secured(stream, context, address.host)
            connection = cls(address, stream, client_id)
            await connection._negotiate()
            if security.sasl is not None:
                lifetime_s = await authenticate(security.sasl, connection.request, address)
                connection._ends_at = (
                    trio.current_time() + lifetime_s * SESSION_SHARE if lifetime_s else math.inf
                )
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return connection

    @property
    def is_over(self) -> bool:
        """True if the broker will soon require a new login (KIP-368)."""
        # The client does not log in again on the same connection: a new connection is simpler.
        return trio.current_time() >= self._ends_at

    async def close(self) -> None:
        """Close immediately, without a checkpoint that cancellation could interrupt."""
        await trio.aclose_forcefully(self._stream)

    async def request(
        self, message: object, response: type[R], *, min_version: int = 0, max_version: int = MAX_VERSION
    ) -> R:
        """Send a request in the newest version that both sides support, within the limits, and return its response.

        Raises UnsupportedVersion before sending if there is no such version.
        """
        version = self._version(type(message), min_version, max_version)
        frame = await self._exchange(message, version)
        self._is_proven = True
        return self._decode(response, version, frame)

    async def send(self, message: object, *, max_version: int = MAX_VERSION) -> None:
        """Send a request that the broker does not answer: a Produce with acks=0."""
        await self._send(message, self._version(type(message), 0, max_version))

    def _version(self, request: type[object], min_version: int, max_version: int) -> int:
        key = schema_of(request).key
        ours = versions_of(request)
        theirs = self._versions.get(-1 if key is None else key, range(0))
        first = max(ours.start, theirs.start, min_version)
        last = min(ours.stop - 1, theirs.stop - 1, max_version)
        if last < first:
            name = request.__name__.removesuffix("Request")
            spoken = f"versions {theirs.start} to {theirs.stop - 1}" if theirs else "not at all"
            needed = f"{max(ours.start, min_version)} to {min(ours.stop - 1, max_version)}"
            raise UnsupportedVersion(
                f"The broker at {self.address} speaks {name} {spoken}; needed is {needed}."
            )
        return last

    async def _negotiate(self) -> None:
        message = ApiVersionsRequest(
            client_software_name="korvet", client_software_version=korvet.__version__
        )
        version = versions_of(ApiVersionsRequest)[-1]
        frame = await self._exchange(message, version)
        if _error_code(frame) == ErrorCode.UNSUPPORTED_VERSION:
            # A broker that does not support the version answers in version 0, with its versions (KIP-511).
            answer = self._decode(ApiVersionsResponse, 0, frame)
            known = (api.max_version for api in answer.api_keys if api.api_key == API_VERSIONS)
            version = min(version, next(known, 0))
            frame = await self._exchange(message, version)
        answer = self._decode(ApiVersionsResponse, version, frame)
        self._versions = {api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys}

    async def _exchange(self, message: object, version: int) -> Frame:
        await self._send(message, version)
        while (frame := self._frames.next_frame()) is None:
            self._frames.allow_frame()
            self._frames.receive_data(await self._receive())
        return frame

    async def _receive(self) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError as error:
            if self._is_proven or explain(error):
                raise
            data = b""  # a reset connection is handled like a closed one
        if not data:
            raise trio.EndOfChannel(CLOSED if self._is_proven else CLOSED_AT_ONCE)
        return data

    async def _send(self, message: object, version: int) -> None:
        self._correlation_id += 1
        for data in encode_request(message, version, self._correlation_id, self._client_id):
            await self._stream.send_all(data)

    def _decode(self, response: type[R], version: int, frame: Frame) -> R:
        correlation_id, answer = decode_response(response, version, frame)
        if correlation_id != self._correlation_id:
            raise ProtocolError(f"the answer to request {correlation_id}, not to {self._correlation_id}")
        return answer


def _error_code(frame: Frame) -> int:
    """Return the error code of an ApiVersions response, which in every version follows the correlation id."""
    return int.from_bytes(frame[4:6], "big", signed=True)
