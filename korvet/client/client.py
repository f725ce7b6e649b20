"""The client's methods. They work with any Kafka broker: each request uses the newest version that both sides support.

Errors are KafkaErrors whose message names the topic, partition, group or broker. The client retries retriable errors
(a broker that restarts, a leader that moved, a topic that is being created) for `retry_timeout_s`, and replaces broken
connections. Any call may be cancelled; whether the broker has executed its request is then unknown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from attrs import define, field

from korvet.client.cluster import TRANSACTION, Cluster, error_about, raise_for, raise_worst
from korvet.client.connection import Address, parse_address
from korvet.client.consuming import MAX_WAIT_MS, Consumer
from korvet.client.isolation import READ_UNCOMMITTED
from korvet.client.model import (
    ListedOffset,
    OffsetAndMetadata,
    Produced,
    Record,
    Topic,
    TopicPartition,
    by_topic,
)
from korvet.client.partitioner import Partitioner
from korvet.client.producer_ids import Producer, ProducerPool
from korvet.client.producing import Production
from korvet.client.security import PLAINTEXT, Security
from korvet.client.transactional import TIMEOUT_MS, Transaction, open_transaction
from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    KafkaError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from korvet.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from korvet.protocol.schema import MAX_VERSION

R = TypeVar("R")
T = TypeVar("T")

# The first version that supports each special timestamp; an older broker would take it as a time.
LIST_OFFSETS_VERSIONS = {-3: 7, -4: 8, -5: 9, -6: 11}
# So that a broker which needs long for a cluster's partitions answers each request within the time for one.
OFFSETS_A_REQUEST = 5_000
# The last versions in which a request has a single group, or a list of names, which is all this client needs.
FETCH_ONE_GROUP = 7
DELETE_BY_NAME = 5
COMMIT_BY_NAME = 9


@asynccontextmanager
async def open_client(
    bootstrap_servers: str | Iterable[str],
    *,
    client_id: str = "korvet",
    security: Security = PLAINTEXT,
    request_timeout_s: float = 30.0,
    retry_timeout_s: float = 30.0,
) -> AsyncIterator[Client]:
    """Connect to a cluster for the block, given some of its brokers as "host:port,…" or a list.

    Raises ValueError for an invalid address, and a KafkaError if no broker answers, or if the first one rejects the TLS
    connection or the login; this is not retried.
    """
    texts = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
    addresses = tuple(map(parse_address, texts))
    cluster = Cluster(addresses, client_id, request_timeout_s, retry_timeout_s, security)
    try:
        await cluster.refresh([])
        yield Client(cluster)
    finally:
        await cluster.close()


@define
class Client:
    """A client of one cluster, created by `open_client`. Several tasks may use it concurrently."""

    _cluster: Cluster
    _partitioners: dict[str, Partitioner] = field(factory=dict, init=False)
    _producers: ProducerPool = field(factory=ProducerPool, init=False)
    _has_producer_ids: bool = field(
        default=True, init=False
    )  # False if the brokers have none, or refuse them

    # --- The cluster and its topics ---------------------------------------------------------------------

    @property
    def cluster_id(self) -> str | None:
        return self._cluster.cluster_id

    @property
    def controller_id(self) -> int:
        return self._cluster.controller_id

    @property
    def brokers(self) -> Mapping[int, Address]:
        """The brokers by node id, from the last Metadata response."""
        return self._cluster.brokers

    async def topics(self) -> dict[str, Topic]:
        """Return all topics by name, except those for which the broker returned an error."""
        answer = await self._cluster.retrying(lambda: self._cluster.refresh(None))
        return {name: topic for name, topic in sorted(answer.items()) if isinstance(topic, Topic)}

    async def topic(self, name: str) -> Topic:
        """Return the current description of a topic. Raises UnknownTopicOrPartition immediately, and its errors."""

        async def attempt() -> Topic | KafkaError:
            topic = (await self._cluster.refresh([name]))[name]
            if isinstance(topic, KafkaError) and not isinstance(topic, UnknownTopicOrPartition):
                raise topic
            return topic

        topic = await self._cluster.retrying(attempt)
        if isinstance(topic, KafkaError):
            raise topic
        return topic

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 stands for the broker's default. Raises TopicAlreadyExists, InvalidConfig, …"""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()],
        )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._timeout_ms(), validate_only=validate_only
        )

        async def attempt() -> None:
            answer = await self._ask_controller(request, CreateTopicsResponse)
            for result in answer.topics:
                raise_for(result.error_code, result.name, result.error_message)

        await self._cluster.retrying(attempt)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises UnknownTopicOrPartition, …"""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=self._timeout_ms())

        async def attempt() -> None:
            answer = await self._ask_controller(request, DeleteTopicsResponse, max_version=DELETE_BY_NAME)
            for result in answer.responses:
                raise_for(result.error_code, result.name, result.error_message)

        await self._cluster.retrying(attempt)

    # --- Records ----------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        records: Iterable[Record],
        *,
        acks: int = -1,
        codec: Codec = Codec.NONE,
        create_topic: bool = False,
        transaction: Transaction | None = None,
    ) -> list[Produced]:
        """Store records, and return the partition and offset of each.

        A call sends whole batches, so pass many records in one call. With `create_topic`, the broker may create the
        topic, if it is configured to. If this raises, some of the records may be stored nevertheless. With acks=-1 the
        producer is idempotent, unless the brokers are older than Kafka 0.11, or refuse it (before Kafka 2.8 it needed
        an ACL for IDEMPOTENT_WRITE). With `transaction`, the records become part of it, and acks is -1.
        """
        production = Production(self._cluster, topic, acks, codec, transaction)
        described = await production.describe(create_topic=create_topic)
        production.deal(records, described, self._partitioners.setdefault(topic, Partitioner()))
        if transaction is not None:
            await transaction.add(production.queues)
            await self._cluster.retrying(production.send)
        elif production.queues:
            async with self._idempotent(acks) as production.producer:
                await self._cluster.retrying(production.send)
        return production.results

    def producer(self, pool: ProducerPool | None = None) -> AbstractAsyncContextManager[Producer]:
        """Return a context manager that takes an idempotent producer from the pool, or from this client's own.

        Raises KafkaError; UnsupportedVersion if the brokers have no idempotent producers.
        """
        return (self._producers if pool is None else pool).producer(self._cluster)

    def transaction(
        self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, after: Transaction | None = None
    ) -> AbstractAsyncContextManager[Transaction]:
        """Return a context manager that begins a transaction, and commits it unless its block raises.

        See `open_transaction`.
        """
        return open_transaction(self._cluster, transactional_id, timeout_ms=timeout_ms, after=after)

    @asynccontextmanager
    async def _idempotent(self, acks: int) -> AsyncIterator[Producer | None]:
        """Yield an idempotent producer, or None if the acks or the brokers allow none."""
        async with AsyncExitStack() as stack:
            producer = None
            if acks == -1 and self._has_producer_ids:
                try:
                    producer = await stack.enter_async_context(self.producer())
                except (UnsupportedVersion, ClusterAuthorizationFailed):
                    self._has_producer_ids = False
            yield producer

    def consume(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        until: Mapping[TopicPartition, int] | None = None,
        max_wait_ms: int = MAX_WAIT_MS,
        min_bytes: int = 1,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> Consumer:
        """Return a consumer that reads partitions from these offsets on; see `Consumer`."""
        return Consumer(
            self._cluster,
            dict(positions),
            until,
            max_wait_ms,
            min_bytes,
            isolation_level=isolation_level,
        )

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the first offset of each partition at or after a time (ms), or for a special timestamp.

        Raises UnsupportedVersion if a broker does not support a special timestamp.
        """
        found: dict[TopicPartition, ListedOffset] = {}
        min_version = max(LIST_OFFSETS_VERSIONS.get(timestamp, 0) for timestamp in (0, *timestamps.values()))

        async def ask(leader: Address, tps: list[TopicPartition]) -> None:
            for first in range(0, len(tps), OFFSETS_A_REQUEST):
                await ask_some(leader, tps[first : first + OFFSETS_A_REQUEST])

        async def ask_some(leader: Address, tps: list[TopicPartition]) -> None:
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=p, timestamp=timestamps[TopicPartition(name, p)]
                            )
                            for p in partitions
                        ],
                    )
                    for name, partitions in by_topic(tps).items()
                ],
                timeout_ms=self._timeout_ms(),
            )
            answer = await self._cluster.request(
                leader, request, ListOffsetsResponse, min_version=min_version
            )
            errors = []
            for topic in answer.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    if p.error_code:
                        errors.append(error_about(p.error_code, tp))
                    else:
                        found[tp] = ListedOffset(p.offset, p.timestamp, p.leader_epoch)
            raise_worst(errors)

        await self._cluster.retrying(lambda: self._cluster.each_leader(timestamps.keys() - found.keys(), ask))
        return {tp: found[tp] for tp in timestamps}

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition, and return the new first offsets.

        An offset of -1 deletes all records. Raises OffsetOutOfRange, PolicyViolation, …
        """
        found: dict[TopicPartition, int] = {}

        async def ask(leader: Address, tps: list[TopicPartition]) -> None:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=name,
                        partitions=[
                            DeleteRecordsPartition(partition_index=p, offset=offsets[TopicPartition(name, p)])
                            for p in partitions
                        ],
                    )
                    for name, partitions in by_topic(tps).items()
                ],
                timeout_ms=self._timeout_ms(),
            )
            answer = await self._cluster.request(leader, request, DeleteRecordsResponse)
            errors = []
            for topic in answer.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    if p.error_code:
                        errors.append(error_about(p.error_code, tp))
                    else:
                        found[tp] = p.low_watermark
            raise_worst(errors)

        await self._cluster.retrying(lambda: self._cluster.each_leader(offsets.keys() - found.keys(), ask))
        return {tp: found[tp] for tp in offsets}

    # --- Committed offsets ------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        """Commit offsets of a group as a member, or without a member id, while the group has no members."""
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id=member_id,
            generation_id_or_member_epoch=generation_id,
            group_instance_id=group_instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=p,
                            committed_offset=offsets[TopicPartition(name, p)].offset,
                            committed_leader_epoch=offsets[TopicPartition(name, p)].leader_epoch,
                            committed_metadata=offsets[TopicPartition(name, p)].metadata,
                        )
                        for p in partitions
                    ],
                )
                for name, partitions in by_topic(offsets).items()
            ],
        )

        async def attempt() -> None:
            answer = await self._ask_coordinator(
                group_id, request, OffsetCommitResponse, max_version=COMMIT_BY_NAME
            )
            raise_worst(
                [
                    error_about(p.error_code, f"group {group_id}, {topic.name}-{p.partition_index}")
                    for topic in answer.topics
                    for p in topic.partitions
                    if p.error_code
                ]
            )

        await self._cluster.retrying(attempt)

    async def committed(
        self,
        group_id: str,
        tps: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets, all or those of `tps`, without partitions that have none.

        With `require_stable`, wait for the end of transactions that may commit other offsets (KIP-447).
        """
        topics = None
        if tps is not None:
            topics = [
                OffsetFetchRequestTopic(name=name, partition_indexes=partitions)
                for name, partitions in by_topic(tps).items()
            ]
        request = OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=require_stable)

        async def attempt() -> OffsetFetchResponse:
            answer = await self._ask_coordinator(
                group_id, request, OffsetFetchResponse, max_version=FETCH_ONE_GROUP
            )
            raise_for(answer.error_code, f"group {group_id}")
            for topic in answer.topics:
                for p in topic.partitions:
                    raise_for(p.error_code, f"group {group_id}, {topic.name}-{p.partition_index}")
            return answer

        answer = await self._cluster.retrying(attempt)
        return {
            TopicPartition(topic.name, p.partition_index): OffsetAndMetadata(
                p.committed_offset, p.committed_leader_epoch, p.metadata or ""
            )
            for topic in answer.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    async def find_coordinator(self, group_id: str) -> Address:
        """Return the address of the broker that coordinates a group."""
        return await self._cluster.retrying(lambda: self._cluster.coordinator(group_id))

    async def find_transaction_coordinator(self, transactional_id: str) -> Address:
        """Return the address of the broker that coordinates a transactional id. It is not retried."""
        return await self._cluster.coordinator(transactional_id, TRANSACTION)

    # --- Anything else ----------------------------------------------------------------------------------

    async def request(
        self,
        message: object,
        response: type[R],
        *,
        node_id: int | None = None,
        address: Address | None = None,
        group_id: str | None = None,
        min_version: int = 0,
        max_version: int = MAX_VERSION,
        wait_s: float = 0.0,
    ) -> R:
        """Send any request to one broker, a group's coordinator, or any broker, and return the response.

        The request is not retried, and the response is not checked for errors. `wait_s` is the time that a request to a
        coordinator lets it wait; it is added to the request timeout. Raises BrokerNotAvailable if the broker has left.
        """
        if group_id is not None:
            return await self._ask_coordinator(group_id, message, response, wait_s=wait_s)
        if node_id is not None:
            address = self.brokers.get(node_id)
            if address is None:
                raise BrokerNotAvailable(f"Broker {node_id} is not in the cluster any more.")
        if address is None:
            return await self._cluster.ask_any(message, response)
        return await self._cluster.request(
            address, message, response, min_version=min_version, max_version=max_version
        )

    async def each_leader(
        self,
        tps: Iterable[TopicPartition],
        ask: Callable[[Address, list[TopicPartition]], Awaitable[None]],
    ) -> None:
        """Call `ask` concurrently for every broker that leads some of `tps`, then raise the worst of their errors."""
        await self._cluster.each_leader(tps, ask)

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds, raises an error that is not retriable, or the retry timeout has passed."""
        return await self._cluster.retrying(attempt)

    async def _ask_controller(
        self, message: object, response: type[R], *, max_version: int = MAX_VERSION
    ) -> R:
        controller = await self._cluster.controller()
        return await self._cluster.request(controller, message, response, max_version=max_version)

    async def _ask_coordinator(
        self,
        group_id: str,
        message: object,
        response: type[R],
        *,
        max_version: int = MAX_VERSION,
        wait_s: float = 0.0,
    ) -> R:
        coordinator = await self._cluster.coordinator(group_id)
        return await self._cluster.request(
            coordinator, message, response, max_version=max_version, wait_s=wait_s
        )

    def _timeout_ms(self) -> int:
        return int(self._cluster.request_timeout_s * 1000)
