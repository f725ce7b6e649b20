"""Stream entries as compaction sees them: the keys in them, and what is left of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.protocol.record_batch import RecordBatch
from korvet.storage.compaction import KeyedRecord, Round, compacted, keyed_records
from korvet.storage.offsets import OffsetMapper
from korvet.storage.redis_entries import (
    Entry,
    Fields,
    last_offset_delta,
    log_append_time,
    milliseconds_of,
    parse,
    timestamp_of,
    whole_batch,
)

CONTROL = b"$control"


class KeyedEntry(NamedTuple):
    """What compaction looks at of an entry: the record that it is, or those in its batch."""

    first_offset: int
    records: Sequence[KeyedRecord]
    max_timestamp: int


def keyed_entry(entry: Entry, mapper: OffsetMapper, *, is_batch_layout: bool) -> KeyedEntry | None:
    """The entry's records; None for one whose ID has no offset, which nobody reads and compaction leaves alone."""
    entry_id, fields = entry
    offset = mapper.offset(entry_id)
    if offset is None:
        return None
    if is_batch_layout and (batch := batch_of(fields, offset)) is not None:
        time = log_append_time(fields)
        timestamp = batch.max_timestamp if time is None else time
        return KeyedEntry(batch.base_offset, keyed_records(batch), timestamp)
    if (usual := usual_record(fields, offset)) is not None:
        return usual
    record = parse(fields, milliseconds_of(entry_id))
    key = None if CONTROL in fields[::2] else record.key
    return KeyedEntry(offset, [KeyedRecord(offset, key, record.value is None)], record.timestamp)


def usual_record(fields: Fields, offset: int) -> KeyedEntry | None:
    """A record with key, value and timestamp and without headers, as most are; None for any other."""
    if len(fields) not in (6, 8) or (len(fields) == 8 and fields[6] != b"$producer"):
        return None
    if fields[0] != b"key" or fields[2] != b"value" or fields[4] != b"timestamp":
        return None
    timestamp = timestamp_of(fields[5])
    if timestamp is None:
        return None
    return KeyedEntry(offset, [KeyedRecord(offset, fields[1], is_tombstone=False)], timestamp)


def batch_of(fields: Fields, last_offset: int) -> RecordBatch | None:
    """The batch that an entry holds, with the offsets that are its own; None for a single record."""
    data = whole_batch(fields)
    if data is None:
        return None
    batch = RecordBatch(data)
    batch.base_offset = last_offset - last_offset_delta(data)
    return batch


def left_of(entry: Entry, round_: Round, mapper: OffsetMapper, *, is_batch_layout: bool) -> Fields | None:
    """What is left of an entry: its own fields where everything stays, None where nothing does."""
    entry_id, fields = entry
    offset = mapper.offset(entry_id)
    if offset is None:
        return fields
    if is_batch_layout and (batch := batch_of(fields, offset)) is not None:
        rest = compacted(batch, round_)
        if rest is batch.buffer:
            return fields
        return None if rest is None else [fields[0], bytes(rest), *fields[2:]]
    keyed = keyed_entry(entry, mapper, is_batch_layout=False)
    return fields if keyed is None or round_.keeps(keyed.records[0]) else None
