"""Topics, records and committed offsets in the broker's memory: the reference backend, and the tests' fake.

`korvet serve` without arguments uses it. All data are lost when the broker ends. Memory is limited: beyond
`max_bytes` (`memory://?max_bytes=…`) an append is refused if retention frees nothing more.
Offsets are dense unless the topic sets another mapping; a topic's layout is stored and has no effect. There is one
copy, so `acks=all` is refused if `min.insync.replicas` is above 1.

No method waits, except a watch, compaction, the search for a timestamp, and the release of dropped segments: no task
can observe a partial operation, and a read costs only the slices that it returns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Self
from uuid import UUID, uuid4

import trio
from attrs import define, evolve, field

from korvet.concurrency.time_slices import TimeSlices, run_in_slices
from korvet.protocol.errors import (
    InvalidPartitions,
    KafkaError,
    NotEnoughReplicas,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import (
    GROUP,
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
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetMapping,
    ProducerTransaction,
    ReadRequest,
    ReadResult,
    Storage,
    StorageDefaults,
    Topic,
    TopicPartition,
    TransactionResult,
    Transactions,
    Watch,
)
from korvet.storage.memory_compaction import MemoryCompaction
from korvet.storage.memory_groups import MemoryGroups
from korvet.storage.memory_log import LEADER_EPOCH, LOG_COST, MemoryBudget, PartitionLog
from korvet.storage.producer_state import ProducerStates, producer_id_at
from korvet.storage.topic_config import fixed_settings, topic_config, with_fixed_settings

GIB = 1024**3
RECLAIM_INTERVAL_MS = 100
# Bytes that a document occupies besides its content.
DOCUMENT_COST = 400


def sensible_max_bytes() -> int:
    """Return 1 GiB, or half of the machine's memory if that is less."""
    return min(GIB, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def now_in_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryWatch:
    """A watch that appends to its partitions notify; also its own context manager, which is the cheapest form."""

    __slots__ = ("_event", "_grown", "_tps", "_watches")

    def __init__(
        self, watches: dict[TopicPartition, set[MemoryWatch]], tps: Collection[TopicPartition]
    ) -> None:
        self._watches = watches
        self._tps = frozenset(tps)
        self._event: trio.Event | None = None  # most watches end before any wait
        self._grown: set[TopicPartition] = set()

    def __enter__(self) -> Self:
        for tp in self._tps:
            self._watches.setdefault(tp, set()).add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for tp in self._tps:
            watching = self._watches[tp]
            watching.discard(self)
            if not watching:
                del self._watches[tp]

    def notify(self, tp: TopicPartition) -> None:
        self._grown.add(tp)
        if self._event is not None:
            self._event.set()

    async def wait(self) -> Collection[TopicPartition]:
        if self._grown:
            await trio.lowlevel.checkpoint()
        else:
            self._event = trio.Event()
            await self._event.wait()
        return self.take()

    def grown(self) -> Collection[TopicPartition]:
        return self._grown

    def take(self) -> Collection[TopicPartition]:
        grown, self._grown = self._grown, set()
        return grown

    def expect(self) -> None:
        pass  # every append notifies the watch


@define(eq=False)
class MemoryStorage(Storage):
    """The memory backend, which needs no opening or closing; `open_storage` selects it by URL.

    `mapping` is that of new topics whose settings name none; it replaces the one in the defaults.
    `clock` returns milliseconds since 1970: offsets (under the timestamp mapping), log append times, retention and
    producers' expiry follow it.
    """

    defaults: StorageDefaults = field(factory=StorageDefaults)
    mapping: OffsetMapping = field(default=OffsetMapping.DENSE, kw_only=True)
    max_bytes: int = field(factory=sensible_max_bytes, kw_only=True)
    clock: Callable[[], int] = field(default=now_in_ms, kw_only=True)
    description: str = field(init=False)
    durability: str = field(default="everything is forgotten when the broker ends", init=False)
    is_elsewhere: bool = field(default=False, init=False)
    serves_transactions: bool = field(default=True, init=False)
    _budget: MemoryBudget = field(init=False)
    # Replaced, never changed, so that callers of `topics` can iterate over the result across checkpoints.
    _topics: dict[str, Topic] = field(factory=dict, init=False)
    # The topics with the view of them that `topics` returns, the same as long as no topic changes.
    _listed: tuple[dict[str, Topic], Mapping[str, Topic]] | None = field(default=None, init=False)
    _names: dict[UUID, str] = field(factory=dict, init=False)
    _created_ms: dict[UUID, int] = field(factory=dict, init=False)
    _logs: dict[TopicPartition, PartitionLog] = field(factory=dict, init=False)
    _watches: dict[TopicPartition, set[MemoryWatch]] = field(factory=dict, init=False)
    _groups: MemoryGroups = field(init=False)
    _documents: dict[tuple[str, str], Document] = field(factory=dict, init=False)
    _parts: dict[tuple[str, str], dict[str, bytes]] = field(factory=dict, init=False)
    # By kind and key. Those of groups are in `_groups`.
    _epochs: dict[tuple[str, str], int] = field(factory=dict, init=False)
    _reclaimed_ms: int = field(default=-RECLAIM_INTERVAL_MS, init=False)
    # Producers with lower ids may have written to a topic that is gone, in this storage or an earlier one.
    _producers_complete_from: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.description = f"memory, at most {self.max_bytes:,} bytes"
        new_topics = evolve(self.defaults.topic_config, mapping=self.mapping)
        self.defaults = evolve(self.defaults, topic_config=new_topics)
        self._producers_complete_from = producer_id_at(self.clock())
        self._budget = MemoryBudget(self.max_bytes, reclaim=self._enforce_retention)
        self._groups = MemoryGroups(self._budget, self.clock, self._is_there)

    def configure(self, defaults: StorageDefaults) -> None:
        self.defaults = evolve(defaults, topic_config=evolve(defaults.topic_config, mapping=self.mapping))
        topics = {}
        for name, topic in self._topics.items():
            config = topic_config(topic.settings, self.defaults.topic_config)
            topics[name] = evolve(topic, config=config)
            self._configure_logs(topics[name])
        self._topics = topics

    def _configure_logs(self, topic: Topic) -> None:
        for partition in range(topic.partitions):
            if (log := self._logs.get(TopicPartition(topic.name, partition))) is not None:
                log.config = topic.config

    @property
    def held_bytes(self) -> int:
        return self._budget.used

    # --- The catalogue ----------------------------------------------------------------------------------

    async def topics(self) -> Mapping[str, Topic]:
        return self.known_topics()

    def known_topics(self) -> Mapping[str, Topic]:
        if self._listed is None or self._listed[0] is not self._topics:
            self._listed = (self._topics, MappingProxyType(self._topics))
        return self._listed[1]

    async def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def known_topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.known_topic_by_id(topic_id)

    def known_topic_by_id(self, topic_id: UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        if name in self._topics:
            raise TopicAlreadyExists

        settings = with_fixed_settings(settings, self.defaults.topic_config)
        config = topic_config(settings, self.defaults.topic_config)
        topic = Topic(name, uuid4(), partitions, MappingProxyType(settings), config)
        self._budget.take(LOG_COST * partitions)
        self._topics = {**self._topics, name: topic}
        self._names[topic.topic_id] = name
        self._created_ms[topic.topic_id] = self.clock()
        return topic

    async def alter_topic(
        self, topic: Topic, *, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        self._check_present(topic)
        if topic != self._topics[topic.name]:
            raise DocumentConflict
        if partitions is None:
            partitions = topic.partitions
        if partitions < topic.partitions:
            raise InvalidPartitions(
                f"topic {topic.name} has {topic.partitions} partitions, and can only get more"
            )

        settings = {**(topic.settings if settings is None else settings), **fixed_settings(topic.settings)}
        config = topic_config(settings, self.defaults.topic_config)
        altered = evolve(topic, partitions=partitions, settings=MappingProxyType(settings), config=config)
        self._budget.take(LOG_COST * (partitions - topic.partitions))
        self._configure_logs(altered)
        self._topics = {**self._topics, topic.name: altered}
        return altered

    async def delete_topic(self, topic: Topic) -> None:
        self._check_present(topic)
        name = self._names.pop(topic.topic_id)
        del self._created_ms[topic.topic_id]
        self._budget.give_back(LOG_COST * self._topics[name].partitions)
        self._topics = {other: each for other, each in self._topics.items() if other != name}
        for tp in [tp for tp in self._logs if tp.topic == name]:
            self._logs.pop(tp).clear()
        for tp in [tp for tp in self._watches if tp.topic == name]:
            self._wake(tp)
        self._groups.forget_topic(name)
        self._producers_complete_from = producer_id_at(self.clock())
        await self._free_dropped()

    def _check_present(self, topic: Topic) -> None:
        """Raise UnknownTopicOrPartition unless the topic with that id exists."""
        if topic.topic_id not in self._names:
            raise UnknownTopicOrPartition

    def _new_log(self, topic: Topic) -> PartitionLog:
        return PartitionLog(
            topic.config,
            self._budget,
            ProducerStates(self.defaults.producer_id_expiration_ms, self._producers_complete_from),
            self.defaults.retention_check_interval_ms,
            self._created_ms[topic.topic_id],
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
        return self.try_append(batches, acks=acks, timeout_s=timeout_s, transactions=transactions)

    def try_append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,  # noqa: ARG002  nothing here is waited for
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults:
        now_ms = self.clock()
        results: AppendResults = {}
        for tp, batch in batches.items():
            try:
                log = self._log(tp)
                if self.failed_sequences:
                    self.failed_sequences.check(tp, ProducerBatch.of(batch))
                if acks == -1 and log.config.min_insync_replicas > 1:
                    raise NotEnoughReplicas
                transaction = transactions.get(tp) if transactions else None
                results[tp] = result = log.append(batch, now_ms, transaction)
            except KafkaError as error:
                results[tp] = error
                self.failed_sequences.note(tp, ProducerBatch.of(batch), error)
            else:
                if not result.duplicate:
                    self._wake(tp)
        return results

    async def write_markers(
        self,
        markers: Mapping[TopicPartition, Marker],
        *,
        timeout_s: float = 30.0,  # noqa: ARG002  nothing here is waited for
    ) -> AppendResults:
        now_ms = self.clock()
        results: AppendResults = {}
        for tp, marker in markers.items():
            try:
                log = self._log(tp)
                if log.config.min_insync_replicas > 1:
                    raise NotEnoughReplicas
                results[tp] = log.write_marker(marker, now_ms)
                self._wake(tp)
            except KafkaError as error:
                results[tp] = error
        return results

    async def active_producers(self, tp: TopicPartition) -> Sequence[ActiveProducer]:
        return self._log(tp).active_producers()

    async def read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        return self.try_read(requests, max_bytes=max_bytes, isolation_level=isolation_level)

    def try_read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        results: dict[TopicPartition, ReadResult | KafkaError] = {}
        size = 0
        is_committed = isolation_level is IsolationLevel.READ_COMMITTED
        for tp, request in requests.items():
            try:
                log = self._log(tp)
                limit = min(request.max_bytes, max_bytes - size)
                found = log.read(request.offset, limit, at_least_one=size == 0, is_committed=is_committed)
                size += found.batches.size
                results[tp] = ReadResult(found.batches, log.bounds, found.is_cut, found.aborted)
            except KafkaError as error:
                results[tp] = error
        return results

    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        return MemoryWatch(self._watches, tps)

    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        return await run_in_slices(self._log(tp).earliest())

    async def latest(self, tp: TopicPartition) -> LogOffsets:
        return self._log(tp).bounds

    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        return await run_in_slices(self._log(tp).seek_ts(timestamp))

    async def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        return await run_in_slices(self._log(tp).seek_max_ts())

    async def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        log = self._log(tp)
        return EpochEnd(LEADER_EPOCH, log.next_offset) if leader_epoch == LEADER_EPOCH else EpochEnd(-1, -1)

    async def truncate_before(self, tp: TopicPartition, offset: int) -> int:
        log = self._log(tp)
        start = log.truncate_before(offset)
        if log.transactions.open:
            self._wake(tp)  # the last stable offset is not below the log start
        await self._free_dropped()
        return start

    async def enforce_retention(self, tp: TopicPartition, *, up_to: int | None = None) -> int | None:
        if self._is_there(tp) and tp not in self._logs:
            return None  # no log was created yet
        log = self._log(tp)
        before, now_ms = log.log_start_offset, self.clock()
        log.enforce_retention(now_ms, up_to)
        log.expire_producers(now_ms)
        await self._free_dropped()
        return None if log.log_start_offset == before else log.log_start_offset

    async def compact(self, tp: TopicPartition) -> Compacted | None:
        return await MemoryCompaction(self._log(tp), self.clock(), self.defaults.compaction_max_keys).run()

    async def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        return {tp: self._size(tp) if self._is_there(tp) else UnknownTopicOrPartition() for tp in tps}

    def _size(self, tp: TopicPartition) -> int:
        return self._logs[tp].size if tp in self._logs else 0

    def _is_there(self, tp: TopicPartition) -> bool:
        topic = self._topics.get(tp.topic)
        return topic is not None and 0 <= tp.partition < topic.partitions

    def _log(self, tp: TopicPartition) -> PartitionLog:
        """Return a partition's log; create it on first use, since a topic may have ten thousand partitions."""
        log = self._logs.get(tp)
        if log is None:
            if not self._is_there(tp):
                raise UnknownTopicOrPartition
            log = self._logs[tp] = self._new_log(self._topics[tp.topic])
        return log

    async def _free_dropped(self) -> None:
        """Free dropped segments in time slices: a gigabyte takes a tenth of a second."""
        time_slices = TimeSlices()
        while self._budget.free():
            await time_slices.next()

    def _wake(self, tp: TopicPartition) -> None:
        for watch in self._watches.get(tp, ()):
            watch.notify(tp)

    def _enforce_retention(self) -> None:
        """Apply retention to all partitions, also those without appends, before a full store refuses an append.

        Do so at most once in RECLAIM_INTERVAL_MS, since there may be ten thousand partitions.
        """
        now_ms = self.clock()
        if 0 <= now_ms - self._reclaimed_ms < RECLAIM_INTERVAL_MS:
            return
        self._reclaimed_ms = now_ms
        for log in self._logs.values():
            log.enforce_retention(now_ms)
            log.expire_producers(now_ms)

    # --- Committed offsets ------------------------------------------------------------------------------

    async def ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        return self._groups.ack(
            group_id, offsets, generation_id=generation_id, coordinator_epoch=coordinator_epoch
        )

    def try_ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        return self._groups.ack(
            group_id, offsets, generation_id=generation_id, coordinator_epoch=coordinator_epoch
        )

    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._groups.committed(group_id, tps)

    async def stage(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        transaction: ProducerTransaction,
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        return self._groups.stage(
            group_id,
            offsets,
            transaction,
            generation_id=generation_id,
            coordinator_epoch=coordinator_epoch,
        )

    async def settle(
        self, group_id: str, *, producer_id: int, number: int, result: TransactionResult
    ) -> None:
        self._groups.settle(group_id, producer_id=producer_id, number=number, result=result)

    async def unstable(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> Collection[TopicPartition]:
        return self._groups.unstable(group_id, tps)

    async def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        self._groups.forget(group_id, tps)

    # --- Small documents --------------------------------------------------------------------------------

    async def load(self, kind: str, key: str) -> Document | None:
        return self._documents.get((kind, key))

    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        changes = dict.fromkeys(self._parts.get((kind, key), {}))
        return self._save(kind, key, value, changes, expected_version)

    async def load_parts(self, kind: str, key: str) -> tuple[Document, Mapping[str, bytes]] | None:
        stored = await self.load(kind, key)
        return None if stored is None else (stored, dict(self._parts.get((kind, key), {})))

    async def save_parts(
        self, kind: str, key: str, value: bytes, parts: Mapping[str, bytes | None], *, expected_version: int
    ) -> int:
        return self._save(kind, key, value, parts, expected_version)

    def _save(
        self,
        kind: str,
        key: str,
        value: bytes | None,
        changes: Mapping[str, bytes | None],
        expected_version: int,
    ) -> int:
        stored = self._documents.get((kind, key))
        version = 0 if stored is None else stored.version
        if version != expected_version:
            raise DocumentConflict(stored)

        parts = self._parts.get((kind, key), {})
        if value is not None:
            added = sum(len(name) + len(part) for name, part in changes.items() if part is not None)
            self._budget.take(DOCUMENT_COST + len(value) + added)
        self._budget.give_back(sum(len(name) + len(parts[name]) for name in changes if name in parts))
        if stored is not None:
            self._budget.give_back(DOCUMENT_COST + len(stored.value))
            del self._documents[kind, key]
        self._parts[kind, key] = parts
        for name, part in changes.items():
            if part is None:
                parts.pop(name, None)
            else:
                parts[name] = part
        if not parts:
            del self._parts[kind, key]
        if value is None:
            self._epochs.pop((kind, key), None)
            return 0
        self._documents[kind, key] = Document(value, version + 1)
        return version + 1

    async def fence(self, kind: str, key: str) -> int:
        if kind == GROUP:
            return self._groups.fence(key)
        epoch = self._epochs[kind, key] = self._epochs.get((kind, key), 0) + 1
        return epoch

    async def documents(self, kind: str) -> Collection[str]:
        return [key for other, key in self._documents if other == kind]
