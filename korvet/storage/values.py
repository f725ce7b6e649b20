"""The values that cross the interface of storage; `korvet.storage.interface` exports them with its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple
from uuid import UUID

from attrs import Attribute, field, frozen

from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import InvalidRequest

# Values of metrics by name and label values. A histogram is a list (`korvet.concurrency.histograms`).
Measurements = Mapping[str, Mapping[tuple[str, ...], float | list[float]]]


class TopicPartition(NamedTuple):
    """The topic and the number of a partition."""

    # A NamedTuple, since it is hashed on every request.

    topic: str
    partition: int


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


class TransactionResult(IntEnum):
    """The result of a transaction; the values are those of a control record's type (KIP-98)."""

    ABORT = 0
    COMMIT = 1


@frozen
class TransactionNumber:
    """The transaction to which a batch belongs.

    `number` rises with each transaction of a transactional id; the coordinator assigns it. `version` is the client's
    `transaction.version`: 1 (KIP-98), or 2 (KIP-890), under which a transaction begins with sequence 0.
    """

    version: int
    number: int


@frozen
class ProducerTransaction:
    """A transaction, named by its producer and its number (see `TransactionNumber`)."""

    producer_id: int
    producer_epoch: int
    number: int


def _is_assigned(_: object, attribute: Attribute[int], value: int) -> None:
    if value < 0:
        raise InvalidRequest(f"the {attribute.name} of a marker is 0 or above, not {value}")


@frozen
class Marker:
    """The end of a producer's transaction in a partition, which storage writes as a control batch.

    Without `number` (-1) the marker ends the open transaction, whichever it is, as WriteTxnMarkers requires. `version`
    is that of `TransactionNumber`: under 2 such a marker needs an epoch above the known one.
    Raises InvalidRequest for a negative producer id or epoch.
    """

    producer_id: int = field(validator=_is_assigned)
    producer_epoch: int = field(validator=_is_assigned)
    coordinator_epoch: int
    result: TransactionResult
    number: int = -1
    version: int = 1


@frozen
class AbortedTransaction:
    """An aborted transaction of a read: readers drop the producer's records from `first_offset` to its marker."""

    producer_id: int
    first_offset: int


@frozen
class ActiveProducer:
    """The state of an idempotent or transactional producer in a partition (DescribeProducers)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int  # -1: none under this epoch
    last_timestamp: int  # time of the last append or marker, in milliseconds
    coordinator_epoch: int = -1  # -1: no marker was written
    current_txn_start_offset: int = -1  # -1: no transaction is open


@frozen
class TopicConfig:
    """The parsed settings of a topic that storage applies. -1 means no limit, as in Kafka.

    The first two are fixed when the topic is created.
    """

    mapping: OffsetMapping = OffsetMapping.TIMESTAMP
    # Settings that only the backend parses, by name (`korvet.storage.topic_config.BACKEND_SETTINGS`).
    backend_settings: Mapping[str, str] = field(factory=dict)
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
    # Limits of a backend that decodes batches and stores each record by itself.
    record_max_headers: int = 1_000
    record_max_batch_records: int = 50_000
    # Number of keys whose last offsets compaction holds in one round; for more keys it reads the log again.
    compaction_max_keys: int = 600_000


@frozen
class Topic:
    """A topic in the catalogue.

    `settings` are the raw strings set at creation or altered since; they always include those that are fixed at
    creation (`korvet.storage.topic_config.FIXED_SETTINGS`). `config` is the result of parsing them over the defaults.
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
    is -1 if no client committed the offset, for example if the store derives it from another program's progress.
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
    # The first offset of the oldest open transaction, or the high watermark.
    last_stable_offset: int
    leader_epoch: int = 0
    # Retention and DeleteRecords removed all records below. A read between this offset and the log start returns the
    # first record.
    trimmed_before: int = field(default=0, eq=False, kw_only=True)
    # False after a failover until the high watermark reaches the offset where the leader epoch began (KIP-207).
    has_caught_up: bool = field(default=True, eq=False, kw_only=True)


@frozen
class ReadRequest:
    """A read of one topic-partition: its first offset, and its limit in bytes."""

    offset: int
    max_bytes: int


@frozen
class ReadResult:
    """Whole record batches, ready for the wire: base offset and leader epoch are stamped.

    The first batch contains the requested offset, or follows it if that offset is gone. There are no batches if there
    is nothing to read yet.
    """

    batches: EncodedBatches
    offsets: LogOffsets
    is_cut: bool = False  # a limit ended the read, so there is more, or may be
    # With READ_COMMITTED: the aborted transactions that have records in the batches, by the offsets of their markers.
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def size(self) -> int:
        """Bytes of the batches."""
        return self.batches.size


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
