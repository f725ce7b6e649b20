"""One partition in SQLite: a row with its bounds, and a row for each record batch and each idempotent producer.

The functions run in a transaction of the storage's thread. A batch is stored as the client sent it, with its base
offset stamped in.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from attrs import asdict, define

from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import KafkaError, OffsetOutOfRange
from korvet.protocol.record_batch import (
    RecordBatch,
    decode_records,
    parse_batches,
    stamp,
    stamp_log_append_time,
)
from korvet.storage.interface import (
    AppendResult,
    LogOffsets,
    OffsetAndTimestamp,
    StorageDefaults,
    TimestampType,
    TopicConfig,
)
from korvet.storage.offsets import is_foreign, offset_mapper
from korvet.storage.producer_state import AppendedBatch, Producer, ProducerStates, producer_id_at

LEADER_EPOCH = 0
ANY_TIME = -(2**63)
COLUMNS = "log_start_offset, next_offset, trimmed_before, size, cleaned, producers_from"


class Slice(NamedTuple):
    """Batches that a read found; `is_cut` if a limit ended it."""

    batches: EncodedBatches
    is_cut: bool


@define
class PartitionLog:
    """The row of a partition, as loaded in this transaction. `save` writes it back."""

    db: sqlite3.Connection
    id: int
    config: TopicConfig
    defaults: StorageDefaults
    created_ms: int  # of the topic
    log_start_offset: int
    next_offset: int
    trimmed_before: int  # retention and DeleteRecords removed everything below
    size: int  # bytes of the batches
    cleaned: str  # the rounds of compaction
    producers_from: int  # every producer with at least this id is known

    @property
    def bounds(self) -> LogOffsets:
        end = self.next_offset
        return LogOffsets(self.log_start_offset, end, end, trimmed_before=self.trimmed_before)

    def save(self) -> None:
        row = asdict(self, filter=lambda each, _: each.name in COLUMNS.split(", "))
        assignments = ", ".join(f"{name} = :{name}" for name in row)
        self.db.execute(f"UPDATE partitions SET {assignments} WHERE id = :id", {**row, "id": self.id})

    # --- Appending --------------------------------------------------------------------------------------

    def append(self, batch: RecordBatch, now_ms: int) -> AppendResult:
        """Append the batch, or return the result of the first append of a duplicate."""
        producers = self._producers(batch.producer_id)
        is_idempotent = batch.producer_id >= 0
        if is_idempotent:
            sequences = batch.base_sequence, batch.last_sequence
            first = producers.check(batch.producer_id, batch.producer_epoch, *sequences, now_ms=now_ms)
            if first is not None:
                time_ms = first.log_append_time_ms
                return AppendResult(first.base_offset, time_ms, self.log_start_offset, duplicate=True)
        base_offset = offset_mapper(self.config).base_offset(self.next_offset, now_ms)
        time_ms = self._store(batch, base_offset, now_ms)
        if is_idempotent:
            appended = AppendedBatch(*sequences, base_offset, time_ms)
            producers.remember(batch.producer_id, batch.producer_epoch, appended, now_ms=now_ms)
            self._save_producer(batch.producer_id, producers.producers[batch.producer_id])
        self.enforce_retention(now_ms)
        return AppendResult(base_offset, time_ms, self.log_start_offset)

    def _store(self, batch: RecordBatch, base_offset: int, now_ms: int) -> int:
        """Stamp and insert the batch; return its log append time, or -1."""
        batch.buffer = memoryview(bytearray(batch.buffer))  # the request's buffer may be read-only
        stamp(batch, base_offset, LEADER_EPOCH)
        has_own_time = self.config.timestamp_type is TimestampType.CREATE_TIME
        if not has_own_time:
            stamp_log_append_time(batch, now_ms)
        row = (self.id, batch.last_offset, batch.max_timestamp, now_ms, len(batch.buffer), batch.buffer)
        self.db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", row)
        self.next_offset = batch.last_offset + 1
        self.size += len(batch.buffer)
        return -1 if has_own_time else now_ms

    def _producers(self, producer_id: int) -> ProducerStates:
        """Return the states with this producer alone."""
        states = ProducerStates(self.defaults.producer_id_expiration_ms, self.producers_from)
        query = "SELECT epoch, last_append_ms, batches FROM producers WHERE partition = ? AND producer_id = ?"
        for epoch, last_append_ms, batches in self.db.execute(query, (self.id, producer_id)):
            appended = deque((AppendedBatch(*each) for each in json.loads(batches)), maxlen=5)
            states.producers[producer_id] = Producer(epoch, last_append_ms, appended)
        return states

    def _save_producer(self, producer_id: int, producer: Producer) -> None:
        batches = json.dumps(list(producer.batches))
        row = (self.id, producer_id, producer.epoch, producer.last_append_ms, batches)
        self.db.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?)", row)

    # --- Reading ----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> Slice:
        """Return whole batches from `offset` on; with `at_least_one`, the first one whatever its size."""
        mapper = offset_mapper(self.config)
        is_of_another = is_foreign(offset, mapper, self.created_ms, self.log_start_offset)
        if is_of_another or not self.trimmed_before <= offset <= self.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is outside [{self.trimmed_before}, {self.next_offset}]")
        found: list[bytes] = []
        size = 0
        for data in self.batches("last_offset >= ?", offset):
            if size + len(data) > max_bytes and (found or not at_least_one):
                return Slice(EncodedBatches(found, size), is_cut=True)
            found.append(data)
            size += len(data)
        return Slice(EncodedBatches(found, size), is_cut=False)

    def earliest(self) -> OffsetAndTimestamp:
        first = self.seek_ts(ANY_TIME)
        return OffsetAndTimestamp(self.log_start_offset, -1 if first is None else first.timestamp)

    def seek_ts(self, timestamp: int) -> OffsetAndTimestamp | None:
        """Return the first record whose timestamp is at or after `timestamp`."""
        for data in self.batches("max_timestamp >= ?", timestamp):
            for offset, found in self._times(data):
                if found >= timestamp:
                    return OffsetAndTimestamp(offset, found)
        return None

    def seek_max_ts(self) -> OffsetAndTimestamp | None:
        query = "SELECT max(max_timestamp) FROM batches WHERE partition = ?"
        (largest,) = self.db.execute(query, (self.id,)).fetchone()
        return None if largest is None else self.seek_ts(largest)

    def batches(self, condition: str, *values: int) -> Iterator[bytes]:
        """Yield the batches that fulfil an SQL condition, in the order of their offsets."""
        query = f"SELECT data FROM batches WHERE partition = ? AND {condition} ORDER BY last_offset"
        for (data,) in self.db.execute(query, (self.id, *values)):
            yield data

    def bytes_in(self, condition: str, *values: int) -> int:
        query = f"SELECT coalesce(sum(size), 0) FROM batches WHERE partition = ? AND {condition}"
        return int(self.db.execute(query, (self.id, *values)).fetchone()[0])

    def _times(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield offset and timestamp of a batch's records at or above the log start."""
        (batch,) = parse_batches(data)
        try:
            for delta, timestamp, *_ in decode_records(batch):
                if batch.base_offset + delta >= self.log_start_offset:
                    yield batch.base_offset + delta, timestamp
        except KafkaError:  # appending does not decode records: the header has the largest timestamp
            yield max(batch.base_offset, self.log_start_offset), batch.max_timestamp

    # --- Dropping ---------------------------------------------------------------------------------------

    def truncate_before(self, offset: int) -> None:
        """Move the log start to `offset`, and drop the batches below."""
        if offset > self.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the log's end at {self.next_offset}")
        if offset <= self.log_start_offset:
            return
        self._drop(offset - 1)
        self.log_start_offset = self.trimmed_before = offset
        # The first batch may begin below the log start; its largest timestamp is that of the rest.
        first = next(self.batches("last_offset >= ?", offset), None)
        if first is not None:
            query = "UPDATE batches SET max_timestamp = ? WHERE partition = ? AND last_offset = ?"
            largest = max((timestamp for _, timestamp in self._times(first)), default=-1)
            self.db.execute(query, (largest, self.id, RecordBatch(first).last_offset))

    def enforce_retention(self, now_ms: int, up_to: int | None = None) -> None:
        """Drop leading batches beyond retention.ms and retention.bytes; those of tiered topics only below `up_to`."""
        if self.config.is_tiered and up_to is None:
            return
        size, last = self.size, None
        query = (
            "SELECT last_offset, max_timestamp, appended_ms, size FROM batches WHERE partition = ? ORDER BY 1"
        )
        for last_offset, max_timestamp, appended_ms, batch_size in self.db.execute(query, (self.id,)):
            is_too_much = 0 <= self.config.retention_bytes <= size - batch_size
            if not is_too_much and not self._is_expired(now_ms, max_timestamp, appended_ms):
                break
            if up_to is not None and last_offset >= up_to:
                break
            size, last = size - batch_size, last_offset
        if last is not None:
            self._drop(last)
            self.log_start_offset = self.trimmed_before = max(self.log_start_offset, last + 1)

    def _is_expired(self, now_ms: int, max_timestamp: int, appended_ms: int) -> bool:
        newest = max_timestamp if max_timestamp >= 0 else appended_ms
        is_old = 0 <= self.config.retention_ms < now_ms - newest
        return is_old and now_ms - appended_ms >= self.defaults.retention_check_interval_ms

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers without appends for `producer.id.expiration.ms`."""
        latest_ms = now_ms - self.defaults.producer_id_expiration_ms
        query = "DELETE FROM producers WHERE partition = ? AND last_append_ms <= ?"
        if self.db.execute(query, (self.id, latest_ms)).rowcount:
            self.producers_from = producer_id_at(now_ms)

    def _drop(self, last_offset: int) -> None:
        self.size -= self.bytes_in("last_offset <= ?", last_offset)
        query = "DELETE FROM batches WHERE partition = ? AND last_offset <= ?"
        self.db.execute(query, (self.id, last_offset))
