"""Convert stream entries to the record batches that consumers receive.

In the record layout new batches are built, as large as the read; in the batch layout batches are as the producer sent
them, except for the fields that a broker stamps. Entries whose ID has no offset (see `korvet.storage.offsets`) are
skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.protocol.buffers import Buffer
from korvet.protocol.compression import Codec, compress
from korvet.protocol.crc32c import crc32c
from korvet.protocol.record import NULL, VARINTS, Headers, RawRecord
from korvet.protocol.record_batch import (
    CONTROL_BIT,
    CRC_AT,
    CRC_COVERS_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAX_OFFSET_DELTA,
    PREFIX,
    TRANSACTIONAL_BIT,
    build_batch,
    stamped,
)
from korvet.storage.interface import TimestampType
from korvet.storage.offsets import OffsetMapper, TimestampOffsets
from korvet.storage.redis.read.columns import Run, pack_run
from korvet.storage.redis.read.entries import (
    INT64_MAX,
    PLAIN,
    Entry,
    Fields,
    Kind,
    Parsed,
    kind_of,
    last_offset_delta,
    milliseconds_of,
    parse,
    stamped_batch,
    timestamp_of,
    whole_batch,
)

# Batches larger than this are sent as two buffers, so that their records are not copied again.
JOINED_BYTES = 16_384

CODECS = {
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class Epoch(NamedTuple):
    """A leader epoch and its first offset."""

    leader_epoch: int
    start_offset: int


class Rebuilt(NamedTuple):
    """Whole batches that were built from the first entries of a read."""

    buffers: list[Buffer]  # a large batch has two
    size: int  # in bytes
    entries: int  # number of entries used; fewer than given if the limit was reached
    skipped: int  # number of used entries that have no offset


# --- Batch layout -----------------------------------------------------------------------------------------


def rebuild_batches(
    entries: Sequence[Entry], mapper: OffsetMapper, epochs: Sequence[Epoch], limit: int, *, at_least_one: bool
) -> Rebuilt:
    """Return the batches of as many entries as fit into `limit` bytes."""
    buffers: list[Buffer] = []
    size = skipped = used = 0
    for entry_id, fields in entries:
        offset = mapper.offset(entry_id)
        if offset is None:
            skipped += 1
            used += 1
            continue
        batch = buffers_of_entry(entry_id, fields, offset, epochs)
        length = sum(map(len, batch))
        if size + length > limit and (buffers or not at_least_one):
            break
        buffers += batch
        size += length
        used += 1
    return Rebuilt(buffers, size, used, skipped)


def buffers_of_entry(
    entry_id: bytes, fields: Fields, offset: int, epochs: Sequence[Epoch]
) -> tuple[Buffer, ...]:
    """Return the buffers of the batch in one entry of the batch layout."""
    data = whole_batch(fields)
    if data is None:
        return (single_record_batch(entry_id, fields, offset, epoch_at(epochs, offset)),)
    if len(fields) > 2:
        return (stamped_batch(data, fields, offset, epoch_at(epochs, offset)).buffer,)
    base_offset = offset - last_offset_delta(data)
    return stamped(data, base_offset, epoch_at(epochs, base_offset))


def single_record_batch(entry_id: bytes, fields: Fields, offset: int, leader_epoch: int) -> bytearray:
    record = parse(fields, milliseconds_of(entry_id))
    raw: RawRecord = (0, record.timestamp, record.key, record.value, record.headers)
    return build_batch(
        [raw],
        base_offset=offset,
        partition_leader_epoch=leader_epoch,
        timestamp_type=record.kind.timestamp_type,
    )


def epoch_at(epochs: Sequence[Epoch], offset: int) -> int:
    """Return the leader epoch of an offset."""
    for epoch in reversed(epochs):
        if epoch.start_offset <= offset:
            return epoch.leader_epoch
    return epochs[0].leader_epoch


# --- Record layout ----------------------------------------------------------------------------------------


def rebuild_records(
    entries: Sequence[Entry],
    mapper: OffsetMapper,
    epochs: Sequence[Epoch],
    limit: int,
    *,
    codec: Codec = Codec.NONE,
    at_least_one: bool,
) -> Rebuilt:
    """Build batches from as many records as fit into `limit` bytes (before compression)."""
    run = pack_run(entries, mapper, limit - HEADER_BYTES)
    if run is not None and (whole := batch_of(run, epochs, codec)) is not None:
        return whole
    return rebuild_one_by_one(entries, mapper, epochs, limit, codec=codec, at_least_one=at_least_one)


def batch_of(run: Run, epochs: Sequence[Epoch], codec: Codec) -> Rebuilt | None:
    """Return the batch of a run, or None if another leader epoch begins within it."""
    batch = OpenBatch(run.kind, run.first_offset, run.base_timestamp, epochs)
    last_offset = run.first_offset + run.records - 1
    if last_offset > batch.last_possible:
        return None
    buffers: list[Buffer] = []
    batch.parts.append(run.packed)
    batch.finish(last_offset, run.max_timestamp, run.records, codec, buffers)
    return Rebuilt(buffers, sum(map(len, buffers)), run.records, 0)


def rebuild_one_by_one(
    entries: Sequence[Entry],
    mapper: OffsetMapper,
    epochs: Sequence[Epoch],
    limit: int,
    *,
    codec: Codec,
    at_least_one: bool,
) -> Rebuilt:
    """Build batches as `rebuild_records` does, from entries of all kinds.

    A record that does not fit into the open batch (see `OpenBatch`) begins another batch.
    """
    # This loop is the cost of reading entries that are not uniform, about a microsecond each, so it avoids calls.
    varints = VARINTS
    buffers: list[Buffer] = []
    batch = OpenBatch(PLAIN, -1, 0, epochs)
    parts, batch_kind, base_offset, base_timestamp, last_possible = batch.parts, PLAIN, -1, 0, -1
    offset = count = size = skipped = 0
    finished = 0  # records in the batches before this one

    ms_text = b""
    ms = first_of_ms = 0
    last_of_ms = -1  # the highest sequence that has an offset
    producer = b""
    producer_kind = transactional_kind = PLAIN
    time_text: bytes | None = None
    timestamp = latest = 0
    stamp: bytes | None = None  # attributes, timestamp delta; None when it is to be made
    for entry_id, fields in entries:
        text, sequence = entry_id.split(b"-")
        if text != ms_text:
            ms_text, ms = text, int(text)
            first_of_ms, last_of_ms = offsets_of(mapper, ms)
        if (position := int(sequence)) > last_of_ms:
            skipped += 1
            continue

        value: bytes | None
        time: bytes | None
        headers = b"\0"
        usual = len(fields)
        kind = PLAIN
        if fields[-2] == b"$producer":
            usual -= 2
            if fields[-1] != producer:
                producer = fields[-1]
                producer_kind = kind_of(TimestampType.CREATE_TIME, producer)
                transactional_kind = kind_of(TimestampType.CREATE_TIME, producer, is_transactional=True)
            kind = producer_kind
            if usual > 4 and fields[-4] == b"$transactional" and fields[-3] == b"1":
                usual -= 2
                kind = transactional_kind
        if usual == 4 and fields[0] == b"value" and fields[2] == b"timestamp":
            value, time = fields[1], fields[3]
            start = b"\1" + varints[len(value)]
        elif usual == 6 and fields[0] == b"key" and fields[2] == b"value" and fields[4] == b"timestamp":
            key, value, time = fields[1], fields[3], fields[5]
            start = b"%b%b%b" % (varints[len(key)], key, varints[len(value)])
        else:
            timestamp, start, value, headers, kind = encode_rest(parse(fields, ms))
            time = time_text = stamp = None
        if time != time_text:
            time_text, stamp = time, None
            if (said := timestamp_of(time or b"")) is None:
                time_text, said = None, ms
            timestamp = said

        record_offset = first_of_ms + position
        if (
            record_offset > last_possible
            or kind is not batch_kind
            or (stamp is None and not batch.takes(timestamp))
        ):
            batch.finish(offset, latest, count - finished, codec, buffers)
            batch = OpenBatch(kind, record_offset, timestamp, epochs)
            parts, batch_kind, last_possible = batch.parts, kind, batch.last_possible
            base_offset, base_timestamp, latest, finished = record_offset, timestamp, timestamp, count
            stamp = b"\0\0"
            size += HEADER_BYTES
        elif stamp is None:
            stamp = b"\0" + varints[timestamp - base_timestamp]

        delta = varints[record_offset - base_offset]
        n = len(stamp) + len(delta) + len(start) + len(value) + len(headers)
        length = varints[n]
        size += n + len(length)
        if size > limit and (count or not at_least_one):
            break
        parts += (length, stamp, delta, start, value, headers)
        offset = record_offset
        if timestamp > latest:  # noqa: PLR1730  max() is a call
            latest = timestamp
        count += 1
    batch.finish(offset, latest, count - finished, codec, buffers)
    return Rebuilt(buffers, sum(map(len, buffers)), count + skipped, skipped)


class OpenBatch:
    """A batch that is being built from records of one kind and one leader epoch, whose deltas are in range.

    Under LogAppendTime the records also share one timestamp, which the batch's header contains.
    """

    __slots__ = (
        "base_offset",
        "base_timestamp",
        "kind",
        "last_possible",
        "leader_epoch",
        "parts",
    )

    def __init__(self, kind: Kind, base_offset: int, base_timestamp: int, epochs: Sequence[Epoch]) -> None:
        self.kind = kind
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.parts = [b""]  # the first is the header's place
        self.leader_epoch = epoch_at(epochs, base_offset)
        self.last_possible = base_offset + MAX_OFFSET_DELTA
        for epoch in epochs:
            if epoch.start_offset > base_offset:
                self.last_possible = min(self.last_possible, epoch.start_offset - 1)

    def takes(self, timestamp: int) -> bool:
        """Return True if a record with this timestamp fits into the batch."""
        delta = timestamp - self.base_timestamp
        if not -INT64_MAX <= delta <= INT64_MAX:
            return False
        return self.kind.timestamp_type is TimestampType.CREATE_TIME or not delta

    def finish(
        self, last_offset: int, max_timestamp: int, count: int, codec: Codec, buffers: list[Buffer]
    ) -> None:
        """Append the batch to `buffers`, as one or two of them, unless it is empty."""
        if not count:
            return
        parts = self.parts
        kind = self.kind
        if kind.is_control:
            codec = Codec.NONE
        if codec is not Codec.NONE:
            parts = [b"", compress(codec, b"".join(parts))]
        header = HEADER.pack(
            self.base_offset,
            0,
            self.leader_epoch,
            2,
            0,
            codec
            | kind.timestamp_type << 3
            | (TRANSACTIONAL_BIT if kind.is_transactional else 0)
            | (CONTROL_BIT if kind.is_control else 0),
            last_offset - self.base_offset,
            self.base_timestamp,
            max_timestamp,
            kind.producer_id,
            kind.producer_epoch,
            -1,
            count,
        )
        parts[0] = header[CRC_COVERS_FROM:]
        covered = b"".join(parts)
        batch_length = CRC_COVERS_FROM - LOG_OVERHEAD_BYTES + len(covered)
        head = PREFIX.pack(self.base_offset, batch_length, self.leader_epoch)
        head += header[PREFIX.size : CRC_AT] + crc32c(covered).to_bytes(4, "big")
        buffers += (head, covered) if len(covered) > JOINED_BYTES else (head + covered,)


def offsets_of(mapper: OffsetMapper, ms: int) -> tuple[int, int]:
    """Return the offset of the entry `ms-0`, and the highest sequence of that millisecond that has an offset."""
    first = mapper.offset_of_pair(ms, 0)
    if first is None:
        return 0, -1
    return first, mapper.mask if isinstance(mapper, TimestampOffsets) else 0


def encode_rest(record: Parsed) -> tuple[int, bytes, bytes, bytes, Kind]:
    """Return a record's timestamp, the bytes before its value, its value, its encoded headers, and its kind."""
    timestamp, key, value, headers, kind = record
    start = NULL if key is None else VARINTS[len(key)] + key
    start += NULL if value is None else VARINTS[len(value)]
    return timestamp, start, value or b"", encode_headers(headers), kind


def encode_headers(headers: Headers) -> bytes:
    parts = [VARINTS[len(headers)]]
    for name, value in headers:
        encoded = name.encode()
        parts += (VARINTS[len(encoded)], encoded)
        parts += (NULL,) if value is None else (VARINTS[len(value)], value)
    return b"".join(parts)
