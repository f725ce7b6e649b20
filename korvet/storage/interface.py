"""The interface between the broker and its storage backends.

A backend implements `Storage`, which joins five interfaces with one purpose each:

    Log             append, earliest, latest, seek_ts; read, watch, and the maintenance of partitions
    GroupOffsets    ack, committed; forget
    Catalogue       topics: their names, ids, partitions and settings
    Documents       small versioned values of the broker
    ShareLog        states of share groups, by stores that keep them (`korvet.storage.shares`)

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
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import trio

from korvet.protocol.errors import ConcurrentTransactions, InvalidTxnState, KafkaError, UnsupportedVersion
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.failed_sequences import FailedSequences
from korvet.storage.parts import composed, decomposed, updated
from korvet.storage.shares import ShareLog
from korvet.storage.values import (
    AbortedTransaction,
    ActiveProducer,
    AppendResult,
    Compacted,
    Document,
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    Marker,
    Measurements,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetMapping,
    ProducerTransaction,
    ReadRequest,
    ReadResult,
    StorageDefaults,
    TimestampType,
    Topic,
    TopicConfig,
    TopicPartition,
    TransactionNumber,
    TransactionResult,
)

__all__ = [
    "GROUP",
    "NO_TRANSACTIONS",
    "AbortedTransaction",
    "ActiveProducer",
    "AppendResult",
    "AppendResults",
    "Catalogue",
    "Compacted",
    "Document",
    "DocumentConflict",
    "Documents",
    "EpochEnd",
    "GroupOffsets",
    "IsolationLevel",
    "Log",
    "LogOffsets",
    "Marker",
    "Measurements",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetMapping",
    "PendingAck",
    "PendingAppend",
    "PendingRead",
    "ProducerTransaction",
    "ReadRequest",
    "ReadResult",
    "Storage",
    "StorageDefaults",
    "StorageInfo",
    "StorageUsageError",
    "TimestampType",
    "Topic",
    "TopicConfig",
    "TopicPartition",
    "TransactionBehind",
    "TransactionEnded",
    "TransactionNumber",
    "TransactionResult",
    "Transactions",
    "Watch",
]


#: The kind of the documents of groups. Their coordinators' epochs fence commits.
GROUP = "group"


class DocumentConflict(Exception):  # noqa: N818  an outcome callers plan for, not a fault
    """Another broker or task saved the document first.

    `current` is the document that `Documents.save` has found instead, or None if there is none: the caller need not
    load it. Conflicts of the catalogue have none.
    """

    def __init__(self, current: Document | None = None) -> None:
        super().__init__(current)
        self.current = current


class TransactionEnded(InvalidTxnState):
    """The transaction of a batch has ended, or a later one of its producer has begun, so nothing was appended.

    The caller's number is out of date: it loads the coordinator's document and appends once more. `retriable`, so that
    no later batch of the producer overtakes that attempt (`failed_sequences`).
    """

    message = "The transaction has ended."
    retriable = True


class TransactionBehind(ConcurrentTransactions):
    """An earlier transaction of the producer is still open in the partition, so nothing was appended.

    The coordinator's owner has to end that transaction first.
    """

    message = "An earlier transaction of the producer is still open in the partition."


class StorageUsageError(Exception):
    """The configured storage cannot be opened (bad URL, folder held by another broker, …).

    The message is one line for the operator: the fault, and what is accepted instead.
    """


DOCUMENTS_POLLED_EVERY_S = 0.5


class Watch(Protocol):
    """A watch for growth of topic-partitions. `Storage.watch` creates it; it ends with its `with` block."""

    async def wait(self) -> Collection[TopicPartition]:
        """Wait for growth; return the topic-partitions that have grown since the block was entered or the last return.

        Deleted ones count as grown. The result is never empty. Some of it may not have grown, so callers read again. No
        growth is missed if the caller enters the block, then reads, then waits.
        """

    def grown(self) -> Collection[TopicPartition]:
        """Return what `wait` would return immediately; nothing if it would wait."""

    def take(self) -> Collection[TopicPartition]:
        """Return the same, and count it as returned."""

    def expect(self) -> None:
        """Note from now on growth that no task waits for, too: a later `grown` returns it."""


class DocumentWatch(Protocol):
    """A watch for changes of documents. `Storage.watch_documents` creates it; it ends with its `with` block."""

    async def wait(self) -> None:
        """Wait until documents may have changed since the block was entered or the last return; for seconds at most."""


class PolledDocuments:
    """The watch of a store without notifications."""

    async def wait(self) -> None:
        await trio.sleep(DOCUMENTS_POLLED_EVERY_S)


AppendResults = dict[TopicPartition, AppendResult | KafkaError]
#: The transactions of the transactional batches of an append.
Transactions = Mapping[TopicPartition, TransactionNumber]
NO_TRANSACTIONS: Transactions = MappingProxyType({})


class PendingAppend(ABC):
    """An append whose order relative to later appends is fixed, and whose results are not known yet.

    The caller must either wait for it or abandon it.
    """

    @abstractmethod
    async def wait(self) -> AppendResults:
        """Wait for the results of `Storage.append`. May be called once; abandons the append if it is cancelled."""

    @abstractmethod
    def abandon(self) -> None:
        """Release what the append holds, and withdraw batches that were not sent yet, since no caller waits for it."""

    def notify(self, call: Callable[[], None]) -> bool:  # noqa: ARG002  this implementation cannot
        """Call `call` once `known_results` are there, from any task; it must neither wait nor raise.

        Return False, and never call it, if the caller has to `wait`.
        """
        return False

    def known_results(self) -> AppendResults:
        """Return the results, after `call` was called."""
        raise NotImplementedError


R = TypeVar("R")


class PendingResults(ABC, Generic[R]):
    """A call that a store has not answered yet. The caller must get its results, or abandon it."""

    @abstractmethod
    def notify(self, call: Callable[[], None]) -> bool:
        """Call `call` once the store has answered, from any task; it must neither wait nor raise.

        Return False, and never call it, if the caller has to `wait`.
        """

    @abstractmethod
    def known_results(self) -> R | None:
        """Return the results, after `call` was called, or None if the caller has to `wait` for the rest."""

    @abstractmethod
    async def wait(self) -> R:
        """Return the results."""

    @abstractmethod
    def abandon(self) -> None:
        """Release what the call holds, since no caller waits for it. May be called several times."""


class PendingRead(PendingResults["dict[TopicPartition, ReadResult | KafkaError]"]):
    """A `Log.read`."""

    @abstractmethod
    def report_ends(self) -> None:
        """Report the ends of the logs as they were read, to watches that have begun since: no later growth is missed.

        May be called after the results are known.
        """


class PendingAck(PendingResults["dict[TopicPartition, KafkaError | None]"]):
    """A `GroupOffsets.ack`."""


class Log(ABC):
    """The records of all topic-partitions."""

    @abstractmethod
    async def append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults:
        """Append a validated batch to each topic-partition, all in one write; each whole or not at all.

        Ownership of the batches' buffers passes to the storage: it may keep them, and write its stamps into them.
        Offsets are assigned consecutively. With acks -1 the result waits for `min.insync.replicas`, at most
        `timeout_s`. A batch is appended at most once, even if the connection to the store is lost during the call.
        A batch that follows a failed one of its producer gets the same error (`failed_sequences`).

        A store that `serves_transactions` gets the number of each transactional batch's transaction in `transactions`.
        The first batch of a transaction opens it in the partition, and `write_markers` ends it. A backend that does not
        serve transactions may leave out the argument.

        Errors: UnknownTopicOrPartition; OutOfOrderSequenceNumber, InvalidProducerEpoch of idempotent
        producers; TransactionEnded, TransactionBehind, and InvalidTxnState for a plain batch of a producer whose
        transaction is open in the partition; InvalidRecord, MessageTooLarge for batches that cannot be stored;
        NotEnoughReplicas, NotEnoughReplicasAfterAppend; RequestTimedOut, KafkaStorageError while the
        store is unavailable or full.
        """

    @abstractmethod
    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        """Return the log start offset, and the timestamp of the first record; -1 without a record.

        The log starts at offset 0, under the timestamp mapping at the time of the topic's creation, or at the
        first record that the store had before the topic. Retention, DeleteRecords and trimming by other
        clients move the start; compaction does not.
        """

    @abstractmethod
    async def latest(self, tp: TopicPartition) -> LogOffsets:
        """Return the bounds of the log. The high watermark never decreases, even after all records were trimmed."""

    @abstractmethod
    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        """Return the first record, in offset order, whose own timestamp is >= `timestamp` (ms), or None."""

    def checks_records(self, topic: Topic) -> bool:  # noqa: ARG002  a store may depend on the topic
        """Return True if an append decodes the batches of this topic, and so refuses malformed records.

        The broker checks the records of other topics before it appends them.
        """
        return False

    async def begin_append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int = -1,
        timeout_s: float = 30.0,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults | PendingAppend:
        """Begin `append`, and return once the order relative to later appends to the same partitions is fixed.

        A caller may then begin its next append. This implementation waits for the results. A backend whose store takes
        its time overrides it, and returns a PendingAppend.
        """
        if transactions:
            return await self.append(batches, acks=acks, timeout_s=timeout_s, transactions=transactions)
        return await self.append(batches, acks=acks, timeout_s=timeout_s)

    def try_append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],  # noqa: ARG002  this implementation always has to wait
        *,
        acks: int = -1,  # noqa: ARG002
        timeout_s: float = 30.0,  # noqa: ARG002
    ) -> AppendResults | PendingAppend | None:
        """Do `begin_append` if it need not wait; otherwise do nothing, and return None.

        The broker calls it first for a request with few small batches of no transaction.
        """
        return None

    async def write_markers(
        self,
        markers: Mapping[TopicPartition, Marker],
        *,
        timeout_s: float = 30.0,  # noqa: ARG002  stores that serve transactions obey it
    ) -> AppendResults:
        """End a transaction in each topic-partition, by a control batch; wait for replicas as acks=all does.

        Idempotent: if the marker's transaction has ended already, return the log's end and write nothing.
        A marker is also written if the producer has no open transaction: it fences later appends of that transaction.

        Errors: UnknownTopicOrPartition; InvalidProducerEpoch if the producer's epoch is above the marker's;
        TransactionCoordinatorFenced if a later coordinator has written markers of the producer; TransactionBehind if an
        earlier transaction of the producer is open, which a marker without number ends; those of `append` while the
        store is unavailable. UnsupportedVersion without `serves_transactions`.
        """
        return dict.fromkeys(markers, UnsupportedVersion("the storage does not serve transactions"))

    async def active_producers(self, tp: TopicPartition) -> Sequence[ActiveProducer]:
        """Return the idempotent and transactional producers that the partition remembers.

        UnsupportedVersion without `serves_transactions`.
        """
        raise UnsupportedVersion(f"the storage does not serve transactions, also not in {tp}")

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
        READ_COMMITTED ends the read at the last stable offset, and fills `ReadResult.aborted`.
        Errors: OffsetOutOfRange outside [trimmed_before, high_watermark], UnknownTopicOrPartition.
        """

    def try_read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],  # noqa: ARG002  this implementation always has to wait
        *,
        max_bytes: int,  # noqa: ARG002
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,  # noqa: ARG002
    ) -> dict[TopicPartition, ReadResult | KafkaError] | PendingRead | None:
        """Read as `read` does if that needs no wait before the store is asked. Return None otherwise.

        If results are returned, a watch that begins before the next checkpoint misses no later growth.
        """
        return None

    @abstractmethod
    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        """Watch topic-partitions for growth, whichever broker or other client appends to them."""

    @abstractmethod
    async def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        """Return the first record with the largest timestamp of the log (KIP-734), or None if the log is empty."""

    @property
    def newest_leader_epoch(self) -> int:
        """The highest leader epoch of all partitions that this process knows; clients receive it for each of them.

        It never decreases, over all processes that share a store. The epoch of a partition's records may be lower.
        """
        return 0

    @abstractmethod
    async def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        """Return the largest epoch <= `leader_epoch`, and the offset where the next one began, or the log's end.

        Return (-1, -1) for an epoch that never existed: a negative one, or one above `newest_leader_epoch`.
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

    @cached_property
    def failed_sequences(self) -> FailedSequences:
        """The batches of producers that failed in `append`, or that its caller refused."""
        return FailedSequences()


class GroupOffsets(ABC):
    """The committed offsets of consumer groups."""

    @abstractmethod
    async def ack(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets, fenced by the group's generation and by its coordinator's epoch; -1 is not fenced.

        IllegalGeneration if the group has a later generation, NotCoordinator if `Documents.fence` has returned a later
        epoch for the group.
        """

    def try_ack(
        self,
        group_id: str,  # noqa: ARG002  this implementation always has to wait
        offsets: Mapping[TopicPartition, OffsetAndMetadata],  # noqa: ARG002
        *,
        generation_id: int = -1,  # noqa: ARG002
        coordinator_epoch: int = -1,  # noqa: ARG002
    ) -> dict[TopicPartition, KafkaError | None] | PendingAck | None:
        """Commit as `ack` does if that needs no wait before the store is asked. Return None otherwise."""
        return None

    @abstractmethod
    async def committed(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets, for `tps` or for all partitions; those without one are left out."""

    async def stage(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],  # noqa: ARG002  stores that serve transactions use them
        transaction: ProducerTransaction,  # noqa: ARG002
        *,
        generation_id: int = -1,  # noqa: ARG002
        coordinator_epoch: int = -1,  # noqa: ARG002
    ) -> dict[TopicPartition, KafkaError | None]:
        """Store offsets that `settle` commits with the producer's transaction; fenced as `ack` is.

        Idempotent: staging a partition again replaces its offset. UnsupportedVersion without `serves_transactions`.
        """
        raise UnsupportedVersion(
            f"the storage does not serve transactions, also not of the group {group_id!r}"
        )

    async def settle(
        self,
        group_id: str,
        *,
        producer_id: int,  # noqa: ARG002
        number: int,  # noqa: ARG002
        result: TransactionResult,  # noqa: ARG002
    ) -> None:
        """Commit or drop the offsets that the producer staged in its transaction of that number. Idempotent.

        UnsupportedVersion without `serves_transactions`.
        """
        raise UnsupportedVersion(
            f"the storage does not serve transactions, also not of the group {group_id!r}"
        )

    async def unstable(
        self,
        group_id: str,  # noqa: ARG002  stores that serve transactions use it
        tps: Collection[TopicPartition] | None = None,  # noqa: ARG002
    ) -> Collection[TopicPartition]:
        """Return the partitions with staged offsets, of `tps` or of all; none without `serves_transactions`."""
        return ()

    @abstractmethod
    async def forget(self, group_id: str, tps: Collection[TopicPartition] | None = None) -> None:
        """Delete a group's committed offsets, for `tps` or all of them, so that nothing restores them.

        Deleting all of them deletes the fences too: a new group of that name may begin with any generation, and with
        the first epoch of a coordinator.
        """


class Catalogue(ABC):
    """The topics, shared by all brokers on the same store."""

    @abstractmethod
    async def topics(self) -> Mapping[str, Topic]:
        """Return all topics by name.

        Cheap: a view of the cached topics, which are invalidated when another broker alters them.
        """

    def known_topics(self) -> Mapping[str, Topic] | None:
        """Return what `topics` returns if it need not wait, or None."""
        return None

    @abstractmethod
    async def topic(self, name: str) -> Topic | None:
        """Return one topic; return None only after reading the store itself."""

    def known_topic(self, name: str) -> Topic | None:  # noqa: ARG002  this implementation knows none
        """Return what `topic` returns if it need not wait, or None."""
        return None

    def known_topic_by_id(self, topic_id: UUID) -> Topic | None:  # noqa: ARG002
        """Return what `topic_by_id` returns if it need not wait, or None."""
        return None

    @abstractmethod
    async def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return one topic by its id, as `topic` does by name."""

    @abstractmethod
    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """Create a topic with a new random id; adopt records that the store has already.

        The caller has validated `settings`; missing ones of the three fixed settings are set from the defaults.
        Raise TopicAlreadyExists. This and the other alterations raise RequestTimedOut if too few replicas confirm them
        in time; they are stored nevertheless.
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


class Documents(ABC):
    """Small versioned values, shared by all brokers on the same store."""

    @abstractmethod
    async def load(self, kind: str, key: str) -> Document | None:
        """Return the document of that kind and key, or None."""

    @abstractmethod
    async def save(self, kind: str, key: str, value: bytes | None, *, expected_version: int) -> int:
        """Write (None: delete) if the stored version is `expected_version` (0: absent); return the new version.

        The value replaces parts, too. Raise DocumentConflict otherwise, with the stored document. No second round trip
        reads it.
        """

    async def load_parts(self, kind: str, key: str) -> tuple[Document, Mapping[str, bytes]] | None:
        """Return the document of that kind and key, and its parts by name, or None.

        A document that `save_parts` has saved is read by this method; it has no parts if `save` has saved it.
        """
        stored = await self.load(kind, key)
        if stored is None:
            return None
        head, parts = decomposed(stored.value)
        return Document(head, stored.version), parts

    async def save_parts(
        self, kind: str, key: str, value: bytes, parts: Mapping[str, bytes | None], *, expected_version: int
    ) -> int:
        """Write as `save` does, and in the same step the parts with these names (None: remove). The others stay.

        A store that does not override this and `load_parts` saves the document as one value.
        """
        stored = await self.load_parts(kind, key)
        current, present = stored or (None, {})
        if expected_version != (0 if current is None else current.version):
            raise DocumentConflict(current)
        whole = composed(value, updated(present, parts))
        try:
            return await self.save(kind, key, whole, expected_version=expected_version)
        except DocumentConflict as conflict:
            if (found := conflict.current) is not None:
                found = Document(decomposed(found.value)[0], found.version)
            raise DocumentConflict(found) from None

    def incarnation(self, kind: str, key: str) -> str:  # noqa: ARG002  a store may be several servers
        """Return a name that changes whenever the document's store may have lost acknowledged writes.

        Return the empty name if the store loses none, or does not know.
        """
        return ""

    async def save_in(
        self,
        incarnation: str,  # noqa: ARG002  stores that have incarnations compare it
        kind: str,
        key: str,
        value: bytes,
        *,
        expected_version: int,
    ) -> int:
        """Write as `save` does. Raise DocumentConflict also in another incarnation, whatever the version is."""
        return await self.save(kind, key, value, expected_version=expected_version)

    @abstractmethod
    async def fence(self, kind: str, key: str) -> int:
        """Begin the epoch of another coordinator of that key, and return it. The first one, 0, begins by itself.

        Epochs rise over all brokers, whether or not there is a document, and do not change it. They begin again at the
        earliest when the document was deleted; those of GROUP, which `GroupOffsets.ack` compares, when `forget` has
        deleted all of the group's offsets.
        """

    @abstractmethod
    async def documents(self, kind: str) -> Collection[str]:
        """Return the keys of all documents of that kind, and possibly of some that were just deleted."""

    async def announce(self, kind: str) -> None:  # noqa: B027  a store may have no notifications
        """Notify the brokers that watch documents of that kind. A store without notifications does nothing."""

    def watch_documents(self, kind: str) -> AbstractContextManager[DocumentWatch]:  # noqa: ARG002  as above
        """Watch documents of that kind until the block ends. A store without notifications lets callers poll."""
        return nullcontext(PolledDocuments())


class StorageInfo:
    """Facts about a store for the operator and the server."""

    #: One phrase for the start line: the kind of store and its address ("memory", "SQLite 3.45.1 at orders.db"),
    #: without passwords.
    description: str
    #: One phrase for the start line: which acknowledged records survive the end of the broker, or of the machine.
    durability: str
    #: True if the store is another process, for whose answer every method waits.
    is_elsewhere: bool = True
    #: True if the store implements transactions: of `Log` and of `GroupOffsets`.
    serves_transactions: bool = False

    @property
    def held_bytes(self) -> int:
        """Approximate bytes that the store holds in this process's memory; 0 if the store is another process."""
        return 0

    def start_counting(self) -> None:
        """Begin to count for `measurements`. A store does nothing, or counts always, if that costs nothing."""

    def measurements(self) -> Measurements:
        """Return counts of this process for metrics, by the names in docs/metrics.md. A store may have none."""
        return {}

    async def read_measurements(self) -> Measurements:
        """Return values for metrics that the store itself has, such as its memory. Raises KafkaError."""
        return {}


class Storage(Log, GroupOffsets, Catalogue, Documents, ShareLog, StorageInfo):
    """A store of records, committed offsets, topics, small documents, and possibly states of share groups.

    `korvet.storage.open.open_storage` opens it: an async context manager that owns the connections and background
    tasks of the store, or the store itself, and ends them when its block ends.
    """

    def configure(self, defaults: StorageDefaults) -> None:
        """Apply other defaults to topics without settings of their own. Settings that are fixed at creation stay."""
