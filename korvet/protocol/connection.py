"""The broker's side of a connection, without IO: decode requests from bytes, and encode responses to bytes.

    connection.frames.receive_data(data)
    while (request := connection.next_request()) is not NEED_DATA:
        response = ...
        send(connection.send(request, response))

The caller passes the table of APIs. This module does not import handlers, and does not use `Api.handle`. A Connection
does not store requests, so the caller must send the responses in the order of the requests.

Bytes that violate the protocol raise ProtocolError, and after that nothing more can be read. The caller must close the
connection, as Kafka does for malformed bytes, unknown APIs and versions that are not served. Two requests of versions
that are not served get a response instead, because clients depend on it. It is in `Request.refusal`, and the caller
must not handle such a request:

- ApiVersions of any other version gets error 35 and the supported range, in version 0 (KIP-511).
- Produce v0 to v2 gets error 35 for every partition. These versions must be advertised, otherwise librdkafka assumes
  that the broker does not support compression (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import Factory, define, evolve, field, frozen

from korvet.protocol.buffers import Buffer, join_small
from korvet.protocol.codec import Reader, Writer, decoder, step_decoder, step_writer, writer
from korvet.protocol.errors import ProtocolError
from korvet.protocol.frames import LARGE_FRAME, LARGE_PIECE, Frame, FrameReader, framed
from korvet.protocol.messages.header import RequestHeader, ResponseHeader
from korvet.protocol.requests import request_header_version, response_header_version
from korvet.protocol.steps import Steps, at_once

if TYPE_CHECKING:
    from korvet.protocol.messages.produce import ProduceRequest
    from korvet.protocol.repeated_produce import RepeatedProduce

PRODUCE = 0
METADATA = 3
SASL_AUTHENTICATE = 36

KEY_AND_VERSION = Struct(">hh")
CORRELATION_ID = Struct(">i")
# The number of successive Produce requests that are alike from which the next ones are compared with them.
WORTH_COMPARING = 2

# When librdkafka requests all topics, it writes the null array in four bytes instead of one (its issue 5049). The other
# three bytes are read as the fields that follow, so the last three bytes of the request are left over. These are not
# reported, since every librdkafka sends them.
LIBRDKAFKA_LEFT_OVER = 3
# Limit of the pieces of a large response before they are joined, since each takes 40 bytes more than it contains.
PIECES_JOINED = 1_000


#: Names of APIs of Apache Kafka's that korvet does not serve, or not on every store, for the log. As in Kafka,
#: ApiVersions does not list them, so clients refuse such requests themselves, by the name of the API.
KAFKAS_OTHER_APIS: Final[Mapping[int, str]] = {
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    34: "AlterReplicaLogDirs",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    43: "ElectLeaders",
    45: "AlterPartitionReassignments",
    55: "DescribeQuorum",
    57: "UpdateFeatures",
    61: "DescribeProducers",
    64: "UnregisterBroker",
    65: "DescribeTransactions",
    66: "ListTransactions",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe",
    78: "ShareFetch",
    79: "ShareAcknowledge",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
    88: "StreamsGroupHeartbeat",
    89: "StreamsGroupDescribe",
    90: "DescribeShareGroupOffsets",
    91: "AlterShareGroupOffsets",
    92: "DeleteShareGroupOffsets",
}


class NeedData(Enum):
    """An enum with one member, so that type checkers can distinguish it from a Request."""

    NEED_DATA = "NEED_DATA"


#: `Connection.next_request` returns this until a complete request has arrived.
NEED_DATA: Final = NeedData.NEED_DATA


@frozen
class Spoken:
    """The functions for one version of an API: they read a request's header and body, and write a response's."""

    read_header: Reader[RequestHeader]
    read_body: Reader[Any]
    write_header: Writer[ResponseHeader]
    write_body: Writer[Any]


@frozen
class Api:
    """An API that the broker serves: its messages, the served versions, and its handler."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    min_version: int
    max_version: int
    # The lowest version in ApiVersions responses. It is below `min_version` only for Produce.
    advertised_min_version: int = Factory(lambda self: self.min_version, takes_self=True)
    handle: Any = None
    _spoken: dict[int, Spoken] = field(factory=dict, init=False, repr=False, eq=False)

    def spoken(self, version: int) -> Spoken:
        """Return the functions of a version, even if it is not served. Raises UnsupportedVersion if none exists."""
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


@define
class Request:
    """A decoded request. `records` in its body are writable views of its frame."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: Any
    frame_size: int  # without the four bytes of the size itself
    response_version: int
    refusal: Any = None  # the response if the version is not served; then `body` is None
    is_bare: bool = False  # a message of a SASL mechanism, which had no header
    left_over: int = 0  # bytes behind the body, which are ignored, as in Kafka
    repeated: RepeatedProduce | None = None  # what has decoded the body, if the codec has not


@frozen
class LargeRequest:
    """A request of more than 64 kB that has arrived and is not decoded yet. A bare message has any `api_key`."""

    api_key: int
    frame_size: int
    decode: Steps[Request]  # raises ProtocolError


@define
class Connection:
    """The state of one connection: the received bytes of an incomplete request."""

    apis: Mapping[int, Api]
    # Receives the bytes, and refuses larger frames.
    frames: FrameReader = field(converter=FrameReader, alias="max_frame_bytes", kw_only=True)
    # The keys of the APIs that are accepted, before a client has authenticated; None if all are.
    accepted: frozenset[int] | None = field(default=None, init=False)
    # True if frames are messages of a SASL mechanism (after SaslHandshake v0). They are returned as SaslAuthenticate.
    is_bare: bool = field(default=False, init=False)
    _failed: bool = field(default=False, init=False)
    # The likeness of the last Produce requests, the number of successive ones that have it, and from the second one on
    # the object that decodes others like them.
    _likeness: tuple[object, ...] | None = field(default=None, init=False)
    _alike: int = field(default=0, init=False)
    _repeated: tuple[Api, RepeatedProduce] | None = field(default=None, init=False)

    def next_request(self) -> Request | Literal[NeedData.NEED_DATA]:
        """Return the next complete request, or NEED_DATA. Raises ProtocolError, and then at every later call."""
        request = self.begin_request()
        return at_once(request.decode) if isinstance(request, LargeRequest) else request

    def begin_request(self) -> Request | LargeRequest | Literal[NeedData.NEED_DATA]:
        """Do the same, but do not decode a large request yet."""
        if self._failed:
            raise ProtocolError("nothing can be read behind bytes that broke the protocol")
        try:
            frame = self.frames.next_frame()
            if frame is None:
                return NEED_DATA
            if len(frame) > LARGE_FRAME:
                api_key = int.from_bytes(frame[:2], "big")
                return LargeRequest(api_key, len(frame), self._parse_in_steps(memoryview(frame)))
            repeated = None if self._repeated is None else self._parse_repeated(*self._repeated, frame)
            return repeated or self._parse(memoryview(frame))
        except ProtocolError:
            self._failed = True
            raise

    def send(self, request: Request, response: Any) -> list[Buffer]:
        """Return the bytes of the response to a request, as buffers to send one after the other.

        Large record buffers of the response are returned without a copy. A response of None, as for a Produce with
        acks=0, has no bytes.
        """
        if response is None:
            return []
        if request.is_bare:
            return [] if response.error_code else framed([response.auth_bytes])
        if request.repeated is not None:
            frame = request.repeated.encode(request.correlation_id, response)
            if frame is not None:
                return [frame]
        spoken = request.api.spoken(request.response_version)
        pieces: list[Buffer] = []
        spoken.write_header(ResponseHeader(correlation_id=request.correlation_id), pieces.append)
        spoken.write_body(response, pieces.append)
        return framed(pieces)

    def send_in_steps(self, request: Request, response: Any) -> Steps[list[Buffer]]:
        """Do the same in steps, for a large request, since its response may have as many elements."""
        if response is None or request.is_bare:
            return self.send(request, response)
        version = request.response_version
        pieces: list[Buffer] = []
        joined: list[Buffer] = []
        request.api.spoken(version).write_header(
            ResponseHeader(correlation_id=request.correlation_id), pieces.append
        )
        # mypy takes no class for Hashable
        write = step_writer(type(response), version)  # type: ignore[arg-type]
        for _ in write(response, pieces.append):
            if len(pieces) >= PIECES_JOINED:
                joined += join_small(pieces, LARGE_PIECE)
                pieces.clear()
            yield None
        return framed([*joined, *pieces])

    def _parse(self, frame: memoryview) -> Request:
        if self.is_bare:
            return self._bare(frame)
        api, version = self._api(frame)
        if not api.min_version <= version <= api.max_version:
            return _refused(api, version, frame)
        spoken = api.spoken(version)
        header, end = spoken.read_header(frame, 0)
        body, end = spoken.read_body(frame, end)
        if api.key == PRODUCE:
            self._compare(api, version, header.client_id, body, frame)
        return _request(api, header, frame, body, end)

    def _parse_repeated(self, api: Api, repeated: RepeatedProduce, frame: Frame) -> Request | None:
        """Return the request in a small frame if it is a Produce like the last ones."""
        if self.accepted is not None or self.is_bare or not isinstance(frame, bytearray):
            return None
        body = repeated.decode(frame)
        if body is None:
            return None
        (correlation_id,) = CORRELATION_ID.unpack_from(frame, KEY_AND_VERSION.size)
        version = repeated.version
        return Request(
            api,
            version,
            correlation_id,
            repeated.client_id,
            body,
            len(frame),
            version,
            repeated=repeated,
        )

    def _compare(
        self, api: Api, version: int, client_id: str | None, body: ProduceRequest, frame: memoryview
    ) -> None:
        """Compare a Produce with the last one that the codec has decoded."""
        # Imported here with the messages of Produce, which take time at the start of a broker.
        from korvet.protocol.repeated_produce import RepeatedProduce, likeness  # noqa: PLC0415

        like = likeness(version, client_id, body)
        self._alike = self._alike + 1 if like == self._likeness else 1
        self._likeness = like
        # Only once: a client whose requests are encoded unusually would cause this work for each of them.
        if like is not None and self._alike == WORTH_COMPARING:
            repeated = RepeatedProduce.of(version, body, frame)
            self._repeated = None if repeated is None else (api, repeated)

    def _parse_in_steps(self, frame: memoryview) -> Steps[Request]:
        try:
            if self.is_bare:
                return self._bare(frame)
            api, version = self._api(frame)
            if not api.min_version <= version <= api.max_version:
                return _refused(api, version, frame)
            header, end = api.spoken(version).read_header(frame, 0)
            # mypy takes no class for Hashable
            read = step_decoder(api.request, version)  # type: ignore[arg-type]
            body, end = yield from read(frame, end)
            return _request(api, header, frame, body, end)
        except ProtocolError:
            self._failed = True
            raise

    def _bare(self, frame: memoryview) -> Request:
        api = self.apis[SASL_AUTHENTICATE]
        body = api.request(auth_bytes=bytes(frame))
        return Request(api, 0, 0, None, body, len(frame), 0, is_bare=True)

    def _api(self, frame: memoryview) -> tuple[Api, int]:
        """Return the API and the version of a request. Raises ProtocolError for an API that is not accepted."""
        if len(frame) < KEY_AND_VERSION.size:
            raise ProtocolError(f"a frame of {len(frame)} bytes, too few for a request header")
        key, version = KEY_AND_VERSION.unpack_from(frame)
        api = self.apis.get(key)
        if api is None:
            name = KAFKAS_OTHER_APIS.get(key)
            raise ProtocolError(f"{name} is not served" if name else f"unknown API key {key}")
        if self.accepted is not None and key not in self.accepted:
            raise ProtocolError(f"{api.name} before the client has authenticated")
        return api, version


def _request(api: Api, header: RequestHeader, frame: memoryview, body: Any, end: int) -> Request:
    version, size = header.request_api_version, len(frame)
    request = Request(api, version, header.correlation_id, header.client_id, body, size, version)
    if end < size:
        left_over = size - end
        is_known = left_over == LIBRDKAFKA_LEFT_OVER and requests_all_topics(api, version, body)
        return request if is_known else evolve(request, left_over=left_over)
    return request


def _refused(api: Api, version: int, frame: memoryview) -> Request:
    """Return a request of a version that is not served, with its response. Raises ProtocolError for other APIs."""
    from korvet.protocol.refusals import refusal  # noqa: PLC0415  most brokers refuse none

    header, response, response_version = refusal(api, version, frame)
    return Request(
        api,
        version,
        header.correlation_id,
        header.client_id,
        None,
        len(frame),
        response_version,
        response,
    )


def requests_all_topics(api: Api, version: int, body: Any) -> bool:
    """Return True for the request that librdkafka encodes with additional bytes: Metadata of all topics, from v9."""
    return api.key == METADATA and version >= 9 and body.topics is None
