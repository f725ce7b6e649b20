"""A Hypothesis state machine: random requests to a broker, whose answers have to agree with a model of its logs.

Every step sends the bytes of one request, in any version that korvet serves, and compares the response with the model:
the records of each partition, and the committed offsets of each group. A subclass may add rules, and may override
`open_broker` to test another broker.

    class MyMachine(ProtocolMachine):
        @rule(topic=topics)
        def my_step(self, topic): ...

    def test_my_broker():
        run_protocol_machine(MyMachine)
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from typing import Any, TypeVar

from attrs import define, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from korvet.handlers import APIS
from korvet.protocol.compression import Codec
from korvet.protocol.connection import Api
from korvet.protocol.errors import ErrorCode
from korvet.protocol.frames import FrameReader
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import parse_batches
from korvet.protocol.requests import decode_response, encode_request
from korvet.protocol.schema import schema_of
from korvet.testing.records import Record, batch, records_in
from korvet.testing.threads import running_broker

M = TypeVar("M", bound="ProtocolMachine")

LIMIT_S = 30
PARTITIONS = 2
MAX_BYTES = 1 << 20
LATEST, EARLIEST = -1, -2
NO_OFFSET = -1
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
# Clients with an older Fetch or Produce cannot read or write zstd.
CODECS = [codec for codec in Codec if codec is not Codec.ZSTD]

topics: st.SearchStrategy[str] = st.sampled_from(["orders", "payments"])
partitions: st.SearchStrategy[int] = st.integers(0, PARTITIONS)  # the last one does not exist
groups: st.SearchStrategy[str] = st.sampled_from(["billing", "shipping"])
offsets: st.SearchStrategy[int] = st.integers(0, 12)
payloads: st.SearchStrategy[bytes | None] = st.none() | st.binary(max_size=4)
values: st.SearchStrategy[list[tuple[bytes | None, bytes | None]]] = st.lists(
    st.tuples(payloads, payloads), min_size=1, max_size=4
)
# A version within any range: the highest one below it that the API has.
places: st.SearchStrategy[int] = st.integers(0, 2**16)

Key = tuple[str, int]
StoredValue = tuple[bytes | None, bytes | None]  # value, key


@define
class ClientConnection:
    """A client's connection."""

    sock: socket.socket
    _frames: FrameReader = field(factory=lambda: FrameReader(MAX_BYTES))
    _numbers: count[int] = field(factory=count)
    _sent: deque[tuple[int, type[Any], int]] = field(factory=deque)  # the requests without a response

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and return its response."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Any, version: int) -> None:
        """Send a request, whose response `receive` returns."""
        number = next(self._numbers)
        self._sent.append((number, api_of(type(request)).response, version))
        self.sock.sendall(b"".join(encode_request(request, version, number, "machine")))

    def receive(self) -> Any:
        """Return the response to the earliest request that has none."""
        number, response, version = self._sent.popleft()
        answered, message = decode_response(response, version, self._next_frame())
        assert number == answered
        return message

    def _next_frame(self) -> Any:
        while (frame := self._frames.next_frame()) is None:
            data = self.sock.recv(65536)
            assert data, "the broker has closed the connection"
            self._frames.receive_data(data)
        return frame


class ProtocolMachine(RuleBasedStateMachine):
    """Requests to one broker, and the model of what it stores: `logs` and `committed`."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[Key, list[StoredValue]] = {}
        self.committed: dict[tuple[str, Key], int] = {}
        self._open = ExitStack()
        address = self._open.enter_context(self.open_broker())
        host, _, port = address.rpartition(":")
        sock = self._open.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
        self.connection: ClientConnection = ClientConnection(sock)

    def open_broker(self) -> AbstractContextManager[str]:
        """Start an empty broker that creates no topics by itself, and yield its bootstrap address."""
        return memory_broker()

    def teardown(self) -> None:
        """Stop the broker."""
        self._open.close()

    def ask(self, request: Any, place: int, *, below: int | None = None) -> Any:
        """Send a request in some version that korvet serves, below `below`, and return its response."""
        api = api_of(type(request))
        end = api.max_version + 1 if below is None else below
        return self.connection.ask(request, api.min_version + place % (end - api.min_version))

    # --- Topics -----------------------------------------------------------------------------------------

    @rule(topic=topics, place=places)
    def create_topic(self, topic: str, place: int) -> None:
        """CreateTopics: a topic exists once."""
        new = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1)
        (found,) = self.ask(CreateTopicsRequest(topics=[new]), place).topics

        if (topic, 0) in self.logs:
            assert ErrorCode.TOPIC_ALREADY_EXISTS == found.error_code
        else:
            assert ErrorCode.NONE == found.error_code
            self.logs |= {(topic, number): [] for number in range(PARTITIONS)}

    @rule(topic=topics, place=places)
    def delete_topic(self, topic: str, place: int) -> None:
        """DeleteTopics: records and committed offsets are deleted with the topic."""
        (found,) = self.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=0), place, below=6).responses

        assert self.expected(topic, 0) == found.error_code
        self.logs = {key: log for key, log in self.logs.items() if key[0] != topic}
        self.committed = {key: offset for key, offset in self.committed.items() if key[1][0] != topic}

    # --- Records ----------------------------------------------------------------------------------------

    @rule(topic=topics, partition=partitions, found=values, codec=st.sampled_from(CODECS), place=places)
    def produce(self, topic: str, partition: int, found: list[StoredValue], codec: Codec, place: int) -> None:
        """Produce: a batch gets the next offsets."""
        now_ms = time.time_ns() // 1_000_000
        data = batch([Record(value, key, now_ms) for value, key in found], codec=codec).buffer
        sent = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=(bytes(data),))]
        )
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[sent])
        (answer,) = self.ask(request, place, below=13).responses[0].partition_responses

        assert self.expected(topic, partition) == answer.error_code
        if log := self.log(topic, partition):
            assert len(log) == answer.base_offset
        if (topic, partition) in self.logs:
            self.logs[topic, partition] += found

    @rule(topic=topics, partition=partitions, offset=offsets, place=places)
    def fetch(self, topic: str, partition: int, offset: int, place: int) -> None:
        """Fetch: all records from an offset within the log."""
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MAX_BYTES)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        (answer,) = self.ask(request, place, below=13).responses[0].partitions

        log = self.log(topic, partition)
        expected = self.expected(topic, partition)
        if not expected and offset > len(log):
            expected = ErrorCode.OFFSET_OUT_OF_RANGE
        assert expected == answer.error_code
        if not expected:
            assert len(log) == answer.high_watermark
            assert [*enumerate(log)][offset:] == received(answer.records, offset)

    @rule(topic=topics, partition=partitions, place=places)
    def list_offsets(self, topic: str, partition: int, place: int) -> None:
        """ListOffsets: the bounds of the log."""
        bounds = {EARLIEST: 0, LATEST: len(self.log(topic, partition))}
        for timestamp, offset in bounds.items():
            wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            request = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
            )
            (answer,) = self.ask(request, place).topics[0].partitions

            assert self.expected(topic, partition) == answer.error_code
            assert (NO_OFFSET if answer.error_code else offset) == answer.offset

    # --- Committed offsets ------------------------------------------------------------------------------

    @rule(group=groups, topic=topics, partition=partitions, offset=offsets, place=places)
    def commit(self, group: str, topic: str, partition: int, offset: int, place: int) -> None:
        """OffsetCommit: the last committed offset counts, also beyond the log's end."""
        committed = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[committed])]
        )
        (answer,) = self.ask(request, place, below=10).topics[0].partitions  # which has ids of topics

        assert self.expected(topic, partition) == answer.error_code
        if not answer.error_code:
            self.committed[group, (topic, partition)] = offset

    @rule(group=groups, topic=topics, partition=partitions, place=places)
    def fetch_committed(self, group: str, topic: str, partition: int, place: int) -> None:
        """OffsetFetch: the committed offset, or none."""
        wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
        found = self.ask(OffsetFetchRequest(group_id=group, topics=[wanted]), place, below=8)
        (answer,) = found.topics[0].partitions

        assert self.committed.get((group, (topic, partition)), NO_OFFSET) == answer.committed_offset

    # --- The model --------------------------------------------------------------------------------------

    def log(self, topic: str, partition: int) -> list[StoredValue]:
        """Return the records of a partition; none if it does not exist."""
        return self.logs.get((topic, partition), [])

    def expected(self, topic: str, partition: int) -> ErrorCode:
        """Return the error code of a request for a partition."""
        return ErrorCode.NONE if (topic, partition) in self.logs else MISSING


def api_of(request: type[Any]) -> Api:
    """Return the API of a class of requests."""
    key = schema_of(request).key
    assert key is not None, "it is not a request"
    return APIS[key]


@contextmanager
def memory_broker() -> Iterator[str]:
    """Run a broker in memory, and yield its bootstrap address."""
    with running_broker("memory", {"auto.create.topics.enable": "false"}) as broker:
        yield broker.bootstrap_servers


def received(buffers: Iterable[Any] | None, offset: int) -> list[tuple[int, StoredValue]]:
    """Return the records in the answer to a Fetch, with their offsets."""
    found = parse_batches(b"".join(buffers or ()))
    return [(each.offset, (each.value, each.key)) for each in records_in(found, offset)]


def run_protocol_machine(
    machine: type[M | ProtocolMachine] = ProtocolMachine, *, max_examples: int = 50, steps: int = 50
) -> None:
    """Send random requests, and compare the answers with the model.

    The steps are the same in every run. Raises the assertion that failed, with the shortest run of steps that leads
    there.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
