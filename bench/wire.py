"""A small synchronous client: one raw socket and korvet's own codec, nothing between them that costs time.

All versions used here are flexible ones, so that one request header (2) and one response header (1) fit all.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from korvet.protocol.codec import decode, encode
from korvet.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from bench.processes import connect
from bench.rdkafka import WrongCount

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 19, 20
VERSIONS = {PRODUCE: 11, FETCH: 12, LIST_OFFSETS: 7, METADATA: 12, CREATE_TOPICS: 7, DELETE_TOPICS: 5}
CLIENT_ID = b"bench"
LIMIT_S = 60.0

SIZE = struct.Struct(">i")
REQUEST_HEADER = struct.Struct(f">hhih{len(CLIENT_ID)}sB")  # the last byte: no tagged fields


class Wire:
    """One connection; every frame carries the same correlation id, so that frames can be sent repeatedly."""

    def __init__(self, port: int) -> None:
        self._socket = connect(("127.0.0.1", port))
        self._socket.settimeout(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The body of the next response (behind the header: correlation id, no tagged fields)."""
        size = SIZE.unpack(self._receive_exactly(4))[0]
        return self._receive_exactly(size)[5:]

    def call(self, api_key: int, request: object, response_type: type) -> Any:
        """Send a request, and give the decoded response."""
        self.send(frame(api_key, request))
        response, _ = decode(response_type, VERSIONS[api_key], self.receive())
        return response

    def _receive_exactly(self, size: int) -> memoryview:
        buffer = memoryview(bytearray(size))
        filled = 0
        while filled < size:
            received = self._socket.recv_into(buffer[filled:], 0, socket.MSG_WAITALL)
            if received == 0:
                raise ConnectionError("the broker closed the connection")
            filled += received
        return buffer


def frame(api_key: int, request: object) -> bytes:
    """A whole request, ready to be sent."""
    parts: list[Any] = [
        REQUEST_HEADER.pack(api_key, VERSIONS[api_key], 1, len(CLIENT_ID), CLIENT_ID, 0),
    ]
    encode(request, VERSIONS[api_key], parts.append)
    body = b"".join(parts)
    return SIZE.pack(len(body)) + body


def produce_frame(topic: str, batch: bytes | bytearray | memoryview) -> bytes:
    """A Produce request of one batch into partition 0, with acks=all."""
    data = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=0, records=(memoryview(batch),))]
    )
    return frame(PRODUCE, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]))


def fetch_frame(topic: str, offset: int, *, max_wait_ms: int, max_bytes: int = 1 << 20) -> bytes:
    """A Fetch request of partition 0."""
    partition = FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    return frame(FETCH, request)


def list_offsets_frame(topic: str, timestamp: int) -> bytes:
    """A ListOffsets request for partition 0."""
    partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[ListOffsetsTopic(name=topic, partitions=[partition])],
    )
    return frame(LIST_OFFSETS, request)


def first_answer(port: int) -> None:
    """Ask for the metadata of no topic, which is what clients begin with."""
    request = MetadataRequest(
        topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    with Wire(port) as wire:
        wire.call(METADATA, request, MetadataResponse)


def create_topic(port: int, topic: str, *, partitions: int, settings: Mapping[str, str]) -> None:
    """Create a topic with those settings."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
            )
        ],
        timeout_ms=30_000,
        validate_only=False,
    )
    with Wire(port) as wire:
        answer = wire.call(CREATE_TOPICS, request, CreateTopicsResponse)
    _expect_no_error(answer.topics[0])


def delete_topic(port: int, topic: str) -> None:
    """Delete a topic, with its records."""
    with Wire(port) as wire:
        answer = wire.call(
            DELETE_TOPICS, DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), DeleteTopicsResponse
        )
    _expect_no_error(answer.responses[0])


def _expect_no_error(answer: Any) -> None:
    if answer.error_code:
        raise WrongCount(f"the broker answered {answer!r}")
