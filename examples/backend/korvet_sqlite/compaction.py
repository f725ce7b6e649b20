"""Compaction in steps: note keys, write what is left of each batch to a second table, and replace the batches.

The broker reads and appends between the steps. Only the last step changes the log, in one transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from attrs import define, field

from korvet.protocol.record_batch import RecordBatch
from korvet.protocol.steps import at_once
from korvet.storage.compaction import Cleaned, Round, compacted, is_due, lag_limit, note_all
from korvet.storage.interface import Compacted

from .log import PartitionLog

T = TypeVar("T")

BYTES_A_STEP = 1_000_000
REMOVE = """DELETE FROM batches WHERE partition = :id AND last_offset IN
    (SELECT last_offset FROM rewritten WHERE partition = :id AND data IS NULL)"""
REPLACE = """UPDATE batches SET (max_timestamp, size, data) =
    (SELECT max_timestamp, size, data FROM rewritten
     WHERE rewritten.partition = :id AND rewritten.last_offset = batches.last_offset)
    WHERE partition = :id AND last_offset IN (SELECT last_offset FROM rewritten WHERE partition = :id)"""


class InLog(Protocol):
    """Runs a function with the partition's log, as one transaction in the storage's thread."""

    def __call__(self, function: Callable[[PartitionLog], T], /) -> Awaitable[T]: ...


@define(eq=False)
class Compaction:
    """One compaction of one partition."""

    in_log: InLog
    now_ms: int
    max_keys: int
    _target: int = 0  # the end of the records that are old enough
    _size: int = 0  # bytes before
    _cleaned: Cleaned = field(factory=Cleaned)
    _round: Round = field(init=False)
    _position: int = 0  # the next offset to rewrite

    async def run(self) -> Compacted | None:
        """See `Storage.compact`."""
        size: int | None = await self.in_log(self._begin)
        while size is not None and self._cleaned.end < self._target:
            await self.in_log(self._begin_round)
            while await self.in_log(self._note):
                pass
            while await self.in_log(self._rewrite):
                pass
            size = await self.in_log(self._replace)
        return None if size is None else Compacted(self._cleaned.end, self._size, size)

    def _begin(self, log: PartitionLog) -> int | None:
        """Return the size of the log, or None if it is not dirty enough."""
        self._cleaned, self._size = Cleaned.parse(log.cleaned.encode()), log.size
        end = self._cleaned.end
        self._target = max(end, self._old_end(log, end))
        dirty = next(log.batches("last_offset >= ?", end), None)
        due = is_due(
            log.config,
            clean_bytes=log.bytes_in("last_offset < ?", end),
            dirty_bytes=log.bytes_in("last_offset >= ? AND last_offset < ?", end, self._target),
            oldest_dirty_ms=-1 if dirty is None else RecordBatch(dirty).base_timestamp,
            now_ms=self.now_ms,
        )
        return log.size if log.config.is_compacted and due else None

    def _old_end(self, log: PartitionLog, end: int) -> int:
        """Return the end of the records that are older than min.compaction.lag.ms."""
        limit = lag_limit(log.config, self.now_ms)
        condition = "last_offset >= ? AND max_timestamp > ?"
        young = None if limit is None else next(log.batches(condition, end, limit), None)
        return log.next_offset if young is None else RecordBatch(young).base_offset

    def _begin_round(self, log: PartitionLog) -> None:
        expired = self._cleaned.tombstones_end(self.now_ms, log.config.delete_retention_ms)
        start, newest = log.log_start_offset, log.next_offset - 1
        self._round = Round(self.max_keys, start, newest, expired, end=self._cleaned.end)
        self._position = 0
        log.db.execute("DELETE FROM rewritten WHERE partition = ?", (log.id,))

    def _note(self, log: PartitionLog) -> bool:
        """Note the keys of some batches; return True if there are more."""
        size = 0
        for data in log.batches("last_offset >= ? AND last_offset < ?", self._round.end, self._target):
            if size > BYTES_A_STEP or self._round.is_full:
                return not self._round.is_full
            batch = RecordBatch(data)
            at_once(note_all(batch, self._round))
            self._round.end = batch.last_offset + 1
            size += len(data)
        self._round.end = self._target
        return False

    def _rewrite(self, log: PartitionLog) -> bool:
        """Write what is left of some batches to the second table; return True if there are more."""
        size = 0
        for data in log.batches("last_offset >= ? AND last_offset < ?", self._position, self._round.end):
            if size > BYTES_A_STEP:
                return True
            batch = RecordBatch(data)
            rest = at_once(compacted(batch, self._round))
            if rest is not batch.buffer:
                left = (
                    (None, None, None) if rest is None else (RecordBatch(rest).max_timestamp, len(rest), rest)
                )
                row = (log.id, batch.last_offset, *left)
                log.db.execute("INSERT INTO rewritten VALUES (?, ?, ?, ?, ?)", row)
            self._position = batch.last_offset + 1
            size += len(data)
        return False

    def _replace(self, log: PartitionLog) -> int | None:
        """Replace the batches; return the new size, or None if the log's start has moved meanwhile."""
        if log.log_start_offset != self._round.start:
            return None
        for query in (REMOVE, REPLACE, "DELETE FROM rewritten WHERE partition = :id"):
            log.db.execute(query, {"id": log.id})
        self._cleaned = self._cleaned.after(self._round.end, self.now_ms, log.config.delete_retention_ms)
        log.cleaned, log.size = str(self._cleaned), log.bytes_in("1")
        log.save()
        return log.size
