"""Convert record batches to stream entries: the arguments of the append script.

Record layout: an entry for each record.

    key                 absent for null
    value               absent for null
    timestamp           decimal milliseconds
    $timestamp.type     "1" if the timestamp is the broker's (LogAppendTime)
    header.<name>       the headers in their order; a name may repeat
    $header.<name>      a header whose value is null; empty
    $transactional      "1" if the record is part of a transaction
    $producer           "producer id:epoch" if the producer has an id

and for each marker, which ends the producer's transaction:

    $control            "commit" or "abort"
    timestamp           decimal milliseconds
    $coordinator        the epoch of the transaction coordinator
    $timestamp.type     as above
    $producer           as above

Batch layout: an entry for each batch, under the ID of its last record.

    $batch              the batch as the producer sent it
    $time               log append time in milliseconds, under LogAppendTime
    $control            "commit" or "abort", if the batch is a marker

Most records have no headers, and either all or none of a batch have a key; the same holds for values. Such batches are
passed to the script as columns, which costs a third of the Python time, and less Lua, than fields record by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat
from operator import add
from typing import NamedTuple

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import InvalidRecord, InvalidTxnState, MessageTooLarge
from korvet.protocol.record import Headers, RawRecord
from korvet.protocol.record_batch import ControlType, RecordBatch, build_marker, decode_in_steps
from korvet.protocol.steps import Steps
from korvet.storage.interface import Marker, TimestampType, TopicConfig, TransactionNumber
from korvet.storage.redis.client.replies import (
    UNCOPIED_BYTES,
    UNCOPIED_VALUE_BYTES,
    Argument,
    pack_arguments,
    pack_column,
)
from korvet.storage.topic_config import LAYOUT, backend_setting

# A command may have 1,048,576 arguments (Redis 6.2), and `unpack` in Lua fails near 8,000 values.
MAX_ARGUMENTS = 1_000_000

# Fields and values that take about half a millisecond to pack.
FIELDS_A_STEP = 2000

CHUNK_BYTES = 65_536  # of the time index; the same in partition.lua
SMALLEST_PIECE_BYTES = 4_096

Times = tuple[int, ...]
Column = tuple[bytes | None, ...]


class StorageLayout(Enum):
    """The mapping of a topic's records to stream entries (`storage.layout`)."""

    RECORD = "record"
    BATCH = "batch"


def layout_of(config: TopicConfig) -> StorageLayout:
    """Return the layout of a topic with that configuration. Raise InvalidConfig for an unknown one."""
    return backend_setting(config, LAYOUT, StorageLayout)


class Packed(NamedTuple):
    """A batch as arguments of the append script, packed in advance, since Redis may be idle when a call is sent."""

    argument_count: int
    buffers: list[Buffer]
    records: int
    size: int
    has_transaction: bool  # a batch of a transaction, or a marker


Packing = Steps[Packed]


class Piece(NamedTuple):
    """The numbers that the time index stores of consecutive records of a batch."""

    records: int
    size: int
    max_timestamp: int


def pack_whole(
    batch: RecordBatch,
    config: TopicConfig,  # noqa: ARG001  as `pack_records` takes it; so the two below
    max_headers: int,  # noqa: ARG001
    max_records: int,  # noqa: ARG001
    transaction: TransactionNumber | None,
) -> Packed:
    """Pack a batch in the batch layout. Raise InvalidTxnState and InvalidRecord as `pack_records` does."""
    number = checked_transaction(batch, transaction)
    size = batch.size + len(b"$batch")
    piece = Piece(batch.record_count, size, batch.max_timestamp)
    # A copy of a small batch is packed with the other arguments in one call of hiredis.
    data = bytes(batch.buffer) if batch.size < UNCOPIED_BYTES else batch.buffer
    return joined(batch, b"batch", b"", number, size, [piece], 1, (), data)


def checked_transaction(batch: RecordBatch, transaction: TransactionNumber | None) -> bytes:
    """Return the script's argument for a batch's transaction, after checking the batch's header.

    Raise InvalidTxnState for a transactional batch without the number of its transaction; InvalidRecord for a header
    that cannot be stored.
    """
    if batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecord(
            f"{batch.record_count} records cannot fill {batch.last_offset_delta + 1} offsets."
        )
    if batch.is_idempotent and batch.base_sequence < 0:
        raise InvalidRecord("A batch with a producer id needs a sequence number.")
    if batch.is_transactional and transaction is None:
        raise InvalidTxnState("a transactional batch needs the number of its transaction")
    return b"" if transaction is None else b"%d:%d" % (transaction.version, transaction.number)


def pack_marker(marker: Marker, config: TopicConfig, now_ms: int) -> Packed:
    """Pack the end of a transaction."""
    result = marker.result.name.lower().encode()
    batch = RecordBatch(
        build_marker(
            ControlType(marker.result),
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            now_ms,
        )
    )
    data: list[Argument] = [marker.coordinator_epoch, result]
    if layout_of(config) is StorageLayout.BATCH:
        data.append(batch.buffer)
        size = batch.size + len(b"$batch$control") + len(result)
    else:
        size = len(b"$controltimestamp$coordinator$producer") + len(result) + len(producer_of(batch)) + 14
    transaction = b"%d:%d" % (marker.version, marker.number)
    pieces = [Piece(1, size, now_ms)]
    return joined(batch, b"marker", now_ms, transaction, size, pieces, len(data), pack_arguments(tuple(data)))


def pack_records(
    batch: RecordBatch,
    config: TopicConfig,
    max_headers: int,
    max_records: int,
    transaction: TransactionNumber | None,
) -> Packing:
    """Pack a batch in the record layout. A step takes about half a millisecond for a megabyte of small records.

    Raise InvalidTxnState for a transactional batch without the number of its transaction; InvalidRecord for records
    that cannot be stored, MessageTooLarge for more records than one call may add.
    """
    number = checked_transaction(batch, transaction)
    if batch.record_count > max_records:
        raise MessageTooLarge(
            f"The batch has {batch.record_count} records; record.max.batch.records={max_records}."
        )
    records: list[RawRecord] = []
    yield from decode_in_steps(batch, records.extend)
    _, times, keys, values, headers = zip(*records, strict=True)
    yield None
    by_broker = config.timestamp_type is TimestampType.LOG_APPEND_TIME
    shape = None if any(headers) else shape_of(keys, values)
    producer = producer_of(batch)
    if shape is None:
        return (yield from pack_fields(batch, records, config, max_headers, number))

    data: list[Sequence[bytes]] = []
    # Under LogAppendTime the script sets the timestamps.
    timestamp: Argument = times[0] if by_broker or times.count(times[0]) == len(times) else b""
    if timestamp == b"":
        texts = {time: b"%d" % time for time in set(times)}
        data.append(list(map(texts.__getitem__, times)))
    yield None
    # The bytes of the field names, and of the timestamp's 13 digits.
    extra = 22 + 3 * (b"k" in shape) + 5 * (b"v" in shape) + 16 * by_broker
    extra += 9 + len(producer) if producer else 0
    extra += 15 if number else 0
    sizes: Iterator[int] | Sequence[int] = repeat(extra, len(times))
    for column, letter in ((keys, b"k"), (values, b"v")):
        if letter in shape:
            data.append(column)
            sizes = map(add, map(len, column), sizes)
    sizes = list(sizes)
    yield None
    pieces = pieces_of(sizes, times, config)
    columns: list[Buffer] = []
    for texts_of_all in data:
        columns += pack_column(texts_of_all)
        yield None
    count = len(data) * len(times)
    return joined(batch, shape, timestamp, number, max(sizes), pieces, count, columns)


def producer_of(batch: RecordBatch) -> bytes:
    """Return the value of `$producer`, or "" for a batch without producer id."""
    return b"%d:%d" % (batch.producer_id, batch.producer_epoch) if batch.is_idempotent else b""


def shape_of(keys: Column, values: Column) -> bytes | None:
    """Return the letters of the batch's columns, or None if only some of its records have a key, or a value."""
    letters = []
    for column, letter in ((keys, b"k"), (values, b"v")):
        nulls = column.count(None)
        if not nulls:
            letters.append(letter)
        elif nulls < len(column):
            return None
    return b"".join(letters) or b"-"


def pack_fields(
    batch: RecordBatch, records: list[RawRecord], config: TopicConfig, max_headers: int, transaction: bytes
) -> Packing:
    """Pack a batch in the record layout, each record with all its fields and values."""
    data: list[Argument] = []
    buffers: list[Buffer] = []
    count = 0
    sizes = []
    times = []
    by_broker = config.timestamp_type is TimestampType.LOG_APPEND_TIME
    producer = producer_of(batch)
    for number, (_, timestamp, key, value, headers) in enumerate(records, 1):
        fields: list[bytes] = []
        if key is not None:
            fields += (b"key", key)
        if value is not None:
            fields += (b"value", value)
        fields += (b"timestamp", b"%d" % timestamp)
        position = len(fields)
        if by_broker:
            fields += (b"$timestamp.type", b"1")
        fields += header_fields(headers, max_headers)
        if transaction:
            fields += (b"$transactional", b"1")
        if producer:
            fields += (b"$producer", producer)
        sizes.append(sum(map(len, fields)))
        data += (len(fields), position, *uncopied(fields, sizes[-1]))
        times.append(timestamp)
        if len(data) > FIELDS_A_STEP or number == len(records):
            count += len(data)
            buffers += pack_arguments(tuple(data))
            data = []
            yield None
    pieces = pieces_of(sizes, tuple(times), config)
    return joined(batch, b"f", b"", transaction, max(sizes), pieces, count, buffers)


def uncopied(fields: list[bytes], size: int) -> Sequence[Argument]:
    """Return the fields of a large record as memoryviews, which are sent without a copy."""
    return fields if size < UNCOPIED_VALUE_BYTES else [memoryview(field) for field in fields]


def header_fields(headers: Headers, max_headers: int) -> Iterator[bytes]:
    """Yield field and value of each header."""
    if len(headers) > max_headers:
        raise InvalidRecord(f"A record has {len(headers)} headers; record.max.headers={max_headers}.")
    for name, value in headers:
        if value is None:
            yield b"$header." + name.encode()
            yield b""
        else:
            yield b"header." + name.encode()
            yield value


def pieces_of(sizes: Sequence[int], times: Times, config: TopicConfig) -> list[Piece]:
    """Divide a batch into index pieces of about the same number of records."""
    count = len(sizes)
    total = sum(sizes)
    wanted = CHUNK_BYTES
    if config.retention_bytes >= 0:
        wanted = min(wanted, max(SMALLEST_PIECE_BYTES, config.retention_bytes // 8))
    if total <= wanted:
        return [Piece(count, total, max(times))]
    step = max(1, count * wanted // total)
    return [
        Piece(len(sizes[at : at + step]), sum(sizes[at : at + step]), max(times[at : at + step]))
        for at in range(0, count, step)
    ]


def joined(
    batch: RecordBatch,
    shape: bytes,
    timestamp: Argument,
    transaction: bytes,
    largest: int,
    pieces: list[Piece],
    data_count: int,
    data: Iterable[Buffer],
    *last: Argument,
) -> Packed:
    """Return the arguments for one batch, in the script's order. `data` is packed already, `last` is not."""
    if data_count + 3 * len(pieces) > MAX_ARGUMENTS:
        raise MessageTooLarge(f"A batch of {batch.record_count} records exceeds what one write can store.")
    arguments: list[Argument] = [
        batch.producer_id if batch.producer_id >= 0 else -1,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.record_count,
        shape,
        timestamp,
        largest,
        len(pieces),
        data_count,
        transaction,
    ]
    size = 0
    for piece in pieces:
        arguments += piece
        size += piece.size
    count = len(arguments) + data_count
    arguments += last
    buffers = [*pack_arguments(tuple(arguments)), *data]
    return Packed(count, buffers, batch.record_count, size, bool(transaction))
