"""Parse single stream entries into the record or the batch that they hold.

An entry that another client added with a plain XADD is one record, in both layouts:

    key, value, header.<name>    as in the record layout (see `layouts`)
    timestamp                    decimal milliseconds; if missing or invalid, the milliseconds of the entry's ID
    other fields                 without a field `value`, the value is a JSON object of them

An entry with `$control` and `$producer` is a marker in the record layout (see `layouts`).
Fields that begin with `$` are reserved for korvet.
"""

from __future__ import annotations

import json
import re
import struct
from functools import lru_cache
from typing import NamedTuple

from korvet.protocol.record import Headers
from korvet.protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MARKER_KEY,
    MARKER_VALUE,
    ControlType,
    RecordBatch,
    stamp,
    stamp_log_append_time,
)
from korvet.storage.interface import TimestampType

# Batch length, last offset delta and record count of a batch header, from the batch length on.
LENGTH_AT = 8
HEADER_NUMBERS = struct.Struct(">i11xi30xi")

Fields = list[bytes]
Entry = tuple[bytes, Fields]  # a list of two, really

TIMESTAMP = re.compile(rb"-?[0-9]{1,19}")
PRODUCER = re.compile(rb"([0-9]{1,19}):([0-9]{1,5})")
INT64_MAX = 2**63 - 1
INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
CONTROL_TYPES = {b"abort": ControlType.ABORT, b"commit": ControlType.COMMIT}


class Kind(NamedTuple):
    """The attributes that all records of one batch share."""

    timestamp_type: TimestampType
    is_transactional: bool
    producer_id: int
    producer_epoch: int
    is_control: bool = False


@lru_cache(maxsize=64)
def kind_of(timestamp_type: TimestampType, producer: bytes, *, is_transactional: bool = False) -> Kind:
    """Return the kind from a cache: equal kinds are usually the same object, which is faster to compare.

    Those of markers (`marker_of`) are not, so that each marker has its own batch.
    """
    found = PRODUCER.fullmatch(producer)
    producer_id, epoch = map(int, found.groups()) if found is not None else (-1, -1)
    if producer_id > INT64_MAX or epoch > INT16_MAX:  # written by hand: no batch header can hold it
        producer_id = epoch = -1
    return Kind(timestamp_type, is_transactional, producer_id, epoch)


PLAIN = kind_of(TimestampType.CREATE_TIME, b"-1:-1")


class Parsed(NamedTuple):
    """One entry as a record."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    kind: Kind


def timestamp_of(text: bytes) -> int | None:
    """Return the number in a `timestamp` field, or None if it is not a 64-bit number."""
    if TIMESTAMP.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -INT64_MAX <= number <= INT64_MAX else None


def parse(fields: Fields, entry_ms: int) -> Parsed:
    """Parse an entry's fields as one record, whichever client wrote them."""
    timestamp: int | None = None
    key = value = None
    headers: list[tuple[str, bytes | None]] = []
    others: dict[bytes, bytes] = {}
    timestamp_type = TimestampType.CREATE_TIME
    producer = b"-1:-1"
    is_transactional = False
    control = b""
    coordinator = b""
    pairs = iter(fields)
    for name, content in zip(pairs, pairs, strict=True):
        if name == b"key":
            key = content
        elif name == b"value":
            value = content
        elif name == b"timestamp":
            timestamp = timestamp_of(content)
        elif name.startswith(b"header."):
            headers.append((name[7:].decode(errors="replace"), content))
        elif not name.startswith(b"$"):
            others[name] = content
        elif name.startswith(b"$header."):
            headers.append((name[8:].decode(errors="replace"), None))
        elif name == b"$timestamp.type" and content == b"1":
            timestamp_type = TimestampType.LOG_APPEND_TIME
        elif name == b"$producer":
            producer = content
        elif name == b"$transactional":
            is_transactional = content == b"1"
        elif name == b"$control":
            control = content
        elif name == b"$coordinator":
            coordinator = content
    if value is None and others:
        value = as_json(others)
    if timestamp is None:
        timestamp = entry_ms
    if control in CONTROL_TYPES and (marker := marker_of(timestamp_type, producer)) is not None:
        key = MARKER_KEY.pack(0, CONTROL_TYPES[control])
        return Parsed(timestamp, key, MARKER_VALUE.pack(0, epoch_in(coordinator)), (), marker)
    kind = kind_of(timestamp_type, producer, is_transactional=is_transactional)
    return Parsed(timestamp, key, value, tuple(headers), kind)


def marker_of(timestamp_type: TimestampType, producer: bytes) -> Kind | None:
    """Return the kind of a marker, or None for an entry without a valid producer, which another client wrote."""
    kind = kind_of(timestamp_type, producer)
    if kind.producer_id < 0:
        return None
    return kind._replace(is_transactional=True, is_control=True)


def epoch_in(text: bytes) -> int:
    """Return the coordinator epoch in a field, or 0 if another client has written something else."""
    number = timestamp_of(text)
    return number if number is not None and 0 <= number <= INT32_MAX else 0


def as_json(fields: dict[bytes, bytes]) -> bytes:
    """Return a JSON object of the fields that have no counterpart in a Kafka record."""
    texts = {
        name.decode(errors="replace"): content.decode(errors="replace") for name, content in fields.items()
    }
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()


def whole_batch(fields: Fields) -> bytes | None:
    """Return the batch in an entry of the batch layout, or None if another Redis client wrote the entry.

    The header's counts must be consistent, and its length must match the number of bytes. The records are not decoded.
    """
    if fields[0] != b"$batch":
        return None
    data = fields[1]
    if len(data) < HEADER_BYTES or data[MAGIC_AT] != 2:
        return None
    length, last_delta, records = HEADER_NUMBERS.unpack_from(data, LENGTH_AT)
    is_whole = length == len(data) - LOG_OVERHEAD_BYTES and 0 < records <= last_delta + 1
    return data if is_whole else None


def log_append_time(fields: Fields) -> int | None:
    """Return when the broker appended the batch, or None under CreateTime."""
    return timestamp_of(fields[3]) if len(fields) >= 4 and fields[2] == b"$time" else None


def stamped_batch(data: bytes, fields: Fields, last_offset: int, leader_epoch: int) -> RecordBatch:
    """Return the batch of an entry as consumers receive it, in a new buffer."""
    batch = RecordBatch(bytearray(data))
    stamp(batch, last_offset - batch.last_offset_delta, leader_epoch)
    time = log_append_time(fields)
    if time is not None:
        stamp_log_append_time(batch, time)
    return batch


def last_offset_delta(data: bytes) -> int:
    delta: int = struct.unpack_from(">i", data, 23)[0]
    return delta


def milliseconds_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])
