"""The storage: topics, committed offsets and documents, and the log's methods, which `log.PartitionLog` does.

Every method is one transaction in a thread. A limiter lets one method at a time have the connection, in the order of
their calls. One broker at a time can open a file, so the topics are cached.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import trio
from attrs import define, evolve, field

from korvet.protocol.errors import (
    IllegalGeneration,
    InvalidPartitions,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    detached,
)
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import (
    GROUP,
    NO_TRANSACTIONS,
    AppendResult,
    AppendResults,
    Compacted,
    Document,
    DocumentConflict,
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetMapping,
    ReadRequest,
    ReadResult,
    Storage,
    StorageDefaults,
    StorageUsageError,
    Topic,
    TopicPartition,
    Transactions,
)
from korvet.storage.offsets import offset_mapper
from korvet.storage.open import StorageOptions
from korvet.storage.producer_state import producer_id_at
from korvet.storage.topic_config import fixed_settings, topic_config, with_fixed_settings

from .compaction import Compaction
from .log import COLUMNS, LEADER_EPOCH, PartitionLog

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    name TEXT PRIMARY KEY, id TEXT UNIQUE, partitions INTEGER, settings TEXT, created_ms INTEGER);
CREATE TABLE IF NOT EXISTS partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT REFERENCES topics ON DELETE CASCADE, number INTEGER,
    log_start_offset INTEGER, next_offset INTEGER, trimmed_before INTEGER DEFAULT 0, size INTEGER DEFAULT 0,
    cleaned TEXT DEFAULT '', producers_from INTEGER, UNIQUE (topic, number));
CREATE TABLE IF NOT EXISTS batches (
    partition INTEGER REFERENCES partitions ON DELETE CASCADE, last_offset INTEGER, max_timestamp INTEGER,
    appended_ms INTEGER, size INTEGER, data BLOB, PRIMARY KEY (partition, last_offset));
CREATE TABLE IF NOT EXISTS rewritten (
    partition INTEGER REFERENCES partitions ON DELETE CASCADE, last_offset INTEGER, max_timestamp INTEGER,
    size INTEGER, data BLOB, PRIMARY KEY (partition, last_offset));
CREATE TABLE IF NOT EXISTS producers (
    partition INTEGER REFERENCES partitions ON DELETE CASCADE, producer_id INTEGER, epoch INTEGER,
    last_append_ms INTEGER, batches TEXT, PRIMARY KEY (partition, producer_id));
CREATE TABLE IF NOT EXISTS committed (
    group_id TEXT, topic TEXT REFERENCES topics ON DELETE CASCADE, partition INTEGER, next_offset INTEGER,
    leader_epoch INTEGER, metadata TEXT, commit_ms INTEGER, PRIMARY KEY (group_id, topic, partition));
CREATE TABLE IF NOT EXISTS generations (group_id TEXT PRIMARY KEY, generation_id INTEGER);
CREATE TABLE IF NOT EXISTS coordinators (kind TEXT, key TEXT, epoch INTEGER, PRIMARY KEY (kind, key));
CREATE TABLE IF NOT EXISTS documents (
    kind TEXT, key TEXT, value BLOB, version INTEGER, PRIMARY KEY (kind, key));
-- Producers with lower ids may have written to a topic that is gone.
CREATE TABLE IF NOT EXISTS known_producers (first INTEGER);
"""


def now_in_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_sqlite(url: str, options: StorageOptions) -> AsyncIterator[Storage]:
    """Open the file of a URL such as `sqlite:orders.db`; create it if it does not exist."""
    path = urlsplit(url).path
    if not path or url.startswith("sqlite://"):
        raise StorageUsageError(f"{url!r} names no file; write sqlite:PATH, as in sqlite:orders.db")
    async with opened(path, options.defaults, options.mapping) as storage:
        yield storage


@asynccontextmanager
async def opened(
    path: str,
    defaults: StorageDefaults,
    mapping: OffsetMapping | None = None,
    clock: Callable[[], int] = now_in_ms,
) -> AsyncIterator[SQLiteStorage]:
    """Open the storage in a file, and close it with the block."""
    new_topics = evolve(defaults.topic_config, mapping=mapping or OffsetMapping.DENSE)
    defaults = evolve(defaults, topic_config=new_topics)
    try:
        db = await trio.to_thread.run_sync(connect, path, clock())
    except sqlite3.Error as error:
        raise StorageUsageError(f"{path!r} cannot be opened: {error}") from error
    try:
        storage = SQLiteStorage(db, path, defaults, clock)
        await storage.run(storage.load_topics)
        yield storage
    finally:
        db.close()


def connect(path: str, now_ms: int) -> sqlite3.Connection:
    """Open the database, for this process alone, and create missing tables."""
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        prepare(db, now_ms)
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, now_ms: int) -> None:
    for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        db.execute(f"PRAGMA {pragma}")
    db.executescript(f"BEGIN EXCLUSIVE; {SCHEMA} COMMIT;")
    if db.execute("SELECT * FROM known_producers").fetchone() is None:
        db.execute("INSERT INTO known_producers VALUES (?)", (producer_id_at(now_ms),))


@define(eq=False)
class GrowthWatch:
    """A watch, which every change of a partition notifies."""

    tps: frozenset[TopicPartition]
    _grown: set[TopicPartition] = field(factory=set)
    _has_grown: trio.Event = field(factory=trio.Event)

    def notify(self, tps: Collection[TopicPartition]) -> None:
        if grown := self.tps.intersection(tps):
            self._grown |= grown
            self._has_grown.set()

    async def wait(self) -> Collection[TopicPartition]:
        await self._has_grown.wait()
        return self.take()

    def grown(self) -> Collection[TopicPartition]:
        return self._grown

    def take(self) -> Collection[TopicPartition]:
        grown, self._grown, self._has_grown = self._grown, set(), trio.Event()
        return grown

    def expect(self) -> None:
        pass  # every change notifies the watch


def transaction(
    method: Callable[Concatenate[SQLiteStorage, P], T],
) -> Callable[Concatenate[SQLiteStorage, P], Coroutine[Any, Any, T]]:
    """Return the method as a coroutine that runs it as one transaction, in the thread."""

    async def run(self: SQLiteStorage, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(partial(method, self, *args, **kwargs))

    return run


class SQLiteStorage(Storage):
    """See the module. `run` gives a function the connection; `transaction` makes a method such a function."""

    durability = "every acknowledged record survives the end of the broker and of the machine"

    def __init__(
        self, db: sqlite3.Connection, path: str, defaults: StorageDefaults, clock: Callable[[], int]
    ) -> None:
        self.description = f"SQLite {sqlite3.sqlite_version} at {path}"
        self.defaults = defaults
        self.clock = clock
        self.db = db
        self.known: dict[str, Topic] = {}  # replaced after each change, never changed
        self.watches: set[GrowthWatch] = set()
        self.turn = trio.CapacityLimiter(1)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function as one transaction, in a thread. It is executed whole or not at all, even if cancelled."""

        def in_thread() -> T:
            known = self.known
            try:
                self.db.execute("BEGIN")
                with self.db:
                    return function()
            except sqlite3.Error as error:
                self.known = known
                raise KafkaStorageError(f"SQLite: {error}") from error

        return await trio.to_thread.run_sync(in_thread, limiter=self.turn)

    def notify(self, tps: Collection[TopicPartition]) -> None:
        for watch in self.watches:
            watch.notify(tps)

    # --- The log ----------------------------------------------------------------------------------------

    async def append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,  # noqa: ARG002  there is nothing to wait for
        transactions: Transactions = NO_TRANSACTIONS,  # noqa: ARG002  this store does not serve them
    ) -> AppendResults:
        try:
            results = await self.append_now(batches, acks)
        except KafkaStorageError as error:
            results = dict.fromkeys(batches, error)
            for tp, batch in batches.items():
                self.failed_sequences.note(tp, ProducerBatch.of(batch), error)
        self.notify([tp for tp, result in results.items() if isinstance(result, AppendResult)])
        return results

    @transaction
    def append_now(self, batches: Mapping[TopicPartition, RecordBatch], acks: int) -> AppendResults:
        results: AppendResults = {}
        for tp, batch in batches.items():
            try:
                results[tp] = self.append_one(tp, batch, acks)
            except KafkaError as error:
                results[tp] = detached(error)
                self.failed_sequences.note(tp, ProducerBatch.of(batch), error)
        return results

    def append_one(self, tp: TopicPartition, batch: RecordBatch, acks: int) -> AppendResult:
        log = self.log(tp)
        self.failed_sequences.check(tp, ProducerBatch.of(batch))
        if acks == -1 and log.config.min_insync_replicas > 1:
            raise NotEnoughReplicas
        result = log.append(batch, self.clock())
        log.expire_producers(self.clock())
        log.save()
        return result

    @transaction
    def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        return self.log(tp).earliest()

    @transaction
    def latest(self, tp: TopicPartition) -> LogOffsets:
        return self.log(tp).bounds

    @transaction
    def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        return self.log(tp).seek_ts(timestamp)

    @transaction
    def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        return self.log(tp).seek_max_ts()

    @transaction
    def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        end = self.log(tp).next_offset
        return EpochEnd(LEADER_EPOCH, end) if leader_epoch == LEADER_EPOCH else EpochEnd(-1, -1)

    @transaction
    def read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,  # noqa: ARG002  both are the same
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        results: dict[TopicPartition, ReadResult | KafkaError] = {}
        size = 0
        for tp, request in requests.items():
            try:
                log = self.log(tp)
                limit = min(request.max_bytes, max_bytes - size)
                found = log.read(request.offset, limit, at_least_one=size == 0)
                results[tp] = ReadResult(found.batches, log.bounds, found.is_cut)
                size += found.batches.size
            except KafkaError as error:
                results[tp] = detached(error)
        return results

    @contextmanager
    def watch(self, tps: Collection[TopicPartition]) -> Iterator[GrowthWatch]:
        watch = GrowthWatch(frozenset(tps))
        self.watches.add(watch)
        try:
            yield watch
        finally:
            self.watches.discard(watch)

    @transaction
    def truncate_before(self, tp: TopicPartition, offset: int) -> int:
        log = self.log(tp)
        log.truncate_before(offset)
        log.save()
        return log.log_start_offset

    @transaction
    def enforce_retention(self, tp: TopicPartition, *, up_to: int | None = None) -> int | None:
        log = self.log(tp)
        before = log.log_start_offset
        log.enforce_retention(self.clock(), up_to)
        log.expire_producers(self.clock())
        log.save()
        return None if log.log_start_offset == before else log.log_start_offset

    async def compact(self, tp: TopicPartition) -> Compacted | None:
        partition_id = await self.run(lambda: self.log(tp).id)

        async def in_log(function: Callable[[PartitionLog], T], /) -> T:
            def in_thread() -> T:
                log = self.log(tp)
                if log.id != partition_id:
                    raise UnknownTopicOrPartition  # the topic was created again
                return function(log)

            return await self.run(in_thread)

        return await Compaction(in_log, self.clock(), self.defaults.compaction_max_keys).run()

    @transaction
    def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        return {tp: self.log(tp).size if self.has(tp) else UnknownTopicOrPartition() for tp in tps}

    def log(self, tp: TopicPartition) -> PartitionLog:
        query = f"""SELECT partitions.id, created_ms, {COLUMNS} FROM partitions JOIN topics ON name = topic
                    WHERE topic = ? AND number = ?"""
        row = self.db.execute(query, tp).fetchone()
        if row is None:
            raise UnknownTopicOrPartition
        partition_id, *columns = row
        return PartitionLog(self.db, partition_id, self.known[tp.topic].config, self.defaults, *columns)

    def has(self, tp: TopicPartition) -> bool:
        return tp.topic in self.known and 0 <= tp.partition < self.known[tp.topic].partitions

    # --- Committed offsets ------------------------------------------------------------------------------

    @transaction
    def ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        query = "SELECT epoch FROM coordinators WHERE kind = ? AND key = ?"
        (epoch,) = self.db.execute(query, (GROUP, group_id)).fetchone() or (0,)
        query = "SELECT generation_id FROM generations WHERE group_id = ?"
        (latest,) = self.db.execute(query, (group_id,)).fetchone() or (-1,)
        if 0 <= coordinator_epoch < epoch:
            return {tp: NotCoordinator() for tp in offsets}
        if 0 <= generation_id < latest:
            return {tp: IllegalGeneration() for tp in offsets}
        row = (group_id, max(latest, generation_id))
        self.db.execute("INSERT OR REPLACE INTO generations VALUES (?, ?)", row)
        for tp, each in offsets.items():
            if self.has(tp):
                committed = (group_id, *tp, each.offset, each.leader_epoch, each.metadata, self.clock())
                self.db.execute("INSERT OR REPLACE INTO committed VALUES (?, ?, ?, ?, ?, ?, ?)", committed)
        return {tp: None if self.has(tp) else UnknownTopicOrPartition() for tp in offsets}

    @transaction
    def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        query = """SELECT topic, partition, next_offset, leader_epoch, metadata, commit_ms
                   FROM committed WHERE group_id = ?"""
        rows = self.db.execute(query, (group_id,))
        found = {TopicPartition(*row[:2]): OffsetAndMetadata(*row[2:]) for row in rows}
        return found if tps is None else {tp: found[tp] for tp in tps if tp in found}

    @transaction
    def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        if tps is None:
            self.db.execute("DELETE FROM committed WHERE group_id = ?", (group_id,))
            self.db.execute("DELETE FROM generations WHERE group_id = ?", (group_id,))
            self.db.execute("DELETE FROM coordinators WHERE kind = ? AND key = ?", (GROUP, group_id))
        for tp in tps or ():
            query = "DELETE FROM committed WHERE group_id = ? AND topic = ? AND partition = ?"
            self.db.execute(query, (group_id, *tp))

    # --- The catalogue ----------------------------------------------------------------------------------

    async def topics(self) -> Mapping[str, Topic]:
        return self.known

    async def topic(self, name: str) -> Topic | None:
        return self.known.get(name)

    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.known.values() if topic.topic_id == topic_id), None)

    @transaction
    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        if name in self.known:
            raise TopicAlreadyExists
        stored = json.dumps(with_fixed_settings(settings, self.defaults.topic_config))
        row = (name, str(uuid4()), partitions, stored, self.clock())
        self.db.execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", row)
        return self.with_partitions(name, range(partitions))

    @transaction
    def alter_topic(
        self, topic: Topic, *, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        self.check_present(topic)
        if topic != self.known[topic.name]:
            raise DocumentConflict
        count = topic.partitions if partitions is None else partitions
        if count < topic.partitions:
            raise InvalidPartitions(f"topic {topic.name} has {topic.partitions} partitions")
        stored = {**(topic.settings if settings is None else settings), **fixed_settings(topic.settings)}
        query = "UPDATE topics SET partitions = ?, settings = ? WHERE name = ?"
        self.db.execute(query, (count, json.dumps(stored), topic.name))
        return self.with_partitions(topic.name, range(topic.partitions, count))

    async def delete_topic(self, topic: Topic) -> None:
        await self.run(lambda: self.delete(topic))
        self.notify([TopicPartition(topic.name, number) for number in range(topic.partitions)])

    def delete(self, topic: Topic) -> None:
        self.check_present(topic)
        self.db.execute("DELETE FROM topics WHERE name = ?", (topic.name,))
        self.db.execute("UPDATE known_producers SET first = ?", (producer_id_at(self.clock()),))
        self.load_topics()

    def check_present(self, topic: Topic) -> None:
        present = self.known.get(topic.name)
        if present is None or present.topic_id != topic.topic_id:
            raise UnknownTopicOrPartition

    def with_partitions(self, name: str, new_partitions: range) -> Topic:
        """Add partitions to a topic whose row was written, and return it."""
        self.load_topics()
        topic = self.known[name]
        (created_ms,) = self.db.execute("SELECT created_ms FROM topics WHERE name = ?", (name,)).fetchone()
        (producers_from,) = self.db.execute("SELECT first FROM known_producers").fetchone()
        start = offset_mapper(topic.config).base_offset(0, created_ms)
        query = """INSERT INTO partitions (topic, number, log_start_offset, next_offset, producers_from)
                   VALUES (?, ?, ?, ?, ?)"""
        self.db.executemany(query, [(name, each, start, start, producers_from) for each in new_partitions])
        return topic

    def load_topics(self) -> None:
        """Read all topics."""
        rows = self.db.execute("SELECT name, id, partitions, settings FROM topics")
        self.known = {row[0]: self.parsed(*row) for row in rows}

    def parsed(self, name: str, topic_id: str, partitions: int, stored: str) -> Topic:
        settings = json.loads(stored)
        config = topic_config(settings, self.defaults.topic_config)
        return Topic(name, UUID(topic_id), partitions, settings, config)

    # --- Documents --------------------------------------------------------------------------------------

    @transaction
    def load(self, kind: str, key: str) -> Document | None:
        return self.document(kind, key)

    def document(self, kind: str, key: str) -> Document | None:
        query = "SELECT value, version FROM documents WHERE kind = ? AND key = ?"
        row = self.db.execute(query, (kind, key)).fetchone()
        return None if row is None else Document(*row)

    @transaction
    def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        query = "SELECT version FROM documents WHERE kind = ? AND key = ?"
        (version,) = self.db.execute(query, (kind, key)).fetchone() or (0,)
        if expected_version != version:
            raise DocumentConflict(self.document(kind, key))
        if value is None:
            self.db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (kind, key))
            return 0
        row = (kind, key, value, expected_version + 1)
        self.db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", row)
        return expected_version + 1

    @transaction
    def fence(self, kind: str, key: str) -> int:
        self.db.execute("INSERT OR IGNORE INTO coordinators VALUES (?, ?, 0)", (kind, key))
        query = "UPDATE coordinators SET epoch = epoch + 1 WHERE kind = ? AND key = ? RETURNING epoch"
        (epoch,) = self.db.execute(query, (kind, key)).fetchone()
        return cast(int, epoch)

    @transaction
    def documents(self, kind: str) -> Collection[str]:
        return [key for (key,) in self.db.execute("SELECT key FROM documents WHERE kind = ?", (kind,))]
