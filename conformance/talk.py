"""A scenario's conversation with one broker: requests in any version, and every response kept for the comparison.

A scenario is a function that gets a `Talk` and sends the same requests to every broker. It prepares topics, records and
the coordinator with methods that keep no response. It sends requests to be compared with `ask`, or with `send` and
`receive` if the response depends on another client's request.

Names are the scenario's own (`talk.name("orders")`), so that scenarios do not affect each other. Records are numbered:
`talk.offset("orders", 3)` is the broker's offset of the fourth record.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from attrs import define, field, frozen

from conformance.peers import Peer
from korvet.handlers import APIS
from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import decode
from korvet.protocol.errors import ErrorCode, ProtocolError
from korvet.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import OffsetCommitRequest
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from korvet.protocol.record_batch import RecordBatch
from korvet.protocol.requests import decode_response, encode_request
from korvet.protocol.schema import ZERO_UUID, schema_of
from tests.support.frames import connect, receive_frame

ANSWER_LIMIT_S = 15.0
SETTLE_LIMIT_S = 30.0
RETRY_S = 0.02  # between two checks of something that a broker does asynchronously
PRODUCE = 0
CommittingRequest = OffsetCommitRequest | OffsetFetchRequest | TxnOffsetCommitRequest
#: The first versions that have ids of topics.
OFFSETS_BY_ID = {OffsetCommitRequest: 10, OffsetFetchRequest: 10, TxnOffsetCommitRequest: 6}
PRODUCE_BY_ID = 13  # the first version of Produce that has ids of topics


@frozen
class Ended:
    """Result of a request without a response."""

    how: str


CLOSED = Ended("the connection is closed")
SILENT = Ended("no answer")


@frozen
class Step:
    """A response and its request."""

    label: str
    api: str
    version: int
    answer: Any  # a response, or Ended


class Unexpected(Exception):  # noqa: N818  the message describes it
    """A broker did not do something that every scenario requires, such as creating a topic."""


class Connection:
    """A client of a broker that sends and receives raw frames."""

    def __init__(self, port: int, client_id: str = "judge") -> None:
        self.client_id = client_id
        self._port = port
        self._socket = self._connect()
        self._correlation_id = 0

    def _connect(self) -> socket.socket:
        return connect(("127.0.0.1", self._port), ANSWER_LIMIT_S)

    def send(self, request: object, version: int) -> None:
        """Send a request. Responses are received in the order of requests."""
        self._correlation_id += 1
        frame = encode_request(request, version, self._correlation_id, self.client_id)
        self.send_bytes(b"".join(frame))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes. If the broker has closed the connection, `receive` reports it."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self, limit_s: float = ANSWER_LIMIT_S) -> bytearray | Ended:
        """Return the next frame without its size. If there is none, reconnect and return Ended."""
        self._socket.settimeout(limit_s)
        try:
            return receive_frame(self._socket)
        except TimeoutError:
            self.reconnect()
            return SILENT
        except ConnectionError:
            self.reconnect()
            return CLOSED

    def reconnect(self) -> None:
        """Replace the connection by a new one without outstanding requests."""
        self.close()
        self._socket = self._connect()

    def close(self) -> None:
        """Close the connection, like a client that disconnects."""
        self._socket.close()


@define
class Talk:
    """A conversation; see the module. As a context manager, it closes its connections."""

    peer: Peer
    scope: str  # prefix of every name of the scenario
    steps: list[Step] = field(factory=list)
    topic_ids: dict[str, UUID] = field(factory=dict)
    offsets: dict[tuple[str, int], list[int]] = field(factory=dict)  # of every record, in order
    _connections: list[Connection] = field(factory=list)
    _settled: int = 0

    def __enter__(self) -> Self:
        self.client()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections:
            connection.close()

    # Names and numbers

    def name(self, short: str) -> str:
        """Return a name that is unique to this scenario."""
        return f"{self.scope}-{short}"

    def offset(self, topic: str, number: int, partition: int = 0) -> int:
        """Return the offset of record `number` of a topic, by its short name; after the last one, count on."""
        known = self.offsets.get((self.name(topic), partition), [])
        if number < len(known):
            return known[number]
        return (known[-1] + 1 if known else 0) + number - len(known)

    def topic_id(self, topic: str) -> UUID:
        """Return the id of a topic that `topic` created."""
        return self.topic_ids[self.name(topic)]

    # Asking

    def client(self, client_id: str = "judge", *, listener: str = "") -> Connection:
        """Open another connection, by default to the listener without SASL. It is closed with the scenario."""
        port = self.peer.ports[listener] if listener else self.peer.port
        connection = Connection(port, client_id)
        self._connections.append(connection)
        return connection

    def ask(
        self,
        request: object,
        version: int | None = None,
        label: str = "",
        *,
        on: Connection | None = None,
        limit_s: float = ANSWER_LIMIT_S,
    ) -> Any:
        """Send a request. Keep and return its response, or Ended.

        `limit_s` is for requests that some brokers do not answer.
        """
        client = on or self._connections[0]
        spoken = self.send(request, version, on=client)
        return self.receive(request, spoken, label, on=client, limit_s=limit_s)

    def _set_topic_ids(self, request: CommittingRequest) -> None:
        """Set the ids of the topics that a request names. Those of unknown topics stay zero."""
        if not isinstance(request, OffsetFetchRequest):
            topics: list[Any] = [*request.topics]
        else:
            topics = [topic for group in request.groups for topic in group.topics or ()]
        for topic in topics:
            topic.topic_id = self.topic_ids.get(topic.name, topic.topic_id)

    def send(self, request: object, version: int | None = None, *, on: Connection | None = None) -> int:
        """Send a request, to be received later. Return its version, by default the newest."""
        spoken = newest(type(request)) if version is None else version
        if isinstance(request, CommittingRequest) and spoken >= OFFSETS_BY_ID[type(request)]:
            self._set_topic_ids(request)
        if isinstance(request, ProduceRequest) and spoken >= PRODUCE_BY_ID:
            self._add_ids(request)
        (on or self._connections[0]).send(request, spoken)
        return spoken

    def receive(
        self,
        request: object,
        version: int | None = None,
        label: str = "",
        *,
        on: Connection | None = None,
        limit_s: float = ANSWER_LIMIT_S,
    ) -> Any:
        """Receive the response to a request sent on that connection. Keep and return it."""
        spoken = newest(type(request)) if version is None else version
        answer = received_by(on or self._connections[0], type(request), spoken, limit_s)
        self._learn(request, answer)
        self.steps.append(Step(label, APIS[_key(type(request))].name, spoken, answer))
        return answer

    def tell(self, request: object, version: int | None = None) -> Any:
        """Send a request and return its response without keeping it for the comparison."""
        spoken = self.send(request, version)
        answer = received_by(self._connections[0], type(request), spoken)
        self._learn(request, answer)
        return answer

    def note(self, label: str, what: object) -> None:
        """Keep a value for the comparison that is no response: whether one came, how long it took."""
        self.steps.append(Step(label, "-", 0, Ended(str(what))))

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Check repeatedly until a broker has done something. Raises Unexpected if it never does."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while not happened():
            if time.monotonic() > deadline:
                raise Unexpected(f"{self.peer.name} never did this: {what}")
            time.sleep(RETRY_S)

    # Preparation

    def topic(self, short: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic and wait until it is usable; settings have `_` for `.`. Return its full name."""
        name = self.name(short)
        settings = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ]
        new = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        answer = self.tell(CreateTopicsRequest(topics=[new]))
        if isinstance(answer, Ended) or answer.topics[0].error_code:
            raise Unexpected(f"{self.peer.name} does not create a topic: {answer}")
        self.until_ready(short, partitions)
        return name

    def until_ready(self, short: str, partitions: int = 1) -> None:
        """Return once a topic has that many partitions, all with a leader that answers."""
        name = self.name(short)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

        def ready() -> bool:
            topic = self.tell(request).topics[0]
            self.topic_ids[name] = topic.topic_id
            errors = [topic.error_code, *(partition.error_code for partition in topic.partitions)]
            return not any(errors) and len(topic.partitions) == partitions and self._answers(name, partitions)

        self.wait_until(ready, f"{name} is ready")

    def _answers(self, name: str, partitions: int) -> bool:
        """Return True if every partition answers; Kafka's Metadata may list partitions earlier."""
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        topics = [ListOffsetsTopic(name=name, partitions=asked)]
        answer = self.tell(ListOffsetsRequest(replica_id=-1, topics=topics))
        return not any(partition.error_code for partition in answer.topics[0].partitions)

    def settle(self) -> None:
        """Return once an alteration is effective."""
        # Kafka's controller answers before the broker has the change. The broker gets changes in order, so once it has
        # a topic that was created later, it has the alteration.
        if self.peer.is_kafka:
            self._settled += 1
            self.topic(f"settled-{self._settled}")

    def until_gone(self, short: str) -> None:
        """Return once a deleted topic is unknown to the broker."""
        name = self.name(short)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

        def gone() -> bool:
            return bool(self.tell(request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        self.wait_until(gone, f"{name} is gone")

    def fill(self, short: str, *batches: Buffer, partition: int = 0) -> None:
        """Append batches, one per request."""
        for batch in batches:
            data = PartitionProduceData(index=partition, records=[batch])
            topic = TopicProduceData(name=self.name(short), partition_data=[data])
            answer = self.tell(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]))
            if isinstance(answer, Ended) or answer.responses[0].partition_responses[0].error_code:
                raise Unexpected(f"{self.peer.name} does not take records: {answer}")

    # Topic ids and offsets from responses

    def _learn(self, request: object, answer: Any) -> None:
        if isinstance(request, ProduceRequest) and not isinstance(answer, Ended):
            self._learn_offsets(request, answer)
        if not isinstance(answer, Ended):
            for topic in getattr(answer, "topics", ()):
                if getattr(topic, "topic_id", ZERO_UUID) != ZERO_UUID and getattr(topic, "name", None):
                    self.topic_ids[topic.name] = topic.topic_id

    def _add_ids(self, request: ProduceRequest) -> None:
        """Add the ids of topics that a request names by their names."""
        for topic in request.topic_data:
            if topic.topic_id == ZERO_UUID:
                topic.topic_id = self.topic_ids.get(topic.name, ZERO_UUID)

    def _learn_offsets(self, request: ProduceRequest, answer: Any) -> None:
        names = {topic.topic_id: topic.name for topic in request.topic_data}
        sent = {
            (topic.name, partition.index): partition.records
            for topic in request.topic_data
            for partition in topic.partition_data
        }
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for partition in topic.partition_responses:
                records = sent.get((name, partition.index))
                if partition.error_code == 0 and records:
                    self.learn(name, partition.index, partition.base_offset, records)

    def learn(self, name: str, partition: int, base_offset: int, records: Sequence[Buffer]) -> None:
        """Record the offsets of a batch's records; a duplicate batch has the same ones."""
        batch = RecordBatch(b"".join(records))
        known = self.offsets.setdefault((name, partition), [])
        for offset in range(base_offset, base_offset + batch.last_offset_delta + 1):
            if offset not in known:
                known.append(offset)

    def learn_end(self, short: str, partition: int = 0) -> None:
        """Record the offset of the last record, if no response has named it: of the marker of a transaction."""
        name = self.name(short)
        asked = [ListOffsetsPartition(partition_index=partition, timestamp=-1)]
        answer = self.tell(
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
        )
        known = self.offsets.setdefault((name, partition), [])
        last = answer.topics[0].partitions[0].offset - 1
        if known and last not in known and last > known[-1]:
            known.append(last)

    def number(self, short: str, offset: int) -> int:
        """Return the number of the first record at or after an offset of partition 0; below 0, the offset."""
        known = self.offsets.get((self.name(short), 0), [])
        return offset if offset < 0 else sum(each < offset for each in known)


def newest(request: type[object]) -> int:
    """Return the newest version of an API that korvet serves."""
    return APIS[_key(request)].max_version


def versions(request: type[object], first: int = 0, last: int = 32767) -> Iterable[int]:
    """Return the versions of an API that korvet serves, within the given ones."""
    api = APIS[_key(request)]
    return range(max(first, api.min_version), min(last, api.max_version) + 1)


def _key(request: type[object]) -> int:
    key = schema_of(request).key
    if key is None:
        raise TypeError(f"{request.__name__} is not a request")
    return key


def received_by(
    client: Connection, request: type[object], version: int, limit_s: float = ANSWER_LIMIT_S
) -> Any:
    """Receive and decode the response to a request of that type, or return Ended."""
    frame = client.receive(limit_s)
    if isinstance(frame, Ended):
        return frame
    response = APIS[_key(request)].response
    try:
        return decode_response(response, version, frame)[1]
    except ProtocolError:
        return _api_versions_0(frame, response) or Ended(
            f"something that is no {response.__name__} {version}"
        )


def _api_versions_0(frame: bytearray, response: type[object]) -> Any:
    """Decode the answer to an unknown version of ApiVersions, which brokers send in version 0."""
    if schema_of(response).key != 18:
        return None
    return decode(response, 0, memoryview(frame), 4)[0]
