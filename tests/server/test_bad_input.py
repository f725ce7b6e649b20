"""Bytes that are no requests, and requests that are wrong: each gets Kafka's error or the end of its connection.

One line of the log names the peer, there is no traceback, memory stays where it was, and others notice nothing.
"""

from __future__ import annotations

import gzip
import logging
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect, RequestContext, handled
from korvet.config import Config
from korvet.handlers import APIS
from korvet.protocol.codec import decode
from korvet.protocol.compression import Codec, compress
from korvet.protocol.connection import NEED_DATA, Api, Connection, Request
from korvet.protocol.crc32c import crc32c
from korvet.protocol.errors import ErrorCode, ProtocolError
from korvet.protocol.frames import MAPPED_FRAME, FrameReader
from korvet.protocol.messages.header import ResponseHeader
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import CRC_AT, CRC_COVERS_FROM, HEADER_BYTES, build_batch
from korvet.protocol.requests import encode_request, response_header_version
from korvet.protocol.schema import schema_of
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import append, create, new_broker
from tests.protocol.samples import RANGES, sample
from tests.talk import connect, seen, serving

MAX_FRAME = 104_857_600
METADATA = MetadataRequest(topics=[MetadataRequestTopic(name="t")])


def frame(*parts: bytes, size: int | None = None) -> bytes:
    body = b"".join(parts)
    return struct.pack(">i", len(body) if size is None else size) + body


def header(key: int, version: int) -> bytes:
    """Return a request header with correlation id 1 and client id "c"."""
    return struct.pack(">hhih", key, version, 1, 1) + b"c"


def request_bytes(request: object, version: int) -> bytes:
    return b"".join(encode_request(request, version, 1, "c"))


def cut(data: bytes, count: int) -> bytes:
    """Return a frame without its last bytes, with a size that matches."""
    return frame(data[4 : len(data) - count])


HOSTILE = {
    "random": Random(1).randbytes(5000),
    "random behind a fair size": frame(Random(2).randbytes(5000)),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + Random(3).randbytes(200),
    "2 GiB": frame(size=2**31 - 1),
    "negative size": frame(size=-1),
    "most negative size": frame(size=-(2**31)),
    "above the limit": frame(size=MAX_FRAME + 1),
    "empty frame": frame(),
    "frame without version": frame(b"\0\3\0"),
    "frame without client id": frame(b"\0\3\0\1\0\0\0\1"),
    "unknown key": frame(header(999, 0)),
    "negative key": frame(header(-1, 0)),
    "unserved key": frame(header(11, 0)),
    "unknown version": frame(header(1, 99)),
    "negative version": frame(header(3, -1)),
    "version below the range": frame(header(1, 3)),
    "bytes missing": cut(request_bytes(METADATA, 12), 1),
    "nearly all bytes missing": cut(request_bytes(METADATA, 12), 12),
    "array longer than the frame": frame(header(3, 1), struct.pack(">i", 2**31 - 1)),
    "array of negative length": frame(header(3, 1), struct.pack(">i", -2)),
    "compact array longer than the frame": frame(header(3, 12), b"\0", b"\xff\xff\xff\xff\x0f"),
    "varint without end": frame(header(3, 12), b"\0", b"\xff" * 20),
    "string longer than the frame": frame(header(3, 1), struct.pack(">ih", 1, 32767), b"t"),
    "string that is no utf-8": frame(header(3, 1), struct.pack(">ih", 1, 2), b"\xff\xfe"),
    "null for a non-nullable field": frame(header(3, 1), struct.pack(">ih", 1, -1)),
    "produce without acks in an old version": frame(header(0, 2), struct.pack(">hii", 0, 1000, 0)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_malformed_request_ends_only_its_connection_and_logs_one_line(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, connect(server) as hostile, connect(server) as bystander:
        await bystander.ask(METADATA, 12)
        await hostile.send(data)
        await hostile.closed()

        assert ErrorCode.NONE == (await bystander.ask(METADATA, 12)).topics[0].error_code
        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert hostile.name in record.getMessage()
        assert "\n" not in record.getMessage()
        assert record.exc_info is None


@pytest.mark.parametrize("sent", [1, 3, 4, 5, 20])
async def test_client_that_disconnects_during_a_request_is_logged_in_one_line(
    sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        async with connect(server) as hostile:
            name = hostile.name
            await hostile.send(request_bytes(METADATA, 12)[:sent])
        await seen(server).until(lambda: seen(server).connections == 0)

        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert f"{name}: connection closed: it went in the middle of a request" == record.getMessage()


async def test_client_supplied_names_cannot_inject_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server, connect(server) as hostile:
        data = [PartitionProduceData(index=0, records=(b"",))]
        name = "t\nERROR all is lost"
        request = ProduceRequest(
            acks=0, timeout_ms=0, topic_data=[TopicProduceData(name=name, partition_data=data)]
        )
        await hostile.send(hostile.frame_of(request, 9))
        await hostile.closed()

        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert "\n" not in record.getMessage()


async def test_bytes_behind_requests_are_ignored_and_logged_once_for_each_software(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """librdkafka sends a byte too many in AlterUserScramCredentials, kafka-go in DescribeAcls."""
    data = frame(request_bytes(METADATA, 12)[4:] + b"\0\0")
    with caplog.at_level(logging.INFO, "korvet.server"):
        async with serving() as server, connect(server) as client, connect(server) as other:
            for each in (client, client, other):
                await each.send(data)
                assert ErrorCode.NONE == (await each.answer(MetadataRequest, 12))[1].topics[0].error_code

    (line,) = [each.getMessage() for each in caplog.records if "ignored" in each.getMessage()]
    assert line.endswith("ignored 2 bytes behind a request Metadata v12 of software without a name")


async def test_requests_before_malformed_bytes_are_answered() -> None:
    async with serving() as server, connect(server) as client:
        await client.send(client.frame_of(METADATA, 12) * 3 + HOSTILE["negative size"])

        for _ in range(3):
            await client.answer(MetadataRequest, 12)
        await client.closed()


async def test_announced_bytes_take_no_memory() -> None:
    # As large as a frame may be that is not mapped: tracemalloc does not see mappings.
    announced = frame(header(0, 9), size=MAPPED_FRAME - 1)
    async with serving() as server:
        tracemalloc.start()
        streams = []
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(20):
                stream = await trio.open_tcp_stream("127.0.0.1", server.listeners[0].listener.port)
                streams.append(stream)
                await stream.send_all(announced)
            await seen(server).until(lambda: seen(server).connections == 20)
            await trio.testing.wait_all_tasks_blocked(0.02)
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            for stream in streams:
                await stream.aclose()

    # 64 kB for each, and little more.
    assert taken < 2_000_000


async def test_memory_does_not_grow_with_bad_connections() -> None:
    async def attack(rounds: int) -> None:
        for number in range(rounds):
            for data in HOSTILE.values():
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                await stream.send_all(data)
                if number % 2:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await stream.aclose()
        await seen(server).until(lambda: seen(server).connections == 0)

    async with serving() as server:
        port = server.listeners[0].listener.port
        logging.disable()
        try:
            await attack(2)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            await attack(10)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            logging.disable(logging.NOTSET)

    assert grown < 200_000


# --- Batches ----------------------------------------------------------------------------------------------


def produce(batch: bytes | bytearray, topic: str = "t") -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=(bytes(batch),))]
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def altered(offset: int, value: bytes, *, crc: bool = True) -> bytearray:
    """Return a batch of two records with `value` at an offset, with a matching CRC unless `crc` is False."""
    batch = build_batch([(0, 1, None, b"a", ()), (1, 1, None, b"b", ())])
    batch[offset : offset + len(value)] = value
    if crc:
        struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return batch


@pytest.mark.parametrize(
    "batch, error",
    [
        (altered(60, b"\x03", crc=False), ErrorCode.CORRUPT_MESSAGE),
        (altered(17, b"\0\0\0\0", crc=False), ErrorCode.CORRUPT_MESSAGE),
        (altered(8, struct.pack(">i", -1)), ErrorCode.CORRUPT_MESSAGE),
        (altered(8, struct.pack(">i", 2**31 - 1)), ErrorCode.INVALID_RECORD),
        (altered(57, struct.pack(">i", 3)), ErrorCode.INVALID_RECORD),
        (altered(57, struct.pack(">i", 0)), ErrorCode.INVALID_RECORD),
        (altered(57, struct.pack(">i", -1)), ErrorCode.INVALID_RECORD),
        (altered(23, struct.pack(">i", 7)), ErrorCode.INVALID_RECORD),
        (altered(23, struct.pack(">i", -1)), ErrorCode.INVALID_RECORD),
        (altered(21, b"\0\5"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (altered(16, b"\1"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (b"\0" * 10, ErrorCode.INVALID_RECORD),
        (Random(4).randbytes(15), ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "wrong byte",
        "wrong crc",
        "negative length",
        "length beyond the request",
        "too many counted",
        "zero counted",
        "negative count",
        "too many offsets",
        "negative offsets",
        "unknown codec",
        "old format",
        "zeros",
        "random",
    ],
)
async def test_malformed_batches_get_an_error_and_the_connection_stays_open(
    batch: bytes, error: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    await storage.create_topic("t", 1, {})
    async with serving(storage=storage) as server, connect(server) as client:
        response = await client.ask(produce(batch), 9)
        (partition,) = response.responses[0].partition_responses
        good = await client.ask(produce(altered(0, b"")), 9)

        assert (error, -1) == (partition.error_code, partition.base_offset)
        assert 0 == good.responses[0].partition_responses[0].base_offset
        assert [] == [each for each in caplog.records if each.exc_info]


def bomb(codec: Codec, size: int) -> bytearray:
    """Return a small batch with a record count of 1, whose payload decompresses to `size` zeros."""
    batch = build_batch([(0, 1, None, b"", ())])[:HEADER_BYTES]
    payload = gzip.compress(bytes(size)) if codec is Codec.GZIP else compress(codec, bytes(size))
    batch += payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return batch


@pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda each: each.name
)
async def test_decompression_bombs_take_bounded_memory(codec: Codec) -> None:
    broker = await new_broker(message_max_bytes=100_000_000)
    await create(broker, message_timestamp_after_max_ms="1000")
    packed = bomb(codec, 400_000_000)
    tracemalloc.start()
    try:
        (partition,) = (await answered(broker, produce(packed), 9)).responses[0].partition_responses
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert partition.error_code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)
    assert peak < len(packed) + 300_000_000


async def test_list_offsets_answers_for_a_log_with_a_decompression_bomb() -> None:
    broker = await new_broker(record_validation="batch")
    await create(broker)
    stored = await answered(broker, produce(bomb(Codec.ZSTD, 400_000_000)), 9)
    assert ErrorCode.NONE == stored.responses[0].partition_responses[0].error_code

    asked = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=0)])
        ],
    )
    (partition,) = (await answered(broker, asked, 7)).topics[0].partitions

    assert (ErrorCode.NONE, 0) == (partition.error_code, partition.offset)


@pytest.mark.parametrize("name", ["", "..", "a b", "a/b", "{a}", "$a", "a\x00", "x" * 250, "🙂"])
async def test_invalid_topic_names_get_an_error(name: str) -> None:
    async with serving() as server, connect(server) as client:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])

        found = (await client.ask(asked, 12)).topics[0]
        stored = (await client.ask(produce(altered(0, b""), name), 9)).responses[0]

        assert ErrorCode.INVALID_TOPIC_EXCEPTION == found.error_code
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == stored.partition_responses[0].error_code


# --- Anything at all --------------------------------------------------------------------------------------
#
# Through the protocol and the handlers to the store, without sockets. Any input must result in valid responses,
# ProtocolError or Disconnect; any other exception fails the test.


async def answered(broker: Broker, request: object, version: int) -> Any:
    """Return the response to one valid request."""
    (answer,) = await exchange(broker, request_bytes(request, version))
    return answer


async def exchange(broker: Broker, data: bytes) -> list[Any]:
    """Return the responses to the requests in these bytes, up to the first one that ends the connection."""
    connection = Connection(APIS, max_frame_bytes=Config().socket_request_max_bytes)
    connection.frames.receive_data(data)
    answers: list[Any] = []
    try:
        if connection.frames.pending_frame_size is not None:
            connection.frames.allow_frame()
        while (request := connection.next_request()) is not NEED_DATA:
            answers.append(await work(broker, connection, request))
    except (ProtocolError, Disconnect):
        pass
    return answers


async def work(broker: Broker, connection: Connection, request: Request) -> Any:
    response = request.refusal
    if response is None:
        context = RequestContext(request.version, request.client_id)
        response = await handled(request.api.handle(broker, request.body, context))
    return read_back(request, b"".join(connection.send(request, response)))


def read_back(request: Request, data: bytes) -> Any:
    """Decode a response as a client does. Return None if there are no bytes."""
    if not data:
        return None
    frames = FrameReader(2**31 - 1)
    frames.receive_data(data)
    frames.allow_frame()
    whole = frames.next_frame()
    assert whole is not None
    assert frames.idle
    view = memoryview(whole)
    cls, version = request.api.response, request.response_version
    read, end = decode(ResponseHeader, response_header_version(cls, version), view)
    assert request.correlation_id == read.correlation_id
    message, end = decode(cls, version, view, end)
    assert len(view) == end
    return message


async def populated() -> Broker:
    """Return a broker that never waits, with two topics that have records."""
    broker = await new_broker(max_partitions=10)
    await create(broker, "t", 2)
    await create(broker, "u", message_timestamp_after_max_ms="1000")
    for _ in range(3):
        await append(broker)
    broker.drain()
    return broker


def run(data: bytes) -> list[Any]:
    async def main() -> list[Any]:
        return await exchange(await populated(), data)

    return trio.run(main)


API_AND_VERSION = [
    (api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)
]
EXAMPLES = settings(max_examples=400)


def sensible(message: object, version: int, random: Random, batches: Iterator[bytes]) -> None:
    """Let some of a random message mean something here: names, small numbers, real batches."""
    for field in schema_of(type(message)).fields:
        value = getattr(message, field.name)
        if version not in field.versions or value is None:
            continue
        if field.is_array and field.struct is not None:
            for each in value:
                sensible(each, version, random, batches)
        elif field.is_array:
            continue
        elif field.kafka_type == "string" and field.name in ("name", "topic"):
            setattr(message, field.name, random.choice(["t", "t", "u", "new", value]))
        elif field.kafka_type == "records":
            setattr(message, field.name, (next(batches),))
        elif field.kafka_type in RANGES and random.random() < 0.7:
            setattr(message, field.name, random.choice([-2, -1, 0, 0, 1, 2, 100]))


def batches(random: Random) -> Iterator[bytes]:
    """Batches, some of them with a wrong byte."""
    while True:
        count = random.randint(1, 3)
        codec = random.choice(list(Codec))
        batch = build_batch(
            [(n, random.choice([1, 10**13]), b"k", b"v" * n, ()) for n in range(count)], codec=codec
        )
        if random.random() < 0.3:
            batch[random.randrange(len(batch))] ^= 1 << random.randrange(8)
        yield bytes(batch)


def message_of(api: Api, version: int, random: Random) -> object:
    message = sample(api.request, version, random, bare=random.random() < 0.2)
    if random.random() < 0.8:
        sensible(message, version, random, batches(random))
    return message


@given(st.sampled_from(API_AND_VERSION), st.integers(0, 2**32))
@EXAMPLES
def test_every_decoded_request_is_answered_or_ends_its_connection(which: tuple[Api, int], seed: int) -> None:
    run(request_bytes(message_of(*which, Random(seed)), which[1]))


@given(st.sampled_from(API_AND_VERSION), st.integers(0, 2**32), st.data())
@EXAMPLES
def test_damaged_requests_are_answered_or_end_their_connection(
    which: tuple[Api, int], seed: int, data: st.DataObject
) -> None:
    body = bytearray(request_bytes(message_of(*which, Random(seed)), which[1])[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body)))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if change == "flip" and position < len(body):
            body[position] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "cut":
            del body[position:]
        elif change == "insert":
            body[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        else:
            body += body[position:]
    run(frame(bytes(body)))


@given(st.binary(max_size=300), st.sampled_from(API_AND_VERSION))
@EXAMPLES
def test_random_bytes_after_a_header_are_answered_or_end_their_connection(
    data: bytes, which: tuple[Api, int]
) -> None:
    api, version = which
    run(frame(header(api.key, version), data) + data)


@given(st.lists(st.tuples(st.sampled_from(API_AND_VERSION), st.integers(0, 2**32)), min_size=2, max_size=12))
@settings(max_examples=100)
def test_consecutive_requests_are_answered_in_turn(asked: list[tuple[tuple[Api, int], int]]) -> None:
    """None of them is lost, whatever the ones before did, as long as none ends the connection."""

    async def main() -> None:
        broker = await populated()
        for (api, version), seed in asked:
            data = request_bytes(message_of(api, version, Random(seed)), version)
            answers = await exchange(broker, data)
            assert len(answers) <= 1

    trio.run(main)
