"""Record batches (magic 2): split, validated, stamped, read and built. Their records stay opaque bytes otherwise.

     0  base offset: int64             21  attributes: int16               43  producer id: int64
     8  batch length: int32            23  last offset delta: int32        51  producer epoch: int16
    12  partition leader epoch: int32  27  base timestamp: int64           53  base sequence: int32
    16  magic: int8                    35  max timestamp: int64            57  record count: int32
    17  CRC-32C: uint32                                                    61  records (see `record`)

The batch length counts what follows it. The CRC covers everything from the attributes on, so base offset and leader
epoch can be stamped without touching it. Attributes: bits 0-2 codec, 3 log append time (then max timestamp
is every record's timestamp), 4 transactional, 5 control.

In older formats (magic 0 and 1) offset, length and magic stand at the same places; that is how they are told apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from itertools import chain
from operator import itemgetter

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
# What stands before the bytes that the batch length counts, and up to which the format is recognised.
LOG_OVERHEAD_BYTES = 12
MAGIC_AT = 16
CRC_AT = 17
CRC_COVERS_FROM = 21
MAX_TIMESTAMP_AT = 35
PREFIX = struct.Struct(">qii")  # what the CRC does not cover and a broker sets

LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

MAX_OFFSET_DELTA = 2**31 - 1
ANY_TIMESTAMP = -(2**63)
SEQUENCES = 2**31

# What one batch may become in memory, as bytes and, about as much again, as objects, unless the caller says otherwise.
# Half a million small records just fit.
MAX_DECODED_BYTES = 64 * 1024 * 1024
# The same for what the broker decompresses. Meanwhile the codec may hold as much again.
MAX_UNPACKED_BYTES = 20 * 1024 * 1024
# What is expected to be short is decompressed where it is, up to this size; a batch that has more is not short.
SHORT_UNPACKED_BYTES = 1024 * 1024
# Other batches are first decompressed up to this size, so that several of them may be at the same time.
MEDIUM_UNPACKED_BYTES = 6 * 1024 * 1024
# Decompressing takes up to 5 ms for a megabyte of what it becomes, compressing as long for one of what it was. Below
# these sizes a thread would cost more than it spares the others.
LONG_COMPRESSED_BYTES = 32 * 1024
LONG_UNCOMPRESSED_BYTES = 256 * 1024


class TimestampType(IntEnum):
    """Whose clock a batch's timestamps are from; the values are those of the attribute bit."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """What a control batch says (KIP-98)."""

    ABORT = 0
    COMMIT = 1


class RecordBatch:
    """A batch's header, read once, and a view of its bytes. Not an attrs class: one is made per batch per request."""

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
        """Read the header of the batch that fills `buffer`, which is at least HEADER_BYTES long."""
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
        """The codec. Raises UnsupportedCompressionType for a number that means none."""
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
        """The sequence of the last record; after 2^31 - 1 comes 0. -1 without an idempotent producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCES


# --- Splitting and validating -----------------------------------------------------------------------------


def parse_batches(buffer: Buffer, *, truncated_end_ok: bool = False) -> list[RecordBatch]:
    """Split a sequence of batches and read their headers; neither CRC nor records are looked at.

    With `truncated_end_ok` a last batch that is not all there is left out, as Fetch answers may end with one.
    Raises CorruptMessage for lengths that cannot be, UnsupportedForMessageFormat for magic 0 and 1.
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
    """Check that a batch is what its header says, without decoding records: CRC, codec, counts.

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
    """Return the one batch that a producer sent for a partition, checked as Apache Kafka does before it appends.

    `records` is the field of a Produce request of `api_version`. In Kafka's order: exactly one batch, magic 2,
    zstd only from version 7 on, base offset 0, at most `max_message_bytes` (MessageTooLarge), CRC (CorruptMessage),
    record count and offsets that agree, no control batch, a sequence where there is a producer id, no log append time
    (InvalidTimestamp); where no error is named, InvalidRecord. Bytes after the batch that are no whole batch are
    ignored. Four differences: Kafka looks at every record; answers magic 0 and 1 with INVALID_RECORD, and unknown
    codecs with UNKNOWN_SERVER_ERROR; and turns log append time into CreateTime where that is the topic's type.

    Records are not decoded here. If the header's max timestamp lies before the base timestamp, the caller sets it
    with `set_max_timestamp`; Kafka sets it always.
    """
    batch = _only_batch(records)
    if batch.compression is Codec.ZSTD and api_version < 7:
        raise UnsupportedCompressionType("zstd needs Produce version 7 or newer.")
    if batch.base_offset != 0:
        raise InvalidRecord(f"A produced batch begins at offset 0, not at {batch.base_offset}.")
    if batch.size > max_message_bytes:
        raise MessageTooLarge(f"The batch has {batch.size} bytes; the topic takes {max_message_bytes}.")
    validate(batch)
    if batch.record_count < 1 or batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"{batch.record_count} records cannot fill {batch.last_offset_delta + 1} offsets."
        )
    if batch.is_control:
        raise InvalidRecord("Clients may not write control batches.")
    if batch.is_idempotent and batch.base_sequence < 0:
        raise InvalidRecord("A batch with a producer id needs a sequence number.")
    if batch.is_log_append_time:
        raise InvalidTimestamp(
            "The timestamp type of a produced batch is CreateTime; the broker alone sets another."
        )
    return batch


def _only_batch(records: Sequence[Buffer] | None) -> RecordBatch:
    buffer = records[0] if records else b""
    batches = parse_batches(buffer, truncated_end_ok=True)
    if len(batches) != 1:
        raise InvalidRecord(f"A Produce request carries one record batch per partition, not {len(batches)}.")
    return batches[0]


def _size_at(view: memoryview, position: int) -> int | None:
    """Return the size of the batch at `position`, None when too little is there to tell."""
    if len(view) - position <= MAGIC_AT:
        return None
    size = LOG_OVERHEAD_BYTES + int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
    magic = view[position + MAGIC_AT]
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
    """Write the offset and epoch a broker assigned into the batch's (writable) buffer. The CRC stays right."""
    PREFIX.pack_into(batch.buffer, 0, base_offset, batch.batch_length, leader_epoch)
    batch.base_offset = base_offset
    batch.partition_leader_epoch = leader_epoch


def stamp_log_append_time(batch: RecordBatch, timestamp: int) -> None:
    """Give all records in the batch's (writable) buffer the broker's `timestamp` (ms), and set the CRC."""
    _stamp_timestamps(batch, batch.attributes | LOG_APPEND_TIME_BIT, timestamp)


def stamped(buffer: Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """As `stamp`, for one batch in a buffer that stays as it is: its new beginning, and a view of the rest."""
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
    """Return the batch's records, decompressed, with absolute timestamps.

    `max_bytes` bounds the decompressed bytes, and about the objects made of them. The CRC is not checked.
    Raises InvalidRecord for records that are not as the header says, MessageTooLarge beyond `max_bytes`.
    """
    data = _records_of(batch, max_bytes)
    return list(chain.from_iterable(_decoded(batch, data, None, max_bytes)))


def decode_in_steps(batch: RecordBatch, take: Callable[[list[RawRecord]], object]) -> Steps[None]:
    """As `decode_records`, but for handing the records to `take`, some at a time.

    What is wrong with a batch may show only after its last records.
    """
    data = yield from _decompressed(batch)
    for part in _decoded(batch, data, RECORDS_A_STEP, MAX_DECODED_BYTES):
        take(part)
        yield None


def _decoded(
    batch: RecordBatch, data: Packed, at_once: int | None, max_bytes: int
) -> Iterator[list[RawRecord]]:
    """The records that the packed ones in `data` are; all in one list, or `at_once` of them in each."""
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
    # The decompressed bytes, and the codec's window or the records that are made of them.
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
        # Compaction removed records, perhaps the first one.
        timestamp = ANY_TIMESTAMP
    data = yield from _decompressed(batch)
    found = yield from record.first_at(
        data, batch.record_count, base_timestamp=batch.base_timestamp, timestamp=timestamp
    )
    if found is None:
        return None
    return batch.base_offset + found[0], batch.max_timestamp if batch.is_log_append_time else found[1]


def max_timestamp_offset(batch: RecordBatch, *, max_bytes: int = MAX_DECODED_BYTES) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record that bears the batch's largest timestamp (KIP-734)."""
    delta, timestamp, *_ = max(decode_records(batch, max_bytes=max_bytes), key=itemgetter(1))
    return batch.base_offset + delta, timestamp


def control_type(batch: RecordBatch) -> ControlType | None:
    """Return what a control batch says; None for data, and for control records that are not a transaction's end."""
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

    Any iterable will do, so columns need no tuples of their own: `zip(deltas, timestamps, keys, values, headers)`
    hands over the same tuple again and again, and `itertools.repeat(())` stands for no headers. Keys and
    values may be any buffers of bytes.

    `last_offset_delta` is for batches whose last records were compacted away: their offsets stay theirs. Under
    LogAppendTime readers give every record the *largest* of the timestamps. Deltas are 32 bits wide on the wire:
    whoever joins records of distant offsets splits them at MAX_OFFSET_DELTA. Raises ValueError beyond it.
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


class BatchBuilder:
    """A batch in the making: some records at a time, and then its header. See `build_batch`."""

    __slots__ = ("_base_timestamp", "_batch", "_count", "_last_delta", "_max_timestamp")

    def __init__(self) -> None:
        self._batch = bytearray(HEADER_BYTES)
        self._count = 0
        self._last_delta = -1
        self._base_timestamp = self._max_timestamp = 0

    @property
    def size(self) -> int:
        """Bytes so far, uncompressed."""
        return len(self._batch)

    def add(self, records: Iterable[RawRecord]) -> None:
        """Add at least one record behind those that are there."""
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
        """The batch."""
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
    """Write the header of a batch whose records stand behind HEADER_BYTES, compressed if they are to be; the CRC last.

    Raises ValueError for offsets beyond MAX_OFFSET_DELTA.
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
