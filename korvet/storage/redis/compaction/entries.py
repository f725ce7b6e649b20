"""Stream entries for compaction: their keys, and the parts of them that are retained.

In the record layout an entry is a record, and a round identifies it by its ID. In the batch layout an entry holds many
records, identified by their offsets; so is a single record that was added with a plain XADD.

Most entries of the record layout are a key, a value and a timestamp. They are read in place, without parsing, since
there may be millions and parsing costs several times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from attrs import frozen

from korvet.protocol.record_batch import RecordBatch
from korvet.protocol.steps import Steps
from korvet.storage.compaction import DIGEST_BYTES, KeyedRecord, Round, compacted, note_all, short
from korvet.storage.interface import TimestampType
from korvet.storage.offsets import OffsetMapper
from korvet.storage.redis.read.entries import (
    Entry,
    Fields,
    Kind,
    kind_of,
    last_offset_delta,
    log_append_time,
    milliseconds_of,
    parse,
    whole_batch,
)

CONTROL = b"$control"
# Fields and values of a usual record of a transaction: key, value, timestamp, $transactional, $producer.
TRANSACTIONAL_FIELDS = 10
# Entries that take about half a millisecond.
PART_ENTRIES = 250


class Left(NamedTuple):
    """An entry that is retained, whole or in part."""

    entry_id: bytes
    fields: Fields | None  # None: the entry is unchanged
    size: int


class KeyedEntry(NamedTuple):
    """The record or the batch of an entry, with the numbers that compaction needs."""

    first_offset: int
    max_timestamp: int
    content: KeyedRecord | RecordBatch
    kind: Kind | RecordBatch  # of the record, or the batch itself


@frozen
class EntryReader:
    """Reader for the entries of one stream.

    `skips` is True if some entries have IDs without offset. Consumers cannot read those; compaction retains them.
    """

    mapper: OffsetMapper
    is_batch_layout: bool
    skips: bool

    def parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Cut a slice into parts that are processed without a checkpoint: one batch, or PART_ENTRIES records."""
        step = 1 if self.is_batch_layout else PART_ENTRIES
        for at in range(0, len(entries), step):
            yield entries[at : at + step]

    # --- Noting -----------------------------------------------------------------------------------------

    def note(self, part: Sequence[Entry], round_: Round, limit: int | None) -> Steps[int | None]:
        """Note the keys of entries up to the first whose timestamp is above `limit`.

        Return that entry's first offset, or None if there is no such entry.
        """
        latest = round_.latest
        is_plain = limit is None and not self.is_batch_layout and not self.skips
        for entry in part:
            entry_id, fields = entry
            if is_plain and is_usual(fields):
                if len(fields) == TRANSACTIONAL_FIELDS and self._is_aborted(entry, round_):
                    continue
                key = fields[1]
                latest[key if len(key) < DIGEST_BYTES else short(key)] = entry_id
                continue
            keyed = self.keyed(entry)
            if keyed is None:
                continue
            if limit is not None and keyed.max_timestamp > limit:
                return keyed.first_offset
            kind = keyed.kind
            if kind.is_transactional and round_.transactions.is_aborted(kind.producer_id, keyed.first_offset):
                continue
            if isinstance(keyed.content, RecordBatch):
                yield from note_all(keyed.content, round_)
            else:
                round_.note(keyed.content.key, keyed.first_offset if self.is_batch_layout else entry_id)
        return None

    def keyed(self, entry: Entry) -> KeyedEntry | None:
        """Return the entry's record or batch, or None if its ID has no offset."""
        entry_id, fields = entry
        offset = self.mapper.offset(entry_id)
        if offset is None:
            return None
        if self.is_batch_layout and (batch := batch_of(fields, offset)) is not None:
            time = log_append_time(fields)
            return KeyedEntry(batch.base_offset, batch.max_timestamp if time is None else time, batch, batch)
        record = parse(fields, milliseconds_of(entry_id))
        key = None if CONTROL in fields[::2] else record.key
        return KeyedEntry(
            offset, record.timestamp, KeyedRecord(offset, key, record.value is None), record.kind
        )

    def _is_aborted(self, entry: Entry, round_: Round) -> bool:
        """Return True if a usual record belongs to an aborted transaction."""
        entry_id, fields = entry
        offset = cast(int, self.mapper.offset(entry_id))
        return round_.transactions.is_aborted(producer_of(fields), offset)

    # --- Leaving out ------------------------------------------------------------------------------------

    def left(self, part: Sequence[Entry], round_: Round) -> Steps[list[Left]]:
        """Return the retained entries, given a round that has noted these entries or later ones."""
        if self.is_batch_layout:
            return (yield from self._left_of_batches(part, round_))
        latest = round_.latest
        found = []
        for entry in part:
            entry_id, fields = entry
            if not self.skips and is_usual(fields):
                key = fields[1]
                is_left = latest.get(key if len(key) < DIGEST_BYTES else short(key), entry_id) == entry_id
                if len(fields) == TRANSACTIONAL_FIELDS:
                    offset = cast(int, self.mapper.offset(entry_id))
                    is_left = not round_.drops_records(producer_of(fields), offset) and is_left
            else:
                is_left = self._is_left(entry, round_)
            if is_left:
                found.append(Left(entry_id, None, sum(map(len, fields))))
        return found

    def _is_left(self, entry: Entry, round_: Round) -> bool:
        keyed = self.keyed(entry)
        if keyed is None:
            return True
        if (is_dropped := drops_by_transaction(keyed, round_)) is not None:
            return not is_dropped
        offset, key, is_tombstone = cast(KeyedRecord, keyed.content)
        if key is None:
            return True
        is_superseded = round_.is_superseded(key, entry[0])
        return not is_superseded and not (is_tombstone and round_.drops_tombstone(offset))

    def _left_of_batches(self, part: Sequence[Entry], round_: Round) -> Steps[list[Left]]:
        found = []
        for entry in part:
            entry_id, fields = entry
            keyed = self.keyed(entry)
            whole = Left(entry_id, None, sum(map(len, fields)))
            if keyed is None:
                found.append(whole)
            elif isinstance(keyed.content, RecordBatch):
                rest = yield from compacted(keyed.content, round_)
                if rest is keyed.content.buffer:
                    found.append(whole)
                elif rest is not None:
                    found.append(Left(entry_id, [fields[0], bytes(rest), *fields[2:]], len(rest)))
            else:
                is_dropped = drops_by_transaction(keyed, round_)
                if not is_dropped and (is_dropped is False or round_.keeps(keyed.content)):
                    found.append(whole)
        return found


def drops_by_transaction(keyed: KeyedEntry, round_: Round) -> bool | None:
    """Return True if a record is omitted, whichever its key is; False for other markers, None for other records."""
    kind = keyed.kind
    if kind.is_control:
        return round_.drops_marker(kind.producer_id, keyed.first_offset)
    if kind.is_transactional and round_.drops_records(kind.producer_id, keyed.first_offset):
        return True
    return None


def is_usual(fields: Fields) -> bool:
    """Return True if the entry is a record with only key, value, timestamp, and those of a producer or transaction."""
    return (
        (len(fields) == 6 or (len(fields) in {8, TRANSACTIONAL_FIELDS} and has_usual_producer(fields)))
        and fields[0] == b"key"
        and fields[2] == b"value"
        and fields[4] == b"timestamp"
    )


def has_usual_producer(fields: Fields) -> bool:
    if len(fields) == TRANSACTIONAL_FIELDS and (fields[6] != b"$transactional" or fields[7] != b"1"):
        return False
    return fields[-2] == b"$producer"


def producer_of(fields: Fields) -> int:
    """Return the producer id of a usual record of a transaction."""
    return kind_of(TimestampType.CREATE_TIME, fields[-1], is_transactional=True).producer_id


def batch_of(fields: Fields, last_offset: int) -> RecordBatch | None:
    """Return an entry's batch with its own offsets, or None if the entry is a single record."""
    data = whole_batch(fields)
    if data is None:
        return None
    batch = RecordBatch(data)
    batch.base_offset = last_offset - last_offset_delta(data)
    return batch
