"""What a broker needs of the place where records are kept, in storage's own words.

No wire message crosses this interface. A *topic-partition* is addressed by name and number; its offsets are
plain integers; a *batch* is the bytes of one record batch (magic 2) behind its parsed header. Backends are
chosen by URL (`korvet.storage.open`) and all pass one contract suite (`korvet.testing.storage_contract`).

Errors are `KafkaError`s. Verbs that work on many topic-partitions answer each on its own: the mapping they
return holds, for every topic-partition asked for, either its result or the error it met, so that one bad
partition never fails its neighbours. Verbs on one raise.

Every verb may be cancelled; a cancelled `append` or `ack` may or may not have happened, as with any broker.
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
    """One partition's address. A NamedTuple, since it is hashed on every request."""

    topic: str
    partition: int


class StorageLayout(Enum):
    """How the records of a topic become Redis stream entries; without meaning in memory."""

    RECORD = "record"
    BATCH = "batch"


class OffsetMapping(Enum):
    """How offsets are numbered: 0, 1, 2, … or after the clock (see `korvet.storage.offsets`)."""

    TIMESTAMP = "timestamp"
    DENSE = "dense"


class TimestampType(IntEnum):
    """`message.timestamp.type`; the values are those of the attribute bit in a record batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """How far a reader may read: the high watermark, or the last stable offset (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@frozen
class TopicConfig:
    """The settings of a topic that storage itself obeys, parsed. -1 means without limit, as in Kafka.

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
    # Records are archived: retention is then `local.retention.*`, and waits for that (`Storage.enforce_retention`).
    is_tiered: bool = False


@frozen
class StorageDefaults:
    """What the broker's configuration says about every topic and producer, given when storage is opened."""

    topic_config: TopicConfig = TopicConfig()
    # Data is kept at least this long after it was appended, whatever its timestamps say: Kafka, too, deletes
    # only when its next check comes by (log.retention.check.interval.ms).
    retention_check_interval_ms: int = 300_000
    producer_id_expiration_ms: int = 86_400_000
    # Where a header becomes a field of a stream entry, as many as one script can hand to Redis at once and more
    # than anybody needs; opaque batches are not looked into.
    record_max_headers: int = 1_000
    # In the record layout one script call adds a whole batch, and Redis does nothing else meanwhile: some 2 us for each
    # record. The smallest record has 7 bytes, so a batch of `message.max.bytes` is never refused for its number.
    record_max_batch_records: int = 150_000
    # Of so many keys compaction remembers the last offset at a time; for more it goes over the log again.
    compaction_max_keys: int = 600_000


@frozen
class Topic:
    """A topic as the catalogue holds it.

    `settings` are the raw strings set at creation or altered since; the three fixed ones (`storage.layout`,
    `offset.mapping`, `offset.sequence.bits`) are always among them. `config` is what they and the defaults
    amount to.
    """

    name: str
    topic_id: UUID
    partitions: int
    settings: Mapping[str, str]
    config: TopicConfig


@frozen
class AppendResult:
    """Where a batch went. For a repeated batch of an idempotent producer: where it had gone the first time."""

    base_offset: int
    log_append_time_ms: int  # -1 under CreateTime, as in Kafka's ProduceResponse
    log_start_offset: int
    duplicate: bool = False


@frozen
class OffsetAndTimestamp:
    """A record's offset and its timestamp in milliseconds; timestamp -1 where there is no record."""

    offset: int
    timestamp: int
    leader_epoch: int = 0


@frozen
class OffsetAndMetadata:
    """A committed position: the next offset to read, and the words the committer left with it.

    `commit_timestamp_ms` is when, by the store's clock: `committed` tells it, `ack` passes it over. -1 where nobody
    committed it, as where it is derived from a Redis consumer group.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = field(default=-1, eq=False)


@frozen
class LogOffsets:
    """The bounds of a partition, read in one step."""

    log_start_offset: int
    high_watermark: int  # the next offset to be written
    last_stable_offset: int
    leader_epoch: int = 0
    # Retention and DeleteRecords removed everything below. A read from here to the log start finds the first record.
    trimmed_before: int = field(default=0, eq=False, kw_only=True)


@frozen
class ReadRequest:
    """What to read of one topic-partition."""

    offset: int
    max_bytes: int


@frozen
class ReadResult:
    """Whole record batches, ready for the wire: base offset and leader epoch are stamped.

    `batches` are buffers to be sent one after the other; the first batch contains the offset asked for, or
    follows it where that offset is gone. Empty when there is nothing to read yet.
    """

    batches: Sequence[Buffer]
    size: int  # bytes in `batches`
    offsets: LogOffsets
    is_cut: bool = False  # whether it was a limit that ended the read: there is more, or may be


@frozen
class Compacted:
    """What compaction has made of a log."""

    end: int  # every key comes once below this offset
    size_before: int  # bytes, as `Storage.sizes` counts them
    size_after: int


@frozen
class EpochEnd:
    """Where a leader epoch ended: the answer to OffsetForLeaderEpoch. (-1, -1) when the epoch is unknown."""

    leader_epoch: int
    end_offset: int


@frozen
class Document:
    """A small versioned value; `version` counts its writes from 1."""

    value: bytes
    version: int


class DocumentConflict(Exception):  # noqa: N818  an outcome callers plan for, not a fault
    """Somebody else saved the document first; load it again."""


class StorageUsageError(Exception):
    """The storage asked for cannot be had as configured (bad URL, folder held by another broker, …).

    The message is one line for the operator: what was wrong, and what is accepted.
    """


class Watch(Protocol):
    """Tells when watched topic-partitions grew. Made by `Storage.watch`; ends with its `with` block."""

    async def wait(self) -> Collection[TopicPartition]:
        """Return those that have grown (or were deleted) since the block was entered or the last return.

        Returns once there is any. Some may not have grown, so read again after it. Never misses growth: register, then
        read, then wait.
        """

    def grown(self) -> Collection[TopicPartition]:
        """What `wait` would return at once: nothing if it would wait."""


class Storage(ABC):
    """Where records, positions and small documents are kept.

    Opened by `korvet.storage.open.open_storage`, an async context manager that owns connections, background
    tasks and, for `embedded:`, the server itself, and ends them when its block ends.
    """

    #: One phrase for the start line: what and where ("memory", "Valkey 9.1.2 at unix:/…"). No passwords.
    description: str
    #: One phrase for the start line: what an acknowledgement is worth when the broker, or the machine, dies.
    durability: str
    #: Whether it is another process, which is waited for whatever it is asked.
    is_elsewhere: bool = True

    @property
    def held_bytes(self) -> int:
        """What is kept in the memory of this process, roughly; 0 where the store is another one."""
        return 0

    @cached_property
    def failed_sequences(self) -> FailedSequences:
        """The producers' batches that failed in `append`, or that its caller refused."""
        return FailedSequences()

    # --- The catalogue: shared by all brokers on the same store ------------------------------------------

    @abstractmethod
    async def topics(self) -> Mapping[str, Topic]:
        """All topics by name. Cheap: a view of what is known, dropped on a signal when another broker alters it."""

    @abstractmethod
    async def topic(self, name: str) -> Topic | None:
        """One topic; asks the store itself before it says that there is none."""

    @abstractmethod
    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """As `topic`, by id."""

    @abstractmethod
    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic under a new random id, adopting streams that are already there.

        `settings` are validated by the caller; the fixed three are filled in from the defaults.
        Raises TopicAlreadyExists.
        """

    @abstractmethod
    async def alter_topic(
        self, topic: Topic, *, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        """Give `topic` more partitions, or other settings (the whole new mapping).

        Compare-and-set: raises DocumentConflict when the catalogue no longer holds `topic` as given (`topic` then
        answers what it holds, to try again with), and UnknownTopicOrPartition when it is gone.
        """

    @abstractmethod
    async def delete_topic(self, topic: Topic) -> None:
        """Delete the topic with that id, its records, and the groups' offsets for it.

        Raises UnknownTopicOrPartition when it is gone already.
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

        The batches' buffers are the storage's from now on: it may keep them, and write its stamps into them.
        Offsets are assigned consecutively. `submitted` is called once the order against later appends of the
        same partitions is settled, before the result is known: a caller may then start its next append.
        With acks -1 the result waits for `min.insync.replicas`, at most `timeout_s`. A batch is appended
        at most once, also when the connection to the store is lost in the middle.
        A batch that follows a failed one of its producer gets the same error (`failed_sequences`).

        Errors: UnknownTopicOrPartition; OutOfOrderSequenceNumber, InvalidProducerEpoch of idempotent
        producers; InvalidRecord, MessageTooLarge for what cannot be stored;
        NotEnoughReplicas, NotEnoughReplicasAfterAppend; RequestTimedOut, KafkaStorageError while the
        store is away or full.
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

        The first batch of the first non-empty topic-partition is returned even when it exceeds the limits.
        A position that was compacted or trimmed away inside the log goes on at the next record.
        Errors: OffsetOutOfRange outside [trimmed_before, high_watermark], UnknownTopicOrPartition.
        """

    @abstractmethod
    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        """Watch topic-partitions for growth, whoever writes them."""

    @abstractmethod
    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        """Return the log start offset, and the timestamp of the first record; -1 without a record.

        The log starts at offset 0, under the timestamp mapping at the time of the topic's creation, or at the
        first entry of a stream that was there before the topic. Retention, DeleteRecords and trimming by hand
        move the start; compaction does not.
        """

    @abstractmethod
    async def latest(self, tp: TopicPartition) -> LogOffsets:
        """The bounds of the log; the high watermark never goes backwards, also after everything was trimmed."""

    @abstractmethod
    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        """The first record whose own timestamp is >= `timestamp` (ms), in offset order; None without one."""

    @abstractmethod
    async def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        """The first record that bears the largest timestamp of the log (KIP-734); None when it is empty."""

    @abstractmethod
    async def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        """The largest epoch <= `leader_epoch` and the offset where the next one began, or the log's end.

        (-1, -1) for an epoch that never was: a negative one, or one above the present.
        """

    @abstractmethod
    async def truncate_before(self, tp: TopicPartition, offset: int) -> int:
        """Drop everything below `offset` (DeleteRecords); the new log start offset, which never goes back.

        Raises OffsetOutOfRange beyond the high watermark.
        """

    @abstractmethod
    async def enforce_retention(self, tp: TopicPartition, *, up_to: int | None = None) -> int | None:
        """Drop what retention.ms and retention.bytes give up, also where nobody appends.

        A tiered topic drops nothing but here, and only below `up_to`, which is how far it is archived.
        The new log start offset; None where nothing was dropped.
        """

    @abstractmethod
    async def compact(self, tp: TopicPartition) -> Compacted | None:
        """Leave of each key the last record, where the topic is compacted and the log is dirty enough for it.

        None where nothing was done. The rules are those of `korvet.storage.compaction`; offsets never change, and the
        newest record stays. Takes its time, in bounded steps beside which everything else goes on. Whatever is
        interrupted (cancelled, killed, overtaken by another broker's run) leaves the log as it was; the next call
        removes the leavings. Raises KafkaStorageError, UnknownTopicOrPartition when the topic is deleted meanwhile.
        """

    @abstractmethod
    async def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        """The bytes that the records of each topic-partition take, as they are kept.

        What a store needs beside them does not count. What was dropped from inside of a piece that goes as a whole
        may still count, 64 kB or a batch at most; an emptied log counts 0. Errors: UnknownTopicOrPartition.
        """

    # --- Groups' positions -----------------------------------------------------------------------------

    @abstractmethod
    async def ack(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, generation_id: int = -1
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit positions, fenced: IllegalGeneration when the group has moved on from `generation_id`."""

    @abstractmethod
    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What was committed, for `tps` or for everything; nothing stands for a partition without a position."""

    @abstractmethod
    async def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        """Delete a group's positions, for `tps` or all of them, so that nothing revives them.

        With all of them goes its fence: a group of that name begins anew, with any generation.
        """

    # --- Small documents -------------------------------------------------------------------------------

    @abstractmethod
    async def load(self, kind: str, key: str) -> Document | None:
        """The document of that kind and key."""

    @abstractmethod
    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        """Write (None: delete) if the stored version is `expected_version` (0: absent); the new version.

        Raises DocumentConflict otherwise.
        """

    @abstractmethod
    async def documents(self, kind: str) -> Collection[str]:
        """The keys of all documents of that kind; may name some that were deleted a moment ago."""
