from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import cycle
from struct import pack
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.protocol.buffers import Buffer
from korvet.protocol.connection import NEED_DATA, Api, Connection, Request
from korvet.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersion
from korvet.protocol.frames import GROWTH, LARGE_FRAME, LARGE_PIECE, MAPPED_FRAME, FrameReader, framed
from korvet.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.messages.header import RequestHeader
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.requests import decode_response, encode_request
from tests.protocol.samples import encoded

LIMIT = 10_000_000

APIS = {
    0: Api(0, "Produce", ProduceRequest, ProduceResponse, 3, 11, advertised_min_version=0),
    1: Api(1, "Fetch", FetchRequest, FetchResponse, 4, 17),
    3: Api(3, "Metadata", MetadataRequest, MetadataResponse, 0, 12),
    18: Api(18, "ApiVersions", ApiVersionsRequest, ApiVersionsResponse, 0, 4),
}

METADATA = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
FETCH = FetchRequest(
    max_wait_ms=500,
    min_bytes=1,
    topics=[
        FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=9)])
    ],
)


def broker(**options: Any) -> Connection:
    return Connection(APIS, **{"max_frame_bytes": LIMIT, **options})


def wire(request: Any, version: int, correlation_id: int = 7, client_id: str | None = "test") -> bytes:
    return b"".join(encode_request(request, version, correlation_id, client_id))


def frame(content: bytes) -> bytes:
    return pack(">i", len(content)) + content


def produce(records: bytes, *, acks: int = -1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=(records,))
    topic = TopicProduceData(name="orders", partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def requests_in(connection: Connection) -> list[Request]:
    """Return all complete requests."""
    got: list[Request] = []
    while isinstance(request := connection.next_request(), Request):
        got.append(request)
    return got


# --- Ways in which bytes arrive. Every case below runs with each of them. ---------------------------------


def whole(data: bytes) -> list[Request]:
    connection = broker()
    connection.frames.receive_data(data)
    return requests_in(connection)


def byte_by_byte(data: bytes) -> list[Request]:
    connection, got = broker(), []
    for number in range(len(data)):
        connection.frames.receive_data(data[number : number + 1])
        got += requests_in(connection)
    return got


def with_next_request_appended(data: bytes) -> list[Request]:
    connection = broker()
    behind = wire(METADATA, 9, correlation_id=99)
    connection.frames.receive_data(data + behind[:-1])
    got = requests_in(connection)
    connection.frames.receive_data(behind[-1:])
    (last,) = requests_in(connection)
    assert (99, METADATA) == (last.correlation_id, last.body)
    return got


def into_frame_buffer(data: bytes) -> list[Request]:
    """Feed pieces of 10 kB, and read into the frame's own buffer if there is one."""
    connection, got = broker(), []
    while data:
        if connection.frames.pending_frame_size is not None:
            connection.frames.allow_frame()
        buffer = connection.frames.frame_buffer()
        if buffer is None:
            piece, data = data[:10_000], data[10_000:]
            connection.frames.receive_data(piece)
        else:
            count = min(len(buffer), len(data), 50_000)
            buffer[:count] = data[:count]
            data = data[count:]
            connection.frames.buffer_filled(count)
        got += requests_in(connection)
    return got


WAYS = [whole, byte_by_byte, with_next_request_appended, into_frame_buffer]
fed = pytest.mark.parametrize("feed", WAYS, ids=lambda way: way.__name__)
Feed = Callable[[bytes], list[Request]]


@fed
@pytest.mark.parametrize(
    "body, version",
    [
        (METADATA, 0),
        (METADATA, 12),
        (FETCH, 4),
        (FETCH, 12),
        (MetadataRequest(topics=None), 1),
        (produce(b"r"), 3),
    ],
    ids=["old", "flexible", "old fetch", "flexible fetch", "small", "produce"],
)
def test_request_is_read(feed: Feed, body: Any, version: int) -> None:
    data = wire(body, version)

    (request,) = feed(data)

    assert (version, 7, "test", body, len(data) - 4) == (
        request.version,
        request.correlation_id,
        request.client_id,
        request.body,
        request.frame_size,
    )
    assert (type(body), None, version) == (request.api.request, request.refusal, request.response_version)


@fed
def test_requests_are_read_in_their_order(feed: Feed) -> None:
    data = b"".join(wire(METADATA, number % 13, number) for number in range(50))

    assert list(range(50)) == [request.correlation_id for request in feed(data)]


@fed
@pytest.mark.parametrize("client_id", [None, "", "käfer 🪲", "x" * 32767])
def test_client_id_may_be_any_string_or_null(feed: Feed, client_id: str | None) -> None:
    for version in (8, 9):
        (request,) = feed(wire(METADATA, version, client_id=client_id))

        assert client_id == request.client_id


@pytest.mark.parametrize(
    "feed", [whole, with_next_request_appended, into_frame_buffer], ids=lambda way: way.__name__
)
@pytest.mark.parametrize("size", [LARGE_FRAME - 200, LARGE_FRAME, LARGE_FRAME + 1, 1_000_000, MAPPED_FRAME])
def test_large_request_is_read(feed: Feed, size: int) -> None:
    body = produce(bytes(range(256)) * (size // 256))

    (request,) = feed(wire(body, 9))

    assert body == request.body


@fed
def test_records_are_writable_views_of_their_own_frame(feed: Feed) -> None:
    first, second = feed(wire(produce(b"aaa"), 9) + wire(produce(b"bbb"), 9))
    views = [request.body.topic_data[0].partition_data[0].records[0] for request in (first, second)]

    views[0][:] = b"XYZ"

    assert [b"XYZ", b"bbb"] == [bytes(view) for view in views]


# --- Protocol violations ----------------------------------------------------------------------------------

BROKEN = [
    pytest.param(pack(">i", -1), "frame of -1 bytes", id="negative size"),
    pytest.param(pack(">i", -(2**31)), "frame of -2147483648", id="most negative size"),
    pytest.param(pack(">i", 2**31 - 1), "at most 10000000 are accepted", id="2 GiB"),
    pytest.param(pack(">i", LIMIT + 1), "frame of 10000001", id="above the limit"),
    pytest.param(pack(">i", 0), "frame of 0 bytes", id="nothing"),
    pytest.param(frame(b"\x00\x03\x00"), "frame of 3 bytes", id="shorter than key and version"),
    pytest.param(frame(pack(">hhi", 3, 1, 7)), "malformed RequestHeader", id="header cut short"),
    pytest.param(frame(pack(">hhih", 3, 1, 7, -2)), "client_id has a length of -2", id="negative client id"),
    pytest.param(frame(pack(">hhih", 3, 1, 7, 99)), "client_id is longer", id="client id beyond the frame"),
    pytest.param(frame(pack(">hhih2s", 3, 1, 7, 2, b"\xff\xfe")), "utf-8", id="client id not UTF-8"),
    pytest.param(frame(pack(">hhih", 999, 0, 7, -1)), "unknown API key 999", id="unknown key"),
    pytest.param(frame(pack(">hhih", 43, 0, 7, -1)), "ElectLeaders is not served", id="unserved key"),
    pytest.param(frame(pack(">hhih", -1, 0, 7, -1)), "unknown API key -1", id="negative key"),
    pytest.param(frame(pack(">hhih", 1, 3, 7, -1)), "Fetch version 3; 4 to 17 are served", id="old version"),
    pytest.param(frame(pack(">hhihx", 1, 18, 7, -1)), "Fetch version 18; 4 to 17", id="new version"),
    pytest.param(frame(pack(">hhih", 3, -1, 7, -1)), "Metadata version -1", id="negative version"),
    pytest.param(frame(pack(">hhih", 0, -1, 7, -1)), "Produce version -1", id="negative version of Produce"),
    pytest.param(
        frame(pack(">hhihi", 3, 1, 7, -1, 2**31 - 1)), "too many elements", id="array beyond the frame"
    ),
    pytest.param(frame(wire(METADATA, 1)[4:-1]), "malformed MetadataRequest", id="body cut short"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: korvet\r\n\r\n", "frame of 1195725856 bytes", id="HTTP"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the client uses TLS", id="TLS"),
]


@fed
@pytest.mark.parametrize("data, match", BROKEN)
def test_malformed_requests_raise_a_protocol_error(feed: Feed, data: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        feed(data)


@pytest.mark.parametrize("data, match", BROKEN)
def test_requests_before_a_malformed_one_are_read_and_none_after_it(data: bytes, match: str) -> None:
    connection = broker()
    connection.frames.receive_data(wire(METADATA, 1) + data + wire(METADATA, 1))

    assert isinstance(connection.next_request(), Request)
    with pytest.raises(ProtocolError, match=match):
        connection.next_request()
    for _ in range(3):
        with pytest.raises(ProtocolError, match="nothing can be read"):
            connection.next_request()


@settings(max_examples=300)
@given(data=st.binary(max_size=200), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_random_bytes_in_random_pieces_decode_or_raise_a_protocol_error(
    data: bytes, sizes: list[int]
) -> None:
    connection = broker()
    try:
        for size in cycle(sizes):
            piece, data = data[:size], data[size:]
            connection.frames.receive_data(piece)
            requests_in(connection)
            if not data:
                break
    except ProtocolError:
        return


@settings(max_examples=300)
@given(
    key=st.sampled_from(sorted(APIS)),
    version=st.integers(-1, 20),
    tail=st.binary(max_size=120),
    client=st.binary(max_size=9),
)
def test_random_bytes_after_a_valid_header_decode_or_raise_a_protocol_error(
    key: int, version: int, tail: bytes, client: bytes
) -> None:
    connection = broker()
    connection.frames.receive_data(frame(pack(">hhih", key, version, 1, len(client)) + client + tail))
    try:
        (request,) = requests_in(connection)
    except ProtocolError:
        return
    assert key == request.api.key


# --- Versions that are not served but answered ------------------------------------------------------------


@fed
@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_unknown_version_of_api_versions_is_answered_in_version_0(feed: Feed, version: int) -> None:
    header = RequestHeader(request_api_key=18, request_api_version=version, correlation_id=7, client_id="new")
    body = b"from the future, in no form we know"
    (request,) = feed(frame(encoded(header, 2 if version >= 3 else 1) + body))

    answer = b"".join(broker().send(request, request.refusal))

    assert pack(">iihihhh", 16, 7, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 4) == answer
    assert (version, 0, None) == (request.version, request.response_version, request.body)


@fed
@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_below_version_3_is_answered_with_an_error_for_every_partition(
    feed: Feed, version: int
) -> None:
    old = produce(b"message set")
    old.topic_data[0].partition_data.append(PartitionProduceData(index=4, records=None))
    (request,) = feed(wire(old, version))

    (sent,) = broker().send(request, request.refusal)

    expected = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="orders",
                partition_responses=[
                    PartitionProduceResponse(index=index, error_code=35, base_offset=-1) for index in (0, 4)
                ],
            )
        ]
    )
    assert (7, expected) == decode_response(ProduceResponse, version, bytearray(sent)[4:])
    assert (version, None) == (request.version, request.body)


@fed
def test_produce_below_version_3_with_acks_0_is_a_protocol_error(feed: Feed) -> None:
    with pytest.raises(ProtocolError, match="acks=0"):
        feed(wire(produce(b"m", acks=0), 2))


@fed
def test_malformed_produce_below_version_3_is_a_protocol_error(feed: Feed) -> None:
    with pytest.raises(ProtocolError, match="malformed ProduceRequest"):
        feed(frame(wire(produce(b"m"), 2)[4:-1]))


@fed
def test_metadata_request_of_librdkafka_may_have_three_extra_bytes(feed: Feed) -> None:
    header = pack(">hhihx", 3, 12, 7, -1)
    (request,) = feed(frame(header + b"\0\0\0\0" + b"\x01\0\0"))

    assert request.body.topics is None
    assert 0 == request.left_over


@fed
@pytest.mark.parametrize(
    "data, size",
    [
        (wire(METADATA, 1)[4:] + b"!", 1),
        (wire(METADATA, 12)[4:] + b"??", 2),
        (wire(produce(b"m"), 9)[4:] + b"\0\0\0", 3),
        (wire(METADATA, 1)[4:] + bytes(100_000), 100_000),
    ],
)
def test_bytes_behind_a_request_are_ignored(feed: Feed, data: bytes, size: int) -> None:
    (request,) = feed(frame(data))

    assert size == request.left_over


# --- Large frames and their memory ------------------------------------------------------------------------


def test_frame_size_is_parsed_from_the_first_four_bytes() -> None:
    data = wire(produce(bytes(100_000)), 9)
    connection = broker()
    sizes = []

    for number in range(6):
        connection.frames.receive_data(data[number : number + 1])
        sizes.append(connection.frames.pending_frame_size)

    assert [None, None, None, *(len(data) - 4,) * 3] == sizes


@pytest.mark.parametrize("size", [-1, LIMIT + 1])
def test_frame_size_beyond_the_limit_is_refused_before_allocating(size: int) -> None:
    connection = broker()
    connection.frames.receive_data(pack(">i", size))

    for look in (
        lambda: connection.frames.pending_frame_size,
        connection.frames.allow_frame,
        connection.next_request,
    ):
        with pytest.raises(ProtocolError, match="a frame of"):
            look()


def test_memory_of_a_large_request_grows_with_its_received_bytes() -> None:
    connection = broker()
    size = MAPPED_FRAME - 1
    arrived = held = 0
    tracemalloc.start()
    try:
        connection.frames.receive_data(pack(">i", size))
        assert (NEED_DATA, None) == (connection.next_request(), connection.frames.frame_buffer())
        before = tracemalloc.get_traced_memory()[0]
        while arrived < size - 1000:
            connection.frames.allow_frame()
            buffer = connection.frames.frame_buffer()
            assert buffer is not None
            arrived += (count := min(len(buffer), 100_000, size - 1000 - arrived))
            connection.frames.buffer_filled(count)
            del buffer
            held = tracemalloc.get_traced_memory()[0] - before
            assert held <= connection.frames.held_bytes + 5000 <= GROWTH * max(arrived, LARGE_FRAME) + 5000
    finally:
        tracemalloc.stop()

    assert size <= held


def test_frame_buffer_is_at_most_the_missing_bytes() -> None:
    data = wire(produce(bytes(range(256)) * 1200), 9)
    connection = broker()
    connection.frames.receive_data(data[:1000])

    position = 1000
    while position < len(data):
        connection.frames.allow_frame()
        buffer = connection.frames.frame_buffer()
        assert buffer is not None
        assert len(buffer) <= len(data) - position
        piece = data[position : position + min(30_000, len(buffer))]
        buffer[: len(piece)] = piece
        assert NEED_DATA is connection.next_request()
        connection.frames.buffer_filled(len(piece))
        position += len(piece)

    assert None is connection.frames.frame_buffer()
    (request,) = requests_in(connection)
    assert bytes(range(256)) * 1200 == request.body.topic_data[0].partition_data[0].records[0]
    assert (None, True) == (connection.frames.pending_frame_size, connection.frames.idle)


def test_bytes_received_after_an_allowed_frame_belong_to_the_next() -> None:
    data = wire(produce(bytes(100_000)), 9, 1) + wire(METADATA, 1, 2)
    connection = broker()
    connection.frames.receive_data(data[:5000])
    connection.frames.allow_frame()
    connection.frames.receive_data(data[5000:])

    assert [1, 2] == [request.correlation_id for request in requests_in(connection)]


def test_allow_frame_ignores_small_complete_and_missing_frames() -> None:
    large, small = wire(produce(bytes(100_000)), 9, 1), wire(METADATA, 1, 2)
    connection = broker()

    connection.frames.allow_frame()
    connection.frames.receive_data(large + small[:9])
    connection.frames.allow_frame()
    assert None is connection.frames.frame_buffer()
    assert [1] == [request.correlation_id for request in requests_in(connection)]
    connection.frames.allow_frame()
    assert None is connection.frames.frame_buffer()
    connection.frames.receive_data(small[9:])

    assert [2] == [request.correlation_id for request in requests_in(connection)]


def test_allow_frame_called_twice_keeps_received_bytes() -> None:
    data = wire(produce(bytes(100_000)), 9)
    connection = broker()
    connection.frames.receive_data(data[:2000])
    connection.frames.allow_frame()
    connection.frames.allow_frame()
    connection.frames.receive_data(data[2000:])

    (request,) = requests_in(connection)

    assert len(data) - 4 == request.frame_size


def test_connection_is_idle_between_requests_only() -> None:
    data = wire(METADATA, 1)
    connection = broker()
    idle = [connection.frames.idle]

    for piece in (data[:1], data[1:-1], data[-1:]):
        connection.frames.receive_data(piece)
        idle.append(connection.frames.idle)
    requests_in(connection)
    idle.append(connection.frames.idle)

    assert [True, False, False, False, True] == idle


@given(
    contents=st.lists(st.integers(0, 200_000), max_size=4),
    pieces=st.lists(st.integers(1, 90_000), min_size=1, max_size=8),
    allow=st.booleans(),
)
@settings(max_examples=60)
def test_frames_are_read_from_a_stream_cut_into_random_pieces(
    contents: list[int], pieces: list[int], allow: bool
) -> None:
    expected = [bytes([number]) * size for number, size in enumerate(contents)]
    stream = b"".join(map(frame, expected))
    frames, got, turn = FrameReader(LIMIT), [], 0
    while stream:
        count = pieces[turn % len(pieces)]
        turn += 1
        buffer = frames.frame_buffer()
        if buffer is not None and turn % 2:
            count = min(count, len(buffer), len(stream))
            buffer[:count] = stream[:count]
            frames.buffer_filled(count)
        else:
            frames.receive_data(stream[:count])
        stream = stream[count:]
        while (content := frames.next_frame()) is not None:
            got.append(bytes(content))
        if allow:
            frames.allow_frame()

    assert expected == got
    assert frames.idle


# --- Responses --------------------------------------------------------------------------------------------


def request_of(api: Api, version: int) -> Request:
    return Request(api, version, 7, None, None, 0, response_version=version)


def fetched(*records: Buffer) -> FetchResponse:
    partitions = [
        PartitionData(partition_index=number, high_watermark=1, records=(each,))
        for number, each in enumerate(records)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 12])
def test_response_is_sent_as_size_header_and_body(version: int) -> None:
    (sent,) = broker().send(request_of(APIS[1], version), fetched(b"abc"))

    header = pack(">ix", 7) if version >= 12 else pack(">i", 7)

    assert frame(header + encoded(fetched(b"abc"), version)) == sent


@pytest.mark.parametrize("version", range(5))
def test_api_versions_response_always_has_header_version_0(version: int) -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])

    (sent,) = broker().send(request_of(APIS[18], version), response)

    assert frame(pack(">i", 7) + encoded(response, version)) == sent


def test_no_response_sends_no_bytes() -> None:
    assert [] == broker().send(request_of(APIS[0], 9), None)


def test_large_record_buffers_are_sent_uncopied_and_small_ones_joined() -> None:
    large, other = bytearray(LARGE_PIECE), memoryview(bytes(70_000))
    records: list[Buffer] = [b"s" * 100, large, b"t" * 100, b"u" * 100, other]
    response = fetched(*records)

    sent = broker().send(request_of(APIS[1], 12), response)

    assert frame(pack(">ix", 7) + encoded(response, 12)) == b"".join(sent)
    assert 5 == len(sent)
    assert large is sent[1]
    assert other is sent[3]


def test_adjacent_large_buffers_have_no_empty_piece_between_them() -> None:
    large = bytes(LARGE_PIECE)

    assert [pack(">i", 2 * LARGE_PIECE), large, large] == framed([large, large])


def test_response_not_supported_by_its_version_is_unsupported_version() -> None:
    response = fetched(b"")
    response.session_id = 5

    with pytest.raises(UnsupportedVersion, match="session_id"):
        broker().send(request_of(APIS[1], 4), response)


# --- Back to back -----------------------------------------------------------------------------------------


@define
class Client:
    """A client that sends requests, reads responses, and keeps the requests it has sent."""

    frames: FrameReader = field(factory=lambda: FrameReader(LIMIT))
    asked: list[tuple[int, type[Any], int]] = field(factory=list)

    def send(self, request: Any, response: type[Any], version: int) -> bytes:
        correlation_id = len(self.asked)
        self.asked.append((correlation_id, response, version))
        return b"".join(encode_request(request, version, correlation_id, "back to back"))

    def receive(self, data: bytes) -> Iterator[Any]:
        self.frames.receive_data(data)
        while (content := self.frames.next_frame()) is not None:
            correlation_id, response, version = self.asked.pop(0)
            got, message = decode_response(response, version, content)
            assert correlation_id == got
            yield message


def test_client_and_broker_exchange_requests_and_responses() -> None:
    client, server = Client(), broker()
    versions = ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=0, max_version=12)])
    metadata = MetadataResponse(brokers=[], topics=[])
    answers = {ApiVersionsRequest: versions, MetadataRequest: metadata, FetchRequest: fetched(b"r" * 50_000)}

    sent = client.send(ApiVersionsRequest(), ApiVersionsResponse, 4)
    sent += client.send(METADATA, MetadataResponse, 5)
    sent += client.send(FETCH, FetchResponse, 12)
    sent += client.send(METADATA, MetadataResponse, 12)
    server.frames.receive_data(sent)
    answered = [server.send(request, answers[type(request.body)]) for request in requests_in(server)]
    got = list(client.receive(b"".join(b"".join(each) for each in answered)))

    assert [versions, metadata, fetched(b"r" * 50_000), metadata] == got


def test_extra_bytes_after_a_response_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="left over behind a MetadataResponse"):
        decode_response(
            MetadataResponse,
            0,
            bytearray(pack(">i", 7) + encoded(MetadataResponse(brokers=[], topics=[]), 0) + b"!"),
        )


def test_only_messages_with_a_key_are_requests() -> None:
    with pytest.raises(TypeError, match="RequestHeader is not a request"):
        encode_request(
            RequestHeader(request_api_key=0, request_api_version=0, correlation_id=0, client_id=None),
            1,
            0,
            None,
        )


def test_advertised_min_version_defaults_to_the_served_one() -> None:
    assert (0, 4) == (APIS[0].advertised_min_version, APIS[1].advertised_min_version)
