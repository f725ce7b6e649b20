"""A client's connection as the broker sees it, without IO: bytes in, requests out, answers to bytes.

    connection.receive_data(data)
    while (request := connection.next_request()) is not NEED_DATA:
        response = ...
        send(connection.send(request, response))

The table of APIs is given to it; it imports no handlers and never looks at an `Api.handle`. It keeps no queue
and remembers no request: the caller sends answers in the order of the requests.

What breaks the protocol raises ProtocolError, and after it nothing more can be read; the caller closes, as
Kafka does for malformed bytes, unknown APIs and versions that are not served. Two requests of unserved
versions are answered instead, since clients would not find their way otherwise. They come with their answer
in `Request.refusal` and are not to be handled:

- ApiVersions of any other version gets error 35 and the supported range, in version 0 (KIP-511).
- Produce v0 to v2 gets error 35 for every partition. These versions must be advertised, or librdkafka takes
  the broker for one without compression (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from struct import Struct
from typing import Any, Final, Literal

from attrs import Factory, define, field, frozen

from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import Reader, Writer, decode, decoder, writer
from korvet.protocol.errors import ErrorCode, ProtocolError
from korvet.protocol.frames import FrameReader, framed
from korvet.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from korvet.protocol.messages.header import RequestHeader, ResponseHeader
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from korvet.protocol.requests import API_VERSIONS, request_header_version, response_header_version
from korvet.protocol.schema import versions_of

PRODUCE = 0

KEY_AND_VERSION = Struct(">hh")

# Where librdkafka asks for all topics it writes the null array in four bytes instead of one (its issue 5049): the
# three behind it are read as the fields that follow, which say no more then, and what was meant is left over.
# Kafka, which ignores whatever is left over behind any request, never noticed.
LIBRDKAFKA_LEFT_OVER = 3


class NeedData(Enum):
    """Has one member, so that type checkers can tell it from a Request."""

    NEED_DATA = "NEED_DATA"


#: What `Connection.next_request` returns until a whole request is here.
NEED_DATA: Final = NeedData.NEED_DATA


@frozen
class Spoken:
    """One version of an API: how a request is read, its header first, and how an answer is written."""

    read_header: Reader[RequestHeader]
    read_body: Reader[Any]
    write_header: Writer[ResponseHeader]
    write_body: Writer[Any]


@frozen
class Api:
    """One API the broker speaks: its messages, the versions it serves, and who handles it."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    # What ApiVersions tells; below `min_version` only for Produce.
    advertised_min_version: int = Factory(lambda self: self.min_version, takes_self=True)
    handle: Any = None
    _spoken: dict[int, Spoken] = field(factory=dict, init=False, repr=False, eq=False)

    def spoken(self, version: int) -> Spoken:
        """That version, whether it is served or not. Raises UnsupportedVersion where there is no such thing."""
        spoken = self._spoken.get(version)
        if spoken is None:
            # mypy takes no class for Hashable
            spoken = self._spoken[version] = Spoken(
                decoder(RequestHeader, request_header_version(self.request, version)),
                decoder(self.request, version),  # type: ignore[arg-type]
                writer(ResponseHeader, response_header_version(self.response, version)),
                writer(self.response, version),  # type: ignore[arg-type]
            )
        return spoken


@frozen
class Request:
    """A request as it came. `records` in its body are writable views of its frame."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    frame_size: int  # without the four bytes of the size itself
    response_version: int
    refusal: Any = None  # the response, where the version is not served; `body` is None then


@define
class Connection:
    """The state of one connection: bytes that are no whole request yet."""

    apis: Mapping[int, Api]
    max_frame_bytes: int = field(kw_only=True)
    _frames: FrameReader = field(
        default=Factory(lambda self: FrameReader(self.max_frame_bytes), takes_self=True), init=False
    )
    _failed: bool = field(default=False, init=False)

    def receive_data(self, data: Buffer) -> None:
        """Take bytes off the socket; `next_request` says what they make."""
        self._frames.receive_data(data)

    @property
    def idle(self) -> bool:
        """Whether nothing of a next request has arrived."""
        return self._frames.idle

    @property
    def arrived(self) -> int:
        """Received bytes of requests that `next_request` has not returned."""
        return self._frames.arrived

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the request being received takes: its received bytes, or up to four times as many."""
        return self._frames.held_bytes

    @property
    def pending_frame_size(self) -> int | None:
        """The size of the request being received, as soon as its first four bytes are here.

        Raises ProtocolError when the size is negative or above `max_frame_bytes`.
        """
        return self._frames.pending_frame_size

    def allow_frame(self) -> None:
        """Take memory for more of a large request (above 64 kB); does nothing for a small one."""
        self._frames.allow_frame()

    def frame_buffer(self) -> memoryview | None:
        """Return where more of an allowed large request may be received into; else None."""
        return self._frames.frame_buffer()

    def buffer_filled(self, count: int) -> None:
        """Tell that `count` bytes were received into the beginning of `frame_buffer()`."""
        self._frames.buffer_filled(count)

    def next_request(self) -> Request | Literal[NeedData.NEED_DATA]:
        """The next whole request, or NEED_DATA. Raises ProtocolError, from then on always."""
        if self._failed:
            raise ProtocolError("nothing can be read behind bytes that broke the protocol")
        try:
            frame = self._frames.next_frame()
            return NEED_DATA if frame is None else self._parse(memoryview(frame))
        except ProtocolError:
            self._failed = True
            raise

    def send(self, request: Request, response: object | None) -> list[Buffer]:
        """The bytes of the answer to a request, as buffers to be sent one after the other.

        Record buffers of some size are among them as the response holds them. None, the answer to a Produce
        with acks=0, makes no bytes.
        """
        if response is None:
            return []
        spoken = request.api.spoken(request.response_version)
        pieces: list[Buffer] = []
        spoken.write_header(ResponseHeader(correlation_id=request.correlation_id), pieces.append)
        spoken.write_body(response, pieces.append)
        return framed(pieces)

    def _parse(self, frame: memoryview) -> Request:
        if len(frame) < KEY_AND_VERSION.size:
            raise ProtocolError(f"a frame of {len(frame)} bytes, too few for a request header")
        key, version = KEY_AND_VERSION.unpack_from(frame)
        api = self.apis.get(key)
        if api is None:
            raise ProtocolError(f"unknown API key {key}")
        if not api.min_version <= version <= api.max_version:
            header, end = decode(RequestHeader, request_header_version(api.request, version), frame)
            return refuse(api, header, frame, end)
        spoken = api.spoken(version)
        header, end = spoken.read_header(frame, 0)
        body, end = spoken.read_body(frame, end)
        check_end(frame, end, body, version)
        return Request(api, version, header.correlation_id, header.client_id, body, len(frame), version)


def check_end(frame: memoryview, end: int, body: object, version: int) -> None:
    """Raise ProtocolError where there is more in the frame than the request, which ends at `end`."""
    size = len(frame) - end
    if size and not (size == LIBRDKAFKA_LEFT_OVER and asks_for_all_topics(body, version)):
        raise ProtocolError(f"{size} bytes are left over behind a {type(body).__name__} v{version}")


def asks_for_all_topics(body: object, version: int) -> bool:
    """Whether this is the one request that librdkafka writes too long."""
    return isinstance(body, MetadataRequest) and version >= 9 and body.topics is None


def refuse(api: Api, header: RequestHeader, frame: memoryview, offset: int) -> Request:
    """A request of a version that is not served, with its answer where clients need one."""
    version = header.request_api_version
    if api.key == API_VERSIONS:
        refusal: object = refuse_api_versions(api)
        response_version = 0
    elif api.key == PRODUCE and version in versions_of(api.request) and version < api.min_version:
        body, end = decode(ProduceRequest, version, frame, offset)
        check_end(frame, end, body, version)
        refusal = refuse_produce(body)
        response_version = version
    else:
        served = f"{api.min_version} to {api.max_version} are served"
        raise ProtocolError(f"{api.name} version {version}; {served}")
    return Request(
        api,
        version,
        header.correlation_id,
        header.client_id,
        None,
        len(frame),
        response_version,
        refusal,
    )


def refuse_api_versions(api: Api) -> ApiVersionsResponse:
    supported = ApiVersion(
        api_key=api.key, min_version=api.advertised_min_version, max_version=api.max_version
    )
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])


def refuse_produce(request: ProduceRequest) -> ProduceResponse:
    """Error 35 for every partition; with acks=0 the client awaits no answer, so only closing can tell it."""
    if request.acks == 0:
        raise ProtocolError("a Produce below version 3 with acks=0")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(
                        index=partition.index, error_code=ErrorCode.UNSUPPORTED_VERSION, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
