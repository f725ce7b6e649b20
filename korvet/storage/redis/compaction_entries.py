"""Stream entries as compaction sees them: the keys in them, and what is left of them.

In the record layout an entry is a record, and its ID the place that a round knows it by. In the batch layout an entry
holds many, whose places are their offsets; a single record that was added by hand is one of them, too.

Most entries of the record layout are a key, a value and a timestamp. They are looked at in place, since there may be
millions, and anything more costs several times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from attrs import frozen

from korvet.protocol.record_batch import RecordBatch
from korvet.protocol.steps import Steps
from korvet.storage.compaction import DIGEST_BYTES, KeyedRecord, Round, compacted, note_all, short
from korvet.storage.offsets import OffsetMapper
from korvet.storage.redis.entries import (
    Entry,
    Fields,
    last_offset_delta,
    log_append_time,
    milliseconds_of,
    parse,
    whole_batch,
)

CONTROL = b"$control"
# As many as take about half a millisecond.
PART_ENTRIES = 250


class Left(NamedTuple):
    """An entry of which something is left."""

    entry_id: bytes
    fields: Fields | None  # None: all of it, as it is
    size: int


class KeyedEntry(NamedTuple):
    """What compaction looks at of an entry: the record that it is, or the batch that it holds."""

    first_offset: int
    max_timestamp: int
    content: KeyedRecord | RecordBatch


@frozen
class EntryReader:
    """Reads the entries of one stream.

    `skips` says that some of its entries have IDs without offset, which nobody reads and compaction leaves alone.
    """

    mapper: OffsetMapper
    is_batch_layout: bool
    skips: bool

    def parts(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Cut a slice into what may be looked at without a pause: a batch, or some hundred records."""
        step = 1 if self.is_batch_layout else PART_ENTRIES
        for at in range(0, len(entries), step):
            yield entries[at : at + step]

    # --- Noting -----------------------------------------------------------------------------------------

    def note(self, part: Sequence[Entry], round_: Round, limit: int | None) -> Steps[int | None]:
        """Note the keys of entries; where the first begins whose timestamp is above `limit`, which ends it."""
        latest = round_.latest
        is_plain = limit is None and not self.is_batch_layout and not self.skips
        for entry in part:
            entry_id, fields = entry
            if is_plain and is_usual(fields):
                key = fields[1]
                latest[key if len(key) < DIGEST_BYTES else short(key)] = entry_id
                continue
            keyed = self.keyed(entry)
            if keyed is None:
                continue
            if limit is not None and keyed.max_timestamp > limit:
                return keyed.first_offset
            if isinstance(keyed.content, RecordBatch):
                yield from note_all(keyed.content, round_)
            else:
                round_.note(keyed.content.key, keyed.first_offset if self.is_batch_layout else entry_id)
        return None

    def keyed(self, entry: Entry) -> KeyedEntry | None:
        """The entry's record or batch; None for one whose ID has no offset."""
        entry_id, fields = entry
        offset = self.mapper.offset(entry_id)
        if offset is None:
            return None
        if self.is_batch_layout and (batch := batch_of(fields, offset)) is not None:
            time = log_append_time(fields)
            return KeyedEntry(batch.base_offset, batch.max_timestamp if time is None else time, batch)
        record = parse(fields, milliseconds_of(entry_id))
        key = None if CONTROL in fields[::2] else record.key
        return KeyedEntry(offset, record.timestamp, KeyedRecord(offset, key, record.value is None))

    # --- Leaving out ------------------------------------------------------------------------------------

    def left(self, part: Sequence[Entry], round_: Round) -> Steps[list[Left]]:
        """What is left of entries that were noted, or lie before those that were."""
        if self.is_batch_layout:
            return (yield from self._left_of_batches(part, round_))
        latest = round_.latest
        found = []
        for entry in part:
            entry_id, fields = entry
            if not self.skips and is_usual(fields):
                key = fields[1]
                is_left = latest.get(key if len(key) < DIGEST_BYTES else short(key), entry_id) == entry_id
            else:
                is_left = self._is_left(entry, round_)
            if is_left:
                found.append(Left(entry_id, None, sum(map(len, fields))))
        return found

    def _is_left(self, entry: Entry, round_: Round) -> bool:
        keyed = self.keyed(entry)
        if keyed is None:
            return True
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
            elif round_.keeps(keyed.content):
                found.append(whole)
        return found


def is_usual(fields: Fields) -> bool:
    """Whether the entry is a record with key, value and timestamp, and perhaps an idempotent producer."""
    return (
        (len(fields) == 6 or (len(fields) == 8 and fields[6] == b"$producer"))
        and fields[0] == b"key"
        and fields[2] == b"value"
        and fields[4] == b"timestamp"
    )


def batch_of(fields: Fields, last_offset: int) -> RecordBatch | None:
    """The batch that an entry holds, with the offsets that are its own; None for a single record."""
    data = whole_batch(fields)
    if data is None:
        return None
    batch = RecordBatch(data)
    batch.base_offset = last_offset - last_offset_delta(data)
    return batch
