"""A small synchronous client: one raw socket and korvet's own codec, with little overhead.

The failure tests use it too, for requests that no Kafka client can make: sending the same batch again, leaving a
request unanswered.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import error_for
from korvet.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.requests import decode_response, encode_request
from tests.support.frames import connect, receive_frame

# The last versions that address topics by name; for ListOffsets, the first version with tiers.
SPOKEN: dict[type, tuple[int, type]] = {
    ProduceRequest: (11, ProduceResponse),
    FetchRequest: (12, FetchResponse),
    ListOffsetsRequest: (8, ListOffsetsResponse),
    MetadataRequest: (12, MetadataResponse),
    InitProducerIdRequest: (4, InitProducerIdResponse),
    CreateTopicsRequest: (7, CreateTopicsResponse),
    DeleteTopicsRequest: (5, DeleteTopicsResponse),
}
LIMIT_S = 60.0
LATEST = -1
# Produce requests in flight.
IN_FLIGHT = 8
MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)


class Wire:
    """One connection. Every frame has the same correlation id, so that a frame can be sent again unchanged."""

    def __init__(self, port: int) -> None:
        self.socket = connect(("127.0.0.1", port), LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, frame: bytes | Sequence[Buffer]) -> None:
        """Send a frame, whole or in pieces."""
        if isinstance(frame, bytes):
            self.socket.sendall(frame)
            return
        for piece in frame[:-1]:
            self.socket.sendall(piece, MORE_FOLLOWS)
        self.socket.sendall(frame[-1])

    def receive(self) -> bytearray:
        """Receive the next response, undecoded."""
        return receive_frame(self.socket)

    def call(self, request: object) -> Any:
        """Send a request and return its decoded response."""
        self.send(frame_of(request))
        return answer(type(request), self.receive())


def frame_of(request: object) -> bytes:
    """Return the frame of a request."""
    return b"".join(pieces_of(request))


def pieces_of(request: object) -> Sequence[Buffer]:
    """Return the frame of a request in pieces; record batches are not copied."""
    version, _ = SPOKEN[type(request)]
    return encode_request(request, version, 1, "bench")


def answer(request_type: type, frame: bytearray) -> Any:
    """Decode the response in a received frame."""
    version, response_type = SPOKEN[request_type]
    return decode_response(response_type, version, frame)[1]


def produce_request(
    topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    """Return a request with one batch for one partition."""
    into = PartitionProduceData(index=partition, records=[batch])
    data = TopicProduceData(name=topic, partition_data=[into])
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])


def produced(frame: bytearray) -> int:
    """Return the base offset in the response to a `produce_request`; raise the error in it."""
    partition = answer(ProduceRequest, frame).responses[0].partition_responses[0]
    _raise_error(partition.error_code)
    base_offset: int = partition.base_offset
    return base_offset


def produce_all(wire: Wire, frames: Iterable[bytes | Sequence[Buffer]]) -> Iterator[int]:
    """Send `produce_request`s with up to IN_FLIGHT unanswered ones, as producers do. Yield base offsets in order."""
    unanswered = 0
    for frame in frames:
        wire.send(frame)
        unanswered += 1
        if unanswered == IN_FLIGHT:
            yield produced(wire.receive())
            unanswered -= 1
    for _ in range(unanswered):
        yield produced(wire.receive())


def fetch_request(
    topic: str,
    offset: int,
    *,
    max_wait_ms: int,
    max_bytes: int = 1 << 20,
    partition: int = 0,
    isolation_level: int = 0,
) -> FetchRequest:
    """Return a request for one partition from an offset on."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


def fetched(frame: bytearray) -> bytes:
    """Return the record batches in the response to a `fetch_request`; raise the error in it."""
    partition = answer(FetchRequest, frame).responses[0].partitions[0]
    _raise_error(partition.error_code)
    return b"".join(partition.records or ())


def list_offsets_request(topic: str, timestamp: int) -> ListOffsetsRequest:
    """Return a request for partition 0 at a timestamp, which may be a special one."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])


def listed_offset(frame: bytearray) -> int:
    """Return the offset in the response to a `list_offsets_request`; raise the error in it."""
    partition = answer(ListOffsetsRequest, frame).topics[0].partitions[0]
    _raise_error(partition.error_code)
    offset: int = partition.offset
    return offset


def first_answer(port: int) -> None:
    """Send a Metadata request for no topic, which is the first request of most clients."""
    with Wire(port) as wire:
        wire.call(MetadataRequest(topics=[], allow_auto_topic_creation=False))


def create_topic(
    port: int, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    """Create a topic with those settings."""
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in (settings or {}).items()]
    new = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=configs)
    with Wire(port) as wire:
        _raise_error(wire.call(CreateTopicsRequest(topics=[new])).topics[0].error_code)


def await_topic(port: int, topic: str, *, partitions: int) -> None:
    """Return once every partition answers."""
    # Apache Kafka's controller creates a topic before its broker has it.
    asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(partitions)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    deadline = time.monotonic() + LIMIT_S
    with Wire(port) as wire:
        while any(partition.error_code for partition in wire.call(request).topics[0].partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} is not served {LIMIT_S:.0f} s after it was made")
            time.sleep(0.01)  # clients get no notification of new topics


def delete_topic(port: int, topic: str) -> None:
    """Delete a topic, with its records."""
    with Wire(port) as wire:
        response = wire.call(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000))
    _raise_error(response.responses[0].error_code)


def new_producer_id(port: int) -> tuple[int, int]:
    """Return id and epoch of a new idempotent producer."""
    with Wire(port) as wire:
        response = wire.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
    _raise_error(response.error_code)
    return response.producer_id, response.producer_epoch


def _raise_error(error_code: int) -> None:
    if error_code:
        raise error_for(error_code)
