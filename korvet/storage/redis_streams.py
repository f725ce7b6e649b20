"""Topics, records and committed offsets in Redis Streams: the storage that several brokers can share.

This module joins, opens and closes the parts of `korvet.storage.redis`:

    keys, scripts/                    the keyspace, and the Lua scripts
    partition, partitions             the known state of partitions
    format                            the functions that a topic's layout and mapping determine
    append/                           append: layouts, the queues; `client.wait_connections` wait for replicas
    read/                             read, latest; earliest and by time; watches for growth
    compaction/                       compact
    failover/                         the high watermark if `min.insync.replicas` is above 1 (confirmations), replicas
                                      that a failover by Sentinel may promote (quorum, promotion), servers that evict
                                      records, were emptied, or are not the address's any more (monitor, guard)
    leader_epochs                     the leader epoch that clients receive
    catalogue, documents              topics, documents
    document_watches                  announced changes of documents
    groups, staged_offsets            committed offsets, and those of open transactions
    shares                            share groups in the record layout
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self
from uuid import UUID

import trio
from attrs import evolve, frozen

from korvet.concurrency.background import background_nursery
from korvet.protocol.errors import KafkaError, NotEnoughReplicasAfterAppend, OffsetOutOfRange, RequestTimedOut
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import (
    NO_TRANSACTIONS,
    ActiveProducer,
    AppendResults,
    Compacted,
    Document,
    DocumentConflict,
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    Marker,
    Measurements,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetMapping,
    PendingAck,
    PendingAppend,
    PendingRead,
    ProducerTransaction,
    ReadRequest,
    ReadResult,
    Storage,
    StorageDefaults,
    Topic,
    TopicPartition,
    TransactionResult,
    Transactions,
)
from korvet.storage.redis.append.appender import Appender
from korvet.storage.redis.append.layouts import StorageLayout
from korvet.storage.redis.append.queue import AppendContext
from korvet.storage.redis.catalogue import Catalogue, partitions_of
from korvet.storage.redis.client.address import RedisAddress, address_of
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.cluster import Cluster
from korvet.storage.redis.client.connection import RedisUnavailable
from korvet.storage.redis.client.sentinel import SentinelWatch
from korvet.storage.redis.client.sentinel_panel import SentinelPanel
from korvet.storage.redis.client.statistics import SECTIONS, Statistics, added, server_values
from korvet.storage.redis.compaction.compactor import Compactor
from korvet.storage.redis.document_watches import AnnouncedDocuments, DocumentWatches
from korvet.storage.redis.documents import Documents
from korvet.storage.redis.failover.confirmations import Confirmations
from korvet.storage.redis.failover.monitor import Monitors
from korvet.storage.redis.failover.quorum import Quorum
from korvet.storage.redis.groups import SCRIPTS as GROUP_SCRIPTS
from korvet.storage.redis.groups import Groups
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.leader_epochs import LeaderEpochs
from korvet.storage.redis.opening import Server, open_caller, prepare
from korvet.storage.redis.partitions import Partitions
from korvet.storage.redis.producers import Producers
from korvet.storage.redis.read.cluster_watch import ClusterWatcher
from korvet.storage.redis.read.reader import Reader
from korvet.storage.redis.read.seek import Seeker
from korvet.storage.redis.read.watch import Change, FixedConnections, StreamWatch, Watcher
from korvet.storage.redis.scripts import ALL, TRIM
from korvet.storage.redis.shares import SCRIPTS as SHARE_SCRIPTS
from korvet.storage.redis.shares import Shares
from korvet.storage.redis.staged_offsets import SCRIPTS as STAGED_SCRIPTS
from korvet.storage.redis.staged_offsets import StagedOffsets
from korvet.storage.redis.time_limits import TimeLimits
from korvet.storage.shares import (
    Acknowledged,
    Acquired,
    Acquisition,
    InFlight,
    ShareLimits,
    ShareOffsets,
    SharePartitionKey,
)

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_redis_storage(
    where: str | RedisAddress,
    *,
    defaults: StorageDefaults | None = None,
    mapping: OffsetMapping | None = None,
    namespace: str = "korvet",
    allow_eviction: bool = False,
    fsync: bool = False,
    durability: str | None = None,
) -> AsyncIterator[RedisStreamsStorage]:
    """Open the storage at a Redis or Valkey, named by its URL or address, and close it with the block.

    Wait while the server is unavailable. `mapping` is that of new topics whose settings name none. With `fsync`,
    acks=all waits until records are on disk. Raise StorageUsageError for an unusable URL, user or keyspace, for a
    server without WAITAOF if `fsync` is set, and, unless `allow_eviction`, for a server that may evict records.
    `durability` is the phrase for the start line if the settings of the server do not say all.
    """
    defaults = defaults or StorageDefaults()
    new_topics = evolve(defaults.topic_config, mapping=mapping or OffsetMapping.TIMESTAMP)
    defaults = evolve(defaults, topic_config=new_topics)
    keyspace = Keyspace(namespace)
    async with open_caller(address_of(where)) as redis:
        server = await prepare(
            redis, keyspace, [*ALL, *GROUP_SCRIPTS, *STAGED_SCRIPTS, *SHARE_SCRIPTS], fsync=fsync
        )
        if durability is not None:
            server = evolve(server, durability=durability)
        async with background_nursery() as nursery:
            storage = RedisStreamsStorage(
                redis, keyspace, defaults, server, nursery, allow_eviction=allow_eviction, fsync=fsync
            )
            await storage.monitor.begin()
            await storage.leader_epochs.refresh()
            await nursery.start(storage.run)
            nursery.start_soon(storage.monitor.run)
            nursery.start_soon(SentinelWatch(redis.address, storage.monitor.check_soon).run)
            yield storage


def replicas_of(defaults: StorageDefaults) -> int:
    """Return the number of replicas that have to confirm what belongs to no topic."""
    return defaults.topic_config.min_insync_replicas - 1


def new_watcher(
    redis: RedisCaller, changes: bytes, changed: Callable[[Change | None], None]
) -> Watcher | ClusterWatcher:
    """Return the watcher of the streams of one server, or of the nodes of a Redis Cluster."""
    if isinstance(redis, Cluster):
        return ClusterWatcher(redis, changes, changed)
    (server,) = redis.servers()
    (blocking,) = server.watching
    return Watcher(FixedConnections(blocking, server.connection), changes, changed)


@frozen(eq=False)
class PartitionWatch:
    """A watch on streams, which reports their topic-partitions, and the context manager that ends it."""

    streams: StreamWatch
    names: Mapping[bytes, TopicPartition]

    def __enter__(self) -> Self:
        self.streams.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.streams.__exit__(kind, error, traceback)

    async def wait(self) -> Collection[TopicPartition]:
        return {self.names[key] for key in await self.streams.wait()}

    def grown(self) -> Collection[TopicPartition]:
        return {self.names[key] for key in self.streams.grown}

    def take(self) -> Collection[TopicPartition]:
        return {self.names[key] for key in self.streams.take()}

    def expect(self) -> None:
        self.streams.expect()


class RedisStreamsStorage(Storage):
    """The Redis backend, created by `open_redis_storage`."""

    serves_transactions = True

    def __init__(
        self,
        redis: RedisCaller,
        keyspace: Keyspace,
        defaults: StorageDefaults,
        server: Server,
        nursery: trio.Nursery,
        *,
        allow_eviction: bool,
        fsync: bool,
    ) -> None:
        self.description = f"{server.name} at {redis.address.description}"
        # A server that is replaced by a replica may lose records although they are on its disk.
        fails_over = redis.address.sentinels is not None or bool(redis.address.nodes)
        # With acks.all.fsync, records are on disk before they are acknowledged, but staged offsets need not be.
        self._loses_nothing = server.is_durable and not fails_over
        self.durability = server.durability
        self._keyspace = keyspace
        self._nursery = nursery
        self._redis = redis
        self._statistics = Statistics()
        self._watcher = watcher = new_watcher(redis, keyspace.changes, self._changed)
        self._catalogue = Catalogue(redis, keyspace, defaults)
        self.leader_epochs = LeaderEpochs(redis, keyspace, nursery)
        self._partitions = partitions = Partitions(
            redis, self._catalogue, keyspace, defaults, self.leader_epochs
        )
        writer_id = secrets.token_hex(8).encode()
        quorum = None if redis.address.sentinels is None else Quorum(SentinelPanel(redis.address, nursery))
        confirmations = Confirmations(redis, nursery, keyspace.replicas, watcher.confirmed, quorum)
        self._confirmations = confirmations
        self.monitor = Monitors(redis, keyspace, allow_eviction, partial(self._changed, None))
        limits = TimeLimits(nursery)
        self._appender = Appender(
            AppendContext(
                writer_id,
                redis,
                partitions,
                nursery,
                confirmations,
                watcher.grew,
                self.monitor.refusal,
                self.failed_sequences,
                fsync,
            ),
            limits,
        )
        self._reader = Reader(redis, partitions, confirmations, watcher.note, limits)
        self._seeker = Seeker(redis, partitions)
        self._producers = Producers(redis, partitions)
        self._compactor = Compactor(redis, partitions)
        self._groups = Groups(redis, keyspace, partitions, confirmations, limits)
        self._staged = StagedOffsets(self._groups)
        self._shares = Shares(redis, partitions, self._reader, confirmations)
        self._documents = Documents(redis, keyspace, confirmations, replicas_of(defaults))
        self._document_watches = DocumentWatches()

    def configure(self, defaults: StorageDefaults) -> None:
        mapping = self._catalogue.defaults.topic_config.mapping
        defaults = evolve(defaults, topic_config=evolve(defaults.topic_config, mapping=mapping))
        self._catalogue.defaults = self._partitions.defaults = defaults
        self._documents.replicas = replicas_of(defaults)
        self._catalogue.forget()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch the streams that other brokers write, until cancelled."""
        await self._watcher.run(task_status=task_status)

    def _changed(self, change: Change | None) -> None:
        """Invalidate the topic, or the documents, that a change names; all if changes may have been missed."""
        if change is None:
            self._catalogue.forget()
            self._document_watches.wake_all()
            self.leader_epochs.refresh_soon()
            return
        if b"epochs" in change:
            self.leader_epochs.refresh_soon()
            return
        if (kind := change.get(b"documents")) is not None:
            self._document_watches.wake(kind.decode(errors="replace"))
            return
        name = change.get(b"topic", b"").decode(errors="replace")
        self._catalogue.forget_topic(name, change.get(b"version", b""))
        prefix = self._keyspace.stream_prefix(name)
        self._watcher.forget(key for key in self._watcher.watched() if key.startswith(prefix))

    # --- Metrics ----------------------------------------------------------------------------------------

    def start_counting(self) -> None:
        self._redis.count_in(self._statistics)

    def measurements(self) -> Measurements:
        counted = self._statistics
        return {
            "korvet_redis_connected": {
                (): float(all(server.connection.is_connected for server in self._redis.servers()))
            },
            "korvet_redis_reconnects_total": {(): counted.lost},
            "korvet_redis_commands_total": {(): sum(counted.round_trips[:-1])},
            "korvet_redis_round_trip_seconds": {(): [*counted.round_trips]},
        }

    async def read_measurements(self) -> Measurements:
        commands = [(b"INFO", section) for section in SECTIONS]
        try:
            infos = [await server.connection.pipeline(commands) for server in self._redis.servers()]
        except RedisUnavailable as error:
            raise self._redis.absence() from error
        return added(map(server_values, infos))

    # --- The catalogue ----------------------------------------------------------------------------------

    async def topics(self) -> Mapping[str, Topic]:
        return await self._catalogue.all()

    def known_topics(self) -> Mapping[str, Topic] | None:
        return self._catalogue.all_cached()

    async def topic(self, name: str) -> Topic | None:
        found = await self._catalogue.find(name)
        return None if found is None else found.topic

    def known_topic(self, name: str) -> Topic | None:
        found = self._catalogue.cached(name)
        return None if found is None else found.topic

    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return await self._catalogue.find_by_id(topic_id)

    def known_topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._catalogue.cached_with_id(topic_id)

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        async with self._replicated_catalogue():
            created = await self._catalogue.create(name, partitions, settings)
            await self._partitions.create_states(created)
        return created.topic

    async def alter_topic(
        self, topic: Topic, *, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        async with self._replicated_catalogue():
            try:
                altered = await self._catalogue.alter(topic, partitions, settings)
            except DocumentConflict:
                await self._catalogue.reload(topic.name)  # another attempt begins with the present version
                raise
            if altered.topic.partitions > topic.partitions:
                await self._partitions.create_states(altered, topic.partitions)
        return altered.topic

    async def delete_topic(self, topic: Topic) -> None:
        async with self._replicated_catalogue():
            deleted = await self._catalogue.delete(topic)
            keys = [self._keyspace.stream(tp) for tp in partitions_of(deleted.topic)]
            await self._partitions.drop_topic(deleted)
            self._watcher.forget(keys)
            self._nursery.start_soon(self._forget_topic, deleted.topic)

    @asynccontextmanager
    async def _replicated_catalogue(self) -> AsyncIterator[None]:
        """Wait until no failover loses the alteration of the block, as an append with acks=all does.

        Raise RequestTimedOut if too few replicas confirm it in time: it is stored, and a failover may lose it.
        """
        run_id = self._redis.run_id(self._keyspace.topics)
        yield
        try:
            await self._confirmations.wait_replicated(self._keyspace.topics, run_id, self._documents.replicas)
        except NotEnoughReplicasAfterAppend as error:
            raise RequestTimedOut(f"the topic is altered on the server, but {error}") from error

    async def _forget_topic(self, topic: Topic) -> None:
        """Delete the groups' committed offsets in a deleted topic. Readers ignore what a failure leaves."""
        try:
            await self._groups.forget_topic(topic)
        except KafkaError as error:
            fields = {"topic": topic.name, "error": error}
            logger.warning(
                "committed offsets of the deleted topic %(topic)s stay in Redis: %(error)s", fields
            )

    # --- The log ----------------------------------------------------------------------------------------

    async def append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults:
        appending = await self.begin_append(
            batches, acks=acks, timeout_s=timeout_s, transactions=transactions
        )
        return await appending.wait() if isinstance(appending, PendingAppend) else appending

    def checks_records(self, topic: Topic) -> bool:
        return self._partitions.layout_of(topic) is StorageLayout.RECORD

    async def begin_append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults | PendingAppend:
        return await self._appender.begin(batches, acks=acks, timeout_s=timeout_s, transactions=transactions)

    def try_append(
        self, batches: Mapping[TopicPartition, RecordBatch], *, acks: int = -1, timeout_s: float = 30.0
    ) -> PendingAppend | None:
        return self._appender.begin_now(batches, acks=acks, timeout_s=timeout_s)

    async def write_markers(
        self, markers: Mapping[TopicPartition, Marker], *, timeout_s: float = 30.0
    ) -> AppendResults:
        now_ms = time.time_ns() // 1_000_000
        appending = await self._appender.begin_markers(markers, now_ms=now_ms, timeout_s=timeout_s)
        return await appending.wait() if isinstance(appending, PendingAppend) else appending

    async def read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        is_committed = isolation_level is IsolationLevel.READ_COMMITTED
        return await self._reader.read(requests, max_bytes, is_committed=is_committed)

    def try_read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> PendingRead | None:
        is_committed = isolation_level is IsolationLevel.READ_COMMITTED
        return self._reader.begin(requests, max_bytes, is_committed=is_committed)

    def watch(self, tps: Collection[TopicPartition]) -> PartitionWatch:
        names = {self._keyspace.stream(tp): tp for tp in tps}
        return PartitionWatch(self._watcher.watch(names), names)

    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        return await self._seeker.earliest(tp)

    async def latest(self, tp: TopicPartition) -> LogOffsets:
        return await self._reader.latest(tp)

    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        return await self._if_visible(tp, await self._seeker.seek_ts(tp, timestamp))

    async def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        return await self._if_visible(tp, await self._seeker.seek_max_ts(tp))

    async def _if_visible(
        self, tp: TopicPartition, found: OffsetAndTimestamp | None
    ) -> OffsetAndTimestamp | None:
        """Return a found record, or None if it is above the high watermark."""
        partition = self._partitions.known(tp)
        if found is None or partition is None or partition.config.min_insync_replicas == 1:
            return found
        return found if found.offset < (await self.latest(tp)).high_watermark else None

    @property
    def newest_leader_epoch(self) -> int:
        return self.leader_epochs.newest

    async def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        state = await self._reader.state(tp)
        if not 0 <= leader_epoch <= self.newest_leader_epoch:
            return EpochEnd(-1, -1)
        starts = [*(each.start_offset for each in state.epochs), state.next_offset]
        earlier = [each.leader_epoch for each in state.epochs if each.leader_epoch <= leader_epoch]
        return EpochEnd(earlier[-1] if earlier else leader_epoch, starts[len(earlier)])

    async def truncate_before(self, tp: TopicPartition, offset: int) -> int:
        partition = await self._partitions.find(tp)
        entry_id = partition.mapper.entry_id(max(offset, 0))
        has_more = b"1"
        start = b""
        while has_more == b"1":
            status, start, *rest = await self._partitions.call(partition, TRIM, entry_id)
            if status == b"beyond":
                raise OffsetOutOfRange(f"offset {offset} is beyond the log's end at {partition.bound(start)}")
            has_more = rest[0]
        # The last stable offset is not below the log start: it may have moved.
        self._watcher.confirmed(partition.keys.stream)
        return partition.bound(start)

    async def enforce_retention(self, tp: TopicPartition, *, up_to: int | None = None) -> int | None:
        partition = await self._partitions.find(tp)
        if not await self._partitions.has_stream(partition):
            return None
        config = partition.config
        arguments: tuple[bytes | int, ...] = (b"",)
        if config.is_tiered:
            if not up_to:
                return None
            arguments = (b"", partition.mapper.entry_id(up_to), config.retention_ms, config.retention_bytes)
        dropped, has_more, start = 0, b"1", b""
        while has_more == b"1":
            _, start, has_more, entries = await self._partitions.call(partition, TRIM, *arguments)
            dropped += int(entries)
        return partition.bound(start) if dropped else None

    async def compact(self, tp: TopicPartition) -> Compacted | None:
        return await self._compactor.compact(tp)

    async def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        return await self._reader.sizes(tps)

    async def active_producers(self, tp: TopicPartition) -> Sequence[ActiveProducer]:
        return await self._producers.active(tp)

    # --- Committed offsets ------------------------------------------------------------------------------

    async def ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        return await self._groups.ack(
            group_id, offsets, generation_id=generation_id, coordinator_epoch=coordinator_epoch
        )

    def try_ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> PendingAck | None:
        return self._groups.begin_ack(
            group_id, offsets, generation_id=generation_id, coordinator_epoch=coordinator_epoch
        )

    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return await self._groups.committed(group_id, tps)

    async def stage(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        transaction: ProducerTransaction,
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        return await self._staged.stage(
            group_id,
            offsets,
            transaction,
            generation_id=generation_id,
            coordinator_epoch=coordinator_epoch,
        )

    async def settle(
        self, group_id: str, *, producer_id: int, number: int, result: TransactionResult
    ) -> None:
        await self._staged.settle(group_id, producer_id=producer_id, number=number, result=result)

    async def unstable(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> Collection[TopicPartition]:
        return await self._staged.unstable(group_id, tps)

    async def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        await self._groups.forget(group_id, tps)

    # --- Share groups -----------------------------------------------------------------------------------

    def keeps_shares(self, topic: Topic) -> bool:
        return self._shares.keeps_shares(topic)

    async def open_share(self, key: SharePartitionKey, offset: int) -> None:
        await self._shares.open_share(key, offset)

    async def acquire_share(self, key: SharePartitionKey, acquisition: Acquisition) -> Acquired | None:
        return await self._shares.acquire_share(key, acquisition)

    async def acknowledge_share(
        self, key: SharePartitionKey, member_id: str, batches: Sequence[Acknowledged], limits: ShareLimits
    ) -> None:
        await self._shares.acknowledge_share(key, member_id, batches, limits)

    async def release_share(self, key: SharePartitionKey, member_id: str, limits: ShareLimits) -> None:
        await self._shares.release_share(key, member_id, limits)

    async def share_offsets(
        self, group_id: str, topics: Collection[Topic]
    ) -> Mapping[SharePartitionKey, ShareOffsets | KafkaError]:
        return await self._shares.share_offsets(group_id, topics)

    async def share_in_flight(self, key: SharePartitionKey, limits: ShareLimits, most: int) -> InFlight:
        return await self._shares.share_in_flight(key, limits, most)

    async def reset_share(self, key: SharePartitionKey, offset: int, limits: ShareLimits) -> None:
        await self._shares.reset_share(key, offset, limits)

    async def forget_shares(self, group_id: str, topics: Collection[Topic]) -> None:
        await self._shares.forget_shares(group_id, topics)

    # --- Small documents --------------------------------------------------------------------------------

    async def load(self, kind: str, key: str) -> Document | None:
        return await self._documents.load(kind, key)

    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        return await self._documents.save(kind, key, value, expected_version=expected_version)

    async def load_parts(self, kind: str, key: str) -> tuple[Document, Mapping[str, bytes]] | None:
        return await self._documents.load_parts(kind, key)

    async def save_parts(
        self, kind: str, key: str, value: bytes, parts: Mapping[str, bytes | None], *, expected_version: int
    ) -> int:
        return await self._documents.save(kind, key, value, parts=parts, expected_version=expected_version)

    def incarnation(self, kind: str, key: str) -> str:
        return "" if self._loses_nothing else self._documents.incarnation(kind, key)

    async def save_in(
        self, incarnation: str, kind: str, key: str, value: bytes, *, expected_version: int
    ) -> int:
        return await self._documents.save(
            kind, key, value, expected_version=expected_version, incarnation=incarnation
        )

    async def fence(self, kind: str, key: str) -> int:
        return await self._documents.fence(kind, key)

    async def documents(self, kind: str) -> Collection[str]:
        return await self._documents.keys(kind)

    async def announce(self, kind: str) -> None:
        await self._documents.announce(kind)

    def watch_documents(self, kind: str) -> AbstractContextManager[AnnouncedDocuments]:
        return self._document_watches.watch(kind)
