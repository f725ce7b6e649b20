"""The codec with invalid bytes and values; test_oracle.py covers valid ones."""

from __future__ import annotations

import linecache
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from struct import error as struct_error
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from attrs import evolve

from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import decode, encode, reader, step_decoder, step_writer, writer
from korvet.protocol.errors import ProtocolError, UnsupportedVersion
from korvet.protocol.field_writing import uvarint
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.header import RequestHeader
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    message,
    nested,
    schema_of,
    string,
    struct,
    uint16,
    uuid,
)
from korvet.protocol.source import smallest_size
from korvet.protocol.steps import at_once
from tests.protocol.samples import MESSAGES, default_of, encoded, every_version, sample, value_of, version_id

_each_row = pytest.mark.parametrize("cls, version", every_version(MESSAGES), ids=version_id)


def every_message_version(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for each version of each message."""
    return pytest.mark.rows(_each_row(test))


def decoded(cls: type[Any], version: int, data: bytes) -> Any:
    return decode(cls, version, memoryview(data))[0]


@contextmanager
def little_memory(limit: int = 1_000_000) -> Iterator[None]:
    """Fail if the block allocates more than `limit` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


# --- Bytes that are no message ----------------------------------------------------------------------------


@every_message_version
def test_every_truncation_is_a_protocol_error(cls: type[Any], version: int) -> None:
    for bare in (False, True):
        data = encoded(sample(cls, version, Random(1), bare=bare), version)
        for end in range(len(data)):
            with pytest.raises(ProtocolError):
                decoded(cls, version, data[:end])


@every_message_version
def test_random_bytes_decode_or_raise_a_protocol_error(cls: type[Any], version: int) -> None:
    # hypothesis takes a millisecond for each example: half a minute for 25 in each row.
    random = Random(f"{cls.__name__} {version}")
    drawn = [
        random.randbytes(random.choice([random.randrange(8), random.randrange(300)])) for _ in range(100)
    ]
    # Lengths and numbers of elements are mostly small where a message is read far.
    small = [bytes(random.choices((0, 1, 2, 3, 255), k=random.randrange(300))) for _ in range(100)]
    for data in [b"\xff" * 300, b"\x7f" * 300, bytes(300), *drawn, *small]:
        with suppress(ProtocolError):
            _, end = decode(cls, version, memoryview(data))
            assert 0 <= end <= len(data), data.hex()


@every_message_version
def test_damaged_messages_decode_or_raise_protocol_errors_without_allocating(
    cls: type[Any], version: int
) -> None:
    random = Random(version)
    data = encoded(sample(cls, version, random), version)
    damages = [
        b"\x00",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\x7f\xff",
        b"\x80\x00",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff\x07",
    ]
    limit = 100_000 + 200 * len(data)
    reader(cls, version)

    with little_memory(limit):
        for _ in range(100 if data else 0):
            start, damage = random.randrange(len(data)), random.choice(damages)
            damaged = data[:start] + damage + data[start + len(damage) :]
            with suppress(ProtocolError):
                decoded(cls, version, damaged)


@pytest.mark.parametrize(
    "cls, version, data",
    [
        pytest.param(MetadataRequest, 4, pack(">i", 2**31 - 1), id="array of structs"),
        pytest.param(MetadataRequest, 9, uvarint(2**31) + bytes(9), id="compact array of structs"),
        pytest.param(DeleteTopicsRequest, 1, pack(">i", 2**31 - 1), id="array of strings"),
        pytest.param(FindCoordinatorRequest, 4, b"\x00" + uvarint(2**32 - 1), id="compact array of strings"),
        pytest.param(FetchRequest, 12, bytes(25) + b"\x02\x01" + uvarint(2**31), id="after other fields"),
        pytest.param(InitProducerIdRequest, 0, pack(">h", 32767), id="string"),
        pytest.param(InitProducerIdRequest, 2, uvarint(2**32 - 1) + b"abc", id="compact string"),
    ],
)
def test_lengths_beyond_the_data_are_refused_before_anything_is_allocated(
    cls: type[Any], version: int, data: bytes
) -> None:
    reader(cls, version)

    with little_memory(20_000), pytest.raises(ProtocolError, match="too many elements|longer than"):
        decoded(cls, version, data)


def test_largest_possible_number_of_elements_is_read() -> None:
    data = b"\x00" + uvarint(201) + b"\x01" * 200 + b"\x00"

    assert FindCoordinatorRequest(coordinator_keys=[""] * 200) == decoded(FindCoordinatorRequest, 4, data)

    with pytest.raises(ProtocolError, match="too many elements"):
        decoded(FindCoordinatorRequest, 4, b"\x00" + uvarint(203) + b"\x01" * 200 + b"\x00")


@pytest.mark.parametrize(
    "cls, version, data",
    [
        pytest.param(MetadataRequest, 9, uvarint(2_000_001) + b"\x01\x00" * 2_000_000, id="structs"),
        pytest.param(
            FindCoordinatorRequest, 4, b"\x00" + uvarint(2_000_001) + b"\x01" * 2_000_001, id="strings"
        ),
        pytest.param(
            FetchRequest,
            12,
            bytes(25) + uvarint(2001) + (b"\x01" + uvarint(1001) + bytes(33 * 1000 + 1)) * 2000,
            id="structs in structs",
        ),
    ],
)
def test_too_many_elements_are_refused(cls: type[Any], version: int, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="too many elements"):
        decoded(cls, version, data)


@pytest.mark.parametrize(
    "cls, version, data, match",
    [
        pytest.param(
            InitProducerIdRequest, 0, pack(">h", -2), "transactional_id has a length of -2", id="string"
        ),
        pytest.param(MetadataRequest, 1, pack(">i", -2), "topics has a length of -2", id="array"),
        pytest.param(
            ProduceRequest,
            3,
            pack(">hhiih1siii", -1, 1, 1, 1, 1, b"t", 1, 0, -2),
            "records has a length of -2",
            id="records",
        ),
        pytest.param(FindCoordinatorRequest, 0, pack(">h", -1), "key has a length of -1", id="null string"),
        pytest.param(FindCoordinatorRequest, 3, b"\x00", "key has a length of -1", id="null compact string"),
        pytest.param(MetadataRequest, 0, pack(">i", -1), "topics has a length of -1", id="null array"),
        pytest.param(FindCoordinatorRequest, 4, b"\x00\x00", "coordinator_keys", id="null compact array"),
        pytest.param(DeleteTopicsRequest, 1, pack(">ih", 1, -1), "topic_names", id="null inside an array"),
        pytest.param(
            FindCoordinatorRequest, 4, b"\x00\x02\x00", "coordinator_keys", id="compact null inside one"
        ),
        pytest.param(FindCoordinatorRequest, 0, b"\x00\x02\xc3\x28", "utf-8", id="no UTF-8"),
        pytest.param(FindCoordinatorRequest, 0, b"\x00\x03\xed\xa0\x80", "utf-8", id="a surrogate"),
        pytest.param(
            FindCoordinatorRequest, 3, b"\x81\x80\x80\x80\x80\x00", "more than five bytes", id="long varint"
        ),
    ],
)
def test_malformed_values_are_named_in_the_error(
    cls: type[Any], version: int, data: bytes, match: str
) -> None:
    with pytest.raises(ProtocolError, match=match) as caught:
        decoded(cls, version, data + bytes(20))

    assert f"{cls.__name__} version {version}" in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_truncated_message_is_named_in_the_error(length: int) -> None:
    with pytest.raises(
        ProtocolError, match="malformed MetadataRequest version 4: it ends before its last field"
    ):
        decoded(MetadataRequest, 4, pack(">i", 1)[:length])


def test_null_and_empty_arrays_are_distinguished() -> None:
    assert MetadataRequest(topics=None) == decoded(MetadataRequest, 1, pack(">i", -1))
    assert MetadataRequest(topics=[]) == decoded(MetadataRequest, 1, pack(">i", 0))


# --- Tags -------------------------------------------------------------------------------------------------

FETCH = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])


def with_tags(*tags: tuple[int, bytes]) -> bytes:
    """Return `FETCH` in v15 with these tags at its end."""
    body = encoded(FETCH, 15)
    assert body.endswith(b"\x00")
    pieces = [uvarint(tag) + uvarint(len(value)) + value for tag, value in tags]
    return body[:-1] + uvarint(len(tags)) + b"".join(pieces)


def test_known_tags_are_read_in_any_order_and_unknown_tags_are_skipped() -> None:
    data = with_tags((99, b"?" * 300), (1, pack(">iqx", 4, 5)), (5, b""), (0, b"\x02c"))

    expected = evolve(FETCH, cluster_id="c", replica_state=ReplicaState(replica_id=4, replica_epoch=5))

    assert expected == decoded(FetchRequest, 15, data)


def test_more_than_127_unknown_tags_are_skipped() -> None:
    unknown = [(tag, b"x") for tag in range(10, 210)]

    assert FETCH == decoded(FetchRequest, 15, with_tags(*unknown))


def test_unknown_tags_are_skipped_in_a_message_without_tags() -> None:
    name = b"\x02a\x02b"
    tags = uvarint(200) + b"".join(uvarint(tag) + b"\x01x" for tag in range(200))

    assert ("a", "b") == (
        (got := decoded(ApiVersionsRequest, 3, name + tags)).client_software_name,
        got.client_software_version,
    )


@pytest.mark.parametrize(
    "cls, version, body",
    [(FetchRequest, 15, encoded(FETCH, 15)), (ApiVersionsRequest, 3, b"\x01\x01\x00")],
    ids=["known tags", "no known tags"],
)
def test_more_than_ten_thousand_tags_are_refused(cls: type[Any], version: int, body: bytes) -> None:
    decoded(cls, version, body[:-1] + uvarint(10_000) + b"\x40\x00" * 10_000)
    with pytest.raises(ProtocolError, match="too many tagged fields"):
        decoded(cls, version, body[:-1] + uvarint(10_001) + b"\x40\x00" * 10_001)


@pytest.mark.parametrize(
    "tag",
    [
        pytest.param((0, b"\x02cc"), id="shorter than its size"),
        pytest.param((0, b"\x03c"), id="longer than its size"),
        pytest.param((1, bytes(12)), id="a struct cut short"),
    ],
)
def test_tag_with_a_wrong_size_is_a_protocol_error(tag: tuple[int, bytes]) -> None:
    with pytest.raises(ProtocolError):
        decoded(FetchRequest, 15, with_tags(tag, (50, bytes(30))))


@pytest.mark.parametrize(
    "cls, version, body",
    [(FetchRequest, 15, encoded(FETCH, 15)), (ApiVersionsRequest, 3, b"\x01\x01\x00")],
    ids=["known tags", "no known tags"],
)
@pytest.mark.parametrize(
    "tags",
    [b"\x01\x32\x7f", b"\x01\x32\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f"],
    ids=["beyond the data", "4 GiB", "a count of 2^32"],
)
def test_tag_section_beyond_the_data_is_a_protocol_error(
    cls: type[Any], version: int, body: bytes, tags: bytes
) -> None:
    with little_memory(20_000), pytest.raises(ProtocolError):
        decoded(cls, version, body[:-1] + tags)


def test_tags_with_default_values_are_not_written() -> None:
    with_defaults = ApiVersionsResponse(api_keys=[], finalized_features_epoch=-1, zk_migration_ready=False)

    assert pack(">hbix", 0, 1, 0) == encoded(with_defaults, 3)


# --- Values a version cannot express ----------------------------------------------------------------------


def with_absent_field(
    cls: type[Any], version: int, random: Random
) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
    """Yield a field that the version lacks, whether it is ignorable, and the maker of a message with it."""
    for field in schema_of(cls).fields:
        if version not in field.versions:
            yield field.name, field.ignorable, lambda field=field: _with_value(cls, version, field, random)
        elif field.struct is not None:
            for name, ignorable, make in with_absent_field(field.struct, version, random):
                yield (
                    f"{field.name}.{name}",
                    ignorable,
                    lambda field=field, make=make: evolve(
                        sample(cls, version, random), **{field.name: [make()] if field.is_array else make()}
                    ),
                )


def _with_value(cls: type[Any], version: int, field: Any, random: Random) -> Any:
    in_version = field.versions[0]
    value: Any = value_of(field, in_version, random)
    return evolve(sample(cls, version, random), **{field.name: [value] if field.is_array else value})


@every_message_version
def test_field_missing_from_the_version_is_refused_unless_ignorable(cls: type[Any], version: int) -> None:
    for path, ignorable, make in with_absent_field(cls, version, Random(version)):
        value = make()
        if ignorable:
            encoded(value, version)
        else:
            with pytest.raises(UnsupportedVersion, match=f"has no field {path.rpartition('.')[2]}"):
                encoded(value, version)


@pytest.mark.parametrize(
    "value, version, match",
    [
        (MetadataRequest(topics=None), 0, "cannot write null as topics"),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, "cannot write null as name"),
        (FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], replica_id=1), 15, "no field replica_id"),
        (
            FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], replica_state=ReplicaState()),
            14,
            "replica_state",
        ),
    ],
    ids=["null array", "null string", "int", "struct in a tag"],
)
def test_value_not_supported_by_the_version_is_named_in_the_error(
    value: Any, version: int, match: str
) -> None:
    with pytest.raises(UnsupportedVersion, match=match) as caught:
        encoded(value, version)

    assert f"{type(value).__name__} version {version}" in caught.value.message


def test_ignorable_value_is_left_out() -> None:
    with_id = FetchTopic(topic="t", topic_id=UUID(int=1), partitions=[])
    named, by_id = (FetchRequest(max_wait_ms=0, min_bytes=0, topics=[with_id]) for _ in range(2))

    assert evolve(with_id, topic_id=ZERO_UUID) == decoded(FetchRequest, 12, encoded(named, 12)).topics[0]
    assert evolve(with_id, topic="") == decoded(FetchRequest, 13, encoded(by_id, 13)).topics[0]


def test_fields_missing_from_the_version_decode_as_defaults() -> None:
    response = FindCoordinatorResponse(coordinators=[])

    got = decoded(FindCoordinatorResponse, 4, encoded(response, 4))

    assert (0, "", 0, "", 0) == (got.error_code, got.error_message, got.node_id, got.host, got.port)


@pytest.mark.parametrize("version", [-1, 3, 19, 32767])
def test_undeclared_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match="FetchRequest has no version"):
        decoded(FetchRequest, version, b"")
    with pytest.raises(UnsupportedVersion, match="FetchRequest has no version"):
        encoded(FETCH, version)


# --- Records ----------------------------------------------------------------------------------------------


def produce(records: Any) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )


@pytest.mark.parametrize("version", [3, 9])
def test_record_buffers_are_written_without_copying(version: int) -> None:
    buffers: list[Buffer] = [b"a" * 3, bytearray(b"b" * 200), memoryview(b"c" * 70_000)[1:]]
    pieces: list[Buffer] = []

    encode(produce(buffers), version, pieces.append)

    assert all(any(buffer is piece for piece in pieces) for buffer in buffers)
    assert produce([b"".join(buffers)]).topic_data[0].partition_data[0].records == list(
        decoded(ProduceRequest, version, b"".join(pieces)).topic_data[0].partition_data[0].records
    )


def test_records_decode_as_one_writable_view_of_the_frame() -> None:
    frame = bytearray(encoded(produce([b"abc"]), 9))

    (records,) = decode(ProduceRequest, 9, memoryview(frame))[0].topic_data[0].partition_data[0].records or ()
    records[0:1] = b"X"

    assert b"Xbc" in frame


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize("records, expected", [(None, None), ((), ()), ([b""], ()), ([b"", b"x"], (b"x",))])
def test_null_and_empty_records_are_distinguished(version: int, records: Any, expected: Any) -> None:
    got = decoded(ProduceRequest, version, encoded(produce(records), version))

    assert expected == got.topic_data[0].partition_data[0].records


def test_other_fields_are_copied_from_the_frame() -> None:
    frame = bytearray(encoded(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 4))
    view = memoryview(frame)

    request, _ = decode(MetadataRequest, 4, view)
    view.release()
    frame[:] = bytes(len(frame))

    assert [MetadataRequestTopic(name="orders")] == request.topics


def test_message_can_be_decoded_from_the_middle_of_a_buffer() -> None:
    data = b"??" + encoded(FETCH, 12) + b"!!!"

    assert (FETCH, len(data) - 3) == decode(FetchRequest, 12, memoryview(data), 2)


# --- Sizes of more than one byte --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 12])
@pytest.mark.parametrize("count", [126, 127, 128, 16382, 16383, 16384])
def test_lengths_of_one_to_three_bytes_survive_a_round_trip(version: int, count: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=str(number)) for number in range(count)])
    long_name = MetadataRequest(topics=[MetadataRequestTopic(name="x" * count)])

    assert request == decoded(MetadataRequest, version, encoded(request, version))
    assert long_name == decoded(MetadataRequest, version, encoded(long_name, version))


@pytest.mark.parametrize(
    "value, expected",
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varint_has_seven_bits_a_byte(value: int, expected: str) -> None:
    assert expected == uvarint(value).hex()


# --- Types that only later messages use -------------------------------------------------------------------


@struct
class Cursor:
    topic: str = string()
    partition: int = int32()


@message(key=None, versions="0-2", flexible="1+")
class Everything:
    port: int = uint16()
    value: float = float64()
    blob: bytes = bytes_()
    maybe: bytes | None = bytes_(nullable="0+")
    ids: list[UUID] = array(uuid)
    flags: list[bool] = array(boolean)
    blobs: list[bytes] = array(bytes_)
    shorts: list[int] = array(int16)
    here: Cursor = nested(Cursor)
    next: Cursor | None = nested(Cursor, nullable="0+", default=None)
    last: int = int8()


def everything(next_: Cursor | None) -> Everything:
    return Everything(
        port=65535,
        value=0.5,
        blob=b"ab",
        maybe=None,
        ids=[UUID(int=1), UUID(int=2)],
        flags=[True, False],
        blobs=[b"", b"c"],
        shorts=[-1, 2],
        here=Cursor(topic="h", partition=4),
        next=next_,
        last=-3,
    )


def test_every_type_is_written_as_in_kafkas_protocol_guide() -> None:
    expected = (
        "ffff3fe0000000000000"
        "000000026162ffffffff"
        "000000020000000000000000000000000000000100000000000000000000000000000002"
        "000000020100"
        "000000020000000000000001" + "63" + "00000002ffff0002"
        "00016800000004"
        "0100016e00000005fd"
    )

    assert expected == encoded(everything(Cursor(topic="n", partition=5)), 0).hex()


def test_every_type_is_written_compactly_in_flexible_versions() -> None:
    expected = (
        "ffff3fe0000000000000"
        "03616200"
        "030000000000000000000000000000000100000000000000000000000000000002"
        "030100"
        "03010263" + "03ffff0002"
        "02680000000400"
        "ff" + "fd00"
    )

    assert expected == encoded(everything(None), 1).hex()


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("next_", [None, Cursor(topic="n", partition=5)], ids=["null", "struct"])
def test_every_type_survives_a_round_trip(version: int, next_: Cursor | None) -> None:
    data = encoded(everything(next_), version)

    assert (everything(next_), len(data)) == decode(Everything, version, memoryview(data))
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decoded(Everything, version, data[:end])


@every_message_version
def test_smallest_elements_match_the_assumption_of_the_codec(cls: type[Any], version: int) -> None:
    flexible = version in schema_of(cls).flexible
    for field in schema_of(cls).fields:
        if field.is_array and version in field.versions and field.struct is not None:
            smallest = smallest_size(field, version, flexible=flexible)
            few, more = (
                evolve(
                    sample(cls, version, Random(0), bare=True),
                    **{field.name: [_smallest(field.struct, version)] * n},
                )
                for n in (1, 2)
            )

            assert 1 <= smallest == len(encoded(more, version)) - len(encoded(few, version))


def _smallest(cls: type[Any], version: int) -> Any:
    """Return the struct in the fewest bytes: empty strings, lists and records, or null where that is shorter."""
    values = {}
    for field in schema_of(cls).fields:
        if field.struct is not None and not field.is_array and field.tag is None:
            values[field.name] = _smallest(field.struct, version)
        elif field.kafka_type == "string" and not field.is_array and version in field.versions:
            values[field.name] = ""
        else:
            values[field.name] = default_of(field)
    return cls(**values)


# --- Generated code ---------------------------------------------------------------------------------------


def test_functions_are_generated_once_and_named_in_tracebacks() -> None:
    assert reader(FetchRequest, 12) is reader(FetchRequest, 12)
    assert writer(FetchRequest, 12) is writer(FetchRequest, 12)

    with pytest.raises(ProtocolError) as caught:
        decoded(FetchRequest, 12, bytes(30))
    text = "".join(traceback.format_exception(caught.value))

    assert 'File "<korvet read FetchRequest v12>"' in text
    assert "fail('topics has a length of %d' % n)" in text
    assert "def run(message, put):" in linecache.getline("<korvet write FetchRequest v12>", 1)


def test_response_with_an_object_of_a_wrong_type_is_not_a_protocol_error() -> None:
    response = FetchResponse(responses=[PartitionData(partition_index=1, high_watermark=0, records=None)])  # type: ignore[list-item]

    with pytest.raises(AttributeError):
        encoded(response, 12)


def test_number_out_of_range_is_refused() -> None:
    with pytest.raises(struct_error):
        encoded(evolve(FETCH, max_wait_ms=2**31), 12)


def test_client_id_is_not_compact_in_a_flexible_header() -> None:
    header = RequestHeader(request_api_key=1, request_api_version=12, correlation_id=3, client_id="me")

    assert pack(">hhih2sx", 1, 12, 3, 2, b"me") == encoded(header, 2)
    assert pack(">hhih2s", 1, 12, 3, 2, b"me") == encoded(header, 1)


@every_message_version
def test_reading_and_writing_in_steps_gives_the_same(cls: type[Any], version: int) -> None:
    message = sample(cls, version, Random(5))
    data = memoryview(encoded(message, version))
    pieces: list[Buffer] = []
    at_once(step_writer(cls, version)(message, pieces.append))

    assert data == b"".join(pieces)
    assert decode(cls, version, data) == at_once(step_decoder(cls, version)(data, 0))


def test_many_elements_are_read_and_written_in_many_steps() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"n{number}") for number in range(10_000)])
    pieces: list[Buffer] = []
    writing = sum(1 for _ in step_writer(MetadataRequest, 12)(request, pieces.append))
    reading = sum(1 for _ in step_decoder(MetadataRequest, 12)(memoryview(b"".join(pieces)), 0))

    assert (156, 156) == (writing, reading)


def test_truncated_message_is_a_protocol_error_in_steps() -> None:
    with pytest.raises(
        ProtocolError, match="malformed FetchRequest version 12: it ends before its last field"
    ):
        at_once(step_decoder(FetchRequest, 12)(memoryview(encoded(FETCH, 12)[:-1]), 0))


def test_metadata_of_many_topics_survives_a_round_trip() -> None:
    response = sample(MetadataResponse, 12, Random(3))
    response.topics *= 300

    assert response == decoded(MetadataResponse, 12, encoded(response, 12))
