"""The rules of Kafka's log cleaner: which records compaction retains, and when a log is due. Callers pass the time.

A log is compacted in rounds. A round first notes the last offset of each key in the dirty part, which begins where the
preceding round ended. Noting ends at the limit of keys, or at the first record that is younger than
`min.compaction.lag.ms`. The round then reads the whole log up to there, and omits each record whose key occurs again
later, and tombstones (records without value) that a round has read `delete.retention.ms` ago or longer. Offsets
never change. Records without key, and batches that cannot be decoded, are retained.

A round ends at the last stable offset at the latest, so each transaction below its end has ended. Records of aborted
transactions are omitted, and supersede none. A marker is omitted like a tombstone, but not by a round that has still
read records of its transaction: consumers that have the list of aborted transactions need the marker after the records.

Kafka does not compact the active segment. Here there are no segments; instead the newest record of a log is always
retained, even a tombstone.

A tombstone's time counts from the first round that has read it, so that a consumer with a lag of up to
`delete.retention.ms` has received it. For that, a log stores the ends and times of rounds (`Mark`), and nothing for
single records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Self

from attrs import define, field, frozen

from korvet.protocol.buffers import Buffer
from korvet.protocol.compression import Codec
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import RawRecord
from korvet.protocol.record_batch import LONG_UNCOMPRESSED_BYTES, BatchBuilder, RecordBatch, decode_in_steps
from korvet.protocol.steps import RECORDS_A_STEP, LongCall, Steps
from korvet.storage.interface import TopicConfig

#: Approximate bytes of a key and its offset in the map of a round.
BYTES_PER_KEY = 200
# More marks than this mean that rounds follow each other closely; some tombstones then stay a little longer.
MAX_MARKS = 64
DIGEST_BYTES = 16


class Mark(NamedTuple):
    """A completed round: all records below `end` were compacted at that time."""

    end: int
    time_ms: int


@frozen
class Cleaned:
    """The ends and times of a log's completed rounds."""

    marks: tuple[Mark, ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse the text that `str` returns."""
        pairs = (mark.split(b":") for mark in text.split())
        return cls(tuple(Mark(int(end), int(time_ms)) for end, time_ms in pairs))

    def __str__(self) -> str:
        return " ".join(f"{end}:{time_ms}" for end, time_ms in self.marks)

    @property
    def end(self) -> int:
        """The first offset that no round has read."""
        return self.marks[-1].end if self.marks else 0

    def tombstones_end(self, now_ms: int, delete_retention_ms: int) -> int:
        """Return the offset below which tombstones are older than `delete.retention.ms`."""
        return max(
            (mark.end for mark in self.marks if now_ms - mark.time_ms >= delete_retention_ms), default=0
        )

    def after(self, end: int, now_ms: int, delete_retention_ms: int) -> Cleaned:
        """Return the marks after a round that has ended at `end`."""
        expired = [mark for mark in self.marks if now_ms - mark.time_ms >= delete_retention_ms][-1:]
        waiting = [mark for mark in self.marks if now_ms - mark.time_ms < delete_retention_ms]
        marks = [*expired, *waiting, Mark(end, now_ms)]
        if len(marks) > MAX_MARKS:  # the records below the deleted mark count from the next mark
            del marks[1]
        return Cleaned(tuple(marks))


def is_due(
    config: TopicConfig, *, clean_bytes: int, dirty_bytes: int, oldest_dirty_ms: int, now_ms: int
) -> bool:
    """Return True if a log is dirty enough. `oldest_dirty_ms` is the first dirty record's time, -1 if unknown."""
    if dirty_bytes <= 0:
        return False
    if 0 <= oldest_dirty_ms < now_ms - config.max_compaction_lag_ms:
        return True
    return dirty_bytes / (clean_bytes + dirty_bytes) > config.min_cleanable_dirty_ratio


def lag_limit(config: TopicConfig, now_ms: int) -> int | None:
    """Return the timestamp above which records are too young to compact, or None if there is no such limit."""
    return now_ms - config.min_compaction_lag_ms if config.min_compaction_lag_ms > 0 else None


class KeyedRecord(NamedTuple):
    """The part of a record that compaction needs."""

    offset: int
    key: bytes | None
    is_tombstone: bool


@define(eq=False)
class DecidedTransactions:
    """The ended transactions of a log, as the second pass of a round reads their records and markers in order."""

    # By producer id: marker offset and first offset of each aborted transaction, ascending. They do not overlap.
    _aborted: dict[int, list[tuple[int, int]]] = field(factory=dict)
    _with_records: set[int] = field(factory=set)  # producers with records since their last marker

    def add_aborted(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        """Add an aborted transaction. Callers add them in the order of their markers."""
        self._aborted.setdefault(producer_id, []).append((marker_offset, first_offset))

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return True if a transactional record of the producer belongs to an aborted transaction."""
        aborted = self._aborted.get(producer_id)
        if aborted is None:
            return False
        at = bisect_left(aborted, (offset,))
        return at < len(aborted) and aborted[at][1] <= offset

    def meet_records(self, producer_id: int) -> None:
        """Note that the producer's transaction still has records."""
        self._with_records.add(producer_id)

    def had_records(self, producer_id: int) -> bool:
        """Return True if the transaction that a marker ends still had records; the producer's next one begins."""
        if producer_id not in self._with_records:
            return False
        self._with_records.remove(producer_id)
        return True


@define(eq=False)
class Round:
    """One round over a log: first note the keys of the dirty part, then decide for each record up to there.

    `latest` maps a key to the place of its last record: an offset, or another value with which the store identifies
    the record in both passes.
    """

    max_keys: int
    start: int  # the log start: records below it need not be retained
    newest: int  # the offset of the newest record
    tombstones_end: int
    end: int = 0  # the first offset that was not noted
    latest: dict[bytes, object] = field(factory=dict)
    transactions: DecidedTransactions = field(factory=DecidedTransactions)

    @property
    def is_full(self) -> bool:
        """True if the limit of keys is reached; keys noted before the next check may exceed it a little."""
        return len(self.latest) >= self.max_keys

    def note(self, key: bytes | None, place: object) -> None:
        """Note the place of a key's record. Callers note records in the order of the log."""
        if key is not None:
            self.latest[short(key)] = place

    def is_superseded(self, key: bytes, place: object) -> bool:
        """Return True if a later record has the same key, given a record of the noted part or before it."""
        return self.latest.get(short(key), place) != place

    def drops_tombstone(self, offset: int) -> bool:
        """Return True if a tombstone is older than `delete.retention.ms`, and not the newest record."""
        return offset < self.tombstones_end and offset < self.newest

    def drops_marker(self, producer_id: int, offset: int) -> bool:
        """Return True if a marker is omitted. Callers pass markers and records in the order of the log."""
        had_records = self.transactions.had_records(producer_id)
        return not had_records and self.drops_tombstone(offset)

    def drops_records(self, producer_id: int, offset: int) -> bool:
        """Return True if the transaction of a record or batch was aborted."""
        self.transactions.meet_records(producer_id)
        return self.transactions.is_aborted(producer_id, offset)

    def keeps(self, record: KeyedRecord) -> bool:
        """Return True if the record is retained, in a log whose places are offsets."""
        offset, key, is_tombstone = record
        if offset < self.start:
            return False
        if key is None:
            return True
        return not self.is_superseded(key, offset) and not (is_tombstone and self.drops_tombstone(offset))


def short(key: bytes) -> bytes:
    """Return the key itself, or its digest if that is not longer; the result is different for different keys."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


# --- Whole batches ------------------------------------------------------------------------------------------


def note_all(batch: RecordBatch, round_: Round) -> Steps[None]:
    """Note the keys of a batch; none if the batch cannot be decoded to its end, since it is then retained unchanged."""
    if batch.is_control or (
        batch.is_transactional and round_.transactions.is_aborted(batch.producer_id, batch.base_offset)
    ):
        return
    parts: list[list[RawRecord]] = []
    try:
        yield from decode_in_steps(batch, parts.append)
    except KafkaError:
        return
    for part in parts:
        for delta, _, key, *_ in part:
            round_.note(key, batch.base_offset + delta)
        yield None


def compacted(batch: RecordBatch, round_: Round) -> Steps[Buffer | None]:
    """Return the rest of a batch: its own buffer if all records are retained, None if none is.

    Base offset, last offset delta, sequence and codec are those of the original batch, as with Kafka's cleaner.
    """
    if batch.is_control:
        return None if round_.drops_marker(batch.producer_id, batch.base_offset) else batch.buffer
    if batch.is_transactional and round_.drops_records(batch.producer_id, batch.base_offset):
        return None
    kept: list[RawRecord] = []

    def keep(part: list[RawRecord]) -> None:
        kept.extend(each for each in part if round_.keeps(keyed(batch, each)))

    try:
        yield from decode_in_steps(batch, keep)
    except KafkaError:
        return batch.buffer
    if len(kept) == batch.record_count:
        return batch.buffer
    if not kept:
        return None
    return (yield from rebuilt(batch, kept))


def keyed(batch: RecordBatch, record: RawRecord) -> KeyedRecord:
    delta, _, key, value, _ = record
    return KeyedRecord(batch.base_offset + delta, key, value is None)


def rebuilt(batch: RecordBatch, kept: Sequence[RawRecord]) -> Steps[Buffer]:
    """Build the batch with only the kept records."""
    builder = BatchBuilder()
    for at in range(0, len(kept), RECORDS_A_STEP):
        builder.add(kept[at : at + RECORDS_A_STEP])
        yield None
    finish = partial(
        builder.finish,
        base_offset=batch.base_offset,
        partition_leader_epoch=batch.partition_leader_epoch,
        codec=batch.compression,
        timestamp_type=batch.timestamp_type,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        last_offset_delta=batch.last_offset_delta,
    )
    if batch.compression is Codec.NONE or builder.size < LONG_UNCOMPRESSED_BYTES:
        return finish()
    # Three times the size: the records, their encoded form, and their compressed bytes.
    data: Buffer = yield LongCall(finish, 3 * builder.size)
    return data
