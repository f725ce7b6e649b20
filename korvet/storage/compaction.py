"""Which records of a compacted log stay, and when it is time to look: Kafka's log cleaner, pure and told the time.

A log is compacted in rounds. A round first notes the last offset of each key in the part that is still dirty, from
where the round before ended, for as many keys as there is room; and up to the first record that is younger than
`min.compaction.lag.ms`. Then it goes through the whole log up to there and leaves out each record whose key comes
again later, and tombstones (records without value) that a round has met `delete.retention.ms` ago or longer. Offsets
never change. What cannot be compacted stays: records without key, control batches, batches that cannot be read.

There are no segments, and none that is active: in its place the newest record of a log always stays, even a tombstone.

A tombstone's time counts from the first round that went over it, so that a consumer which was up to
`delete.retention.ms` behind has seen it. What has to be remembered for that are the ends and times of rounds (`Mark`),
not something about each record.
"""

from __future__ import annotations

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

#: What a key and its offset occupy, roughly, in the map of a round.
BYTES_PER_KEY = 200
# More marks than this mean that rounds follow each other closely; some tombstones then stay a little longer.
MAX_MARKS = 64
DIGEST_BYTES = 16


class Mark(NamedTuple):
    """A round that has ended: everything below `end` was compacted by then."""

    end: int
    time_ms: int


@frozen
class Cleaned:
    """How far a log is compacted, and since when."""

    marks: tuple[Mark, ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """What `str` wrote."""
        pairs = (mark.split(b":") for mark in text.split())
        return cls(tuple(Mark(int(end), int(time_ms)) for end, time_ms in pairs))

    def __str__(self) -> str:
        return " ".join(f"{end}:{time_ms}" for end, time_ms in self.marks)

    @property
    def end(self) -> int:
        """The first offset that no round has looked at."""
        return self.marks[-1].end if self.marks else 0

    def tombstones_end(self, now_ms: int, delete_retention_ms: int) -> int:
        """The offset below which tombstones have been there for long enough."""
        return max(
            (mark.end for mark in self.marks if now_ms - mark.time_ms >= delete_retention_ms), default=0
        )

    def after(self, end: int, now_ms: int, delete_retention_ms: int) -> Cleaned:
        """As it is once a round has ended at `end`."""
        expired = [mark for mark in self.marks if now_ms - mark.time_ms >= delete_retention_ms][-1:]
        waiting = [mark for mark in self.marks if now_ms - mark.time_ms < delete_retention_ms]
        marks = [*expired, *waiting, Mark(end, now_ms)]
        if len(marks) > MAX_MARKS:  # without one of them, what it stood for counts from the next
            del marks[1]
        return Cleaned(tuple(marks))


def is_due(
    config: TopicConfig, *, clean_bytes: int, dirty_bytes: int, oldest_dirty_ms: int, now_ms: int
) -> bool:
    """Whether a log is dirty enough. `oldest_dirty_ms` is the time of the first dirty record, -1 if unknown."""
    if dirty_bytes <= 0:
        return False
    if 0 <= oldest_dirty_ms < now_ms - config.max_compaction_lag_ms:
        return True
    return dirty_bytes / (clean_bytes + dirty_bytes) > config.min_cleanable_dirty_ratio


def lag_limit(config: TopicConfig, now_ms: int) -> int | None:
    """The timestamp above which records are too young; None where none is."""
    return now_ms - config.min_compaction_lag_ms if config.min_compaction_lag_ms > 0 else None


class KeyedRecord(NamedTuple):
    """What compaction looks at of a record."""

    offset: int
    key: bytes | None
    is_tombstone: bool


@define(eq=False)
class Round:
    """One round over a log: first the dirty part is noted, then the whole log up to there asks what it keeps.

    `latest` holds for a key the place of its last record: an offset, or whatever a store has in its stead, as long as
    it tells the same place of the same record both times.
    """

    max_keys: int
    start: int  # the log start: what lies below may go
    newest: int  # the offset of the newest record
    tombstones_end: int
    end: int = 0  # the first offset that was not noted
    latest: dict[bytes, object] = field(factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for further keys; what is noted all the same exceeds it a little."""
        return len(self.latest) >= self.max_keys

    def note(self, key: bytes | None, place: object) -> None:
        """Remember where a key stands; to be told in the order of the log."""
        if key is not None:
            self.latest[short(key)] = place

    def is_superseded(self, key: bytes, place: object) -> bool:
        """Whether a record further behind has the key of one that was noted, or lies before those that were."""
        return self.latest.get(short(key), place) != place

    def drops_tombstone(self, offset: int) -> bool:
        """Whether a tombstone has been there for long enough."""
        return offset < self.tombstones_end and offset < self.newest

    def keeps(self, record: KeyedRecord) -> bool:
        """Whether the record stays, in a log whose places are offsets."""
        offset, key, is_tombstone = record
        if offset < self.start:
            return False
        if key is None:
            return True
        return not self.is_superseded(key, offset) and not (is_tombstone and self.drops_tombstone(offset))


def short(key: bytes) -> bytes:
    """What stands for a key in the map: itself, or its digest where that is shorter; never the same for two keys."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


# --- Whole batches ------------------------------------------------------------------------------------------


def note_all(batch: RecordBatch, round_: Round) -> Steps[None]:
    """Note the keys of a batch; none of one that cannot be read to its end, and stays as it is."""
    if batch.is_control:
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
    """What is left of a batch: its own buffer where everything stays, None where nothing does.

    Base offset, last offset delta, sequence and codec are the batch's as it was, like Kafka's cleaner leaves them.
    """
    if batch.is_control:
        return batch.buffer
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
    """The batch with these of its records."""
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
    # The records, those of them that are written, and their compressed bytes.
    data: Buffer = yield LongCall(finish, 3 * builder.size)
    return data
