"""A cluster of brokers in the test's process, on real sockets, with configurable faults.

It keeps batches in lists and answers with the broker's side of the codec; nothing of korvet's server, storage or
handlers is in it. So the client is tested against several brokers, old ones, and ones that fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import trio
from attrs import define, field

from korvet.protocol.connection import NEED_DATA, Api, Connection, Request
from korvet.protocol.errors import ErrorCode, ProtocolError
from korvet.protocol.messages import (
    api_versions,
    create_topics,
    delete_topics,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)
from korvet.protocol.record_batch import first_offset_at, max_timestamp_offset, parse_batches, stamp
from korvet.protocol.steps import at_once

HERE: dict[int, tuple[str, type[Any], type[Any], int, int]] = {
    0: ("produce", produce.ProduceRequest, produce.ProduceResponse, 3, 11),
    1: ("fetch", fetch.FetchRequest, fetch.FetchResponse, 4, 17),
    2: ("list_offsets", list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse, 1, 11),
    3: ("metadata", metadata.MetadataRequest, metadata.MetadataResponse, 0, 13),
    8: ("offset_commit", offset_commit.OffsetCommitRequest, offset_commit.OffsetCommitResponse, 2, 9),
    9: ("offset_fetch", offset_fetch.OffsetFetchRequest, offset_fetch.OffsetFetchResponse, 1, 9),
    10: (
        "find_coordinator",
        find_coordinator.FindCoordinatorRequest,
        find_coordinator.FindCoordinatorResponse,
        0,
        6,
    ),
    18: ("api_versions", api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse, 0, 5),
    19: ("create_topics", create_topics.CreateTopicsRequest, create_topics.CreateTopicsResponse, 2, 7),
    20: ("delete_topics", delete_topics.DeleteTopicsRequest, delete_topics.DeleteTopicsResponse, 1, 6),
}
# The API versions of Apache Kafka 2.3, the last release before flexible messages.
KAFKA_2_3 = {0: 7, 1: 11, 2: 5, 3: 8, 8: 7, 9: 5, 10: 2, 18: 2, 19: 3, 20: 3}


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """Yield the address of a server that answers every request with HTTP."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@define
class Close:
    """A fault: close the connection without a response."""


@define
class Late:
    """A fault: delay the response until the event is set."""

    event: trio.Event = field(factory=trio.Event)


@define
class FakeTopic:
    topic_id: UUID
    leaders: list[int]
    logs: list[list[bytearray]]
    settings: Mapping[str, str] = field(factory=dict)


@define(eq=False)
class FakeCluster:
    """The fake cluster. `faults` has the faults of the next requests per API key: an error code, a Close, a Late."""

    max_versions: Mapping[int, int] = field(factory=dict)
    apis: Mapping[int, tuple[str, type[Any], type[Any], int, int]] = field(default=HERE, kw_only=True)
    topics: dict[str, FakeTopic] = field(factory=dict)
    committed: dict[tuple[str, str, int], tuple[int, int, str | None]] = field(factory=dict)
    ports: dict[int, int] = field(factory=dict)
    running: dict[int, trio.CancelScope] = field(factory=dict)
    faults: dict[int, list[int | Close | Late]] = field(factory=dict)
    requests: list[tuple[int, int, int]] = field(factory=list)  # node, API key, version
    connections: int = 0
    appended: trio.Event = field(factory=trio.Event)
    max_message_bytes: int = 2**31

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def add(self, name: str, *leaders: int) -> FakeTopic:
        self.topics[name] = FakeTopic(uuid4(), list(leaders), [[] for _ in leaders])
        return self.topics[name]

    async def serve(self, node: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Run one broker, on its previous port if it ran before."""
        (listener,) = await trio.open_tcp_listeners(self.ports.get(node, 0), host="127.0.0.1")
        self.ports[node] = listener.socket.getsockname()[1]
        with trio.CancelScope() as self.running[node]:
            task_status.started()
            await trio.serve_listeners(partial(self._converse, node), [listener])

    def stop(self, node: int) -> None:
        self.running[node].cancel()

    async def _converse(self, node: int, stream: trio.abc.Stream) -> None:
        self.connections += 1
        apis = {
            key: Api(key, name, request, response, first, self.max_versions.get(key, last))
            for key, (name, request, response, first, last) in self.apis.items()
        }
        connection = Connection(apis, max_frame_bytes=2**26)
        try:
            async for data in stream:
                connection.frames.allow_frame()
                connection.frames.receive_data(data)
                while (request := connection.next_request()) is not NEED_DATA:
                    if not await self._answer(node, connection, request, stream):
                        return
        except (trio.BrokenResourceError, ProtocolError):
            pass
        finally:
            self.connections -= 1
            await trio.aclose_forcefully(stream)

    async def _answer(
        self, node: int, connection: Connection, request: Request, stream: trio.abc.Stream
    ) -> bool:
        self.requests.append((node, request.api.key, request.version))
        faults = self.faults.get(request.api.key, [])
        fault = faults.pop(0) if faults else 0
        if isinstance(fault, Close):
            return False
        if isinstance(fault, Late):
            await fault.event.wait()
            fault = 0
        answer = request.refusal or await getattr(self, f"on_{request.api.name}")(request.body, fault, node)
        for data in connection.send(request, answer):
            await stream.send_all(data)
        return True

    # --- The APIs ---------------------------------------------------------------------------------------

    async def on_api_versions(self, _: Any, error: int, __: int) -> object:
        keys = [
            api_versions.ApiVersion(
                api_key=key, min_version=first, max_version=self.max_versions.get(key, last)
            )
            for key, (_, _, _, first, last) in self.apis.items()
        ]
        return api_versions.ApiVersionsResponse(error_code=error, api_keys=keys)

    async def on_metadata(self, body: metadata.MetadataRequest, error: int, _: int) -> object:
        names = list(self.topics) if body.topics is None else [topic.name for topic in body.topics]
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=self.ports[node])
                for node in self.running
            ],
            cluster_id="fake",
            controller_id=max(self.running),
            topics=[self._described(name, error) for name in names],
        )

    def _described(self, name: str, error: int) -> metadata.MetadataResponseTopic:
        topic = self.topics.get(name)
        if topic is None or error:
            code = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return metadata.MetadataResponseTopic(error_code=code, name=name, partitions=[])
        return metadata.MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            partitions=[
                metadata.MetadataResponsePartition(
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=3,
                    replica_nodes=[leader],
                    isr_nodes=[leader],
                )
                for index, leader in enumerate(topic.leaders)
            ],
        )

    async def on_produce(self, body: produce.ProduceRequest, error: int, node: int) -> object | None:
        responses = [
            produce.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    self._append(topic.name, data, error, node) for data in topic.partition_data
                ],
            )
            for topic in body.topic_data
        ]
        return produce.ProduceResponse(responses=responses) if body.acks else None

    def _append(
        self, name: str, data: produce.PartitionProduceData, error: int, node: int
    ) -> produce.PartitionProduceResponse:
        (batch,) = parse_batches(bytearray(data.records[0]))
        if not error and self.topics[name].leaders[data.index] != node:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not error and batch.size > self.max_message_bytes:
            error = ErrorCode.MESSAGE_TOO_LARGE
        if error:
            return produce.PartitionProduceResponse(index=data.index, error_code=error, base_offset=-1)
        log = self.topics[name].logs[data.index]
        stamp(batch, self.end(name, data.index), 3)
        log.append(batch.buffer)
        self.appended.set()
        self.appended = trio.Event()
        return produce.PartitionProduceResponse(index=data.index, base_offset=batch.base_offset)

    def end(self, name: str, partition: int) -> int:
        log = self.topics[name].logs[partition]
        return parse_batches(log[-1])[0].last_offset + 1 if log else 0

    async def on_fetch(self, body: fetch.FetchRequest, error: int, node: int) -> object:
        with trio.move_on_after(body.max_wait_ms / 1000):
            while not error and not any(
                self._ready(topic, p) for topic in body.topics for p in topic.partitions
            ):
                await self.appended.wait()
        return fetch.FetchResponse(
            responses=[
                fetch.FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[self._read(self._name(topic), p, error, node) for p in topic.partitions],
                )
                for topic in body.topics
            ]
        )

    def _name(self, topic: fetch.FetchTopic) -> str:
        by_id = (name for name, known in self.topics.items() if known.topic_id == topic.topic_id)
        return topic.topic or next(by_id, "")

    def _ready(self, topic: fetch.FetchTopic, p: fetch.FetchPartition) -> bool:
        return self._name(topic) not in self.topics or p.fetch_offset != self.end(
            self._name(topic), p.partition
        )

    def _read(self, name: str, p: fetch.FetchPartition, error: int, node: int) -> fetch.PartitionData:
        if name not in self.topics:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif not error and self.topics[name].leaders[p.partition] != node:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not error and p.fetch_offset > self.end(name, p.partition):
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error:
            return fetch.PartitionData(
                partition_index=p.partition, error_code=error, high_watermark=-1, records=[]
            )
        log = self.topics[name].logs[p.partition]
        return fetch.PartitionData(
            partition_index=p.partition,
            high_watermark=self.end(name, p.partition),
            records=[data for data in log if parse_batches(data)[0].last_offset >= p.fetch_offset],
        )

    async def on_list_offsets(self, body: list_offsets.ListOffsetsRequest, error: int, node: int) -> object:
        return list_offsets.ListOffsetsResponse(
            topics=[
                list_offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[self._list(topic.name, p, error, node) for p in topic.partitions],
                )
                for topic in body.topics
            ]
        )

    def _list(
        self, name: str, p: list_offsets.ListOffsetsPartition, error: int, node: int
    ) -> list_offsets.ListOffsetsPartitionResponse:
        if not error and self.topics[name].leaders[p.partition_index] != node:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        batches = [parse_batches(data)[0] for data in self.topics[name].logs[p.partition_index]]
        match p.timestamp:
            case -1:
                found = (self.end(name, p.partition_index), -1)
            case -2:
                found = (0, -1)
            case -3:
                found = max(map(max_timestamp_offset, batches), key=lambda at: at[1])
            case timestamp:
                hits = (hit for batch in batches if (hit := at_once(first_offset_at(batch, timestamp))))
                found = next(hits, (-1, -1))
        return list_offsets.ListOffsetsPartitionResponse(
            partition_index=p.partition_index, error_code=error, offset=found[0], timestamp=found[1]
        )

    async def on_create_topics(
        self, body: create_topics.CreateTopicsRequest, error: int, node: int
    ) -> object:
        results = []
        for topic in body.topics:
            code = error or (ErrorCode.NOT_CONTROLLER if node != max(self.running) else 0)
            code = code or (ErrorCode.TOPIC_ALREADY_EXISTS if topic.name in self.topics else 0)
            if not code and not body.validate_only:
                nodes = list(self.running)
                leaders = [nodes[n % len(nodes)] for n in range(max(topic.num_partitions, 1))]
                created = self.add(topic.name, *leaders)
                created.settings = {config.name: config.value or "" for config in topic.configs}
            results.append(
                create_topics.CreatableTopicResult(
                    name=topic.name, error_code=code, error_message="no, it was said" if code else None
                )
            )
        return create_topics.CreateTopicsResponse(topics=results)

    async def on_delete_topics(self, body: delete_topics.DeleteTopicsRequest, error: int, _: int) -> object:
        results = []
        for name in body.topic_names:
            found = self.topics.pop(name, None)
            code = error or (0 if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            results.append(delete_topics.DeletableTopicResult(name=name, error_code=code))
        return delete_topics.DeleteTopicsResponse(responses=results)

    async def on_find_coordinator(self, _: Any, error: int, __: int) -> object:
        node = min(self.running)
        return find_coordinator.FindCoordinatorResponse(
            error_code=error, node_id=node, host="127.0.0.1", port=self.ports[node]
        )

    async def on_offset_commit(self, body: offset_commit.OffsetCommitRequest, error: int, _: int) -> object:
        topics = []
        for topic in body.topics:
            for p in topic.partitions if not error else ():
                self.committed[body.group_id, topic.name, p.partition_index] = (
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.committed_metadata,
                )
            partitions = [
                offset_commit.OffsetCommitResponsePartition(
                    partition_index=p.partition_index, error_code=error
                )
                for p in topic.partitions
            ]
            topics.append(offset_commit.OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
        return offset_commit.OffsetCommitResponse(topics=topics)

    async def on_offset_fetch(self, body: offset_fetch.OffsetFetchRequest, error: int, _: int) -> object:
        if body.topics is None:
            asked = [(topic, p) for group, topic, p in self.committed if group == body.group_id]
        else:
            asked = [(topic.name, p) for topic in body.topics for p in topic.partition_indexes]
        return offset_fetch.OffsetFetchResponse(
            error_code=error,
            topics=[
                offset_fetch.OffsetFetchResponseTopic(
                    name=name, partitions=[self._position(body.group_id, name, p)]
                )
                for name, p in asked
            ],
        )

    def _position(self, group_id: str, name: str, p: int) -> offset_fetch.OffsetFetchResponsePartition:
        offset, epoch, words = self.committed.get((group_id, name, p), (-1, -1, ""))
        return offset_fetch.OffsetFetchResponsePartition(
            partition_index=p, committed_offset=offset, committed_leader_epoch=epoch, metadata=words
        )


@asynccontextmanager
async def fake_cluster(
    brokers: int = 1, *, max_versions: Mapping[int, int] | None = None
) -> AsyncIterator[tuple[FakeCluster, Callable[[int], Any]]]:
    """Yield a running cluster, and a function that restarts a stopped broker."""
    cluster = FakeCluster(max_versions or {})
    async with trio.open_nursery() as nursery:

        async def start(node: int) -> None:
            await nursery.start(cluster.serve, node)

        for node in range(1, brokers + 1):
            await start(node)
        yield cluster, start
        nursery.cancel_scope.cancel()
