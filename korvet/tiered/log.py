"""A partition's log as clients see it: the records in storage, and before them the records archived in the lake.

A topic with `remote.storage.enable=true` has two tiers (KIP-405). `korvet lake archive` copies records to a table. The
retention worker then trims archived records that exceed `local.retention.*` from storage. The broker serves offsets
below the local log start from the table, so the log starts with the table's first offset. Nothing changes for other
topics, or for brokers without `lake.url`.

Records that DeleteRecords has deleted stay in the table until `korvet lake` removes them, but the broker does not serve
them any more. A document in the store holds the deleted-before offset. Every read of the table looks it up.

Before archived records are trimmed for the first time, another document notes that the partition has an archive. A lake
without its table (a folder that is not mounted, an empty bucket) is then an error and not an empty archive.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from uuid import UUID

import trio
from attrs import define, evolve, field, frozen

from korvet.concurrency.time_slices import TimeSlices
from korvet.config import MAX_LONG, Config
from korvet.lake.remote_values import ArchivedLog
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import KafkaError, KafkaStorageError, OffsetOutOfRange
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.damage import Damage
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import (
    NO_TRANSACTIONS,
    ActiveProducer,
    AppendResults,
    Document,
    DocumentConflict,
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    Marker,
    OffsetAndTimestamp,
    PendingAppend,
    PendingRead,
    ReadRequest,
    ReadResult,
    Storage,
    Topic,
    TopicPartition,
    Transactions,
    Watch,
)
from korvet.tiered.remote import RemoteStore

logger = logging.getLogger(__name__)

OFFSET = re.compile(rb"[0-9]{1,19}")
# Documents: the offset before which DeleteRecords has deleted, by archived partition.
DELETED = "deleted-before"
# Documents: an archived offset, by partition of which archived records may have been trimmed.
ARCHIVED = "archived-before"


@frozen
class ArchivedPart:
    """The offsets of a partition that are only in the lake: [start, end), where `end` is the local log start."""

    remote: RemoteStore
    topic: Topic
    start: int
    offsets: LogOffsets  # those of the part in storage

    @property
    def end(self) -> int:
        return self.offsets.log_start_offset


@define(eq=False)
class Tiers:
    """The logs of all partitions. Without `remote`, they are the logs in storage."""

    _storage: Storage
    config: Config
    remote: RemoteStore | None = None
    damage: Damage = field(factory=Damage)
    _archived: dict[UUID, Mapping[int, ArchivedLog]] = field(factory=dict, repr=False)
    _starts: dict[TopicPartition, int] = field(factory=dict, repr=False)
    _noted: set[str] = field(
        factory=set, repr=False
    )  # keys of the documents ARCHIVED that are known to exist

    # --- Storage alone ----------------------------------------------------------------------------------

    @property
    def description(self) -> str:
        """The store that has the local part of all logs."""
        return self._storage.description

    def begin_append(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int,
        timeout_s: float,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> Awaitable[AppendResults | PendingAppend]:
        """Begin an append as `Storage.begin_append` does."""
        if transactions:
            return self._storage.begin_append(
                batches, acks=acks, timeout_s=timeout_s, transactions=transactions
            )
        # A coroutine around the storage's would add 3 % to the time of a small Produce in memory.
        return self._storage.begin_append(batches, acks=acks, timeout_s=timeout_s)

    def try_append(
        self, batches: Mapping[TopicPartition, RecordBatch], *, acks: int, timeout_s: float
    ) -> AppendResults | PendingAppend | None:
        """Begin an append if it need not wait, as `Storage.try_append` does."""
        return self._storage.try_append(batches, acks=acks, timeout_s=timeout_s)

    async def write_markers(
        self, markers: Mapping[TopicPartition, Marker], *, timeout_s: float
    ) -> AppendResults:
        """End transactions as `Storage.write_markers` does."""
        return await self._storage.write_markers(markers, timeout_s=timeout_s)

    async def active_producers(self, tp: TopicPartition) -> Sequence[ActiveProducer]:
        """Return `Storage.active_producers`."""
        return await self._storage.active_producers(tp)

    def checks_records(self, topic: Topic) -> bool:
        """Return True if an append refuses malformed records, as `Storage.checks_records` does."""
        return self._storage.checks_records(topic)

    def note_failure(self, tp: TopicPartition, batch: ProducerBatch, error: KafkaError) -> None:
        """Record a batch that its handler refused, so that its producer's later batches do not overtake it."""
        self._storage.failed_sequences.note(tp, batch, error)

    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        """Watch topic-partitions as `Storage.watch` does."""
        return self._storage.watch(tps)

    async def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        """Return `Storage.epoch_end`."""
        return await self._storage.epoch_end(tp, leader_epoch)

    async def local_bounds(self, tp: TopicPartition) -> LogOffsets:
        """Return the bounds of the part in storage. Cheaper than `latest`, and independent of the lake."""
        return await self._storage.latest(tp)

    async def local_earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        """Return the start of the part in storage."""
        return await self._storage.earliest(tp)

    async def partitions(self) -> list[TopicPartition]:
        """Return all topic-partitions, sorted."""
        time_slices = TimeSlices()
        tps: list[TopicPartition] = []
        for name, topic in sorted((await self._storage.topics()).items()):
            tps += [TopicPartition(name, number) for number in range(topic.partitions)]
            await time_slices.next()
        return tps

    async def sizes(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        """Return the bytes of the parts in storage, as `Storage.sizes` does."""
        return await self._storage.sizes(tps)

    # --- Reading ----------------------------------------------------------------------------------------

    async def read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ReadResult | KafkaError]:
        """Read as `Storage.read` does, and read offsets below the local log start from the lake."""
        results = await self._storage.read(requests, max_bytes=max_bytes, isolation_level=isolation_level)
        if self.remote is None:
            return results
        room = max_bytes - sum(result.size for result in results.values() if isinstance(result, ReadResult))
        for tp, result in results.items():
            if isinstance(result, OffsetOutOfRange):
                request = evolve(requests[tp], max_bytes=max(0, min(requests[tp].max_bytes, room)))
                try:
                    results[tp] = found = await self._read_archived(tp, request, result, isolation_level)
                    room -= found.size
                except KafkaError as error:
                    results[tp] = error
            elif isinstance(result, ReadResult):
                results[tp] = self._with_start(tp, result)
        return results

    def try_read(
        self,
        requests: Mapping[TopicPartition, ReadRequest],
        *,
        max_bytes: int,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, ReadResult | KafkaError] | PendingRead | None:
        """Read as `Storage.try_read` does, if there are only logs in storage. Return None otherwise."""
        if self.remote is not None:
            return None
        return self._storage.try_read(requests, max_bytes=max_bytes, isolation_level=isolation_level)

    async def _read_archived(
        self,
        tp: TopicPartition,
        request: ReadRequest,
        refused: OffsetOutOfRange,
        isolation_level: IsolationLevel,
    ) -> ReadResult:
        """Return records that storage does not have any more. Raises `refused` if they are not archived either."""
        archived = await self._archived_part(tp)
        if archived is None or not archived.start <= request.offset < archived.end:
            raise refused
        offset, end = request.offset, archived.end
        while offset < end:
            data, offset = await archived.remote.read(
                archived.topic, tp.partition, offset, end, request.max_bytes
            )
            if data:
                offsets = evolve(archived.offsets, log_start_offset=archived.start)
                return ReadResult(EncodedBatches([data], len(data)), offsets, is_cut=True)
        # The archive has no records between the offset and the local log start, so read on from there.
        local = {tp: ReadRequest(end, request.max_bytes)}
        result = (
            await self._storage.read(local, max_bytes=request.max_bytes, isolation_level=isolation_level)
        )[tp]
        if isinstance(result, KafkaError):
            raise result
        return self._with_start(tp, result)

    def _with_start(self, tp: TopicPartition, result: ReadResult) -> ReadResult:
        """Return the result with the log start of both tiers, as last computed. Clients only display it."""
        start = self._starts.get(tp)
        if start is None or start >= result.offsets.log_start_offset:
            return result
        return evolve(result, offsets=evolve(result.offsets, log_start_offset=start))

    async def earliest(self, tp: TopicPartition) -> OffsetAndTimestamp:
        """Return `Storage.earliest` for both tiers."""
        if archived := await self._archived_part(tp):
            found = await archived.remote.first(archived.topic, tp.partition, archived.start, archived.end)
            if found is not None:
                return evolve(found, offset=archived.start)
        return await self._storage.earliest(tp)

    async def latest(self, tp: TopicPartition) -> LogOffsets:
        """Return `Storage.latest` for both tiers."""
        topic = await self._tiered(tp)
        offsets = await self._storage.latest(tp)
        if topic is None:
            return offsets
        return evolve(offsets, log_start_offset=await self._start(topic, tp, offsets))

    async def seek_ts(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp | None:
        """Return `Storage.seek_ts` for both tiers."""
        if archived := await self._archived_part(tp):
            found = await archived.remote.seek_ts(
                archived.topic, tp.partition, timestamp, archived.start, archived.end
            )
            if found is not None:
                return found
        return await self._storage.seek_ts(tp, timestamp)

    async def seek_max_ts(self, tp: TopicPartition) -> OffsetAndTimestamp | None:
        """Return `Storage.seek_max_ts` for both tiers."""
        local = await self._storage.seek_max_ts(tp)
        archived = await self._archived_part(tp)
        if archived is None:
            return local
        found = await archived.remote.seek_max_ts(archived.topic, tp.partition, archived.start, archived.end)
        if found is None or (local is not None and local.timestamp > found.timestamp):
            return local
        return found

    async def is_tiered(self, tp: TopicPartition) -> bool:
        """Return True if the partition has two tiers."""
        return await self._tiered(tp) is not None

    async def archived(self, tp: TopicPartition) -> ArchivedLog | None:
        """Return the partition's archived log, or None if nothing is archived or the topic is not tiered."""
        topic = await self._tiered(tp)
        if topic is None or self.remote is None:
            return None
        return await self._archived_log(topic, tp, await self._storage.latest(tp))

    # --- Deleting ---------------------------------------------------------------------------------------

    async def truncate_before(self, tp: TopicPartition, offset: int) -> int:
        """Do `Storage.truncate_before` for both tiers: deleted records are not served from the lake either."""
        topic = await self._tiered(tp)
        if topic is None:
            return await self._storage.truncate_before(tp, offset)
        offsets = await self._storage.latest(tp)
        if offset > offsets.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is beyond the high watermark {offsets.high_watermark}")
        await self._raise(DELETED, _key(topic, tp), offset)
        await self._storage.truncate_before(tp, offset)
        return (await self.latest(tp)).log_start_offset

    async def forget(self, topic: Topic) -> None:
        """Remove the state of a deleted topic, cached and stored. Its table remains."""
        self._archived.pop(topic.topic_id, None)
        if not topic.config.is_tiered:
            return
        for number in range(topic.partitions):
            tp = TopicPartition(topic.name, number)
            self._starts.pop(tp, None)
            key = _key(topic, tp)
            self._noted.discard(key)
            for kind in (DELETED, ARCHIVED):
                document = await self._storage.load(kind, key)
                if document is not None:
                    await self._storage.save(kind, key, None, expected_version=document.version)

    async def _raise(self, kind: str, key: str, offset: int) -> None:
        """Save the offset in a document, unless the document has a larger one."""
        while True:
            document = await self._storage.load(kind, key)
            if document is not None and (_offset_in(document) or 0) >= offset:
                return
            version = 0 if document is None else document.version
            try:
                await self._storage.save(kind, key, b"%d" % offset, expected_version=version)
            except DocumentConflict:
                continue
            return

    # --- Archived offsets -------------------------------------------------------------------------------

    async def refresh(self, topic: Topic) -> Mapping[int, ArchivedLog]:
        """Return the archived log of each partition of a tiered topic, read from its table.

        Raises KafkaStorageError if the table cannot be read.
        """
        if self.remote is None:
            return {}
        found = self._archived[topic.topic_id] = await self.remote.refresh(topic)
        return found

    def archived_ends(self) -> dict[UUID, dict[int, int]]:
        """Return the end of each archived partition, by topic id and partition, as last read."""
        return {
            topic_id: {partition: log.end for partition, log in logs.items()}
            for topic_id, logs in self._archived.items()
        }

    async def trimmable(self, topic: Topic) -> Mapping[int, int]:
        """Return the offset before which each partition may be trimmed; an empty dict if the lake cannot be read."""
        try:
            archived = await self.refresh(topic)
        except KafkaError as error:
            logger.warning(
                "%(topic)s: the lake cannot be read, so nothing is trimmed: %(error)s",
                {"topic": topic.name, "error": error.message},
            )
            return {}
        for partition, log in archived.items():
            key = _key(topic, TopicPartition(topic.name, partition))
            if key not in self._noted:
                await self._raise(ARCHIVED, key, log.chained)
                self._noted.add(key)
        return {partition: log.chained for partition, log in archived.items()}

    async def _archived_part(self, tp: TopicPartition) -> ArchivedPart | None:
        """Return the part of a partition's log that is only in the lake, or None if there is no such part."""
        topic = await self._tiered(tp)
        if topic is None or self.remote is None:
            return None
        offsets = await self._storage.latest(tp)
        start = await self._start(topic, tp, offsets)
        return ArchivedPart(self.remote, topic, start, offsets) if start < offsets.log_start_offset else None

    async def _start(self, topic: Topic, tp: TopicPartition, local: LogOffsets) -> int:
        """Return the log start offset of both tiers, given the bounds of the part in storage."""
        local_start = local.log_start_offset
        if self.remote is None or local.trimmed_before <= 0:
            return local_start
        archived = self._archived.get(topic.topic_id, {}).get(tp.partition)
        if archived is None or archived.end < local_start:
            # Another broker may have trimmed records that were archived since the last refresh.
            archived = await self._archived_log(topic, tp, local)
        if archived is None or archived.start >= local_start:
            return local_start
        deleted = await self._deleted_before(topic, tp, local_start)
        start = self._starts[tp] = min(max(archived.start, deleted), local_start)
        return start

    async def _archived_log(self, topic: Topic, tp: TopicPartition, local: LogOffsets) -> ArchivedLog | None:
        """Return the partition's archived log, read from its table, or None if nothing is archived.

        Raises KafkaStorageError if the table cannot be read, or is absent and has records that are not in storage.
        """
        archived = (await self.refresh(topic)).get(tp.partition)
        if archived is not None or local.trimmed_before <= 0:
            return archived
        if await self._storage.load(ARCHIVED, _key(topic, tp)) is None:
            return None
        local_start = local.log_start_offset
        if await self._deleted_before(topic, tp, local_start) >= local_start:
            return None
        raise KafkaStorageError(
            f"{tp.topic}-{tp.partition}: the lake does not have the archive of the records below offset "
            f"{local_start}; make the lake of lake.url available again, or delete these records with DeleteRecords"
        )

    async def _deleted_before(self, topic: Topic, tp: TopicPartition, local_start: int) -> int:
        """Return the offset before which DeleteRecords has deleted records."""
        key = _key(topic, tp)
        document = await self._storage.load(DELETED, key)
        offset = 0 if document is None else _offset_in(document)
        if offset is not None:
            return offset
        # Deleted records must not reappear, so no records are served from the table.
        text = f"the document {DELETED} {key} is not an offset, so the archive is not read"
        self.damage.note(topic.name, text)
        return local_start

    async def _tiered(self, tp: TopicPartition) -> Topic | None:
        """Return the partition's topic if it has two tiers, otherwise None."""
        if self.remote is None:
            return None
        topic = await self._storage.topic(tp.topic)
        return topic if topic is not None and topic.config.is_tiered else None

    # --- In the background ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Refresh the archived logs of all tiered topics periodically, until cancelled."""
        while self.remote is not None:
            topics = [topic for topic in (await self._storage.topics()).values() if topic.config.is_tiered]
            ids = {topic.topic_id for topic in topics}
            self._archived = {each: logs for each, logs in self._archived.items() if each in ids}
            self._starts.clear()
            for topic in topics:
                await self._refresh(topic)
            await trio.sleep(self.config.remote_log_manager_task_interval_ms / 1000)

    async def _refresh(self, topic: Topic) -> None:
        try:
            await self.refresh(topic)
            for number in range(topic.partitions):
                await self.latest(TopicPartition(topic.name, number))
        except KafkaError as error:
            fields = {"topic": topic.name, "error": error.message}
            logger.warning("%(topic)s: the archive cannot be read: %(error)s", fields)


def _offset_in(document: Document) -> int | None:
    """Return the offset that a document holds, or None if another client of the store wrote something else."""
    if OFFSET.fullmatch(document.value) is None:
        return None
    offset = int(document.value)
    return offset if offset <= MAX_LONG else None


def _key(topic: Topic, tp: TopicPartition) -> str:
    return f"{topic.topic_id}/{tp.partition}"
