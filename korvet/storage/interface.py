"""The interface between the broker and its storage backends.

No wire message crosses this interface. A *topic-partition* is addressed by name and number; its offsets are
plain integers; a *batch* is the bytes of one record batch (magic 2) with its parsed header. A URL selects the
backend (`korvet.storage.open`), and all backends pass one contract suite (`korvet.testing.storage_contract`).

Errors are `KafkaError`s. A method for many topic-partitions reports each one separately: the returned mapping
has, for every requested topic-partition, either its result or its error, so that one bad partition never fails
the others. A method for one topic-partition raises.

Every method may be cancelled; a cancelled `append` or `ack` may or may not have been executed, as with any broker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum, IntEnum
from functools import cached_property
from typing import NamedTuple, Protocol
from uuid import UUID

from attrs import field, frozen

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import KafkaError
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import FailedSequences


class TopicPartition(NamedTuple):
    """The topic and the number of a partition."""

    # A NamedTuple, since it is hashed on every request.

    topic: str
    partition: int


class StorageLayout(Enum):
    """The mapping of a topic's records to Redis stream entries; without effect in memory."""

    RECORD = "record"
    BATCH = "batch"


class OffsetMapping(Enum):
    """The rule by which offsets are assigned: 0, 1, 2, … or by the clock (see `korvet.storage.offsets`)."""

    TIMESTAMP = "timestamp"
    DENSE = "dense"


class TimestampType(IntEnum):
    """`message.timestamp.type`; the values are those of the attribute bit in a record batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """The end of a read: the high watermark, or the last stable offset (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@frozen
class TopicConfig:
    """The parsed settings of a topic that storage applies. -1 means no limit, as in Kafka.

    The first three are fixed when the topic is created.
    """

    layout: StorageLayout = StorageLayout.RECORD
    mapping: OffsetMapping = OffsetMapping.TIMESTAMP
    sequence_bits: int = 10
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    compression_type: str = "producer"
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    min_insync_replicas: int = 1
    is_compacted: bool = False
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    # Records are archived. Retention is then `local.retention.*`, and drops only what is archived already
    # (`Storage.enforce_retention`).
    is_tiered: bool = False


@frozen
class StorageDefaults:
    """The broker's settings for all topics and producers, passed when storage is opened."""

    topic_config: TopicConfig = TopicConfig()
    # Records are kept at least this long after they were appended, whatever their timestamps: Kafka, too, deletes
    # them only at its next check (log.retention.check.interval.ms).
    retention_check_interval_ms: int = 300_000
    producer_id_expiration_ms: int = 86_400_000
    # Limit in the record layout, where a header is a field of a stream entry: one script call can add this many, and
    # clients use fewer. Batches in the batch layout are not decoded.
    record_max_headers: int = 1_000
    # In the record layout one script call adds a whole batch, during which Redis executes nothing else: some 2 us for
    # each record. The smallest record has 7 bytes, so a batch of `message.max.bytes` never exceeds this number.
    record_max_batch_records: int = 150_000
    # Number of keys whose last offsets compaction holds in one round; for more keys it reads the log again.
    compaction_max_keys: int = 600_000


@frozen
class Topic:
    """A topic in the catalogue.

    `settings` are the raw strings set at creation or altered since; they always include the three fixed ones
    (`storage.layout`, `offset.mapping`, `offset.sequence.bits`). `config` is the result of parsing them over the
    defaults.
    """

    name: str
    topic_id: UUID
    partitions: int
    settings: Mapping[str, str]
    config: TopicConfig


@frozen
class AppendResult:
    """The offsets of an appended batch. For a duplicate of an idempotent producer: those of the first append."""

    base_offset: int
    log_append_time_ms: int  # -1 under CreateTime, as in Kafka's ProduceResponse
    log_start_offset: int
    duplicate: bool = False


@frozen
class OffsetAndTimestamp:
    """A record's offset and its timestamp in milliseconds; the timestamp is -1 if there is no record."""

    offset: int
    timestamp: int
    leader_epoch: int = 0


@frozen
class OffsetAndMetadata:
    """A committed offset: the next offset to read, and the metadata that the client committed with it.

    `commit_timestamp_ms` is the time of the commit by the store's clock: `committed` returns it, `ack` ignores it. It
    is -1 if no client committed the offset, for example if it is derived from a Redis consumer group.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = field(default=-1, eq=False)


@frozen
class LogOffsets:
    """The bounds of a partition, read atomically."""

    log_start_offset: int
    high_watermark: int  # the next offset to be written
    last_stable_offset: int
    leader_epoch: int = 0
    # Retention and DeleteRecords removed all records below. A read between this offset and the log start returns the
    # first record.
    trimmed_before: int = field(default=0, eq=False, kw_only=True)


@frozen
class ReadRequest:
    """A read of one topic-partition: its first offset, and its limit in bytes."""

    offset: int
    max_bytes: int


@frozen
class ReadResult:
    """Whole record batches, ready for the wire: base offset and leader epoch are stamped.

    `batches` are buffers to be sent one after the other; the first batch contains the requested offset, or
    follows it if that offset is gone. It is empty if there is nothing to read yet.
    """

    batches: Sequence[Buffer]
    size: int  # bytes in `batches`
    offsets: LogOffsets
    is_cut: bool = False  # a limit ended the read, so there is more, or may be


@frozen
class Compacted:
    """The result of compacting a log."""

    end: int  # every key occurs only once below this offset
    size_before: int  # bytes, as `Storage.sizes` counts them
    size_after: int


@frozen
class EpochEnd:
    """The end offset of a leader epoch: the answer to OffsetForLeaderEpoch. (-1, -1) if the epoch is unknown."""

    leader_epoch: int
    end_offset: int


@frozen
class Document:
    """A small versioned value; `version` counts its writes from 1."""

    value: bytes
    version: int


class DocumentConflict(Exception):  # noqa: N818  an outcome callers plan for, not a fault
    """Another broker or task saved the document first; the caller has to load it again."""


class StorageUsageError(Exception):
    """The configured storage cannot be opened (bad URL, folder held by another broker, …).

    The message is one line for the operator: the fault, and what is accepted instead.
    """


class Watch(Protocol):
    """A watch for growth of topic-partitions. `Storage.watch` creates it; it ends with its `with` block."""

    async def wait(self) -> Collection[TopicPartition]:
        """Wait for growth; return the topic-partitions that have grown since the block was entered or the last return.

        Deleted ones count as grown. The result is never empty. Some of it may not have grown, so callers read again. No
        growth is missed if the caller enters the block, then reads, then waits.
        """

    def grown(self) -> Collection[TopicPartition]:
        """Return what `wait` would return immediately; nothing if it would wait."""


class Storage(ABC):
    """A store of records, committed offsets and small documents.

    `korvet.storage.open.open_storage` opens it: an async context manager that owns connections, background
    tasks and, for `embedded:`, the server itself, and ends them when its block ends.
    """

    #: One phrase for the start line: the kind of store and its address ("memory", "Valkey 9.1.2 at unix:/…"), without
    #: passwords.
    description: str
    #: One phrase for the start line: which acknowledged records survive the end of the broker, or of the machine.
    durability: str
    #: True if the store is another process, for whose answer every method waits.
    is_elsewhere: bool = True

    @property
    def held_bytes(self) -> int:
        """Approximate bytes that the store holds in this process's memory; 0 if the store is another process."""
        return 0

    @cached_property
    def failed_sequences(self) -> FailedSequences:
        """The batches of producers that failed in `append`, or that its caller refused."""
        return FailedSequences()

    # --- The catalogue: shared by all brokers on the same store ------------------------------------------

    @abstractmethod
    async def topics(self) -> Mapping[str, Topic]:
        """Return all topics by name.

        Cheap: a view of the cached topics, which are invalidated when another broker alters them.
        """

    @abstractmethod
    async def topic(self, name: str) -> Topic | None:
        """Return one topic; return None only after reading the store itself."""

    @abstractmethod
    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return one topic by its id, as `topic` does by name."""

    @abstractmethod
    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic with a new random id; adopt streams that exist already.

        The caller has validated `settings`; missing ones of the three fixed settings are set from the defaults.
        Raise TopicAlreadyExists.
        """

    @abstractmethod
    async def alter_topic(
        self, topic: Topic, *, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        """Give `topic` more partitions, or other settings (the whole new mapping).

        Compare-and-set: raise DocumentConflict if the catalogue no longer has `topic` as given (the method `topic` then
        returns its present version, for another attempt), and UnknownTopicOrPartition if it is gone.
        """

    @abstractmethod
    async def delete_topic(self, topic: Topic) -> None:
        """Delete the topic with that id, its records, and the groups' committed offsets in it.

        Raise UnknownTopicOrPartition if it is gone already.
        """

    # --- The log ---------------------------------------------------------------------------------------

    @abstractmethod
    async def append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        submitted: Callable[[], None] = lambda: None,
    ) -> dict[TopicPartition, AppendResult | KafkaError]:
        """Append a validated batch to each topic-partition, all in one write; each whole or not at all.

        Ownership of the batches' buffers passes to the storage: it may keep them, and write its stamps into them.
        Offsets are assigned consecutively. The storage calls `submitted` once the order relative to later appends to
        the same partitions is fixed, before the result is known: a caller may then start its next append.
        With acks -1 the result waits for `min.insync.replicas`, at most `timeout_s`. A batch is appended
        at most once, even if the connection to the store is lost during the call.
        A batch that follows a failed one of its producer gets the same error (`failed_sequences`).

        Errors: UnknownTopicOrPartition; OutOfOrderSequenceNumber, InvalidProducerEpoch of idempotent
        producers; InvalidRecord, MessageTooLarge for batches that cannot be stored;
        NotEnoughReplicas, NotEnoughReplicasAfterAppend; RequestTimedOut, KafkaStorageError while the
        store is unavailable or full.
        """

    @abstractmethod
    async def read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        """Read whole batches in the order of `requests`, at most `max_bytes` in all.

        The first batch of the first non-empty topic-partition is returned even if it exceeds the limits.
        If the record at an offset within the log was compacted or trimmed, the read begins at the next record.
        Errors: OffsetOutOfRange outside [trimmed_before, high_watermark], UnknownTopicOrPartition.
        """

    @abstractmethod
    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        """Watch topic-partitions for growth, whichever broker or other client appends to them."""

    @abstractmethod
    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        """Return the log start offset, and the timestamp of the first record; -1 without a record.

        The log starts at offset 0, under the timestamp mapping at the time of the topic's creation, or at the
        first entry of a stream that existed before the topic. Retention, DeleteRecords and trimming by other
        clients move the start; compaction does not.
        """

    @abstractmethod
    async def latest(self, tp: TopicPartition) -> LogOffsets:
        """Return the bounds of the log. The high watermark never decreases, even after all records were trimmed."""

    @abstractmethod
    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        """Return the first record, in offset order, whose own timestamp is >= `timestamp` (ms), or None."""

    @abstractmethod
    async def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        """Return the first record with the largest timestamp of the log (KIP-734), or None if the log is empty."""

    @abstractmethod
    async def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        """Return the largest epoch <= `leader_epoch`, and the offset where the next one began, or the log's end.

        Return (-1, -1) for an epoch that never existed: a negative one, or one above the present one.
        """

    @abstractmethod
    async def truncate_before(self, tp: TopicPartition, offset: int) -> int:
        """Delete all records below `offset` (DeleteRecords); return the log start offset, which never decreases.

        Raise OffsetOutOfRange beyond the high watermark.
        """

    @abstractmethod
    async def enforce_retention(self, tp: TopicPartition, *, up_to: int | None = None) -> int | None:
        """Apply retention.ms and retention.bytes, also to partitions without appends.

        A tiered topic drops records only here, and only below `up_to`, the archived offset.
        Return the new log start offset, or None if nothing was dropped.
        """

    @abstractmethod
    async def compact(self, tp: TopicPartition) -> Compacted | None:
        """Retain only the last record of each key, if the topic is compacted and the log is dirty enough.

        Return None if nothing was done. The rules are those of `korvet.storage.compaction`; offsets never change, and
        the newest record stays. A call may take long; it works in bounded steps, between which other operations
        proceed. An interrupted call (cancelled, killed, overtaken by another broker's run) leaves the log unchanged;
        the next call removes its remains. Raise KafkaStorageError, and UnknownTopicOrPartition if the topic is deleted
        meanwhile.
        """

    @abstractmethod
    async def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        """Return the bytes of each topic-partition's records in their stored form.

        Indexes and other overhead of the store do not count. Dropped records within a unit that the store removes only
        as a whole may still count, at most 64 kB or a batch; an emptied log counts 0. Errors: UnknownTopicOrPartition.
        """

    # --- Committed offsets -----------------------------------------------------------------------------

    @abstractmethod
    async def ack(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, generation_id: int = -1
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets, fenced: IllegalGeneration if the group has a later generation than `generation_id`."""

    @abstractmethod
    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets, for `tps` or for all partitions; those without one are left out."""

    @abstractmethod
    async def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        """Delete a group's committed offsets, for `tps` or all of them, so that nothing restores them.

        Deleting all of them deletes the fence too: a new group of that name may begin with any generation.
        """

    # --- Small documents -------------------------------------------------------------------------------

    @abstractmethod
    async def load(self, kind: str, key: str) -> Document | None:
        """Return the document of that kind and key, or None."""

    @abstractmethod
    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        """Write (None: delete) if the stored version is `expected_version` (0: absent); return the new version.

        Raise DocumentConflict otherwise.
        """

    @abstractmethod
    async def documents(self, kind: str) -> Collection[str]:
        """Return the keys of all documents of that kind, and possibly of some that were just deleted."""
