"""Requests that are decoded, and responses that are encoded, by comparison with earlier ones of the connection.

A new connection decodes each frame by the codec, so it is the reference for one that has seen similar frames.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.connection import NEED_DATA, Api, Connection, Request
from korvet.protocol.errors import ProtocolError, UnsupportedVersion
from korvet.protocol.frames import LARGE_FRAME
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.record_batch import HEADER_BYTES, build_batch
from korvet.protocol.requests import encode_request

APIS = {
    0: Api(0, "Produce", ProduceRequest, ProduceResponse, 3, 13, advertised_min_version=0),
    3: Api(3, "Metadata", MetadataRequest, MetadataResponse, 0, 13),
}
TOPIC_ID = UUID(int=0x8F8F8F8F00008F8F8F8F8F8F8F8F8F8F)
# The first version whose responses have the log start offset.
FIRST = 5
VERSIONS = range(FIRST, 14)


def batch(value: bytes = b"value") -> bytes:
    return bytes(build_batch([(0, 1, None, value, ())]))


def produce(*batches: bytes, partition: int = 0, **fields: Any) -> ProduceRequest:
    data = [PartitionProduceData(index=partition + n, records=[each]) for n, each in enumerate(batches)]
    topic = TopicProduceData(name="orders", topic_id=TOPIC_ID, partition_data=data)
    return ProduceRequest(**{"acks": -1, "timeout_ms": 1000, "topic_data": [topic], **fields})


def frame_of(request: object, version: int, correlation_id: int = 1, client_id: str | None = "me") -> bytes:
    return b"".join(encode_request(request, version, correlation_id, client_id))


def received(connection: Connection, frame: bytes) -> Request | str:
    """Return the request in a frame, or the error that it causes."""
    connection.frames.receive_data(frame)
    try:
        request = connection.next_request()
    except ProtocolError as error:
        return str(error)
    assert isinstance(request, Request)
    assert NEED_DATA is connection.next_request()
    return request


def by_codec(frame: bytes) -> Request | str:
    return received(Connection(APIS, max_frame_bytes=10**7), frame)


def warm(version: int, request: ProduceRequest | None = None) -> Connection:
    """Return a connection that decodes requests like this one by comparison."""
    connection = Connection(APIS, max_frame_bytes=10**7)
    for number in range(2):
        received(connection, frame_of(request or produce(batch()), version, number))
    return connection


def sent(connection: Connection, request: Request, response: ProduceResponse | None) -> bytes | str:
    """Return the bytes of a response, or the error of one that the version does not have."""
    try:
        return b"".join(connection.send(request, response))
    except UnsupportedVersion as error:
        return str(error)


def plain(request: Request | str) -> Request | str:
    """Return a request without the way in which it was decoded."""
    return request if isinstance(request, str) else attrs.evolve(request, repeated=None)


def is_repeated(request: Request | str) -> bool:
    return isinstance(request, Request) and request.repeated is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 20, 58, 59, 60, 61, 62, 127, 128, 1000, 16_000, 16_400, 60_000])
def test_other_batches_partitions_and_correlation_ids_are_repeated(version: int, size: int) -> None:
    frame = frame_of(produce(batch(b"x" * size), partition=7), version, -5)
    request = received(warm(version), frame)

    assert is_repeated(request)
    assert by_codec(frame) == plain(request)


@pytest.mark.parametrize("version", [3, 4])
def test_versions_without_log_start_offset_are_left_to_the_codec(version: int) -> None:
    assert not is_repeated(received(warm(version), frame_of(produce(batch()), version)))


@pytest.mark.parametrize("version", [8, 11])
@pytest.mark.parametrize(
    "other",
    [
        produce(batch(), acks=0),
        produce(batch(), acks=1),
        produce(batch(), timeout_ms=1001),
        produce(batch(), transactional_id="t"),
        produce(batch(), topic_data=[TopicProduceData(name="other", partition_data=[])]),
        produce(batch(), topic_data=[]),
        produce(batch(), batch()),
        produce(b""),
        produce(b"x" * (HEADER_BYTES - 1)),
    ],
)
def test_other_requests_are_left_to_the_codec(version: int, other: ProduceRequest) -> None:
    connection = warm(version)
    frame = frame_of(other, version)
    request = received(connection, frame)

    assert not is_repeated(request)
    assert by_codec(frame) == request
    assert is_repeated(received(connection, frame_of(produce(batch()), version)))


def test_null_records_client_and_version_are_left_to_the_codec() -> None:
    null = produce(
        topic_data=[
            TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=None)])
        ]
    )
    for frame in (
        frame_of(null, 11),
        frame_of(produce(batch()), 11, client_id="you"),
        frame_of(produce(batch()), 11, client_id=None),
        frame_of(produce(batch()), 10),
        frame_of(MetadataRequest(topics=None), 11),
        frame_of(produce(b"x" * LARGE_FRAME), 11),
    ):
        request = received(warm(11), frame)
        assert not is_repeated(request)
        assert by_codec(frame) == request


def test_first_two_requests_are_left_to_the_codec() -> None:
    connection = Connection(APIS, max_frame_bytes=10**7)
    got = [received(connection, frame_of(produce(batch()), 11, number)) for number in range(4)]

    assert [False, False, True, True] == [is_repeated(each) for each in got]


def test_unusual_encodings_are_left_to_the_codec() -> None:
    usual = frame_of(produce(batch()), 11)
    # A tagged field of the request, which no version declares.
    tagged = usual[4:-1] + b"\1\x20\1x"
    tagged = pack(">i", len(tagged)) + tagged
    connection = Connection(APIS, max_frame_bytes=10**7)
    for _ in range(4):
        assert not is_repeated(received(connection, tagged))


def test_requests_before_a_client_has_authenticated_again_are_refused() -> None:
    connection = warm(11)
    connection.accepted = frozenset({36})

    assert "Produce before the client has authenticated" == received(
        connection, frame_of(produce(batch()), 11)
    )


def test_views_of_repeated_requests_are_writable_and_their_own() -> None:
    connection = warm(11)
    first = received(connection, frame_of(produce(batch(b"1")), 11))
    second = received(connection, frame_of(produce(batch(b"2")), 11))
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    view = first.body.topic_data[0].partition_data[0].records[0]
    view[:] = bytes(len(view))
    first.body.topic_data[0].name = "changed"

    assert [batch(b"2")] == [*second.body.topic_data[0].partition_data[0].records]
    assert "orders" == second.body.topic_data[0].name


@pytest.mark.parametrize("version", [8, 9, 13])
@pytest.mark.parametrize("bits", [1, 0x80, 0xFF])
def test_every_changed_byte_around_the_batch_is_decoded_as_by_the_codec(version: int, bits: int) -> None:
    frame, records = frame_of(produce(batch()), version), batch()
    around = [at for at in range(4, len(frame)) if not 0 <= at - frame.index(records) < len(records)]
    for at in around:
        changed = bytearray(frame)
        changed[at] ^= bits
        assert by_codec(bytes(changed)) == plain(received(warm(version), bytes(changed))), at


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_changed_bytes_are_decoded_as_by_the_codec(data: st.DataObject, version: int) -> None:
    frame = bytearray(frame_of(produce(batch(data.draw(st.binary(max_size=200)))), version))
    for _ in range(data.draw(st.integers(0, 2))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(frame[4 : data.draw(st.integers(len(frame) - 5, len(frame)))])
    changed = pack(">i", len(content)) + content

    assert by_codec(changed) == plain(received(warm(version), changed))


numbers = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
results = st.builds(
    PartitionProduceResponse,
    index=numbers,
    error_code=st.integers(-(2**15), 2**15 - 1),
    base_offset=offsets,
    log_append_time_ms=offsets,
    log_start_offset=offsets,
    record_errors=st.just([]) | st.just([BatchIndexAndErrorMessage(batch_index=1)]),
    error_message=st.none() | st.just("") | st.just("why"),
    current_leader=st.none() | st.just(LeaderIdAndEpoch(leader_id=1, leader_epoch=2)),
)
topics = st.builds(
    TopicProduceResponse,
    name=st.sampled_from(["orders", "other", ""]),
    topic_id=st.sampled_from([TOPIC_ID, UUID(int=0)]),
    partition_responses=st.lists(results, min_size=1, max_size=2) | st.just([]),
)
responses = st.builds(
    ProduceResponse,
    responses=st.lists(topics, min_size=1, max_size=2) | st.just([]),
    throttle_time_ms=numbers,
    node_endpoints=st.just([]) | st.just([NodeEndpoint(node_id=1, host="h", port=2)]),
)


@given(response=st.none() | responses, version=st.sampled_from(VERSIONS), correlation_id=numbers)
def test_responses_are_encoded_as_by_the_codec(
    response: ProduceResponse | None, version: int, correlation_id: int
) -> None:
    connection = warm(version)
    request = received(connection, frame_of(produce(batch()), version, correlation_id))
    assert isinstance(request, Request)

    assert is_repeated(request)
    assert sent(connection, attrs.evolve(request, repeated=None), response) == sent(
        connection, request, response
    )


@pytest.mark.parametrize(
    "unusual",
    [
        {"record_errors": [BatchIndexAndErrorMessage(batch_index=1)]},
        {"error_message": ""},
        {"current_leader": LeaderIdAndEpoch(leader_id=1, leader_epoch=2)},
        {"node_endpoints": [NodeEndpoint(node_id=1, host="h", port=2)]},
        {"name": "other", "topic_id": UUID(int=1)},
    ],
)
@pytest.mark.parametrize("version", [11, 13])
def test_responses_with_other_values_are_encoded_by_the_codec(unusual: dict[str, Any], version: int) -> None:
    request = received(warm(version), frame_of(produce(batch()), version))
    assert isinstance(request, Request)
    assert request.repeated is not None
    of_response = {name: value for name, value in unusual.items() if name == "node_endpoints"}
    of_topic = {"name": "orders", "topic_id": TOPIC_ID}
    of_topic |= {name: value for name, value in unusual.items() if name in of_topic}
    others = unusual.keys() - of_response.keys() - of_topic.keys()
    result = PartitionProduceResponse(index=0, base_offset=1, **{name: unusual[name] for name in others})
    topic = TopicProduceResponse(partition_responses=[result], **of_topic)

    assert request.repeated.encode(1, ProduceResponse(responses=[topic], **of_response)) is None


def test_usual_responses_are_not_encoded_by_the_codec() -> None:
    request = received(warm(13), frame_of(produce(batch()), 13))
    assert isinstance(request, Request)
    assert request.repeated is not None
    encode: Callable[[int, Any], bytearray | None] = request.repeated.encode
    usual = PartitionProduceResponse(index=3, base_offset=7, log_append_time_ms=8, log_start_offset=9)
    topic = TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=[usual])

    assert encode(1, ProduceResponse(responses=[topic], throttle_time_ms=5)) is not None
    assert encode(1, ProduceResponse(responses=[topic, topic])) is None


def test_values_that_a_usual_response_does_not_have_are_known() -> None:
    """A field that is added to the declarations has to be considered in `RepeatedProduce.encode`."""
    fields = {
        cls: [each.name for each in attrs.fields(cls)]
        for cls in (ProduceResponse, TopicProduceResponse, PartitionProduceResponse)
    }

    assert {
        ProduceResponse: ["responses", "throttle_time_ms", "node_endpoints"],
        TopicProduceResponse: ["name", "topic_id", "partition_responses"],
        PartitionProduceResponse: [
            "index",
            "error_code",
            "base_offset",
            "log_append_time_ms",
            "log_start_offset",
            "record_errors",
            "error_message",
            "current_leader",
        ],
    } == fields
