"""Produce requests that differ from an earlier one of their connection only in correlation id, partition and batch.

Producers send such requests one after the other. `RepeatedProduce` decodes them by comparing the bytes that stay the
same, and encodes their responses by setting the numbers in bytes that stay the same. Both come from the declarations
by `korvet.protocol.codec`, which decodes and encodes everything else, with the same results.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Self
from uuid import UUID

from attrs import define, field

from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import decode, encode
from korvet.protocol.field_writing import uvarint
from korvet.protocol.frames import framed
from korvet.protocol.messages.header import RequestHeader, ResponseHeader
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.record_batch import HEADER_BYTES
from korvet.protocol.requests import request_header_version, response_header_version
from korvet.protocol.schema import is_flexible, schema_of

NUMBER = Struct(">i")
# The positions of the correlation id in a request, and in the frame of a response, and of what follows it in a request.
CORRELATION_ID_AT, HEAD_AT = 4, 8
# A partition's fields in a response, from its index to the log start offset: adjacent from version 5 on.
RESULT = Struct(">ihqqq")
# Values whose bytes do not occur in a response before them: names are UTF-8, and the ids of topics are random.
SAMPLE = (-0x70707071, 0, -0x7070707070707071, -0x7070707070707072, -0x7070707070707073)
SAMPLE_THROTTLE_MS = -0x70707072
# The versions in which topics have a name and no id.
NAMED = next(each.versions for each in schema_of(TopicProduceResponse).fields if each.name == "name")


def likeness(version: int, client_id: str | None, request: ProduceRequest) -> tuple[object, ...] | None:
    """Return the values that are equal in requests that a `RepeatedProduce` decodes; None without exactly one batch."""
    if len(request.topic_data) != 1:
        return None
    topic = request.topic_data[0]
    if len(topic.partition_data) != 1 or not topic.partition_data[0].records:
        return None
    return (
        version,
        client_id,
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        topic.name,
        topic.topic_id,
    )


@define(eq=False)
class RepeatedProduce:
    """The bytes and values that a connection's requests with one batch, and their responses, have in common."""

    client_id: str | None
    version: int
    _transactional_id: str | None
    _acks: int
    _timeout_ms: int
    _topic_name: str
    _topic_id: UUID
    _start: bytes  # of a request, before the correlation id
    _head: bytes  # between correlation id and partition
    _tail: bytes  # behind the batch
    _response: bytes  # a frame
    _result_at: int
    _throttle_at: int
    # Of frames that have the same size as the last one: the length before the batch, and the position of the batch.
    _frame_size: int = field(default=0, init=False)
    _length: bytes = field(default=b"", init=False)
    _batch_at: int = field(default=0, init=False)

    @classmethod
    def of(cls, version: int, request: ProduceRequest, frame: memoryview) -> Self | None:
        """Return what `request`, which has a `likeness` and fills `frame`, has in common with those like it.

        Return None for a version or an encoding that is too unusual.
        """
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        (batch,) = partition.records or ()
        header_version = request_header_version(ProduceRequest, version)
        header, _ = decode(RequestHeader, header_version, frame)
        pieces: list[Buffer] = []
        encode(header, header_version, pieces.append)
        encode(request, version, pieces.append)
        at = next(index for index, piece in enumerate(pieces) if piece is batch)
        before, tail = b"".join(pieces[:at]), b"".join(pieces[at + 1 :])
        head = before[HEAD_AT:].removesuffix(NUMBER.pack(partition.index) + _length(len(batch), version))
        response = _sample_response(version, topic)
        result_at = response.find(RESULT.pack(*SAMPLE))
        throttle_at = response.find(NUMBER.pack(SAMPLE_THROTTLE_MS), result_at + RESULT.size)
        if b"".join(pieces) != frame or result_at < 0:
            return None
        return cls(
            header.client_id,
            version,
            request.transactional_id,
            request.acks,
            request.timeout_ms,
            topic.name,
            topic.topic_id,
            before[:CORRELATION_ID_AT],
            head,
            tail,
            response,
            result_at,
            throttle_at,
        )

    def decode(self, frame: bytearray) -> ProduceRequest | None:
        """Return the request in a frame, or None if it is not like the others."""
        size = len(frame)
        if size != self._frame_size:
            self._measure(size)
        batch_at, length = self._batch_at, self._length
        index_at = batch_at - len(length) - NUMBER.size
        if not (
            batch_at
            and frame.startswith(self._start)
            and frame.startswith(self._head, HEAD_AT)
            and frame.startswith(length, index_at + NUMBER.size)
            and frame.endswith(self._tail)
        ):
            return None
        batch = memoryview(frame)[batch_at : size - len(self._tail)]
        partition = PartitionProduceData(index=NUMBER.unpack_from(frame, index_at)[0], records=(batch,))
        topic = TopicProduceData(name=self._topic_name, topic_id=self._topic_id, partition_data=[partition])
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=[topic],
        )

    def _measure(self, size: int) -> None:
        """Compute the length before the batch in frames of that size. Its position is 0 if no batch fits."""
        self._frame_size, self._batch_at = size, 0
        rest = size - HEAD_AT - len(self._head) - NUMBER.size - len(self._tail)
        for length_bytes in (1, 2, 3, 4):
            length = _length(max(0, rest - length_bytes), self.version)
            if len(length) == length_bytes and rest - length_bytes >= HEADER_BYTES:
                self._length, self._batch_at = length, HEAD_AT + len(self._head) + NUMBER.size + length_bytes

    def encode(self, correlation_id: int, response: Any) -> bytearray | None:
        """Return the frame of the response to such a request, or None if it has other values than a usual result."""
        topics = response.responses
        if len(topics) != 1 or response.node_endpoints:
            return None
        topic: TopicProduceResponse = topics[0]
        if len(topic.partition_responses) != 1 or not self._is_of(topic):
            return None
        found = topic.partition_responses[0]
        if found.record_errors or found.error_message is not None or found.current_leader is not None:
            return None
        frame = bytearray(self._response)
        NUMBER.pack_into(frame, CORRELATION_ID_AT, correlation_id)
        RESULT.pack_into(
            frame,
            self._result_at,
            found.index,
            found.error_code,
            found.base_offset,
            found.log_append_time_ms,
            found.log_start_offset,
        )
        NUMBER.pack_into(frame, self._throttle_at, response.throttle_time_ms)
        return frame

    def _is_of(self, topic: TopicProduceResponse) -> bool:
        if self.version in NAMED:
            return topic.name == self._topic_name
        return topic.topic_id == self._topic_id


def _length(size: int, version: int) -> bytes:
    """Return the length of a batch as a request has it."""
    return uvarint(size + 1) if is_flexible(ProduceRequest, version) else NUMBER.pack(size)


def _sample_response(version: int, topic: TopicProduceData) -> bytes:
    """Return the frame of a response for that topic with the numbers of SAMPLE and SAMPLE_THROTTLE_MS."""
    index, error_code, base_offset, log_append_time_ms, log_start_offset = SAMPLE
    partition = PartitionProduceResponse(
        index=index,
        error_code=error_code,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
    )
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])
        ],
        throttle_time_ms=SAMPLE_THROTTLE_MS,
    )
    pieces: list[Buffer] = []
    encode(ResponseHeader(correlation_id=0), response_header_version(ProduceResponse, version), pieces.append)
    encode(response, version, pieces.append)
    return b"".join(framed(pieces))
