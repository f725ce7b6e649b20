"""Record batches (magic 2): split, validate, stamp, read and build them.

     0  base offset: int64             21  attributes: int16               43  producer id: int64
     8  batch length: int32            23  last offset delta: int32        51  producer epoch: int16
    12  partition leader epoch: int32  27  base timestamp: int64           53  base sequence: int32
    16  magic: int8                    35  max timestamp: int64            57  record count: int32
    17  CRC-32C: uint32                                                    61  records (see `record`)

The batch length counts the bytes after it. The CRC covers everything from the attributes on, so that a broker can stamp
base offset and leader epoch without changing it. Attributes: bits 0-2 codec, 3 log append time (then max timestamp is
the timestamp of every record), 4 transactional, 5 control.

Offset, length and magic are at the same positions in the older formats (magic 0 and 1), so magic distinguishes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from itertools import chain
from operator import itemgetter

from attrs import frozen

from korvet.protocol import record
from korvet.protocol.buffers import Buffer
from korvet.protocol.compression import Codec, codec_of, compress, decompress_mapped
from korvet.protocol.crc32c import crc32c
from korvet.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from korvet.protocol.record import Packed, RawRecord
from korvet.protocol.steps import RECORDS_A_STEP, LongCall, Steps

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
OLD_HEADER_BYTES = 26  # of a message in format 0 without key and value
# Bytes before those that the batch length counts, and the position of the byte that identifies the format.
LOG_OVERHEAD_BYTES = 12
MAGIC_AT = 16
CRC_AT = 17
CRC_COVERS_FROM = 21
MAX_TIMESTAMP_AT = 35
SIZE_AND_MAGIC = struct.Struct(">qiiB")  # base offset, batch length, leader epoch, magic
PREFIX = struct.Struct(">qii")  # the fields that the broker sets and the CRC does not cover

# The key and value of a marker: version, and type or coordinator epoch.
MARKER_KEY = struct.Struct(">hh")
MARKER_VALUE = struct.Struct(">hi")

CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

MAX_OFFSET_DELTA = 2**31 - 1
ANY_TIMESTAMP = -(2**63)
SEQUENCES = 2**31

# Default limit of a decompressed batch, and about the same again for the objects of its records. It is enough for half
# a million small records.
MAX_DECODED_BYTES = 64 * 1024 * 1024
# The limit when the broker decompresses a batch. The codec may use as much again meanwhile.
MAX_UNPACKED_BYTES = 20 * 1024 * 1024
# A batch that is expected to be small is decompressed in the event loop's thread, up to this size.
SHORT_UNPACKED_BYTES = 1024 * 1024
# Other batches are first decompressed up to this size, so that several of them can run concurrently.
MEDIUM_UNPACKED_BYTES = 6 * 1024 * 1024
# Decompressing and compressing take up to 5 ms per megabyte of uncompressed data. Below these sizes a thread would cost
# more time than it saves for other tasks.
LONG_COMPRESSED_BYTES = 32 * 1024
LONG_UNCOMPRESSED_BYTES = 256 * 1024


class TimestampType(IntEnum):
    """The source of a batch's timestamps: the producer or the broker. The values are those of the attribute bit."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type of a control batch (KIP-98)."""

    ABORT = 0
    COMMIT = 1


class RecordBatch:
    """A batch's parsed header, and a view of its bytes."""

    # Not an attrs class, for speed: every request creates one per batch.

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "buffer",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    buffer: memoryview
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: Buffer) -> None:
        """Parse the header of the batch that fills `buffer`, which is at least HEADER_BYTES long."""
        self.buffer = memoryview(buffer)
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer)

    def __repr__(self) -> str:
        return (
            f"<RecordBatch {self.base_offset}..{self.last_offset} records={self.record_count} size={self.size} "
            f"producer={self.producer_id}/{self.producer_epoch}/{self.base_sequence}>"
        )

    @property
    def size(self) -> int:
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def compression(self) -> Codec:
        """The codec. Raises UnsupportedCompressionType for an unknown number."""
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; it wraps from 2^31 - 1 to 0. -1 without an idempotent producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCES


# --- Splitting and validating -----------------------------------------------------------------------------


def parse_batches(buffer: Buffer, *, truncated_end_ok: bool = False) -> list[RecordBatch]:
    """Split a sequence of batches and parse their headers, without checking CRCs or records.

    With `truncated_end_ok`, an incomplete last batch is left out, since Fetch responses may end with one.
    Raises CorruptMessage for invalid lengths, UnsupportedForMessageFormat for magic 0 and 1.
    """
    view = memoryview(buffer)
    end = len(view)
    position = 0
    batches = []
    while position < end:
        size = _size_at(view, position)
        if size is None or position + size > end:
            if truncated_end_ok:
                break
            raise CorruptMessage(f"{end - position} bytes are not a whole record batch.")
        batches.append(RecordBatch(view[position : position + size]))
        position += size
    return batches


def validate(batch: RecordBatch) -> None:
    """Check a batch against its header, without decoding records: CRC, codec, counts.

    Raises CorruptMessage, UnsupportedCompressionType, InvalidRecord.
    """
    if crc32c(batch.buffer[CRC_COVERS_FROM:]) != batch.crc:
        raise CorruptMessage("The record batch's CRC-32C is not that of its bytes.")
    codec_of(batch.attributes)
    count = batch.record_count
    if count < 0 or batch.last_offset_delta < 0 or count > batch.last_offset_delta + 1:
        raise InvalidRecord(f"{count} records cannot have {batch.last_offset_delta + 1} offsets.")


def validate_produced(
    records: Sequence[Buffer] | None, *, api_version: int, max_message_bytes: int
) -> RecordBatch:
    """Return the only batch that a producer sent for a partition, after the checks of Apache Kafka before an append.

    `records` is the field of a Produce request of `api_version`. In Kafka's order: exactly one batch, magic 2,
    zstd only from version 7 on, base offset 0, at most `max_message_bytes` (MessageTooLarge), CRC (CorruptMessage),
    consistent record count and offsets, no control batch, a sequence if there is a producer id, no log append time
    (InvalidTimestamp). The error is InvalidRecord if no other is named. An incomplete batch after the first one is
    ignored. Three differences: Kafka answers magic 0 and 1 with INVALID_RECORD, and unknown codecs with
    UNKNOWN_SERVER_ERROR; and changes log append time to CreateTime if that is the topic's type.

    Records are not decoded. If the header's max timestamp is before the base timestamp, the caller sets it with
    `set_max_timestamp`; Kafka always sets it. `check_records` checks the records.
    """
    batch = _only_batch(records)
    attributes = batch.attributes
    if api_version < 7 and batch.compression is Codec.ZSTD:
        raise UnsupportedCompressionType("zstd needs Produce version 7 or newer.")
    if batch.base_offset != 0:
        raise InvalidRecord(f"A produced batch begins at offset 0, not at {batch.base_offset}.")
    if len(batch.buffer) > max_message_bytes:
        raise MessageTooLarge(f"The batch has {batch.size} bytes; the topic takes {max_message_bytes}.")
    validate(batch)
    if batch.record_count < 1 or batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"{batch.record_count} records cannot fill {batch.last_offset_delta + 1} offsets."
        )
    if attributes & CONTROL_BIT:
        raise InvalidRecord("Clients may not write control batches.")
    if batch.base_sequence < 0 <= batch.producer_id:
        raise InvalidRecord("A batch with a producer id needs a sequence number.")
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestamp(
            "The timestamp type of a produced batch is CreateTime; the broker alone sets another."
        )
    return batch


def _only_batch(records: Sequence[Buffer] | None) -> RecordBatch:
    buffer = records[0] if records else b""
    if _size_at(buffer, 0) == len(buffer):
        return RecordBatch(buffer)
    batches = parse_batches(buffer, truncated_end_ok=True)
    if len(batches) != 1:
        raise InvalidRecord(f"A Produce request carries one record batch per partition, not {len(batches)}.")
    return batches[0]


def _size_at(view: Buffer, position: int) -> int | None:
    """Return the size of the batch at `position`, or None if its header is incomplete."""
    if len(view) - position <= MAGIC_AT:
        return None
    _, batch_length, _, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    size: int = LOG_OVERHEAD_BYTES + batch_length
    if size < (HEADER_BYTES if magic == 2 else OLD_HEADER_BYTES):
        raise CorruptMessage(f"A record batch of {size} bytes is shorter than its header.")
    if magic < 2:
        raise UnsupportedForMessageFormat(
            f"Records of message format {magic} are not served; format 2 is (Kafka 0.11)."
        )
    if magic > 2:
        raise CorruptMessage(f"There is no message format {magic}.")
    return size


# --- Stamping ---------------------------------------------------------------------------------------------


def stamp(batch: RecordBatch, base_offset: int, leader_epoch: int) -> None:
    """Write the offset and epoch that a broker assigned into the batch's (writable) buffer. The CRC stays valid."""
    PREFIX.pack_into(batch.buffer, 0, base_offset, batch.batch_length, leader_epoch)
    batch.base_offset = base_offset
    batch.partition_leader_epoch = leader_epoch


def stamp_log_append_time(batch: RecordBatch, timestamp: int) -> None:
    """Set log append time with the broker's `timestamp` (ms) in the batch's (writable) buffer, and update the CRC."""
    _stamp_timestamps(batch, batch.attributes | LOG_APPEND_TIME_BIT, timestamp)


def stamped(buffer: Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """Return the stamped beginning of a batch, and a view of the rest, without changing its buffer. See `stamp`."""
    view = memoryview(buffer)
    batch_length = len(view) - LOG_OVERHEAD_BYTES
    return PREFIX.pack(base_offset, batch_length, leader_epoch), view[PREFIX.size :]


def _stamp_timestamps(batch: RecordBatch, attributes: int, max_timestamp: int) -> None:
    view = batch.buffer
    struct.pack_into(">h", view, CRC_COVERS_FROM, attributes)
    struct.pack_into(">q", view, MAX_TIMESTAMP_AT, max_timestamp)
    crc = crc32c(view[CRC_COVERS_FROM:])
    struct.pack_into(">I", view, CRC_AT, crc)
    batch.attributes = attributes
    batch.max_timestamp = max_timestamp
    batch.crc = crc


# --- Reading records --------------------------------------------------------------------------------------


def decode_records(batch: RecordBatch, *, max_bytes: int = MAX_DECODED_BYTES) -> list[RawRecord]:
    """Return the batch's decompressed records, with absolute timestamps.

    `max_bytes` limits the decompressed bytes, and approximately the objects created from them. The CRC is not checked.
    Raises InvalidRecord for records that contradict the header, MessageTooLarge beyond `max_bytes`.
    """
    data = _records_of(batch, max_bytes)
    return list(chain.from_iterable(_decoded(batch, data, None, max_bytes)))


def decode_in_steps(batch: RecordBatch, take: Callable[[list[RawRecord]], object]) -> Steps[None]:
    """Decode like `decode_records`, in steps that pass some records at a time to `take`.

    An error in a batch may be raised only after its last records.
    """
    data = yield from _decompressed(batch)
    for part in _decoded(batch, data, RECORDS_A_STEP, MAX_DECODED_BYTES):
        take(part)
        yield None


def check_records(batch: RecordBatch) -> Steps[None]:
    """Check that a produced batch consists of the records that its header announces, without decoding them.

    Raises InvalidRecord, and MessageTooLarge beyond MAX_UNPACKED_BYTES.
    """
    if batch.attributes & CODEC_BITS:
        return _check_compressed(batch)
    return record.check(bytes(batch.buffer[HEADER_BYTES:]), batch.record_count)


def _check_compressed(batch: RecordBatch) -> Steps[None]:
    data = yield from _decompressed(batch)
    yield from record.check(data, batch.record_count)


def _decoded(
    batch: RecordBatch, data: Packed, at_once: int | None, max_bytes: int
) -> Iterator[list[RawRecord]]:
    """Decode the packed records in `data`, and yield them in one list, or in lists of `at_once` records."""
    parts = record.decode(
        data,
        batch.record_count,
        base_timestamp=batch.base_timestamp,
        last_offset_delta=batch.last_offset_delta,
        max_bytes=max_bytes,
        at_once=at_once,
    )
    if not batch.is_log_append_time:
        return parts
    timestamp = batch.max_timestamp
    return (
        [(delta, timestamp, key, value, headers) for delta, _, key, value, headers in part] for part in parts
    )


def _decompressed(batch: RecordBatch) -> Steps[Packed]:
    """Return the batch's packed records. Raises InvalidRecord, and MessageTooLarge beyond MAX_UNPACKED_BYTES."""
    if batch.compression is Codec.NONE:
        return _records_of(batch, MAX_UNPACKED_BYTES)
    if batch.size < LONG_COMPRESSED_BYTES:
        with suppress(MessageTooLarge):
            return _records_of(batch, SHORT_UNPACKED_BYTES)
    data: Packed
    with suppress(MessageTooLarge):
        data = yield _decompression(batch, MEDIUM_UNPACKED_BYTES)
        return data
    data = yield _decompression(batch, MAX_UNPACKED_BYTES)
    return data


def _decompression(batch: RecordBatch, max_bytes: int) -> LongCall[Packed]:
    # The decompressed bytes, plus the codec's window or the objects of the records.
    return LongCall(partial(_records_of, batch, max_bytes), 2 * max_bytes)


def set_max_timestamp(batch: RecordBatch) -> Steps[None]:
    """Set the header's max timestamp, and the CRC, from the batch's records."""
    highest = -(2**63)

    def look(part: list[RawRecord]) -> None:
        nonlocal highest
        highest = max(highest, *map(itemgetter(1), part))

    yield from decode_in_steps(batch, look)
    if highest >= 2**63:
        raise InvalidRecord(f"There is no timestamp {highest}.")
    _stamp_timestamps(batch, batch.attributes, highest)


def first_offset_at(batch: RecordBatch, timestamp: int) -> Steps[tuple[int, int] | None]:
    """Return (offset, timestamp) of the first record whose timestamp is at least `timestamp`, or None."""
    if batch.is_log_append_time:
        if batch.max_timestamp < timestamp:
            return None
        if batch.record_count > batch.last_offset_delta:
            return batch.base_offset, batch.max_timestamp
        # Compaction may have removed the first record.
        timestamp = ANY_TIMESTAMP
    data = yield from _decompressed(batch)
    found = yield from record.first_at(
        data, batch.record_count, base_timestamp=batch.base_timestamp, timestamp=timestamp
    )
    if found is None:
        return None
    return batch.base_offset + found[0], batch.max_timestamp if batch.is_log_append_time else found[1]


def max_timestamp_offset(batch: RecordBatch, *, max_bytes: int = MAX_DECODED_BYTES) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record with the batch's largest timestamp (KIP-734)."""
    delta, timestamp, *_ = max(decode_records(batch, max_bytes=max_bytes), key=itemgetter(1))
    return batch.base_offset + delta, timestamp


def control_type(batch: RecordBatch) -> ControlType | None:
    """Return the type of a control batch; None for data, and for control records other than a transaction's end."""
    if not batch.is_control:
        return None
    key = decode_records(batch)[0][2] or b""
    try:
        return ControlType(int.from_bytes(key[2:4], "big"))
    except ValueError:
        return None


def _records_of(batch: RecordBatch, max_bytes: int) -> Packed:
    return decompress_mapped(batch.compression, batch.buffer[HEADER_BYTES:], max_bytes=max_bytes)


# --- Building ---------------------------------------------------------------------------------------------


@frozen
class Producing:
    """The producer fields of a batch. They let the broker discard a batch that was sent twice (KIP-98)."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False


NOBODY = Producing()


def build_batch(
    records: Iterable[RawRecord],
    *,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    timestamp_type: int = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Return a batch of (offset delta, timestamp, key, value, headers), at least one; deltas rise from 0 or above.

    `records` may be any iterable. For columns, pass `zip(deltas, timestamps, keys, values, headers)`, which reuses one
    tuple, with `itertools.repeat(())` for no headers. Keys and values may be any buffers.

    `last_offset_delta` is for batches whose last records were removed by compaction: the batch keeps their offsets.
    With LogAppendTime, readers use the *largest* of the timestamps for every record. Deltas have 32 bits on the wire,
    so the caller has to split records with distant offsets at MAX_OFFSET_DELTA. Raises ValueError beyond it.
    """
    batch = BatchBuilder()
    batch.add(records)
    return batch.finish(
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        codec=codec,
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
        last_offset_delta=last_offset_delta,
    )


def build_marker(
    kind: ControlType, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """Return the control batch that ends a transaction (KIP-98).

    Its only record has the versions 0 of key and value: the type, and the coordinator's epoch.
    """
    key, value = MARKER_KEY.pack(0, kind), MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [(0, timestamp, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def empty_batch(last_offset: int, leader_epoch: int) -> bytearray:
    """Return a batch without records, as Kafka's compaction leaves one for the last offset of a log.

    Consumers continue after its last offset.
    """
    batch = bytearray(HEADER_BYTES)
    write_header(
        batch,
        base_offset=last_offset,
        partition_leader_epoch=leader_epoch,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=-1,
        max_timestamp=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    return batch


class BatchBuilder:
    """Builds a batch incrementally: first records, in any number of calls, then the header. See `build_batch`."""

    __slots__ = ("_base_timestamp", "_batch", "_count", "_last_delta", "_max_timestamp")

    def __init__(self) -> None:
        self._batch = bytearray(HEADER_BYTES)
        self._count = 0
        self._last_delta = -1
        self._base_timestamp = self._max_timestamp = 0

    @property
    def size(self) -> int:
        """Size of the batch so far, uncompressed, in bytes."""
        return len(self._batch)

    def add(self, records: Iterable[RawRecord]) -> None:
        """Append at least one record."""
        records = iter(records)
        first = next(records)
        if not self._count:
            self._base_timestamp = self._max_timestamp = first[1]
        count, self._last_delta, max_timestamp = record.encode(
            chain((first,), records), base_timestamp=self._base_timestamp, into=self._batch
        )
        self._count += count
        self._max_timestamp = max(self._max_timestamp, max_timestamp)

    def finish(
        self,
        *,
        base_offset: int,
        partition_leader_epoch: int,
        codec: Codec,
        timestamp_type: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        is_transactional: bool,
        is_control: bool = False,
        last_offset_delta: int | None = None,
    ) -> bytearray:
        """Return the finished batch."""
        batch = self._batch
        if codec is not Codec.NONE:
            batch[HEADER_BYTES:] = compress(codec, memoryview(batch)[HEADER_BYTES:])
        attributes = (
            codec | timestamp_type << 3 | is_transactional * TRANSACTIONAL_BIT | is_control * CONTROL_BIT
        )
        write_header(
            batch,
            base_offset=base_offset,
            partition_leader_epoch=partition_leader_epoch,
            attributes=attributes,
            last_offset_delta=self._last_delta if last_offset_delta is None else last_offset_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self._count,
        )
        return batch


def write_header(
    batch: bytearray,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Write the header of a batch, including the CRC, before its records, which start at HEADER_BYTES.

    Records must be compressed already. Raises ValueError for offsets beyond MAX_OFFSET_DELTA.
    """
    if last_offset_delta > MAX_OFFSET_DELTA:
        raise ValueError(f"offset delta {last_offset_delta} does not fit into a batch")
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD_BYTES,
        partition_leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
